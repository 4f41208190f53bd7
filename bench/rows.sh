#!/usr/bin/env bash
# Two builds of the command beside each other on twenty rows that were named beforehand (products, fused,
# collectives, mixture of experts; few rows and many): does the newer library cost anything?
# usage: bench/rows.sh OLD NEW [ROUNDS [ROW...]]   two commands `weft`; a table of new / old, and its median
#
# Both take turns, one row at a time, in every round, the first of them changing. Each gives the median of a
# row's runs; the table has the medians of those over the rounds, and their ratio.
set -euo pipefail
old=$1 new=$2 rounds=${3:-5}
shift $(($# < 3 ? $# : 3))
rows=(
    "barrier -n 2 --iterations 200"
    "all_reduce -n 2 --bytes 64 --iterations 200"
    "all_reduce -n 2 --bytes 4K --iterations 200"
    "all_reduce -n 2 --bytes 16K --iterations 200"
    "all_reduce -n 2 --bytes 256K --iterations 200"
    "all_reduce -n 2 --bytes 4M --iterations 40"
    "all_gather -n 2 --bytes 64K --iterations 400"
    "gemm 512 512 512 --dtype f32 --iterations 15"
    "gemm 512 512 512 --dtype bf16 --iterations 15"
    "gemm 512 512 512 --dtype i8 --iterations 15"
    "gemm 1 2048 2048 --dtype f32 --iterations 20"
    "gemm 8 2048 2048 --dtype bf16 --iterations 20"
    "ag_gemm -n 2 512 2048 1024 --iterations 9"
    "gemm_rs -n 2 512 2048 1024 --iterations 9"
    "gemm_ar -n 2 512 2048 1024 --iterations 9"
    "gemm_as -n 2 512 2048 1024 --iterations 9"
    "gemm_ar -n 2 1 2048 2048 --pack before --iterations 40"
    "ag_gemm -n 2 8 2048 2048 --pack before --iterations 40"
    "moe -n 2 --experts 8 --topk 2 --hidden 2048 --tokens 16 --mode exact --iterations 100"
    "moe -n 2 --experts 64 --topk 8 --hidden 7168 --tokens 256 --mode exact --iterations 15"
)
us() { # COMMAND ROW: the time of the operation itself, in microseconds
    local flags=$2
    [[ $flags == barrier* ]] || flags+=" --seed 7"
    # shellcheck disable=SC2086
    "$1" bench $flags --peer none --json 2>/dev/null | python3 -c '
import json, sys
rows = [json.loads(line) for line in sys.stdin]
assert rows and all(row["ok"] for row in rows), rows
print(min(next(row[key] for key in ("fused_us", "total_us", "us") if key in row) for row in rows))'
}
declare -A times
for ((round = 0; round < rounds; round++)); do
    for i in "${!rows[@]}"; do
        [[ $# -eq 0 || " $* " == *" $((i + 1)) "* ]] || continue
        order=(old new)
        [ $((round % 2)) -eq 0 ] || order=(new old)
        for which in "${order[@]}"; do
            times[$which,$i]+="$(us "${!which}" "${rows[$i]}") "
        done
    done
done
for i in "${!rows[@]}"; do
    [ -z "${times[old,$i]:-}" ] || echo "$((i + 1))|${rows[$i]}|${times[old,$i]}|${times[new,$i]}"
done | python3 -c '
import statistics, sys
ratios = []
print("%2s  %-86s %9s %9s  %s" % ("", "row", "old us", "new us", "new / old"))
for line in sys.stdin:
    number, row, old, new = line.strip().split("|")
    old, new = (statistics.median(map(float, text.split())) for text in (old, new))
    ratios.append(new / old)
    print("%2s  %-86s %9.3f %9.3f  %.3f" % (number, row, old, new, new / old))
print("median %.3f, worst %.3f" % (statistics.median(ratios), max(ratios)))'
