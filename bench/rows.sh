#!/usr/bin/env bash
# Two builds of the command beside each other on twenty rows that were named beforehand (products, fused,
# collectives, mixture of experts; few rows and many): does the newer library cost anything?
# usage: bench/rows.sh OLD NEW [ROUNDS [ROW...]]   two commands `weft`; a table of new / old, and its median
#
# Both take turns, one row at a time, in every round, the first of them changing; a row's ratio is that of the
# best times over the rounds: what others do on the machine only ever adds.
set -euo pipefail
old=$1 new=$2 rounds=${3:-5}
shift $(($# < 3 ? $# : 3))
rows=(
    "gemm 384 384 384"
    "gemm 16 1024 512"
    "gemm 256 384 384 --dtype bf16"
    "gemm 256 384 384 --dtype i8"
    "ag_gemm 512 512 512"
    "ag_gemm 16 1024 1024"
    "ag_gemm 256 1024 512 --dtype bf16"
    "gemm_rs 512 512 512"
    "gemm_rs 16 1024 1024"
    "gemm_ar 512 512 512"
    "gemm_ar 256 256 256 --BLOCK_SIZE_M 16 --BLOCK_SIZE_N 16"
    "gemm_as 512 512 512"
    "all_reduce --bytes 64"
    "all_reduce --bytes 4K"
    "all_reduce --bytes 1M"
    "all_gather --bytes 64K"
    "reduce_scatter --bytes 1M"
    "barrier"
    "moe --experts 8 --topk 2 --hidden 2048 --tokens 16"
    "moe --experts 64 --topk 6 --hidden 2048 --tokens 128"
)
us() { # COMMAND ROW: the time of the operation itself, in microseconds
    local flags=$2
    "$1" bench $flags --peer none --seed 1 --iters 30 --warmup 5 --json | python3 -c '
import json, sys
rows = [json.loads(line) for line in sys.stdin]
assert rows and all(row["ok"] for row in rows), rows
print(min(next(row[key] for key in ("fused_us", "total_us", "us") if key in row) for row in rows))'
}
declare -A best
for ((round = 0; round < rounds; round++)); do
    for i in "${!rows[@]}"; do
        [[ $# -eq 0 || " $* " == *" $((i + 1)) "* ]] || continue
        order=(old new)
        [ $((round % 2)) -eq 0 ] || order=(new old)
        for which in "${order[@]}"; do
            best[$which,$i]+="$(us "${!which}" "${rows[$i]}") "
        done
    done
done
for i in "${!rows[@]}"; do
    [ -z "${best[old,$i]:-}" ] || echo "$((i + 1))|${rows[$i]}|${best[old,$i]}|${best[new,$i]}"
done | python3 -c '
import statistics, sys
ratios = []
print("%2s  %-58s %10s %10s  %s" % ("", "row", "old us", "new us", "new / old"))
for line in sys.stdin:
    number, row, old, new = line.strip().split("|")
    old, new = (min(map(float, text.split())) for text in (old, new))
    ratios.append(new / old)
    print("%2s  %-58s %10.2f %10.2f  %.3f" % (number, row, old, new, new / old))
print("median %.3f, worst %.3f" % (statistics.median(ratios), max(ratios)))'
