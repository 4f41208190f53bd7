#!/usr/bin/env bash
# Every installed header compiles alone, as C11 and as C++17, without a warning.
set -euo pipefail
cd "$(dirname "$0")/.."
for header in include/weft/*.h; do
    ${CC:-cc} -std=c11 -pedantic -Wall -Wextra -Werror -fsyntax-only -Iinclude -x c "$header"
    ${CXX:-c++} -std=c++17 -pedantic -Wall -Wextra -Werror -fsyntax-only -Iinclude -x c++ "$header"
done
echo "check_headers: C11 and C++17"
