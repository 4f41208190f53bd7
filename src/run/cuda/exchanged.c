/* See exchanged.h. */
#include "run/cuda/exchanged.h"

#include "core/dtype.h"
#include "core/round.h"

#include <string.h>

enum { WARP_THREADS = 32 };

bool weft_cuda_is_exchanged(const weft_plan_part *part)
{
    const weft_problem *p = &part->problem;

    return part->world > 1 && weft_problem_stores_sums(p) && p->tuning.library != 2;
}

/* Of `rows` of the product, as elements of a type. */
static int64_t bytes_of(const weft_plan_part *part, int64_t rows, weft_dtype dtype)
{
    return rows * part->problem.n * (int64_t)weft_dtype_size(dtype);
}

/* The longest block of rows that a rank adds up. */
static int64_t longest(const weft_plan_part *part)
{
    bool whole = part->problem.op == WEFT_OP_GEMM_AR && part->problem.tuning.exchange == 1;

    return whole ? part->problem.m : weft_part(part->problem.m, part->world, 0).count;
}

static bool is_named(const weft_plan_part *part, uint32_t operand, const char *name)
{
    return part->operands[operand].place != WEFT_PLACE_USER &&
           strcmp(part->operands[operand].name, name) == 0;
}

size_t weft_cuda_exchange_bytes(const weft_plan_part *part, uint32_t operand)
{
    const weft_problem *p = &part->problem;

    if (!weft_cuda_is_exchanged(part))
        return 0;
    if (is_named(part, operand, "inbox"))
        return (size_t)(2 * part->world * bytes_of(part, longest(part), p->wire_dtype));
    return is_named(part, operand, "results") ? (size_t)(2 * bytes_of(part, p->m, p->d_dtype)) : 0;
}

static const weft_cuda_place *place_of(const weft_plan_part *part, const weft_cuda_binding *binding,
                                       uint32_t operand, int rank)
{
    return &binding->places[operand * (uint32_t)part->world + (uint32_t)rank];
}

/* This rank's D, C or bias. */
static const void *user_place(const weft_plan_part *part, const weft_cuda_binding *binding,
                              weft_operand_role role, int64_t *ld)
{
    for (uint32_t o = 0; o < part->operand_count; o++)
        if (part->operands[o].place == WEFT_PLACE_USER && part->operands[o].role == role) {
            *ld = place_of(part, binding, o, part->rank)->ld;
            return place_of(part, binding, o, part->rank)->base;
        }
    return NULL;
}

/* Inboxes. A rank in the loop sends to itself what stands for a peer's: see weft_cuda_binding. */
static void bind_inboxes(const weft_plan_part *part, const weft_cuda_binding *binding, weft_cuda_exchange *x)
{
    for (uint32_t o = 0; o < part->operand_count; o++)
        for (int r = 0; r < part->world; r++) {
            char *there = place_of(part, binding, o, r)->base;

            if (is_named(part, o, "inbox")) {
                x->to[r] = there + (binding->peers ? r : part->rank) * x->row_bytes;
                if (r == part->rank)
                    x->inbox = there;
            } else if (is_named(part, o, "results")) {
                int64_t ahead =
                    binding->peers ? weft_part(part->problem.m, part->world, r).begin - (int64_t)x->row0 : 0;

                x->results[r] = there + bytes_of(part, ahead, part->problem.d_dtype);
            } else if (is_named(part, o, "sums") && r == part->rank) {
                x->sums = there;
                x->sums_ld = place_of(part, binding, o, r)->ld;
            }
        }
}

int64_t weft_cuda_exchange_sent(const weft_plan_part *part)
{
    int64_t rows = part->problem.op == WEFT_OP_GEMM_AR && part->problem.tuning.exchange == 1
                       ? part->problem.m * (part->world - 1)
                       : part->problem.m * (part->world - 1) / part->world;

    return bytes_of(part, rows, part->problem.wire_dtype);
}

void weft_cuda_exchange_make(const weft_plan_part *part, const weft_cuda_binding *binding, bool sent,
                             weft_cuda_exchange *exchange)
{
    const weft_problem *p = &part->problem;
    bool whole = p->op == WEFT_OP_GEMM_AR && p->tuning.exchange == 1;
    weft_span rows = whole ? (weft_span){0, p->m} : weft_part(p->m, part->world, part->rank);
    int64_t each = p->m / part->world;
    weft_cuda_exchange x = {.m = (int32_t)p->m,
                            .n = (int32_t)p->n,
                            .world = part->world,
                            .rank = part->rank,
                            .row0 = (int32_t)rows.begin,
                            .rows = (int32_t)rows.count,
                            .m_each = (int32_t)each,
                            .m_more = (int32_t)(p->m % part->world),
                            .inverse_each = 1.0f / (float)each,
                            .inverse_long = 1.0f / (float)(each + 1),
                            .scattered = !whole,
                            .returns = p->op == WEFT_OP_GEMM_AR && !whole,
                            .wire = (int32_t)p->wire_dtype,
                            .dtype = (int32_t)p->d_dtype,
                            .row_bytes = bytes_of(part, longest(part), p->wire_dtype),
                            .results_bytes = bytes_of(part, p->m, p->d_dtype),
                            .d_from_row = p->op == WEFT_OP_GEMM_RS ? (int32_t)rows.begin : 0,
                            .alpha = p->alpha,
                            .beta = p->beta,
                            .act = (int32_t)p->act};
    int64_t unused;
    uintptr_t ends;

    x.inbox_bytes = x.row_bytes * part->world;
    bind_inboxes(part, binding, &x);
    if (sent)
        x.sums = NULL;
    x.d = (void *)(uintptr_t)user_place(part, binding, WEFT_ROLE_D, &x.d_ld);
    if (p->beta != 0)
        x.c = user_place(part, binding, WEFT_ROLE_C, &x.c_ld);
    if (p->bias)
        x.bias = user_place(part, binding, WEFT_ROLE_BIAS, &unused);
    x.changes = p->alpha != 1 || x.c || x.bias || p->act != WEFT_ACT_NONE;
    ends = (uintptr_t)x.d;
    x.wide = ends % 16 == 0 && x.d_ld % WEFT_CUDA_EXCHANGE_WIDTH == 0;
    *exchange = x;
}

/* Warps of weft_exchange_bf16 and _f16 that have something to do: a line of sums each, or several of
 * results. */
static int64_t warps_of(const weft_cuda_exchange *x)
{
    int64_t line = WEFT_CUDA_EXCHANGE_WIDTH * WEFT_CUDA_EXCHANGE_LINE,
            sums = weft_divide_up((int64_t)x->rows * x->n, line),
            results = x->returns ? weft_divide_up((int64_t)(x->m - x->rows) * x->n,
                                                  WEFT_CUDA_EXCHANGE_TOGETHER * line)
                                 : 0;

    return weft_max(sums, results);
}

bool weft_cuda_exchange_by_lines(const weft_cuda_exchange *x)
{
    return !x->sums && x->wire == x->dtype && x->dtype != WEFT_F32 && x->wide;
}

unsigned weft_cuda_exchange_threads(const weft_cuda_exchange *x, bool by_lines, int most)
{
    bool many = by_lines && warps_of(x) * WARP_THREADS > (int64_t)most * WEFT_CUDA_EXCHANGE_THREADS;

    return WEFT_CUDA_EXCHANGE_THREADS * (many ? 2 : 1);
}

unsigned weft_cuda_exchange_grid(const weft_cuda_exchange *x, bool by_lines, int most)
{
    int64_t rows = x->returns && x->m - x->rows > x->rows ? x->m - x->rows : x->rows,
            units = (x->sums ? x->m : rows) * (x->n / WEFT_CUDA_EXCHANGE_WIDTH),
            threads = by_lines ? warps_of(x) * WARP_THREADS : units,
            ctas = weft_divide_up(threads, weft_cuda_exchange_threads(x, by_lines, most));

    return (unsigned)weft_max(1, weft_min(ctas, most));
}
