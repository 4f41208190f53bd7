#!/bin/sh
# How far predictions for this CPU are off: calibrates it, then measures and predicts products (the Llama 3
# shapes divided by 32, and shapes drawn at random, which nobody has fitted anything to) of four types, with a
# rank for every core and with one rank, and collectives; says the error of each. About eight minutes, in
# which nothing else should run.
#
#     bench/predict.sh [BUILD [SEED [FILE]]]
#
# BUILD: where weft was built (build). SEED: of the random shapes (1). FILE: a description to predict from
# instead of calibrating, or where to keep the one that is made. Every row goes to FILE.rows.
set -e
build=${1:-build} seed=${2:-1} file=${3:-}
cores=$(nproc)
[ -n "$file" ] || file=$(mktemp -d)/here.machine
[ -s "$file" ] || "$build/weft" calibrate --output "$file"
export WEFT_MACHINE="$file"
: > "$file.rows"

# sim_error's last line, beside what was asked
row() {
    printf '%-44s' "$1, $3 ranks, $4"
    "$build/bench/sim_error" "$2" "$3" "$4" $5 > "$file.now" || { cat "$file.now"; exit 1; }
    cat "$file.now" >> "$file.rows"
    grep '^median' "$file.now" || echo "nothing was measured by cores of their own"
}

for type in f32 bf16 f16 i8; do
    row "products of Llama 3" products "$cores" $type 32
    row "random products" random "$cores" $type "$seed"
    row "random products" random 1 $type "$seed"
done
for type in f32 bf16; do
    row "collectives" collectives "$cores" $type ""
done
rm -f "$file.now"
echo "description: $file; all rows: $file.rows"
