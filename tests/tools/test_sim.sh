#!/usr/bin/env bash
# The planner's view of `weft sim`: what libraries take beside weft, sweeps, launches from graphs, and what every prediction
# says about its own error.
# usage: test_sim.sh path/to/weft
. "$(dirname "$0")/../support/command.sh"
weft=$1

# value FILE ROW KEY: a number of a row of JSON
value()
{
    sed -n "$2p" "$scratch/$1" | grep -oE "\"$3\": [-0-9.e+]+" | sed 's/.*: //'
}

# less A B: or the test fails
less()
{
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a < b) }' || fail "$3: $1 is not less than $2"
}

run()
{
    ends "$2" 0 "$weft" $2 --json >"$scratch/$1"
}

run eager "sim all_reduce --bytes 64K:64K -n 8 --machine h100x8 --dtype bf16"
run graph "sim all_reduce --bytes 64K:64K -n 8 --machine h100x8 --dtype bf16 --launch graph"
less "$(value graph 1 us)" "$(value eager 1 us)" "a graph's launch"
less "$(value graph 1 peer_us)" "$(value eager 1 peer_us)" "a graph's launch of a library's kernel"
less "$(value eager 1 us)" "$(value eager 1 peer_us)" "a small all_reduce, weft's and a library's"

run ranks "sim ag_gemm 4096 8192 4096 --dtype bf16 --machine h100x16 --sweep ranks=2:16"
[ "$(wc -l <"$scratch/ranks")" = 4 ] || fail "a sweep from 2 to 16 has not four rows"
[ "$(value ranks 4 ranks)" = 16 ] || fail "the last row is not of 16 ranks"
for row in 1 2 3 4; do
    parts=$(for part in compute link memory latency; do value ranks $row ${part}_us; done | awk '{ s += $1 } END { print s }')
    awk -v a="$parts" -v b="$(value ranks $row us)" 'BEGIN { exit !(a > 0.999 * b && a < 1.001 * b) }' ||
        fail "the parts of the path, $parts, are not the time $(value ranks $row us)"
    case $row in 4) rows=0 ;; *) rows=60 ;; esac # over nodes nobody has measured weft's products
    [ "$(value ranks $row error_rows)" = $rows ] || fail "a row does not say its error"
done
run experts "sim moe --experts 64 --topk 4 --hidden 2048 -n 8 --machine h100x8"
[ "$(value experts 1 error_rows)" = 21 ] || fail "a round of experts does not say its error"
run uncalibrated "sim gemm_rs 512 512 512 -n 2 --machine grace72"
[ "$(value uncalibrated 1 error_rows)" = 0 ] || fail "a CPU that nobody has calibrated claims rows"
run bytes "sim all_gather -n 8 --machine mi300x8 --sweep bytes=1M:4M --svg $scratch/sweep.svg --html $scratch/sweep.html"
less "$(value bytes 3 faster_link_us)" "$(value bytes 3 us)" "links of twice the rate"
grep -q 'where the time goes, by bytes' "$scratch/sweep.svg" || fail "the sweep has no chart"
[ "$(grep -c '<rect' "$scratch/sweep.svg")" -ge 12 ] || fail "the chart has no columns"
grep -q 'where the time goes' "$scratch/sweep.html" || fail "the page has no chart"

ends "a table" 0 "$weft" sim all_gather -n 8 --machine b200x8 --bytes 1M:1M >"$scratch/out"
says out "error so far (libraries): collectives of libraries"
says out "none of these rows is of b200x8"

# Libraries send what weft sends where that is asked for, else results' type, which is then said.
run open "sim gemm_rs 16384 16384 8192 --dtype bf16 -n 16 --machine h100x16"
run narrow "sim gemm_rs 16384 16384 8192 --dtype bf16 -n 16 --machine h100x16 --wire bf16"
run wide "sim gemm_rs 16384 16384 8192 --dtype bf16 -n 16 --machine h100x16 --wire f32"
[ "$(value open 1 unfused_us)" = "$(value narrow 1 unfused_us)" ] || fail "libraries do not send results as they are"
less "$(awk -v a="$(value narrow 1 unfused_us)" 'BEGIN { print 1.5 * a }')" "$(value wide 1 unfused_us)" "float32 sums of libraries"
ends "another wire" 0 "$weft" sim gemm_rs 4096 4096 4096 --dtype bf16 -n 8 --machine h100x8 >"$scratch/out"
says out "sums travel as float32, the libraries' as bfloat16"
ends "the same wire" 0 "$weft" sim gemm_rs 4096 4096 4096 --dtype bf16 -n 8 --machine h100x8 --wire bf16 >"$scratch/out"
grep -q 'sums travel' "$scratch/out" && fail "the same wire is said to differ"

run moe "sim moe --experts 64 --topk 4 --hidden 2048 --tokens 64 --inter 1024 -n 16 --machine h100x16"
[ "$(wc -l <"$scratch/moe")" = 2 ] || fail "moe has not two ways to combine"
less "$(value moe 2 combine_us)" "$(value moe 1 combine_us)" "reduced combine"
less "$(value moe 1 experts_us)" "$(value moe 1 total_us)" "the experts' part"
run skewed "sim moe --experts 64 --topk 4 --hidden 2048 --tokens 64 --inter 1024 -n 16 --machine h100x16 --skew 0.5 --mode exact"
less "$(value moe 1 total_us)" "$(value skewed 1 total_us)" "a skewed round"

for bad in "moe --topk 300" "moe --sweep ranks=2:4" "moe --set contest" "moe -n 9 --machine h100x8" "ag_gemm --topk 2 8 8 8" "ag_gemm 64 64 64 --sweep bytes=1:2" "all_gather --sweep m=1:2" "ag_gemm 64 64 64 --sweep ranks=4:2" \
    "ag_gemm 64 64 64 --sweep ranks" "ag_gemm 64 64 64 --sweep ranks=8:16 --machine h100x8" \
    "ag_gemm --set llama3 --sweep ranks=2:4 --machine h100x8" "ag_gemm 64 64 64 -n 4 --sweep ranks=2:4 --machine h100x8" \
    "all_reduce --bytes 4K --sweep bytes=1K:2K --machine h100x8" "all_reduce --bytes 4K:8K --sweep ranks=2:4 --machine h100x8" "ag_gemm 64 64 64 --launch never" "all_reduce -n 9 --machine h100x8"; do
    ends "$bad" 2 "$weft" sim $bad >"$scratch/out"
    [ -s "$scratch/out" ] && fail "$bad: said something before it was refused"
    [ "$(wc -l <"$scratch/err")" = 1 ] || fail "$bad: not one line: $(cat "$scratch/err")"
done

# Where the switch adds, weft's own kernels do not ask it to: a prediction by multimem says so, and what weft takes instead.
ends "multimem" 0 "$weft" sim all_reduce --bytes 1M --dtype bf16 -n 8 --machine h100x8 >"$scratch/out"
says out "weft's GPU backend takes it by its name only; else two_shot_packets is fastest"
ends "multimem as json" 0 "$weft" sim all_reduce --bytes 1M --dtype bf16 -n 8 --machine h100x8 --json >"$scratch/out"
says out '"auto_takes_it": false'
[ $failures = 0 ]
