#!/usr/bin/env bash
# The commands in README and docs run as written, with fewer repetitions; the lines for a build of one's own too.
# usage: test_docs.sh SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/../support/command.sh"
source=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
export XDG_CONFIG_HOME=$scratch/config XDG_CACHE_HOME=$scratch/cache

# The command lines of a page, without comments.
lines()
{
    sed -n 's/^    \(build\/weft .*\)/\1/p' "$1" | sed 's/  *#.*//; s/  *$//'
}

cd "$scratch" || exit 1
ln -s "$build" build
tried=0
for page in README.md docs/guide.md docs/coming-from.md; do
    while read -r line; do
        case $line in
        *calibrate* | *"weft report"* | *"--set contest"*) [ "${WEFT_SOAK:-}" = 1 ] || continue ;; # half a minute and more
        *examples/gpu_*) continue ;;                             # needs a GPU
        *"--set llama3"*) line="$line --scale 256 --iters 1 --warmup 0" ;;
        *"weft bench"*) line="$line --iters 2 --warmup 0" ;;
        esac
        ends "$page: $line" 0 timeout 250 sh -c "$line" >/dev/null
        tried=$((tried + 1))
    done < <(lines "$source/$page")
done
[ $tried -gt 20 ] || fail "only $tried commands were found"

# README's lines for a program of one's own, with a private prefix.
if [ -e "$build/libweft.so" ] && command -v pkg-config >/dev/null; then
    export HOME=$scratch/home
    mkdir -p "$HOME"
    cmake --install "$build" --prefix "$HOME/.local" >/dev/null || fail "cannot install"
    cp "$source/examples/all_gather_gemm.c" app.c
    sed -n '/^## Use it in a build/,/^## /s/^    \(export\|cc\) \(.*\)/\1 \2/p' "$source/README.md" | sed 's/  *#.*//' >steps
    [ "$(wc -l <steps)" = 2 ] || fail "README's lines for a build: $(cat steps)"
    sh -e ./steps || fail "README's lines do not build a program"
    ends "the program" 0 build/weft run -n 2 -- ./a.out >/dev/null
fi

[ $failures = 0 ]
