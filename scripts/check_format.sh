#!/usr/bin/env bash
# Layout is what .clang-format says. Version 14 decides, because versions differ.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run --Werror
echo "check_format: clean"
