/*
 * The two parts of a tensor-parallel product, measured alone.
 *
 * GEMM only is the product a rank does, with everything it needs already there: a plan of the same engine on
 * a group of one. All ranks run theirs at the same time, so it has the memory bandwidth and the clock that
 * the whole has. Comm only is the collective on buffers of the same size, in the type that travels.
 */
#include "bench/tp/bench_tp.h"

#include "core/dtype.h"
#include "core/round.h"

#include <string.h>

/* The blocks of the local product: what is gathered is whole. */
static tp_layout local_layout(const tp_data *data)
{
    const weft_problem *p = &data->problem;
    tp_layout at = data->layout;

    if (p->op == WEFT_OP_AG_GEMM && p->layout == WEFT_LAYOUT_GATHER_B)
        at.b = (tp_block){0, p->k, 0, p->n};
    else if (p->op == WEFT_OP_AG_GEMM)
        at.a = (tp_block){0, p->m, 0, p->k};
    at.d = (tp_block){at.a.row0, at.a.rows, at.b.col0, at.b.cols};
    return at;
}

static bool reduces(const weft_problem *p)
{
    return p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;
}

static int take(const tp_data *data, size_t bytes, void **memory)
{
    bench_context *context = data->context;

    return weft_alloc(context->group, bytes, 0, memory) == WEFT_OK ? 0 : bench_fail(context, "allocating");
}

int tp_local_open(tp_local *local, tp_data *data)
{
    weft_problem p = data->problem;
    tp_layout at = local_layout(data);
    size_t element = weft_dtype_size(p.dtype);

    memset(local, 0, sizeof *local);
    local->data = data;
    if (weft_group_threads(1, &local->solo) != WEFT_OK)
        return bench_say(data->context, "%s", weft_error(NULL));
    p.op = WEFT_OP_AG_GEMM;
    p.layout = WEFT_LAYOUT_GATHER_A;
    p.schedule = WEFT_SCHEDULE_DIRECT;
    p.m = at.a.rows;
    p.n = at.b.cols;
    p.k = at.a.cols;
    if (data->problem.op == WEFT_OP_AG_GEMM && data->problem.layout == WEFT_LAYOUT_GATHER_B)
        p.b_form = p.b_form == WEFT_B_PREPACKED ? WEFT_B_PACK_IN_RUN : p.b_form;
    p.bias = 0;
    p.beta = 0;
    p.act = WEFT_ACT_NONE;
    /* With a reduction, what the product gives is partial sums. */
    p.d_dtype = reduces(&data->problem) ? p.wire_dtype : p.d_dtype;
    local->d_cols = data->problem.op == WEFT_OP_GEMM_AS ? data->problem.n : p.n;
    local->d_bytes = (size_t)(p.m * local->d_cols * p.l) * weft_dtype_size(p.d_dtype);
    /* From the same kind of memory as the operands: pages of the same size. Every rank asks for the same. */
    if (take(data, (size_t)((data->problem.m + 1) * (data->problem.n + 1) * p.l) * weft_dtype_size(p.d_dtype),
             &local->d))
        return 1;
    for (int s = 0; data->problem.op == WEFT_OP_AG_GEMM && s < data->sets; s++) {
        bool gather_b = data->problem.layout == WEFT_LAYOUT_GATHER_B;
        tp_block whole = gather_b ? at.b : at.a;
        if (take(data, (size_t)(whole.rows * whole.cols * p.l) * element, &local->full[s]))
            return 1;
        tp_fill(data, s, gather_b ? TP_B : TP_A, whole, gather_b ? p.transb : p.transa, p.dtype,
                local->full[s]);
    }
    if (p.m == 0 || p.n == 0)
        return 0; /* more ranks than rows: this one has no product */
    if (weft_plan_create(local->solo, &p, &local->plan) != WEFT_OK)
        return bench_say(data->context, "the local product: %s", weft_error(local->solo));
    return 0;
}

void tp_local_close(tp_local *local)
{
    weft_plan_destroy(local->plan);
    weft_group_free(local->solo);
    if (!local->data)
        return;
    for (int s = 0; s < TP_MOST_SETS; s++)
        weft_free(local->data->context->group, local->full[s]);
    weft_free(local->data->context->group, local->d);
}

int tp_local_prepare(void *argument, int iteration)
{
    tp_local *local = argument;

    (void)iteration;
    tp_next_turn(local->data);
    memset(local->d, 0xff, local->d_bytes);
    return 0;
}

int tp_local_run(void *argument, int iteration)
{
    tp_local *local = argument;
    const tp_data *data = local->data;
    const weft_problem *p = &data->problem;
    tp_layout at = local_layout(data);
    int set = tp_set_of(data);
    bool whole_b = p->layout == WEFT_LAYOUT_GATHER_B;
    weft_operands operands = {
        .size = sizeof operands, .a = data->set[set].a, .b = data->set[set].b, .d = local->d};

    (void)iteration;
    if (!local->plan)
        return 0;
    if (data->set[set].packed && !(local->full[set] && whole_b))
        operands.b = data->set[set].packed;
    if (local->full[set] && whole_b)
        operands.b = local->full[set];
    else if (local->full[set])
        operands.a = local->full[set];
    operands.lda = p->transa ? at.a.rows : at.a.cols;
    operands.ldb = p->transb ? at.b.rows : at.b.cols;
    operands.ldd = local->d_cols;
    operands.stride_a = at.a.rows * at.a.cols;
    operands.stride_b = operands.b == data->set[set].packed ? 0 : at.b.rows * at.b.cols;
    operands.stride_d = at.d.rows * local->d_cols;
    if (weft_run(local->plan, &operands) == WEFT_OK)
        return 0;
    return bench_say(data->context, "the local product: %s", weft_error(local->solo));
}

/* ---- the collective ------------------------------------------------------------------------------- */

int tp_comm_open(tp_comm *comm, tp_data *data)
{
    const weft_problem *p = &data->problem;
    bench_context *context = data->context;
    weft_problem c = *p;
    int64_t world = context->size, face = p->m * p->n * p->l;

    memset(comm, 0, sizeof *comm);
    comm->data = data;
    c.schedule = WEFT_SCHEDULE_AUTO;
    c.layout = WEFT_LAYOUT_DEFAULT;
    c.reduction = WEFT_SUM;
    c.tuning.tile_m = c.tuning.tile_n = c.tuning.tile_k = 0;
    switch (p->op) {
    case WEFT_OP_AG_GEMM:
        face = (p->layout == WEFT_LAYOUT_GATHER_B ? p->n : p->m) * p->k * p->l;
        c.op = WEFT_OP_ALL_GATHER;
        break;
    case WEFT_OP_GEMM_RS:
        c.op = WEFT_OP_REDUCE_SCATTER;
        c.dtype = p->wire_dtype;
        break;
    case WEFT_OP_GEMM_AS:
        c.op = WEFT_OP_ALL_GATHER;
        c.dtype = p->d_dtype;
        break;
    default:
        c.op = WEFT_OP_ALL_REDUCE;
        c.dtype = p->wire_dtype;
        break;
    }
    int64_t share = weft_divide_up(face, world);
    size_t element = weft_dtype_size(c.dtype), all = (size_t)(share * world) * element;
    c.count = c.op == WEFT_OP_ALL_REDUCE ? face : share;
    if (weft_alloc(context->group, all, 0, &comm->send) != WEFT_OK ||
        weft_alloc(context->group, all, 0, &comm->recv) != WEFT_OK)
        return bench_fail(context, "allocating");
    memset(comm->send, 0, all);
    memset(comm->recv, 0, all);
    if (weft_plan_create(context->group, &c, &comm->plan) != WEFT_OK)
        return bench_fail(context, "the collective alone");
    return 0;
}

void tp_comm_close(tp_comm *comm)
{
    weft_plan_destroy(comm->plan);
    if (comm->data) {
        weft_free(comm->data->context->group, comm->send);
        weft_free(comm->data->context->group, comm->recv);
    }
}

int tp_comm_run(void *argument, int iteration)
{
    tp_comm *comm = argument;
    weft_operands operands = {.size = sizeof operands, .send = comm->send, .recv = comm->recv};

    (void)iteration;
    return weft_run(comm->plan, &operands) != WEFT_OK;
}
