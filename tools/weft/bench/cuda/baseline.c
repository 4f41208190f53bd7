/* See baseline.h. */
#include "bench/cuda/baseline.h"

#include "core/part.h"
#include "core/round.h"

/* The collective of an operation on `lanes` crews a rank; sums travel as they do in the operation. False when
 * the ranks' shares differ. A rank alone cannot wait for peers half-way through an all_reduce: it scatters
 * the sums, and (`again`) gathers them. */
static bool collective_of(const weft_problem *p, int world, int lanes, bool alone, bool again,
                          weft_problem *out)
{
    bool gathers_b = p->op == WEFT_OP_AG_GEMM && p->layout == WEFT_LAYOUT_GATHER_B;
    int64_t elements = p->op == WEFT_OP_AG_GEMM ? (gathers_b ? p->k * p->n : p->m * p->k) : p->m * p->n;
    /* Over a link sums are made in two rounds: it carries one while the next is fetched. Copies come to each
     * lane once from every peer, which does the same. */
    bool scatters = p->op == WEFT_OP_GEMM_RS || (p->op == WEFT_OP_GEMM_AR && alone && !again);
    int64_t chunks = alone && scatters ? 2 * lanes : lanes;

    *out =
        (weft_problem){.size = sizeof(*out), .l = 1, .alpha = 1, .dtype = p->dtype, .tuning.workers = lanes};
    if (elements % world)
        return false;
    out->count = elements / world;
    out->schedule = WEFT_SCHEDULE_PULL;
    if (scatters) {
        out->op = WEFT_OP_REDUCE_SCATTER;
        out->dtype = p->wire_dtype;
    } else if (p->op == WEFT_OP_GEMM_AR && !again) {
        out->op = WEFT_OP_ALL_REDUCE;
        out->dtype = p->wire_dtype;
        out->schedule = WEFT_SCHEDULE_TWO_SHOT;
        out->count = elements;
    } else {
        out->op = WEFT_OP_ALL_GATHER;
        out->dtype = p->op == WEFT_OP_AG_GEMM ? p->dtype : p->d_dtype;
    }
    /* Each rank's share in chunks for the lanes, on whole lines. */
    out->tuning.tile_n = weft_round_up(elements / world / chunks, 64);
    return out->tuning.tile_n > 0;
}

static bool make_comm(weft_cuda_device *device, const weft_problem *problem, int world,
                      const weft_cuda_world_options *options, int lanes, bool again, weft_cuda_world *made,
                      weft_error_text *error)
{
    weft_problem collective, resolved;

    return collective_of(problem, world, lanes, options->alone, again, &collective) &&
           weft_problem_resolve(&collective, world, &resolved, error) == WEFT_OK &&
           weft_cuda_world_make(device, &resolved, world, options, made, error) == WEFT_OK;
}

bool gpu_baseline_make(weft_cuda_device *device, const weft_problem *problem, int world,
                       const weft_cuda_world_options *options, gpu_baseline *baseline, weft_error_text *error)
{
    int running = options->alone ? 1 : world, lanes = device->crews > running ? device->crews / running : 1;
    bool again = options->alone && problem->op == WEFT_OP_GEMM_AR;

    if (!make_comm(device, problem, world, options, lanes, false, &baseline->comm, error) ||
        (again && !make_comm(device, problem, world, options, lanes, true, &baseline->second, error)))
        return false;
    baseline->comm_first = problem->op == WEFT_OP_AG_GEMM;
    baseline->products = running;
    return device->cu->cuEventCreate(&baseline->join, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
}

void gpu_baseline_free(gpu_baseline *baseline)
{
    if (!baseline->comm.device)
        return;
    if (baseline->join)
        baseline->comm.device->cu->cuEventDestroy(baseline->join);
    weft_cuda_world_free(&baseline->comm);
    if (baseline->second.device)
        weft_cuda_world_free(&baseline->second);
}

bool gpu_baseline_enqueue_comm(gpu_baseline *b, weft_error_text *error)
{
    const weft_cuda_driver *cu = b->comm.device->cu;
    CUstream first = b->comm.streams[0];
    bool good = cu->cuEventRecord(b->join, first) == CUDA_SUCCESS;

    for (int r = 1; r < b->comm.running; r++)
        good &= cu->cuStreamWaitEvent(b->comm.streams[r], b->join, 0) == CUDA_SUCCESS;
    good &= weft_cuda_world_launch(&b->comm, error) == WEFT_OK;
    for (int r = 1; r < b->comm.running; r++) {
        good &= cu->cuEventRecord(b->join, b->comm.streams[r]) == CUDA_SUCCESS;
        good &= cu->cuStreamWaitEvent(first, b->join, 0) == CUDA_SUCCESS;
    }
    if (b->second.device) {
        good &= cu->cuEventRecord(b->join, first) == CUDA_SUCCESS &&
                cu->cuStreamWaitEvent(b->second.streams[0], b->join, 0) == CUDA_SUCCESS &&
                weft_cuda_world_launch(&b->second, error) == WEFT_OK &&
                cu->cuEventRecord(b->join, b->second.streams[0]) == CUDA_SUCCESS &&
                cu->cuStreamWaitEvent(first, b->join, 0) == CUDA_SUCCESS;
    }
    return good;
}

bool gpu_baseline_enqueue(gpu_baseline *b, cublas_peer *peer, weft_error_text *error)
{
    void *a = weft_cuda_world_place(b->inputs, WEFT_ROLE_A, 0).base,
         *other = weft_cuda_world_place(b->inputs, WEFT_ROLE_B, 0).base;
    bool good = !b->comm_first || gpu_baseline_enqueue_comm(b, error);

    for (int i = 0; i < b->products; i++)
        good &= cublas_product_run(peer, b->product, b->product->best, a, other, b->result,
                                   b->comm.streams[0]) == 0;
    return good & (b->comm_first || gpu_baseline_enqueue_comm(b, error));
}
