#!/usr/bin/env bash
# What README and docs name is there, and their commands run as written, with fewer repetitions; the lines for a build of one's
# own too.
# usage: test_docs.sh SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/../support/command.sh"
source=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
export XDG_CONFIG_HOME=$scratch/config XDG_CACHE_HOME=$scratch/cache

cd "$scratch" || exit 1

# Files and folders that pages name are there: as written, or as the end of a path. coming-from.md names those of others.
(cd "$source" && find . -name 'build*' -prune -o -name .git -prune -o -print) >present
named=0
for page in README.md CONTRIBUTING.md $(cd "$source" && echo docs/*.md docs/performance/*.md); do
    [ "$page" != docs/coming-from.md ] || continue
    while read -r name; do
        grep -q "/${name//./\\.}\$" present || fail "$page: there is no $name"
        named=$((named + 1))
    done < <(grep -oE '`[A-Za-z0-9_./-]+(\.(c|h|cu|cuh|py|sh|md|json)|/[a-z]+/)`|\]\([A-Za-z0-9_./-]+[)#]' "$source/$page" |
        sed 's/^](//; s/[`)#]//g; s/^\.\.*\///; s/\/$//')
done
[ $named -gt 150 ] || fail "only $named names of files were found"

# The command lines of a page, without comments.
lines()
{
    sed -n 's/^    \(\(build\/\)*weft .*\)/\1/p' "$1" | sed 's/  *#.*//; s/  *$//'
}

PATH=$build:$PATH
ln -s "$build" build
tried=0
declare -A seen
for page in README.md docs/guide.md docs/coming-from.md docs/simulator.md; do
    while read -r line; do
        [ -z "${seen[$line]:-}" ] || continue # pages share some
        seen[$line]=1
        case $line in
        *"calibrate && "*) line=${line#*&& } ;;  # README's line has done that
        *"calibrate --output"*) [ "${WEFT_SOAK:-}" = 1 ] || continue ;;  # likewise
        *calibrate*) [ "${WEFT_SOAK:-}" = 1 ] || line="$line --seconds 1" ;;
        *"weft report"*) [ "${WEFT_SOAK:-}" = 1 ] || line="$line -n 1 --iterations 1" ;;
        *"weft sim"*) [ "${WEFT_SOAK:-}" = 1 ] || line=$(sed 's/-n 1024/-n 64/; s/:1024/:64/' <<<"$line") ;;
        *"--set contest"*) [ "${WEFT_SOAK:-}" = 1 ] || line="$line --scale 64 --iters 1 --warmup 0" ;;
        *examples/gpu_*) continue ;;                             # needs a GPU
        *"--set llama3"*) line="$line --scale 256 --iters 1 --warmup 0" ;;
        *"weft bench"*) line="$line --iters 2 --warmup 0" ;;
        esac
        ends "$page: $line" 0 timeout 250 sh -c "$line" >/dev/null
        tried=$((tried + 1))
    done < <(lines "$source/$page")
done
[ $tried -gt 20 ] || fail "only $tried commands were found"

# docs/plans.md: what `weft plan` prints is what stands below it, but for what dots leave out; then the lines for a plan of one's own.
ln -s "$source/examples" examples
shown=$(sed -n '/^## Reading one/,/^## /s/^    //p' "$source/docs/plans.md")
sh -c "$(head -1 <<<"$shown" | sed 's/^\$ //')" >printed
while IFS= read -r line; do
    case $line in
    ...) ;;
    *...) grep -qF -- "${line%...}" printed ;;
    *) grep -qxF -- "$line" printed ;;
    esac || fail "docs/plans.md: not printed: $line"
done < <(tail -n +2 <<<"$shown")
[ "$(wc -l <<<"$shown")" -ge 9 ] || fail "docs/plans.md: only these lines were found: $shown"
sed -n '/^## Writing one/,/^## /s/^    \$ //p' "$source/docs/plans.md" >steps
[ "$(wc -l <steps)" = 5 ] || fail "docs/plans.md: lines for a plan of one's own: $(cat steps)"
ends "docs/plans.md: a plan of one's own" 0 timeout 250 sh -e ./steps >/dev/null

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

    # The programs that README shows in part: the first runs, the one for GPUs compiles.
    sed -n '/^## A program/,/^    weft_finalize/s/^    //p' "$source/README.md" >shown
    {
        printf '#include <stdio.h>\n%s\nint main(void)\n{\nsize_t count = 1000;\n' "$(head -1 shown)"
        sed '1d; s/^\.\.\.$/for (size_t i = 0; i < count; i++) x[i] = 1;/
            s/^weft_finalize/if (x[count - 1] != (float)weft_size(group)) return 1;\n&/' shown
        printf 'return 0;\n}\n'
    } >app.c
    grep -q 'x\[i\] = 1' app.c && grep -q 'return 1' app.c || fail "README's program: $(cat shown)"
    sh -e ./steps || fail "README's program does not compile"
    ends "README's program" 0 build/weft run -n 3 -- ./a.out >/dev/null
    {
        printf '#include <weft/weft.h>\nvoid on_gpu(weft_group *group, size_t bytes, void *a, weft_problem problem,\n'
        printf 'weft_plan *plan, weft_operands operands, void *stream)\n{\n'
        sed -n '/^    weft_group_use_gpu/,/^    weft_run_wait/s/^    //p' "$source/README.md"
        printf '}\n'
    } >gpu.c
    [ "$(wc -l <gpu.c)" -ge 10 ] || fail "README's lines for GPUs: $(cat gpu.c)"
    cc -Wall -Werror -c gpu.c -I"$HOME/.local/include" || fail "README's lines for GPUs do not compile"
fi

[ $failures = 0 ]
