#!/usr/bin/env bash
# clang-tidy over the library and the command, with the checks named in .clang-tidy; a finding is an error.
# usage: scripts/check_lint.sh BUILD_DIR (configured, for its compile_commands.json)
set -euo pipefail
cd "$(dirname "$0")/.."
skip='/kernels/|/mpi/|_avx2\.c'
# Only what this build compiles: without nvcc the CUDA backend is not there.
git ls-files 'src/*.c' 'tools/*.c' | grep -vE "$skip" |
    while read -r file; do ! grep -qF "/$file\"" "$1/compile_commands.json" || echo "$file"; done |
    xargs -P "$(nproc)" -n 4 clang-tidy -p "$1" --quiet --warnings-as-errors='*' 2>/dev/null
echo "check_lint: clean"
