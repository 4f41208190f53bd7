#!/usr/bin/env bash
# Pages of --html and weft report: the rows are those of --json, byte for byte; nothing comes from elsewhere; pages merge;
# and where there is a Chromium, it draws them without an error, shows the same numbers, and a timeline on a click.
# usage: test_page.sh path/to/weft
. "$(dirname "$0")/../support/command.sh"
weft=$1

# The rows of a page as --json prints them.
rows()
{
    sed -n '/class="rows">\[$/,/^\]/p' "$1" | sed '1d;$d;s/^,//'
}

expect_rows()
{
    ends "$1" 0 "$weft" $1 --json --html "$scratch/$2.html" >"$scratch/$2.json"
    [ -s "$scratch/$2.json" ] || fail "$1: no rows"
    rows "$scratch/$2.html" | cmp -s - "$scratch/$2.json" || fail "$1: the page has other rows: $(rows "$scratch/$2.html")"
}
expect_rows "bench gemm_rs 24 40 56 --iters 2 --peer none --schedule all" products
expect_rows "bench all_reduce --bytes 64:1K --iters 2 --peer none --schedule all" collectives
expect_rows "bench moe --experts 8 --topk 2 --hidden 64 --tokens 4 --iters 2 --peer none --impl all" moe
expect_rows "bench ag_gemm 24 40 56 -n 2 --nodes 2 --iters 2 --peer none" nodes
expect_rows "sim ag_gemm 512 512 512 -n 2 --machine h100x8 --dtype bf16 --schedule all" sim
expect_rows "sim ag_gemm 512 512 512 --machine h100x8 --dtype bf16 --sweep ranks=2:8" sweep
[ "$(grep -c 'class="timeline-source"' "$scratch/products.html")" = "$(wc -l <"$scratch/products.json")" ] || fail "not every product has its timeline"
grep -q 'class="timeline-source"' "$scratch/sim.html" || fail "a simulated product has no timeline"

# What was run stands there whole, however long.
long="sim ag_gemm 512 512 512 -n 2 --machine h100x8 --dtype bf16 --BLOCK_SIZE_M 128 --BLOCK_SIZE_N 128 --alpha 1.5 --beta 0.5 --bias --act silu --transa"
ends "a long command" 0 "$weft" $long --html "$scratch/long.html" >/dev/null
grep -qF "\"command\": \"weft $long\"" "$scratch/long.html" || fail "the page has another command: $(grep '"command"' "$scratch/long.html")"

# A picture shows the whole run of its row, though not all of its lanes; the launch, and what goes over links.
ends "a picture" 0 "$weft" sim ag_gemm 4096 4096 4096 -n 4 --dtype bf16 --machine h100x8 --schedule AllGather1D_TilingCD_RotatingA \
    --json --svg "$scratch/sim.svg" >"$scratch/one.json"
took=$(sed -E 's/.*"fused_us": ([0-9.]*).*/\1/' "$scratch/one.json")
grep -qF ">$(printf %.4g "$took") µs<" "$scratch/sim.svg" || fail "the table says $took µs, the picture $(grep -o "class='total'>[^<]*" "$scratch/sim.svg")"
for key in launch "of it over links"; do
    grep -qF "class='key'>$key " "$scratch/sim.svg" || fail "the picture has no $key"
done

ends "merging" 0 "$weft" report --output "$scratch/all.html" "$scratch"/{products,collectives,moe,sim,sweep}.html >/dev/null
[ "$(grep -c '^<section>$' "$scratch/all.html")" = 5 ] || fail "merged pages have other sections"
cat "$scratch"/{products,collectives,moe,sim,sweep}.json >"$scratch/all.json"
for page in products collectives moe sim sweep; do rows "$scratch/$page.html"; done | cmp -s - "$scratch/all.json" || fail "merging changed rows"
# Nothing is loaded: the only addresses are the name spaces of SVG.
grep -oE '(src|href)="[a-z]+:|url\(|@import|https?://[a-zA-Z0-9./]*' "$scratch/all.html" | grep -v 'http://www.w3.org/2000/svg' && fail "the page loads something"

ends "no page" 2 "$weft" report --output="$scratch/x.html" "$scratch/all.json"
says err "is not a page that --html wrote"
ends "no such page" 2 "$weft" report "$scratch/nowhere.html" --output "$scratch/x.html"
ends "no folder" 2 "$weft" bench barrier --iters 2 --html /no/such/folder/page.html
says err "--html /no/such/folder/page.html: cannot write there"

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || browser=
if [ -n "$browser" ]; then
    # A click on every timeline button, at the end of what the page does by itself.
    sed 's|^</body>|<script>document.querySelectorAll("td button").forEach(function (b) { b.click(); });</script></body>|' \
        "$scratch/all.html" >"$scratch/clicked.html"
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$scratch/profile" --virtual-time-budget=5000 \
        --dump-dom "file://$scratch/clicked.html" >"$scratch/dom" 2>/dev/null
    grep -q 'data-ready="yes"' "$scratch/dom" || fail "the page's script did not come to its end"
    # Two of the collectives, one of each other: several schedules on as many ranks are no sweep over ranks.
    [ "$(grep -o '<svg class="chart"' "$scratch/dom" | wc -l)" = 6 ] || fail "expected 6 charts: $(grep -o '<svg class="chart"' "$scratch/dom" | wc -l)"
    grep -q '<img alt="Shares of the critical path by ranks' "$scratch/dom" || fail "a sweep does not show where its time goes"
    grep -q '<img alt="Timeline of row ' "$scratch/dom" || fail "no timeline after a click"
    # By keyboard: what can be used has a tab stop of its own accord, and says what it is.
    grep -oE '<[a-z]+[^>]*(onclick|tabindex="-)[^>]*>' "$scratch/dom" && fail "something is for the mouse alone"
    grep -qE '<button type="button" aria-expanded="(true|false)">' "$scratch/dom" || fail "the timelines are not behind buttons"
    # On paper: in light colours, with every table open.
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$scratch/profile" --virtual-time-budget=5000 \
        --no-pdf-header-footer --print-to-pdf="$scratch/all.pdf" "file://$scratch/all.html" >/dev/null 2>&1
    [ "$(head -c 5 "$scratch/all.pdf")" = "%PDF-" ] || fail "the page does not print"
    # Every number of the rows stands in a cell, as JSON has it.
    grep -oE '": -?[0-9][0-9.]*[,}]' "$scratch/all.json" | tr -d '":,} ' | sort -u | while read -r number; do
        grep -qE ">$(printf %s "$number" | sed 's/[.]/[.]/')</(td|dd)>" "$scratch/dom" || echo "$number"
    done >"$scratch/missing"
    [ -s "$scratch/missing" ] && fail "numbers that the page does not show: $(head -n 5 "$scratch/missing" | tr '\n' ' ')"
fi

[ $failures = 0 ]
