#!/usr/bin/env bash
# Measures what docs/performance.md claims, beside the peers that are installed. Takes about fifteen minutes; run it on
# a quiet machine.
# usage: scripts/bench.sh BUILD/weft [extra flags for every bench]
set -uo pipefail
weft=$1
shift
failed=0

measure()
{
    echo
    echo "\$ weft $*"
    "$weft" "$@" || failed=1
}

measure info
measure calibrate
measure bench barrier -n 2 "$@"
for ranks in 2 4 8; do
    measure bench all_reduce -n $ranks "$@"
done
for dtype in float32 bfloat16 int8; do
    measure bench gemm --dtype $dtype "$@"
done
for op in ag_gemm gemm_rs gemm_ar gemm_as; do
    for dtype in float32 bfloat16; do
        measure bench $op --set llama3 --dtype $dtype "$@"
        measure bench $op --set overlap --dtype $dtype "$@"
    done
done
for dtype in float32 bfloat16; do
    measure bench gemm_ar --set decode --dtype $dtype "$@"
done
for ranks in 2 4 8; do
    measure bench moe --set contest --impl all -n $ranks "$@"
done
exit $failed
