#!/usr/bin/env bash
# clang-tidy over the library and the command, with the checks named in .clang-tidy; a finding is an error.
# usage: scripts/check_lint.sh BUILD_DIR (configured, for its compile_commands.json)
set -euo pipefail
cd "$(dirname "$0")/.."
skip='/kernels/|/mpi/|_avx2\.c'
grep -q 'run/cuda/driver.c' "$1/compile_commands.json" || skip="$skip|src/run/cuda/|/bench/cuda/(products|baseline|data|processes|verdict|cublas_peer)\.c" # built without nvcc
git ls-files 'src/*.c' 'tools/*.c' | grep -vE "$skip" |
    xargs -P "$(nproc)" -n 4 clang-tidy -p "$1" --quiet --warnings-as-errors='*' 2>/dev/null
echo "check_lint: clean"
