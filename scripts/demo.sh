#!/bin/sh
# The main job on this machine, in less than a minute: the four products beside their parts and competitors, with shapes
# whose communication takes 10 to 50 % of the product's time on a common CPU, the collectives, the MoE layer's routing,
# Stream-K in a plan and in a run, and what a larger machine would do. All of it ends up on one page.
# usage: scripts/demo.sh path/to/weft output-folder
set -eu
weft=${1:?usage: scripts/demo.sh path/to/weft output-folder}
out=${2:?usage: scripts/demo.sh path/to/weft output-folder}
pages=$out/pages
rm -rf "$pages"
mkdir -p "$pages"
count=10

# Runs a command and shows it first; a failure ends the demo with the status of the command.
show()
{
    printf '\n$ weft %s\n' "$*"
    "$weft" "$@"
}

# The same, with a page of its rows.
paged()
{
    count=$((count + 1))
    printf '\n$ weft %s\n' "$*"
    "$weft" "$@" --html "$pages/$count.html" >"$pages/$count.log"
    grep -v '^page: ' "$pages/$count.log"
}

"$weft" info | sed '/^$/,$d'

paged bench ag_gemm 1024 48 1024 --iterations 15 --trace "$out/ag_gemm.json"
paged bench gemm_rs 1024 1024 48 --schedule all --iterations 15
paged bench gemm_ar 768 768 64 --schedule all --iterations 15
paged bench gemm_as 768 1024 48 --iterations 15
paged bench ag_gemm -n 3 100 200 300 --iterations 10

# Stream-K: three tiles over two workers. Each does one and a half; the tile that is cut is summed from its slices.
show plan gemm_ar 192 128 256 --threads 2 --BLOCK_SIZE_M 64 --BLOCK_SIZE_N 128 --BLOCK_SIZE_K 64 --schedule one_shot --rank 0
paged bench gemm_ar 192 128 256 --threads 2 --BLOCK_SIZE_M 64 --BLOCK_SIZE_N 128 --BLOCK_SIZE_K 64 --schedule one_shot --iterations 10

paged bench all_reduce --bytes 64:1M --schedule all --iterations 20
for op in all_gather reduce_scatter all_to_all broadcast; do
    paged bench "$op" --bytes 64:256K --iterations 20
done

paged bench moe --experts 64 --topk 6 --hidden 2048 --tokens 32 --impl all --iterations 15

for ranks in 2 4 8; do
    paged sim ag_gemm -n $ranks --machine h100x8 --dtype bf16 4096 28672 8192
done

printf '\n'
"$weft" report --output "$out/report.html" "$pages"/*.html
printf 'trace (open it in https://ui.perfetto.dev): %s\n' "$out/ag_gemm.json"
printf 'open in a browser: file://%s\n' "$(cd "$out" && pwd)/report.html"
