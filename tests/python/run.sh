#!/usr/bin/env bash
# usage: run.sh BUILD_DIR FILE [TEST…]: one test file of the Python package, with the library of that build.
set -euo pipefail
build=$1 file=$2
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
python=python3
for environment in "$build/python" "$source/build/python"; do
    if [ -x "$environment/bin/python" ]; then
        python=$environment/bin/python
        break
    fi
done
if ! command -v "$python" >/dev/null; then
    echo "skipped: there is no python3"
    exit 77
fi
export PYTHONPATH=$source/python:$here PYTHONDONTWRITEBYTECODE=1 WEFT_LIBRARY=$build/libweft.so WEFT_SOURCE=$source
exec "$python" -X faulthandler "$file" "${@:3}"
