#!/usr/bin/env bash
# Builds, tests and measures the CUDA backend on a machine with 1 to 8 NVIDIA GPUs, in about ten minutes, past failures. Prints a
# short table, and leaves one file to send back: BUILD/weft-gpu-report.tar.gz (what the machine is, logs, tables, rows as JSON).
# Needs the driver, nvcc, CMake and a C compiler; nothing is installed, no setting of a GPU is changed.
# usage: scripts/gpu.sh [--full] [--sanitize] [--no-bench] [--minutes N] [--build DIR]
#   --full      more repetitions and shapes, and no limit on time
#   --sanitize  also small cases under compute-sanitizer (memcheck, racecheck, synccheck)
#   --no-bench  tests only
#   --minutes   it ends after so many (10): each part has its share, and what does not fit is cut off or left out
#   --build     a build folder to use instead of build-gpu
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
usage() { echo "usage: scripts/gpu.sh [--full] [--sanitize] [--no-bench] [--minutes N] [--build DIR]" >&2; exit 2; }
sanitize=0 full=0 bench=1 build=build-gpu minutes=10
while [ $# -gt 0 ]; do
    case $1 in
    --sanitize) sanitize=1 ;;
    --full) full=1 minutes=1000 ;;
    --no-bench) bench=0 ;;
    --minutes) [ $# -gt 1 ] || usage; minutes=$2; shift ;;
    --build) [ $# -gt 1 ] || usage; build=$2; shift ;;
    *) usage ;;
    esac
    shift
done
[[ $minutes =~ ^[0-9]+$ ]] || usage
report=$build/report
rm -rf "$report"
mkdir -p "$report"
failed=0 table=""

# Seconds left to the part that runs; part PERCENT: the next one, which may last until so much of all is over.
part_end=$((minutes * 60))
part() { part_end=$((minutes * 60 * $1 / 100)); }
left() { echo $((part_end - SECONDS)); }

# within SECONDS COMMAND...: at most so long, and no longer than the part has. 124: it took longer.
within() {
    local limit=$1 rest
    shift
    rest=$(left)
    timeout -k 5 "$((limit < rest ? limit : rest))" "$@"
}

note() { table+=$(printf '%-34s %s' "$1" "$2")$'\n'; }

# step NAME SECONDS COMMAND...: runs it into a log of its own; its outcome goes into the table.
step() {
    local name=$1 limit=$2 begun=$SECONDS outcome log status
    shift 2
    if [ "$(left)" -le 0 ]; then
        note "$name" "left out: its part of the $minutes minutes is over"
        return
    fi
    log=$report/${name// /_}.log
    within "$limit" "$@" >"$log" 2>&1
    status=$?
    if [ $status = 0 ]; then
        outcome=ok
    elif [ $status = 77 ]; then
        outcome=$(tail -n 1 "$log")
    elif [ $status = 124 ] && [ $((SECONDS - begun)) -lt "$limit" ]; then
        outcome="cut off"
    else
        outcome="FAILED ($status)"
        failed=1
        tail -n 20 "$log"
    fi
    note "$name" "$(printf '%-12s %4d s' "$outcome" $((SECONDS - begun)))"
}

# finish: the table, and the one file.
finish() {
    {
        echo "$("$build/weft" --version 2>/dev/null || echo weft) $(git describe --always --dirty 2>/dev/null) on $(date -u +%Y-%m-%d)"
        printf '%s' "$table"
    } | tee "$report/table.txt"
    tar czf "$build/weft-gpu-report.tar.gz" -C "$build" report
    echo "to send back: $build/weft-gpu-report.tar.gz"
    exit $failed
}

command -v nvidia-smi >/dev/null || { echo "scripts/gpu.sh: there is no nvidia-smi here, so no NVIDIA driver" >&2; exit 1; }
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -gt 0 ] || { echo "scripts/gpu.sh: nvidia-smi finds no GPU: $(nvidia-smi -L 2>&1 | head -1)" >&2; exit 1; }
{
    nvidia-smi
    nvidia-smi topo -m
    nvidia-smi topo -p2p n
    lscpu
    nvcc --version || /usr/local/cuda/bin/nvcc --version
    cmake --version
} >"$report/machine.txt" 2>&1
echo "$gpus GPU(s): $(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c | sed 's/^ *//' | paste -sd, -)"

step configure 60 cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA=ON
step build 900 cmake --build "$build" -j"$(nproc)" --target weft_command weft cuda_tests
[ $failed = 0 ] || finish
weft=$build/weft tests=$build/tests/cuda
"$weft" info >"$report/info.txt" 2>&1
sed -n '1,3p' "$report/info.txt"
[ $full = 0 ] || export WEFT_SOAK=1

# ---- tests -------------------------------------------------------------------------------------------------------------

part 55
if [ $full = 1 ]; then
    step "fake GPU" 300 "$tests/test_cuda_fake"
    step "fake GPU, weft.h" 300 "$tests/test_cuda_api"
    step "fake GPU, lost ranks" 300 "$tests/test_cuda_lost"
    step "fake GPU, plan files" 300 "$tests/test_cuda_plan_files"
    step "fake GPU, signal pads" 300 "$tests/test_cuda_pads"
    step "fake GPU, puts and signals" 300 "$tests/test_cuda_onesided"
    step "fake GPU, collectives" 300 "$tests/test_cuda_collective"
    step "fake GPU, experts" 300 "$tests/test_cuda_moe"
    step "fake GPU, grouped" 300 "$tests/test_cuda_grouped"
    step "fake GPU, bench" 300 "$tests/test_cuda_bench"
fi
step "GPU, virtual ranks" 300 "$tests/test_cuda_device"
step "GPU, weft.h" 600 "$tests/test_cuda_api_device"
step "GPU, puts and signals" 300 "$tests/test_cuda_onesided_device"
step "GPU, collectives" 600 "$tests/test_cuda_collective_device"
step "GPU, experts" 600 "$tests/test_cuda_moe_device"
step "GPU, grouped" 300 "$tests/test_cuda_grouped_device"
step "GPU, nodes" 300 "$tests/test_cuda_nodes_device"
step "GPU, Python" 120 tests/python/run.sh "$build" tests/python/test_cuda.py
grep -hE ' ranks +(FAILED|stuck)' "$report"/GPU,_*.log 2>/dev/null | sed 's/^/  /'

# Ranks that are processes: each on its own GPU, as many as there are; on one GPU side by side under MPS, where there is one.
examples() {
    step "example, $1 processes$2" 60 "$weft" run -n "$1" -- "$build/examples/gpu_all_gather_gemm"
    [ ! -x "$build/examples/own_all_reduce" ] ||
        step "own kernel, $1 processes$2" 60 "$weft" run -n "$1" -- "$build/examples/own_all_reduce"
}
worlds=""
for ranks in 2 4 8; do
    [ "$ranks" -gt "$gpus" ] || worlds+=" $ranks"
done
for ranks in $worlds; do
    examples "$ranks" ", $ranks GPUs"
done
[ -n "$worlds" ] || examples 2 ", 1 GPU"

mps=""
start_mps() {
    command -v nvidia-cuda-mps-control >/dev/null || { note "under MPS" "left out: no nvidia-cuda-mps-control"; return 1; }
    mps=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY=$mps/pipe CUDA_MPS_LOG_DIRECTORY=$mps/log
    mkdir "$mps/pipe" "$mps/log"
    nvidia-cuda-mps-control -d >/dev/null 2>&1 && return 0
    note "under MPS" "left out: nvidia-cuda-mps-control does not start"
    stop_mps
    return 1
}
stop_mps() {
    echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    rm -rf "$mps"
}
if [ "$gpus" = 1 ] && start_mps; then
    step "processes under MPS" 200 "$tests/test_cuda_api_device" processes idle
    step "collectives under MPS" 200 "$tests/test_cuda_collective_device" processes killed
    step "experts under MPS" 200 "$tests/test_cuda_moe_device" processes
    stop_mps
fi

if [ $sanitize = 1 ]; then
    # sanitized TOOL WHAT TEST PART: every process of it.
    sanitized() {
        step "$1, $2" 300 compute-sanitizer --tool "$1" --target-processes all --error-exitcode 1 "$tests/test_cuda_$3" "$4"
    }
    for tool in memcheck racecheck synccheck; do
        sanitized $tool "virtual ranks" device small
    done
    sanitized memcheck weft.h api_device small
    for tool in memcheck racecheck; do
        sanitized $tool collectives collective_device small
        sanitized $tool experts moe_device small
        sanitized $tool grouped grouped_device small
        sanitized $tool "puts and signals" onesided_device "ring 1"
    done
fi
[ $bench = 1 ] || finish

# ---- measurements ------------------------------------------------------------------------------------------------------

# mean WHAT AIM FILES...: the geometric mean of fused÷GEMM over the rows of some benches.
mean() {
    local what=$1 aim=$2
    shift 2
    python3 - "$what" "$aim" "$@" <<'PYTHON' | tee -a "$report/tables.txt"
import json, math, sys
rows = [json.loads(line) for name in sys.argv[3:] for line in open(name)]
ratios = [r["fused_over_gemm"] for r in rows if isinstance(r.get("fused_over_gemm"), (int, float))]
if ratios:
    geometric = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print("  %s: geometric mean of %d rows %.3f (aim %s), %.3f to %.3f" % (
        sys.argv[1], len(ratios), geometric, sys.argv[2], min(ratios), max(ratios)))
PYTHON
}

title() { echo "$1" | tee -a "$report/tables.txt"; }

# row NAME ARGUMENTS...: a bench, its table shown, its rows kept as JSON.
row() {
    local name=$1 begun status
    shift
    if [ "$(left)" -le 0 ]; then
        note "$name" "left out: its part of the $minutes minutes is over"
        return
    fi
    begun=$SECONDS
    within 120 "$weft" bench "$@" --dtype bf16 --backend cuda --json >"$report/$name.json" 2>"$report/$name.err"
    status=$?
    if [ $status = 124 ] && [ $((SECONDS - begun)) -lt 120 ]; then
        note "$name" "cut off"
    elif [ $status != 0 ]; then
        failed=1
        note "$name" "FAILED"
    fi
    cat "$report/$name.err"
    python3 - "$report/$name.json" <<'PYTHON' | tee -a "$report/tables.txt" || cat "$report/$name.json"
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    def number(key, form):
        return format(r[key], form) if isinstance(r.get(key), (int, float)) else "-"
    if r["op"] == "moe":
        print("  moe %-9s %-8s W %d  E %3d K %d H %5d T %4d  dispatch %7s (bound %6s)  combine %7s (bound %6s) µs  %s" % (
            r.get("impl", "fused"), r["mode"], r["ranks"], r["experts"], r["topk"], r["hidden"], r["tokens"], number("dispatch_us", ".1f"),
            number("dispatch_bound_us", ".1f"), number("combine_us", ".1f"), number("combine_bound_us", ".1f"),
            "ok" if r["ok"] else "WRONG"))
    elif "bytes" in r:
        print("  %-14s %-12s W %d  %10d bytes  %8s µs  busbw %7s GB/s  %s" % (
            r["op"], r.get("impl", ""), r["ranks"], r["bytes"], number("us", ".1f"), number("busbw_gbs", ".1f"),
            "ok" if r["ok"] else "WRONG"))
    else:
        print("  %-8s %-34s W %d  %6d %6d %6d  GEMM %8s  unfused %8s  fused %8s µs  fused÷GEMM %5s  %s" % (
            r["op"], r["schedule"], r["ranks"], r["m"], r["n"], r["k"], number("gemm_us", ".1f"),
            number("unfused_us", ".1f"), number("fused_us", ".1f"), number("fused_over_gemm", ".3f"),
            "ok" if r["ok"] else "WRONG"))
PYTHON
}

# measured WORDS RANKS: the four products and the collectives of processes.
measured() {
    title "$1: $2 ranks, a process each"
    local shapes="4096,4096,4096 64,8192,8192"
    [ $full = 0 ] || shapes="4096,4096,4096 512,8192,8192 64,8192,8192 4096,14336,4096 16384,28672,8192"
    for shape in $shapes; do
        for op in ag_gemm gemm_rs gemm_ar gemm_as; do
            # shellcheck disable=SC2086
            row "${op}_${2}_$shape" $op ${shape//,/ } -n "$2" --processes
        done
    done
    for op in all_reduce all_gather; do
        row "${op}_$2" $op -n "$2" --processes --bytes "$([ $full = 1 ] && echo 1K:64M || echo 16K:16M)"
    done
    if "$weft" info | grep -q ', multicast'; then
        row "all_reduce_${2}_multimem" all_reduce --schedule multimem -n "$2" --processes --bytes "$([ $full = 1 ] && echo 1K:64M || echo 16K:16M)"
    fi
}

part 75
if [ -n "$worlds" ]; then
    for ranks in $worlds; do
        measured "real links between $ranks GPUs" "$ranks"
    done
else
    note "real links" "left out: one GPU; its ranks share it, and their times are not those of links"
    if start_mps; then
        for ranks in 2 4; do
            measured "one GPU, shared (not link times)" $ranks
        done
        stop_mps
    fi
fi

part 90
title "GEMM alone beside cuBLAS (fused = weft, GEMM only = cuBLAS), µs"
shapes="4096,1792,4096 4096,3584,8192 4096,4096,4096"
[ $full = 0 ] || shapes="4096,1792,4096 8192,1792,4096 16384,1792,4096 4096,3584,8192 8192,3584,8192
    16384,3584,8192 4096,6656,16384 8192,6656,16384 16384,6656,16384 4096,4096,4096 8192,8192,8192"
for shape in $shapes; do
    # shellcheck disable=SC2086
    row "gemm_$shape" ag_gemm --schedule direct ${shape//,/ } -n 1
done
mean "weft ÷ cuBLAS" "1.05, at most 1.11 each" "$report"/gemm_[0-9]*.json
title "one rank of eight in the loop over emulated links of 300, 370 and 450 GB/s and 2 µs"
for rate in 300 370 450; do
    link="-n 8 --link ${rate}GB/s,2us"
    # shellcheck disable=SC2086
    {
        [ $rate = 450 ] || row "link_${rate}_ag" ag_gemm 4096 14336 4096 $link
        [ $rate = 450 ] || row "link_${rate}_rs" gemm_rs 4096 4096 14336 --wire bf16 $link
        row "link_${rate}_ar" gemm_ar 4096 4096 14336 --wire bf16 $link
        row "link_${rate}_as" gemm_as 4096 14336 4096 $link
    }
done
# shellcheck disable=SC2086
row link_450_late ag_gemm 4096 14336 4096 $link,10us
if [ $full = 0 ]; then
    # shellcheck disable=SC2086
    row link ag_gemm 4096 14336 4096 $link
    down=4096,4096,14336
else
    # shellcheck disable=SC2086
    row link ag_gemm --set llama3 --scale 1 $link
    down="4096,4096,14336 8192,4096,14336 16384,4096,14336 4096,8192,28672 8192,8192,28672 16384,8192,28672
        4096,16384,53248 8192,16384,53248 16384,16384,53248"
fi
for shape in $down; do
    for wire in f32 bf16; do
        # shellcheck disable=SC2086
        row "link_rs_${shape}_$wire" gemm_rs ${shape//,/ } --wire $wire $link
    done
done
mean "ag_gemm, fused ÷ GEMM" 1.10 "$report/link.json"
mean "gemm_rs, float32 on the wire" 1.25 "$report"/link_rs_*_f32.json
mean "gemm_rs, bfloat16 on the wire" 1.12 "$report"/link_rs_*_bf16.json
# shellcheck disable=SC2086
row link_all_reduce all_reduce --bytes 1K:16M $link
# shellcheck disable=SC2086
row link_moe moe --set contest $link
# shellcheck disable=SC2086
row link_moe_decode moe --tokens 128 $link
title "virtual ranks on one GPU (not link times)"
row moe_ladder moe --impl all --tokens 128 -n 4
row virtual_all_reduce all_reduce --bytes 16K:16M -n 4
if [ $full = 1 ]; then
    for ranks in 2 4 8; do
        for op in ag_gemm gemm_rs gemm_ar gemm_as; do
            row "virtual_${op}_$ranks" $op 4096 4096 4096 -n $ranks
        done
        row "virtual_all_reduce_$ranks" all_reduce --schedule all --bytes 1K:16M -n $ranks
        row "moe_ladder_$ranks" moe --impl all --set contest -n $ranks
    done
fi
part 100
step "auto" 900 python3 bench/cuda_auto.py "$weft" 1 0 "$([ $full = 1 ] && echo 60 || echo 15)" $(($(left) - 40))
tail -n 3 "$report/auto.log" 2>/dev/null | sed 's/^/  /' | tee -a "$report/tables.txt"
step "calibrate" 120 "$weft" calibrate --backend cuda --output "$report/gpu.machine"
step "timeline" 60 "$weft" bench ag_gemm 4096 4096 4096 -n 4 --dtype bf16 --backend cuda --iters 7 \
    --trace "$report/timeline.json" --svg "$report/timeline.svg"
echo
finish
