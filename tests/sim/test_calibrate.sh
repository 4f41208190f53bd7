#!/bin/sh
# What weft calibrate writes is a description weft sim can use, with a source for every number.
set -e
weft=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export XDG_CONFIG_HOME="$folder"
unset WEFT_MACHINE

"$weft" calibrate --seconds 8 | grep -q "wrote $folder/weft/machine"
file="$folder/weft/machine"
if grep -v '^#' "$file" | grep -Ev '^(about|name|kind|cpu) ' | grep -v '#'; then
    echo "these numbers have no source" >&2
    exit 1
fi
# How far rounds were apart is said of every rate of products, and each type has its kernel's steps.
if test "$(grep -c '^gflops .* +- [0-9]* %$' "$file")" != "$(grep -c '^type_step_m ' "$file")"; then
    grep -e '^gflops ' -e '^type_step_m ' "$file" >&2
    exit 1
fi
grep -q '^type_step_m bfloat16 [1-9]' "$file"
"$weft" sim ag_gemm 512 512 512 --dtype bf16 --json | grep -q '"machine": "this"'
"$weft" sim all_reduce --bytes 64K --json | grep -q '"ok": true'
# Another CPU's calibration is not used, and that is said.
sed 's/^cpu .*/cpu Some Other CPU/' "$file" >"$file.other"
mv "$file.other" "$file"
"$weft" sim all_reduce --bytes 64K --json | grep -q '"machine": "cpu"'
"$weft" sim all_reduce --bytes 64K | grep -q 'the calibration is of Some Other CPU'
"$weft" info | grep -q 'Some Other CPU'
# A place nobody may write to is an error, not a crash.
if "$weft" calibrate --output /proc/nowhere/machine 2>"$folder/error"; then
    echo "writing to /proc succeeded" >&2
    exit 1
fi
grep -q '/proc/nowhere/machine' "$folder/error"
# A backend that nobody has, and one that needs what may not be there: one line each.
if "$weft" calibrate --backend tpu --output - 2>"$folder/error"; then
    echo "calibrating a tpu succeeded" >&2
    exit 1
fi
grep -q 'cpu or cuda' "$folder/error"
if ! command -v nvidia-smi >/dev/null; then
    if "$weft" calibrate --backend cuda --output - 2>"$folder/error"; then
        echo "calibrating GPUs succeeded without any" >&2
        exit 1
    fi
    test "$(wc -l <"$folder/error")" = 1
    grep -q -- '--backend cuda: ' "$folder/error"
fi
