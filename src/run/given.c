#include "run/given.h"

#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"
#include "plan/in_place.h"
#include "plan/user_operands.h"
#include "symm/symm.h"

enum { STAGED_LEAST_BYTES = 256 << 10 };

static weft_given dense(const weft_plan *plan, const weft_operand *o)
{
    int64_t rows = weft_operand_rows(o, plan->part.world, plan->part.rank);
    int64_t cols = weft_operand_cols(o, plan->part.world, plan->part.rank) * weft_operand_width(o);
    weft_given out = {.rows = o->transposed ? cols : rows,
                      .cols = o->transposed ? rows : cols,
                      .batch = o->batch > 0 ? o->batch : 1,
                      .element_bytes = (int64_t)weft_dtype_size(o->dtype)};

    out.ld = out.cols;
    if (o->packed)
        out.stride =
            (int64_t)weft_round_up_bytes(weft_packed_bytes(plan->bind, rows, cols), WEFT_RUN_ALIGNMENT);
    return out;
}

bool weft_given_lands(const weft_plan_part *part, const weft_task *task)
{
    const weft_region *to = weft_task_regions(part, task);
    const weft_operand *into = &part->operands[to->operand],
                       *out_of = &part->operands[weft_copy_source(part, task)->operand];

    if (task->post_count > WEFT_LANDED_POSTS)
        return false;
    if (to->rows == 0 || to->cols == 0)
        return true;
    return into->dtype == out_of->dtype && !into->transposed && !out_of->transposed && !into->packed;
}

/* Which operands of ranks on other nodes this rank writes. */
static void note_far(weft_plan *plan)
{
    const weft_plan_part *part = &plan->part;

    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        const weft_operand *into;

        if (!weft_task_crosses(part, task))
            continue;
        into = &part->operands[weft_task_regions(part, task)->operand];
        if (into->place == WEFT_PLACE_USER && weft_given_lands(part, task))
            plan->landed |= 1u << into->role;
        else if (into->place == WEFT_PLACE_USER)
            plan->touched |= 1u << into->role;
    }
}

void weft_given_note(weft_plan *plan)
{
    const weft_plan_part *part = &plan->part;

    for (int role = 0; role < WEFT_ROLE_COUNT; role++)
        plan->operand_of_role[role] = -1;
    for (uint32_t i = 0; i < part->operand_count; i++) {
        const weft_operand *o = &part->operands[i];

        if (o->place == WEFT_PLACE_USER) {
            plan->operand_of_role[o->role] = (int)i;
            plan->dense_of_role[o->role] = dense(plan, o);
        }
    }
    for (uint32_t i = 0; i < part->region_count; i++) {
        const weft_operand *operand = &part->operands[part->regions[i].operand];

        if (operand->place != WEFT_PLACE_USER)
            continue;
        if (part->regions[i].rank == part->rank)
            plan->used |= 1u << operand->role;
        else if (!part->domain || part->domain[part->regions[i].rank] == part->domain[part->rank])
            plan->touched |= 1u << operand->role;
    }
    if (part->domain)
        note_far(plan);
}

/* Roles that peers touch, where there may be another way; 0: none. */
static uint32_t avoidable(const weft_plan *plan)
{
    const weft_plan_part *part = &plan->part;

    if (plan->loaded || part->world == 1 ||
        !weft_plan_can_be_staged(&part->problem, part->domain, part->world))
        return 0;
    return weft_user_operands_touched(&part->problem);
}

uint32_t weft_given_reached(const weft_plan *plan)
{
    const weft_plan_part *part = &plan->part;
    uint32_t touched = avoidable(plan);
    int64_t most = 0;

    for (uint32_t i = 0; i < part->operand_count; i++) {
        const weft_operand *o = &part->operands[i];
        int64_t bytes = weft_operand_rows(o, part->world, 0) * weft_operand_cols(o, part->world, 0) *
                        weft_operand_width(o) * (int64_t)weft_dtype_size(o->dtype);

        if (o->place != WEFT_PLACE_USER || !(touched & 1u << o->role))
            continue;
        if (o->packed)
            return 0;
        most = weft_max(bytes, most);
    }
    return most >= STAGED_LEAST_BYTES ? touched : 0;
}

uint32_t weft_given_told(const weft_plan *plan)
{
    return plan->part.problem.op >= WEFT_OP_ALL_REDUCE ? avoidable(plan) : weft_given_reached(plan);
}

bool weft_given_tells(const weft_plan *plan, weft_operand_role role, size_t bytes)
{
    return bytes && plan->told & 1u << role && weft_given_needed(plan, role);
}

bool weft_given_beyond(const weft_plan *plan, const weft_operands *in)
{
    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++) {
        int operand = plan->operand_of_role[role];
        weft_symm_place where;
        weft_given g;
        size_t bytes;

        if (operand < 0)
            continue;
        g = weft_given_of(plan, operand, in);
        bytes = weft_given_span(plan, operand, &g);
        if (weft_given_tells(plan, (weft_operand_role)role, bytes) &&
            !weft_symm_find(plan->group, g.data, bytes, &where))
            return true;
    }
    return false;
}

weft_given weft_given_of(const weft_plan *plan, int operand, const weft_operands *in)
{
    const weft_operand *o = &plan->part.operands[operand];
    weft_given out = plan->dense_of_role[o->role];
    int64_t ld = 0, stride = 0;

    switch (o->role) {
    case WEFT_ROLE_A:
        out.data = (char *)(uintptr_t)in->a;
        ld = in->lda;
        stride = in->stride_a;
        break;
    case WEFT_ROLE_B:
        out.data = (char *)(uintptr_t)in->b;
        ld = in->ldb;
        stride = in->stride_b;
        break;
    case WEFT_ROLE_C:
        out.data = (char *)(uintptr_t)in->c;
        ld = in->ldc;
        stride = in->stride_c;
        break;
    case WEFT_ROLE_BIAS:
        out.data = (char *)(uintptr_t)in->bias;
        break;
    case WEFT_ROLE_D:
        out.data = in->d;
        ld = in->ldd;
        stride = in->stride_d;
        break;
    case WEFT_ROLE_SEND:
        out.data = (char *)(uintptr_t)in->send;
        break;
    case WEFT_ROLE_RECV:
        out.data = in->recv;
        break;
    default:
        break;
    }
    if (ld != 0)
        out.ld = ld;
    if (o->packed)
        return out;
    out.stride = stride;
    if (stride == 0 && __builtin_mul_overflow(out.rows, out.ld, &out.stride))
        out.stride = INT64_MAX; /* which the check refuses */
    return out;
}

size_t weft_given_span(const weft_plan *plan, int operand, const weft_given *g)
{
    if (weft_given_empty(g))
        return 0;
    if (plan->part.operands[operand].packed)
        return (size_t)(g->stride * g->batch);
    /* unsigned, for it is asked of operands that have not been checked yet too */
    return (((size_t)g->batch - 1) * (size_t)g->stride + ((size_t)g->rows - 1) * (size_t)g->ld +
            (size_t)g->cols) *
           (size_t)g->element_bytes;
}

/* Only the root's SEND counts in a broadcast. */
bool weft_given_needed(const weft_plan *plan, weft_operand_role role)
{
    if (plan->part.problem.op == WEFT_OP_BROADCAST && role == WEFT_ROLE_SEND)
        return plan->part.rank == plan->part.problem.root;
    return (plan->touched | plan->landed | plan->used) & 1u << role;
}

weft_status weft_given_check(const weft_plan *plan, int operand, const weft_given *g)
{
    const weft_operand *o = &plan->part.operands[operand];
    weft_error_text *error = &plan->group->error;

    if (weft_given_empty(g) || !weft_given_needed(plan, o->role))
        return WEFT_OK;
    if (!g->data)
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT, "operand %s of %s is NULL; rank %d has %lld x %lld of it", o->name,
            weft_op_name(plan->part.problem.op), plan->part.rank, (long long)g->rows, (long long)g->cols);
    if (!weft_dtype_fits_at(o->dtype, g->data))
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT, "operand %s of %s is at %p, which is not aligned for %s", o->name,
            weft_op_name(plan->part.problem.op), (void *)g->data, weft_dtype_name(o->dtype));
    if (o->packed) {
        int64_t k = weft_operand_rows(o, plan->part.world, plan->part.rank);
        int64_t n = weft_operand_cols(o, plan->part.world, plan->part.rank) * weft_operand_width(o);

        if (!weft_packed_fits(plan->bind, (const weft_packed *)g->data, k, n))
            return weft_error_set(error, WEFT_ERR_ARGUMENT,
                                  "operand %s of %s is not a B of %lld x %lld packed for this CPU", o->name,
                                  weft_op_name(plan->part.problem.op), (long long)k, (long long)n);
        return WEFT_OK;
    }
    if (g->ld < g->cols)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "the leading dimension of %s is %lld; its rows have %lld elements as stored",
                              o->name, (long long)g->ld, (long long)g->cols);
    if (g->batch > 1 && g->stride < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "the batch stride of %s is %lld; it must not be negative", o->name,
                              (long long)g->stride);
    /* One matrix without gaps is what the plan was checked for. */
    if ((g->ld != g->cols || g->batch > 1) && (!weft_extents_fit(g->rows, g->ld, 1) ||
                                               !weft_span_fits(g->rows, g->cols, g->ld, g->batch, g->stride)))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "the leading dimension %lld and the batch stride %lld of %s: an operand spans "
                              "at most 2^46 elements",
                              (long long)g->ld, (long long)g->stride, o->name);
    if (o->output && weft_batch_overlaps(g->rows, g->cols, g->ld, g->batch, g->stride))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "the batch stride of %s is %lld: its %lld matrices, of %lld x %lld with rows "
                              "%lld elements apart, would overlap",
                              o->name, (long long)g->stride, (long long)g->batch, (long long)g->rows,
                              (long long)g->cols, (long long)g->ld);
    return WEFT_OK;
}

/* May SEND and RECV share memory as they do here? */
static bool overlap_is_safe(const weft_plan *plan, const char *send, size_t send_bytes, const char *recv,
                            size_t recv_bytes)
{
    const weft_problem *p = &plan->part.problem;
    ptrdiff_t share = (ptrdiff_t)p->count * (ptrdiff_t)weft_dtype_size(p->dtype) * plan->part.rank;

    if (send + send_bytes <= recv || recv + recv_bytes <= send)
        return true;
    if (plan->loaded || !weft_plan_in_place(p, plan->part.domain, plan->part.world))
        return false;
    if (p->op == WEFT_OP_ALL_GATHER)
        return send == recv + share;
    return p->op == WEFT_OP_REDUCE_SCATTER ? recv == send + share : send == recv;
}

bool weft_given_must_move(const weft_plan *plan, int operand, const weft_given *g, const weft_operands *in,
                          bool shared)
{
    weft_operand_role role = plan->part.operands[operand].role;
    size_t bytes = weft_given_span(plan, operand, g);

    if (bytes == 0 || !weft_given_needed(plan, role))
        return false;
    if (plan->part.world > 1 && plan->touched & 1u << role && !shared)
        return true;
    if (role == WEFT_ROLE_SEND && plan->operand_of_role[WEFT_ROLE_RECV] >= 0) {
        size_t recv_bytes = weft_given_span(plan, plan->operand_of_role[WEFT_ROLE_RECV],
                                            &plan->dense_of_role[WEFT_ROLE_RECV]);

        return !overlap_is_safe(plan, g->data, bytes, in->recv, recv_bytes);
    }
    return false;
}
