#!/usr/bin/env bash
# scripts/gpu.sh on a machine that has everything but GPUs: stand-ins for nvidia-smi, cmake, the tests and weft. It must run every device
# test, measure all that it promises, take the time that it is given, and leave one file.
# usage: test_gpu_script.sh SOURCE_DIR
set -euo pipefail
source=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/bin" "$dir/build/tests/cuda" "$dir/build/examples"

stand_in() { { echo '#!/bin/sh'; cat; } >"$1"; chmod +x "$1"; }
stand_in "$dir/bin/nvidia-smi" <<'SH'
case $1 in -L) echo 'GPU 0: none'; echo 'GPU 1: none' ;; --query-gpu=name) echo none; echo none ;; esac
SH
stand_in "$dir/bin/cmake" </dev/null
stand_in "$dir/build/examples/gpu_all_gather_gemm" </dev/null
for test in "$source"/tests/cuda/test_*_device.c "$source/tests/cuda/test_device.c"; do
    name=$(basename "$test" .c)
    echo "echo \$0 >>$dir/tests" | stand_in "$dir/build/tests/cuda/test_cuda_${name#test_}"
done
stand_in "$dir/build/weft" <<SH
echo "\$*" >>$dir/calls
[ "\$1" = bench ] || exit 0
case \$2 in
moe) echo '{"op": "moe", "mode": "fused", "ranks": 8, "experts": 8, "topk": 2, "hidden": 64, "tokens": 8, "ok": true}' ;;
all_*) echo '{"op": "'\$2'", "ranks": 2, "bytes": 64, "us": 1, "busbw_gbs": 1, "ok": true}' ;;
*) echo '{"op": "'\$2'", "schedule": "direct", "ranks": 2, "m": 1, "n": 1, "k": 1, "gemm_us": 1, "own_unfused_us": 2, "fused_us": 1,
"fused_over_gemm": 1, "ok": true}' | tr -d '\n'; echo ;;
esac
SH

fail() { echo "test_gpu_script: $1" >&2; cat "$dir/out" >&2; exit 1; }
# a build folder has no interpreter of its own, and that of the machine may have torch: python's tests are left to it
PATH="$dir/bin:$PATH" bash "$source/scripts/gpu.sh" --build "$dir/build" >"$dir/out" 2>&1 || fail "it failed"
for test in "$dir"/build/tests/cuda/*; do
    grep -qx "$test" "$dir/tests" || fail "$(basename "$test") did not run"
done
for rate in 300 370 450; do
    for op in ag_gemm gemm_rs gemm_ar gemm_as; do
        grep -q "^bench $op .*--link ${rate}GB/s" "$dir/calls" || fail "no $op over $rate GB/s"
    done
done
grep -q '^bench moe --impl all .*-n 4' "$dir/calls" || fail "no ladder"
grep -q '^bench all_reduce .*--processes' "$dir/calls" || fail "no all_reduce of processes"
grep -q '40 problems, geometric mean' "$dir/out" || fail "auto was not judged"
grep -q '^GPU, Python' "$dir/out" || fail "Python was forgotten"
tar tzf "$dir/build/weft-gpu-report.tar.gz" report/table.txt >/dev/null || fail "the report has no table"
! grep -q FAILED "$dir/out" || fail "something failed"

rm "$dir/build/weft-gpu-report.tar.gz" "$dir/tests"
PATH="$dir/bin:$PATH" bash "$source/scripts/gpu.sh" --minutes 0 --build "$dir/build" >"$dir/out" 2>&1 || fail "it failed without time"
[ ! -e "$dir/tests" ] || fail "it ran tests in no time"
grep -q 'left out: its part of the 0 minutes is over' "$dir/out" || fail "it does not say what it left out"
[ -s "$dir/build/weft-gpu-report.tar.gz" ] || fail "no report without time"
