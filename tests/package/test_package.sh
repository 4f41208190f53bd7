#!/usr/bin/env bash
# usage: test_package.sh BUILD_DIR VERSION
set -euo pipefail
build=$1 version=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail()
{
    echo "test_package: $1" >&2
    exit 1
}

cmake --install "$build" --prefix "$work/prefix" >/dev/null
libdir=$(dirname "$(find "$work/prefix" -name weft.pc)")
export PKG_CONFIG_PATH=$libdir
cc -o "$work/by_pkgconfig" "$here/outside/outside.c" $(pkg-config --cflags --libs weft)
[ "$(LD_LIBRARY_PATH=$libdir/.. "$work/by_pkgconfig")" = "$version" ] || fail "the pkg-config program prints another version"
[ "$(pkg-config --modversion weft)" = "$version" ] || fail "weft.pc names another version"

cmake -S "$here/outside" -B "$work/out" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/out" >/dev/null
for program in outside_shared outside_static; do
    [ "$("$work/out/$program")" = "$version" ] || fail "$program prints another version"
done
[ "$("$work/prefix/bin/weft" --version)" = "weft $version" ] || fail "the installed command prints another version"
