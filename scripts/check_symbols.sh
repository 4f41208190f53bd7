#!/usr/bin/env bash
# What libweft.so exports must be exactly what weft.h declares; kernels for emulated links are the bench's.
# usage: scripts/check_symbols.sh BUILD_DIR
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
declared=$(tr '\n' ' ' <"$top/include/weft/weft.h" | grep -oE 'WEFT_API [^;(]*\(' | grep -oE 'weft_[a-z0-9_]+ *\($' | tr -d ' (' | sort -u)
exported=$(nm -D --defined-only "$1/libweft.so" | awk '$2 ~ /[TDBRVW]/ {print $3}' | sed 's/@.*//' | sort -u)
if ! difference=$(diff <(echo "$declared") <(echo "$exported")); then
    echo "check_symbols: '<' is declared in weft.h but not exported, '>' is exported but not declared:" >&2
    echo "$difference" >&2
    exit 1
fi
emulated=$(strings -a "$1/libweft.so" | grep -E '^weft_(link|collective_link|sums_link|exchange_link|experts_link|cuda_kernels_.*link)' || true)
if [ -n "$emulated" ]; then
    echo "check_symbols: libweft.so has kernels that emulate links:" $emulated >&2
    exit 1
fi
echo "check_symbols: $(echo "$exported" | wc -l) functions, header and library agree"
