#!/bin/sh
# The main job on this machine, small enough for a minute: the four products beside their parts and competitors,
# the collectives, the MoE layer's routing, and pictures of what ran and of what a larger machine would do.
# usage: scripts/demo.sh path/to/weft output-folder
set -eu
weft=${1:?usage: scripts/demo.sh path/to/weft output-folder}
out=${2:?usage: scripts/demo.sh path/to/weft output-folder}
mkdir -p "$out"

# Runs a command and shows it first; a failure ends the demo with the status of the command.
show()
{
    printf '\n$ weft %s\n' "$*"
    "$weft" "$@"
}

"$weft" info 2>/dev/null | head -n 12 || true

show bench ag_gemm 512 2048 1024 --iterations 15 --svg "$out/ag_gemm.svg" --trace "$out/ag_gemm.json"
show bench gemm_rs 512 1024 2048 --iterations 15 --svg "$out/gemm_rs.svg"
show bench gemm_ar 512 1024 2048 --dtype bf16 --iterations 15 --svg "$out/gemm_ar.svg"
show bench gemm_as 512 2048 1024 --dtype bf16 --iterations 15 --svg "$out/gemm_as.svg"
show bench gemm_rs 512 1024 2048 --schedule all --iterations 10
show bench all_reduce --bytes 4K:1M --iterations 50 --svg "$out/all_reduce.svg"
for op in all_gather reduce_scatter all_to_all broadcast; do
    show bench "$op" --bytes 64K --iterations 50
done
show bench ag_gemm -n 3 100 200 300 --iterations 10

show bench moe --experts 64 --topk 6 --hidden 2048 --tokens 32 --impl all --iterations 20

show sim ag_gemm -n 8 --machine h100x8 --dtype bf16 4096 28672 8192 --svg "$out/ag_gemm_h100x8.svg"

printf '\npictures (open them in a browser):\n'
for picture in "$out"/*.svg; do
    printf '  %s\n' "$picture"
done
printf 'trace (open it in https://ui.perfetto.dev):\n  %s\n' "$out/ag_gemm.json"
