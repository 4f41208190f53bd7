#!/bin/sh
# usage: test_ring.sh WEFT SCRIPT TEST SUMS: the plan that SCRIPT writes is checked, converted, simulated, and run by TEST;
# that of SUMS, of a collective, is checked, simulated and run by bench.
set -eu
weft=$1 script=$2 test=$3 sums=$4
command -v python3 >/dev/null || exit 77
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT

fail()
{
    echo "test_ring.sh: $*" >&2
    exit 1
}

for ranks in 1 2 3 4 7 8; do
    python3 "$script" $ranks 37 22 8 >"$dir/ring.plan"
    "$weft" plan --from "$dir/ring.plan" --check >"$dir/said" || fail "$ranks ranks: $(cat "$dir/said")"
done
python3 "$script" 4 37 22 8 >"$dir/ring.plan"

# Either form gives the other, with the same hashes.
"$weft" plan --from "$dir/ring.plan" >"$dir/text"
"$weft" plan --from "$dir/ring.plan" --json >"$dir/json"
"$weft" plan --from "$dir/json" | cmp - "$dir/text" || fail "JSON does not come back as it was"
"$weft" plan --from "$dir/text" --json | cmp - "$dir/json" || fail "text does not come back as it was"

"$weft" sim --plan "$dir/ring.plan" --machine h100x8 --json >"$dir/row"
grep -q '"schedule": "custom"' "$dir/row" || fail "sim says: $(cat "$dir/row")"
"$weft" plan --from "$dir/ring.plan" --machine h100x8 --svg "$dir/ring.svg"
grep -q '<svg' "$dir/ring.svg" || fail "nothing was drawn"

# A plan that is not right is neither simulated nor drawn, and says where.
sed '0,/GEMM D\[.*gathered/s/ wait [0-9>=]*//' "$dir/ring.plan" >"$dir/wrong.plan"
if "$weft" sim --plan "$dir/wrong.plan" >"$dir/said" 2>&1; then fail "a wrong plan was simulated"; fi
grep -q 'race: .* of rank 0' "$dir/said" || fail "of a wrong plan it says: $(cat "$dir/said")"

# It is measured beside weft's own, and both results are checked; a wrong one never starts.
"$weft" bench --plan "$dir/ring.plan" --iters 2 --warmup 0 --peer none --json >"$dir/rows"
[ "$(grep -c '"m": 37, "n": 22, "k": 8.*"ok": true' "$dir/rows")" = 2 ] || fail "bench says: $(cat "$dir/rows")"
sed -n 2p "$dir/rows" | grep -q '"schedule": "custom"' || fail "the plan was not measured: $(cat "$dir/rows")"
if "$weft" bench --plan "$dir/wrong.plan" >"$dir/said" 2>&1; then fail "a wrong plan was run"; fi
grep -q 'race: .* of rank 0' "$dir/said" || fail "of a wrong plan bench says: $(cat "$dir/said")"
for wrong in "-n 2" "--dtype bf16" "8 8 8" "--schedule direct" "--alpha 2" "--bias" "--BLOCK_SIZE_M=64"; do
    for command in "bench --plan" "sim --plan" "plan --from"; do
        if "$weft" $command "$dir/ring.plan" $wrong >"$dir/said" 2>&1; then fail "$command: $wrong was taken"; fi
        [ "$(wc -l <"$dir/said")" = 1 ] || fail "$command $wrong: $(cat "$dir/said")"
    done
done
"$weft" plan --from "$dir/ring.plan" -n 4 --check >/dev/null || fail "-n as in the file was refused"

"$test" "$dir/ring.plan"

for ranks in 1 2 3 5 8; do
    python3 "$sums" $ranks 37 bfloat16 >"$dir/sums.plan"
    "$weft" plan --from "$dir/sums.plan" --check >"$dir/said" || fail "$ranks ranks: $(cat "$dir/said")"
done
python3 "$sums" 3 1000 >"$dir/sums.plan"
"$weft" sim --plan "$dir/sums.plan" --machine h100x8 --json >"$dir/row"
grep -q '"impl": "custom"' "$dir/row" || fail "sim says: $(cat "$dir/row")"
"$weft" bench --plan "$dir/sums.plan" --iters 2 --warmup 0 --peer none --json >"$dir/rows"
[ "$(grep -c '"bytes": 4000.*"ok": true' "$dir/rows")" = 2 ] || fail "bench says: $(cat "$dir/rows")"
grep -q '"impl": "custom"' "$dir/rows" || fail "the plan was not measured: $(cat "$dir/rows")"
if "$weft" bench --plan "$dir/sums.plan" --bytes 4K >"$dir/said" 2>&1; then fail "--bytes was taken"; fi
sed 's/reduction sum/reduction average/' "$dir/sums.plan" >"$dir/mean.plan"
"$weft" plan --from "$dir/mean.plan" --check >"$dir/said" || fail "of averages: $(cat "$dir/said")"
"$weft" bench --plan "$dir/mean.plan" --iters 2 --warmup 0 --peer none --json >"$dir/rows"
[ "$(grep -c '"bytes": 4000.*"ok": true' "$dir/rows")" = 2 ] || fail "bench of averages says: $(cat "$dir/rows")"
