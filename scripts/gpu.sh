#!/usr/bin/env bash
# Builds, tests and measures the CUDA backend on a machine with an NVIDIA GPU, in one go.
# usage: scripts/gpu.sh [--sanitize] [--quick]
#   --sanitize  also runs the device tests under compute-sanitizer (memcheck and racecheck, small sizes)
#   --quick     fewer shapes
set -euo pipefail
cd "$(dirname "$0")/.."
sanitize=0 quick=0
for argument in "$@"; do
    case $argument in
    --sanitize) sanitize=1 ;;
    --quick) quick=1 ;;
    *) echo "usage: scripts/gpu.sh [--sanitize] [--quick]" >&2; exit 2 ;;
    esac
done
build=build-gpu
cmake -S . -B $build -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA=ON >$build.log 2>&1 || { cat $build.log; exit 1; }
cmake --build $build -j"$(nproc)" --target weft_command test_cuda_fake test_cuda_device >>$build.log 2>&1 ||
    { tail -40 $build.log; exit 1; }
weft=$build/weft
$weft info | sed -n '1,3p'

echo "== tests"
for test in test_cuda_fake test_cuda_device; do
    $build/tests/cuda/$test && echo "$test: passed"
done
if [ $sanitize = 1 ]; then
    compute-sanitizer --tool memcheck --error-exitcode 1 $build/tests/cuda/test_cuda_device small
    compute-sanitizer --tool racecheck --error-exitcode 1 $build/tests/cuda/test_cuda_device small
fi

echo "== GEMM alone beside cuBLAS (fused = weft, GEMM only = cuBLAS)"
shapes="4096,1792,4096 4096,3584,8192 4096,4096,4096"
[ $quick = 1 ] || shapes="4096,1792,4096 8192,1792,4096 16384,1792,4096 4096,3584,8192 8192,3584,8192 16384,3584,8192
    4096,6656,16384 8192,6656,16384 16384,6656,16384 4096,4096,4096 8192,8192,8192"
for shape in $shapes; do
    $weft bench ag_gemm --schedule direct ${shape//,/ } -n 1 --dtype bf16 --backend cuda
done

echo "== one rank of eight in the loop over an emulated link"
if [ $quick = 1 ]; then
    $weft bench ag_gemm 4096 14336 4096 -n 8 --dtype bf16 --backend cuda --link 450GB/s,2us
else
    $weft bench ag_gemm --set llama3 --scale 1 -n 8 --dtype bf16 --backend cuda --link 450GB/s,2us
fi

echo "== virtual ranks on one GPU"
for op in ag_gemm gemm_rs gemm_ar gemm_as; do
    $weft bench $op 4096 4096 4096 -n 4 --dtype bf16 --backend cuda
done
