#!/usr/bin/env bash
# Builds, tests and measures the CUDA backend on a machine with an NVIDIA GPU, in one go, past failures, and prints a
# short table. Logs and JSON rows stay in build-gpu/report.
# usage: scripts/gpu.sh [--quick] [--sanitize] [--no-bench] [--build DIR]
#   --quick     fewer repetitions and shapes
#   --sanitize  also small cases under compute-sanitizer (memcheck, racecheck, synccheck)
#   --no-bench  tests only
#   --build     a build folder to use instead of build-gpu
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
usage() { echo "usage: scripts/gpu.sh [--quick] [--sanitize] [--no-bench] [--build DIR]" >&2; exit 2; }
sanitize=0 quick=0 bench=1 build=build-gpu
while [ $# -gt 0 ]; do
    case $1 in
    --sanitize) sanitize=1 ;;
    --quick) quick=1 ;;
    --no-bench) bench=0 ;;
    --build) [ $# -gt 1 ] || usage; build=$2; shift ;;
    *) usage ;;
    esac
    shift
done
report=$build/report
rm -rf "$report"
mkdir -p "$report"
failed=0 table=""

# step NAME SECONDS COMMAND...: runs it into a log of its own; its outcome goes into the table.
step() {
    local name=$1 limit=$2 begun=$SECONDS outcome log
    shift 2
    log=$report/${name// /_}.log
    if timeout -k 5 "$limit" "$@" >"$log" 2>&1; then
        outcome=ok
    else
        outcome="FAILED ($?)"
        failed=1
        tail -n 20 "$log"
    fi
    table+=$(printf '%-34s %-12s %4d s' "$name" "$outcome" $((SECONDS - begun)))$'\n'
}

step configure 60 cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA=ON
step build 900 cmake --build "$build" -j"$(nproc)" --target weft_command cuda_tests
[ $failed = 0 ] || { printf '%s' "$table"; exit 1; }
weft=$build/weft tests=$build/tests/cuda
"$weft" info | sed -n '1,3p'
[ $quick = 1 ] || export WEFT_SOAK=1

step "fake GPU" 300 "$tests/test_cuda_fake"
step "fake GPU, weft.h" 300 "$tests/test_cuda_api"
step "fake GPU, collectives" 300 "$tests/test_cuda_collective"
step "fake GPU, bench" 300 "$tests/test_cuda_bench"
step "GPU, virtual ranks" 300 "$tests/test_cuda_device"
step "GPU, weft.h" 600 "$tests/test_cuda_api_device"
grep -E ' ranks +(ok|FAILED|stuck)' "$report/GPU,_weft.h.log" | sed 's/^/  /'
step "GPU, collectives" 600 "$tests/test_cuda_collective_device"
grep -E ' ranks +(ok|FAILED|stuck)' "$report/GPU,_collectives.log" | sed 's/^/  /'
step "example, two processes" 60 "$weft" run -n 2 -- "$build/examples/gpu_all_gather_gemm"

# The same processes side by side on the SMs instead of in turns.
if command -v nvidia-cuda-mps-control >/dev/null; then
    mps=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY=$mps/pipe CUDA_MPS_LOG_DIRECTORY=$mps/log
    mkdir "$mps/pipe" "$mps/log"
    if nvidia-cuda-mps-control -d >/dev/null 2>&1; then
        step "processes under MPS" 200 "$tests/test_cuda_api_device" processes idle
        step "collectives under MPS" 200 "$tests/test_cuda_collective_device" processes killed
        step "bench, processes under MPS" 60 "$weft" bench ag_gemm 4096 4096 4096 -n 4 --dtype bf16 --backend cuda --processes
        echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
    fi
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    rm -rf "$mps"
else
    table+="processes under MPS                left out: no nvidia-cuda-mps-control"$'\n'
fi

if [ $sanitize = 1 ]; then
    for tool in memcheck racecheck synccheck; do
        step "$tool" 300 compute-sanitizer --tool $tool --error-exitcode 1 "$tests/test_cuda_device" small
    done
    step "memcheck, weft.h" 300 compute-sanitizer --tool memcheck --target-processes all --error-exitcode 1 \
        "$tests/test_cuda_api_device" small
    step "memcheck, collectives" 300 compute-sanitizer --tool memcheck --target-processes all --error-exitcode 1 \
        "$tests/test_cuda_collective_device" small
fi

# mean WHAT AIM FILES...: the geometric mean of fused÷GEMM over the rows of some benches.
mean() {
    local what=$1 aim=$2
    shift 2
    python3 - "$what" "$aim" "$@" <<'PYTHON'
import json, math, sys
rows = [json.loads(line) for name in sys.argv[3:] for line in open(name)]
ratios = [r["fused_over_gemm"] for r in rows if isinstance(r.get("fused_over_gemm"), (int, float))]
if ratios:
    geometric = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print("  %s: geometric mean of %d rows %.3f (aim %s), %.3f to %.3f" % (
        sys.argv[1], len(ratios), geometric, sys.argv[2], min(ratios), max(ratios)))
PYTHON
}

# row NAME ARGUMENTS...: a bench, its table shown, its rows kept as JSON.
row() {
    local name=$1
    shift
    "$weft" bench "$@" --dtype bf16 --backend cuda --json >"$report/$name.json" 2>"$report/$name.err" || failed=1
    cat "$report/$name.err"
    python3 - "$report/$name.json" <<'PYTHON' || cat "$report/$name.json"
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    def number(key, form):
        return format(r[key], form) if isinstance(r.get(key), (int, float)) else "-"
    print("  %-8s %-34s W %d  %6d %6d %6d  GEMM %8s  unfused %8s  fused %8s µs  fused÷GEMM %5s  %s" % (
        r["op"], r["schedule"], r["ranks"], r["m"], r["n"], r["k"], number("gemm_us", ".1f"), number("unfused_us", ".1f"),
        number("fused_us", ".1f"), number("fused_over_gemm", ".3f"), "ok" if r["ok"] else "WRONG"))
PYTHON
}

if [ $bench = 1 ]; then
    echo "GEMM alone beside cuBLAS (fused = weft, GEMM only = cuBLAS), µs"
    shapes="4096,1792,4096 4096,3584,8192 4096,4096,4096"
    [ $quick = 1 ] || shapes="4096,1792,4096 8192,1792,4096 16384,1792,4096 4096,3584,8192 8192,3584,8192
        16384,3584,8192 4096,6656,16384 8192,6656,16384 16384,6656,16384 4096,4096,4096 8192,8192,8192"
    for shape in $shapes; do
        # shellcheck disable=SC2086
        row "gemm_$shape" ag_gemm --schedule direct ${shape//,/ } -n 1
    done
    mean "weft ÷ cuBLAS" "1.05, at most 1.11 each" "$report"/gemm_[0-9]*.json
    echo "one rank of eight in the loop over an emulated link of 450 GB/s and 2 µs"
    link="-n 8 --link 450GB/s,2us"
    if [ $quick = 1 ]; then
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
    echo "virtual ranks on one GPU (not NVLink times)"
    for ranks in 2 4 8; do
        for op in ag_gemm gemm_rs gemm_ar gemm_as; do
            row "virtual_${op}_$ranks" $op 4096 4096 4096 -n $ranks
        done
    done
    step "timeline" 60 "$weft" bench ag_gemm 4096 4096 4096 -n 4 --dtype bf16 --backend cuda --iters 7 \
        --trace "$report/timeline.json" --svg "$report/timeline.svg"
fi
echo
printf '%s' "$table"
exit $failed
