#!/usr/bin/env bash
# Builds weft for the other architecture (x86-64 on Arm, Arm on x86-64) and runs the tests that user-mode
# emulation can run: kernels up to what the emulator supports, and everything that needs no second process.
set -euo pipefail
cd "$(dirname "$0")/.."
case $(uname -m) in
aarch64) target=x86_64 ;;
x86_64) target=aarch64 ;;
*)
    echo "cross_test: no cross target for $(uname -m)" >&2
    exit 1
    ;;
esac
cmake -S . -B build-cross -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$target \
    -DCMAKE_C_COMPILER=$target-linux-gnu-gcc -DWEFT_WERROR=ON -DWEFT_CUDA=OFF \
    -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-$target;-L;/usr/$target-linux-gnu;-cpu;max" >/dev/null
cmake --build build-cross -j"$(nproc)" -- --no-print-directory -s
# The emulator keeps a record of every page of address space, and the default reserves a lot of it.
export WEFT_HEAP=256M
WEFT_SOAK=0 ctest --test-dir build-cross --output-on-failure -j"$(nproc)" -R '^test_(core|gemm|plan|moe_sum|moe_routing|moe_errors)' -LE 'no_emulation'
