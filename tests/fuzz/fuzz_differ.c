/*
 * Ranks that ask for different things: products, plans, collectives and layers nobody thought of, once alike
 * on all ranks and once with one field, or the whole call, different on one of them. Then either every rank
 * gets an error, or the field was none of the call's, and every rank gets the bits it got before. No rank
 * waits in vain. Ranks are threads, and processes.
 *
 * usage: test_fuzz_differ [seed]   runs that one call
 */
#include "support/check.h"
#include "support/leaks.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#include <weft/weft.h>

enum {
    WORLD_MOST = 4,
    SIDE_MOST = 40,
    EXPERTS = 6,
    BUFFER_BYTES = 1 << 18, /* whatever a field becomes, its call stays inside */
    CALLS_OF_GROUP = 12,
    DEADLINE_S = 20,
};

typedef enum door {
    ONE_CALL, /* of the four products */
    PLAN,     /* weft_plan_create and weft_run */
    COLLECTIVE,
    COUNTED,
    ROOTED,
    LAYER,
    ALLOC,
    BARRIER,
    DOORS
} door;

typedef struct call {
    door door;
    weft_problem problem; /* also op, count, dtype, reduction and root of the collectives */
    bool bias, c, row_scale, col_scale, has_alpha, has_beta, symmetric;
    float alpha, beta;
    int counted; /* which of the three */
    int64_t counts[WORLD_MOST][WORLD_MOST];
    weft_moe_config layer;
    int expert_rank[EXPERTS];
    size_t bytes, alignment;
} call;

typedef struct shared {
    pthread_barrier_t barrier;
    int status[WORLD_MOST][3]; /* alike, different, and the call after them */
    bool same[WORLD_MOST];
    char text[WORLD_MOST][512];
} shared;

typedef struct buffers {
    char *a, *b, *c, *d, *d_alike; /* of BUFFER_BYTES */
    char *symmetric;               /* three more, of weft_alloc */
} buffers;

static shared *all;

static uint64_t pick(uint64_t *state, uint64_t count)
{
    return check_random(state) % count;
}

static int64_t extent(uint64_t *s)
{
    return 1 + (int64_t)pick(s, SIDE_MOST);
}

static int world_of(uint64_t seed)
{
    return 2 + (int)(seed / CALLS_OF_GROUP % (WORLD_MOST - 1));
}

/* ---- calls ---------------------------------------------------------------------------------------- */

static weft_dtype pick_multiplied(uint64_t *s)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8, WEFT_FP8_E4M3};

    return types[pick(s, 6)];
}

static void make_product(uint64_t *s, call *c)
{
    weft_problem *p = &c->problem;
    int count = 0;
    const weft_schedule *schedules;

    weft_problem_init(p, (weft_op)pick(s, 4));
    p->m = extent(s);
    p->n = extent(s);
    p->k = extent(s);
    p->l = pick(s, 4) ? 1 : 2;
    p->dtype = pick_multiplied(s);
    p->transa = (int)pick(s, 2);
    p->transb = (int)pick(s, 2);
    p->b_form = pick(s, 2) ? WEFT_B_PLAIN : WEFT_B_PACK_IN_RUN;
    if (pick(s, 2)) {
        schedules = weft_schedule_list(p->op, WEFT_LAYOUT_DEFAULT, &count);
        p->schedule = schedules[pick(s, (uint64_t)count)];
    }
    p->bias = c->bias = pick(s, 3) == 0;
    p->act = pick(s, 3) ? WEFT_ACT_NONE : (weft_act)pick(s, 4);
    c->c = pick(s, 3) == 0;
    p->beta = c->c ? 2 : 0;
    p->alpha = pick(s, 3) ? 1 : 3;
    c->has_alpha = pick(s, 4) == 0;
    c->alpha = 2;
    c->has_beta = c->c && pick(s, 3) == 0;
    c->beta = 3;
    c->row_scale = pick(s, 5) == 0;
    c->col_scale = pick(s, 5) == 0;
    p->scales = c->row_scale || c->col_scale;
    c->symmetric = pick(s, 2);
    p->tuning.workers = (int)pick(s, 3);
}

static void make_collective(uint64_t *s, call *c)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_I32, WEFT_I64, WEFT_F64, WEFT_BF16};

    weft_problem_init(&c->problem, (weft_op)(WEFT_OP_ALL_REDUCE + pick(s, 5)));
    c->problem.count = pick(s, 3) ? (int64_t)pick(s, 40) : (int64_t)pick(s, 4000); /* up to 32000 bytes */
    c->problem.dtype = types[pick(s, 6)];
    c->problem.reduction = (weft_reduction)pick(s, 4);
    c->problem.root = 0;
    c->symmetric = pick(s, 2);
    c->counted = (int)pick(s, 3);
    for (int i = 0; i < WORLD_MOST; i++)
        for (int j = 0; j < WORLD_MOST; j++)
            c->counts[i][j] = (int64_t)pick(s, 50);
}

static void make_layer(uint64_t *s, int world, call *c)
{
    weft_moe_config *l = &c->layer;

    weft_moe_config_init(l);
    l->experts = 2 + (int)pick(s, EXPERTS - 1);
    l->topk = 1 + (int)pick(s, 2);
    l->hidden = extent(s);
    l->tokens = 1 + (int64_t)pick(s, 8);
    l->dtype = (weft_dtype)pick(s, 3);
    l->impl = (weft_moe_impl)(pick(s, 2) ? 0 : pick(s, 4));
    l->mode = l->impl == WEFT_MOE_FUSED ? (weft_moe_mode)pick(s, 2) : WEFT_MOE_EXACT;
    l->lanes = 1 + (int)pick(s, 2);
    l->wire = pick(s, 3) ? WEFT_MOE_WIRE_GIVEN : WEFT_MOE_WIRE_FP8;
    for (int e = 0; e < EXPERTS; e++)
        c->expert_rank[e] = (int)pick(s, (uint64_t)world);
    l->expert_rank = pick(s, 2) ? c->expert_rank : NULL;
}

static void make_call(uint64_t *s, int world, call *c)
{
    memset(c, 0, sizeof(*c));
    c->door = (door)(pick(s, 3) ? pick(s, 2) : pick(s, DOORS));
    c->bytes = 1 + pick(s, 1000);
    c->alignment = pick(s, 2) ? 0 : 256;
    make_layer(s, world, c);
    if (c->door <= PLAN)
        make_product(s, c);
    else
        make_collective(s, c);
}

/* One field of a product's problem. */
static const char *differ_in_problem(uint64_t *s, weft_problem *p)
{
    switch (pick(s, 29)) {
    case 0:
        p->op = (weft_op)((p->op + 1 + pick(s, 3)) % 4);
        return "op";
    case 1:
        p->schedule = (weft_schedule)pick(s, WEFT_SCHEDULE_TWO_SHOT_PACKETS + 1);
        return "schedule";
    case 2:
        p->layout = (weft_layout)pick(s, WEFT_LAYOUT_GATHER_B_K + 1);
        return "layout";
    case 3:
        p->m += 1 + (int64_t)pick(s, 3);
        return "m";
    case 4:
        p->n += 1 + (int64_t)pick(s, 3);
        return "n";
    case 5:
        p->k += 1 + (int64_t)pick(s, 3);
        return "k";
    case 6:
        p->l += 1;
        return "l";
    case 7:
        p->dtype = (weft_dtype)pick(s, WEFT_FP8_E5M2 + 1);
        return "dtype";
    case 8:
        p->d_dtype = (weft_dtype)pick(s, WEFT_FP8_E5M2 + 1);
        return "d_dtype";
    case 9:
        p->wire_dtype = (weft_dtype)pick(s, WEFT_BF16 + 1);
        return "wire_dtype";
    case 10:
        p->transa = !p->transa;
        return "transa";
    case 11:
        p->transb = !p->transb;
        return "transb";
    case 12:
        p->b_form = p->b_form == WEFT_B_PLAIN ? WEFT_B_PACK_IN_RUN : WEFT_B_PLAIN;
        return "b_form";
    case 13:
        p->alpha += 1;
        return "alpha";
    case 14:
        p->beta += 1;
        return "beta";
    case 15:
        p->bias = !p->bias;
        return "bias";
    case 16:
        p->act = (weft_act)((p->act + 1 + pick(s, WEFT_ACT_SILU_GATED)) % (WEFT_ACT_SILU_GATED + 1));
        return "act";
    case 17:
        p->tuning.tile_m = 8 << pick(s, 3);
        return "tile_m";
    case 18:
        p->tuning.tile_n = 8 << pick(s, 3);
        return "tile_n";
    case 19:
        p->tuning.tile_k = 8 << pick(s, 3);
        return "tile_k";
    case 20:
        p->tuning.workers += 1;
        return "workers";
    case 21:
        p->tuning.copiers += 1;
        return "copiers";
    case 22:
        p->tuning.chunk_k = 8;
        return "chunk_k";
    case 23:
        p->tuning.raster = 2;
        return "raster";
    case 24:
        p->tuning.sums_stay = 1;
        return "sums_stay";
    case 25:
        p->tuning.exchange = 1 + (int)pick(s, 3);
        return "exchange";
    case 26:
        p->tuning.staged = 1;
        return "staged";
    case 27:
        *(pick(s, 3) ? &p->granule_m : pick(s, 2) ? &p->granule_n : &p->granule_k) = 4;
        return "granule";
    default:
        p->scales = p->scales ? 0 : 1;
        return "scales";
    }
}

/* Of a run: what an operand says is the caller's own affair, that there is one is not. */
static const char *differ_in_run(uint64_t *s, call *c)
{
    switch (pick(s, 8)) {
    case 0:
        c->has_alpha = true;
        c->alpha += 1;
        return "alpha of the run";
    case 1:
        c->has_beta = true;
        c->beta += 1;
        return "beta of the run";
    case 2:
        c->row_scale = !c->row_scale;
        return "row_scale";
    case 3:
        c->col_scale = !c->col_scale;
        return "col_scale";
    case 4:
        c->bias = !c->bias;
        return "bias's buffer";
    case 5:
        c->c = !c->c;
        return "C's buffer";
    case 6:
        c->symmetric = !c->symmetric;
        return "where operands lie";
    default:
        c->door = c->door == PLAN ? ONE_CALL : PLAN;
        return "plan or call";
    }
}

static const char *differ_in_collective(uint64_t *s, int world, call *c)
{
    int one;

    switch (pick(s, 6)) {
    case 0:
        c->problem.op =
            (weft_op)(WEFT_OP_ALL_REDUCE + (c->problem.op - WEFT_OP_ALL_REDUCE + 1 + pick(s, 4)) % 5);
        c->counted = (c->counted + 1) % 3;
        return "which collective";
    case 1:
        c->problem.count += 1;
        one = (int)pick(s, (uint64_t)world); /* what a rank keeps for itself is its own affair */
        c->counts[one][(one + 1 + (int)pick(s, (uint64_t)world - 1)) % world] += 1;
        return "count";
    case 2:
        c->problem.dtype = (weft_dtype)((c->problem.dtype + 1 + pick(s, 11)) % 12);
        return "dtype";
    case 3:
        c->problem.reduction = (weft_reduction)((c->problem.reduction + 1 + pick(s, 4)) % 5);
        return "reduction";
    case 4:
        c->problem.root = 1;
        return "root";
    default:
        c->symmetric = !c->symmetric;
        return "where buffers lie";
    }
}

static const char *differ_in_layer(uint64_t *s, int world, weft_moe_config *l, int *expert_rank)
{
    switch (pick(s, 10)) {
    case 0:
        l->experts += 1;
        return "experts";
    case 1:
        l->topk = 3 - l->topk;
        return "topk";
    case 2:
        l->hidden += 1;
        return "hidden";
    case 3:
        l->tokens += 1;
        return "tokens";
    case 4:
        l->dtype = (weft_dtype)((l->dtype + 1 + pick(s, 2)) % 3);
        return "dtype of a layer";
    case 5:
        l->row_bytes = 64;
        return "row_bytes";
    case 6:
        if (l->expert_rank)
            expert_rank[0] = (expert_rank[0] + 1) % world;
        else
            l->expert_rank = expert_rank;
        return "expert_rank";
    case 7:
        l->mode = l->mode == WEFT_MOE_EXACT ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT;
        return "mode";
    case 8:
        l->lanes += 1;
        return "lanes";
    default:
        l->wire = l->wire == WEFT_MOE_WIRE_GIVEN ? WEFT_MOE_WIRE_FP8 : WEFT_MOE_WIRE_GIVEN;
        return "wire";
    }
}

/* Another call on the rank that differs; what is different of it. */
static const char *differ(uint64_t *s, int world, call *c)
{
    const char *what = "the call";

    if (pick(s, 10) == 0) {
        make_call(s, world, c);
        return what;
    }
    switch (c->door) {
    case ONE_CALL:
    case PLAN:
        return pick(s, 3) ? differ_in_problem(s, &c->problem) : differ_in_run(s, c);
    case COLLECTIVE:
    case COUNTED:
    case ROOTED:
        return differ_in_collective(s, world, c);
    case LAYER:
        if (c->layer.expert_rank)
            c->layer.expert_rank = c->expert_rank;
        return differ_in_layer(s, world, &c->layer, c->expert_rank);
    case ALLOC:
        if (pick(s, 2))
            c->bytes += 1;
        else
            c->alignment = 4096;
        return "bytes or alignment";
    default:
        c->door = ALLOC;
        return what;
    }
}

/* ---- one rank ------------------------------------------------------------------------------------- */

static weft_status multiply(weft_group *group, const call *c, buffers *b)
{
    static const float ones[4 * SIDE_MOST] = {1, 2, 1, 2, 1, 2, 1, 2};
    weft_operands o = {.size = sizeof(o),
                       .a = c->symmetric ? b->symmetric : b->a,
                       .b = b->b,
                       .c = c->c ? b->c : NULL,
                       .bias = c->bias ? b->c : NULL,
                       .d = c->symmetric ? b->symmetric + BUFFER_BYTES : b->d,
                       .alpha = c->has_alpha ? &c->alpha : NULL,
                       .beta = c->has_beta ? &c->beta : NULL,
                       .row_scale = c->row_scale ? ones : NULL,
                       .col_scale = c->col_scale ? ones : NULL};
    weft_status (*const products[])(weft_group *, const weft_problem *, const weft_operands *) = {
        weft_ag_gemm, weft_gemm_rs, weft_gemm_ar, weft_gemm_as};
    weft_plan *plan = NULL;
    weft_status status;

    if (c->door == ONE_CALL) {
        status = products[c->problem.op](group, &c->problem, &o);
    } else {
        status = weft_plan_create(group, &c->problem, &plan);
        if (status == WEFT_OK)
            status = weft_run(plan, &o);
        weft_plan_destroy(plan);
    }
    if (c->symmetric)
        memcpy(b->d, b->symmetric + BUFFER_BYTES, BUFFER_BYTES);
    return status;
}

static weft_status communicate(weft_group *group, const call *c, buffers *b)
{
    const weft_problem *p = &c->problem;
    const void *send = c->symmetric ? b->symmetric : b->a;
    char *recv = c->symmetric ? b->symmetric + BUFFER_BYTES : b->d;
    int64_t from[WORLD_MOST];
    int rank = weft_rank(group);
    weft_status status = WEFT_OK;

    for (int i = 0; i < WORLD_MOST; i++)
        from[i] = c->counts[i][rank];
    if (c->door == COLLECTIVE && p->op == WEFT_OP_ALL_REDUCE)
        status = weft_all_reduce(group, send, recv, p->count, p->dtype, p->reduction);
    else if (c->door == COLLECTIVE && p->op == WEFT_OP_ALL_GATHER)
        status = weft_all_gather(group, send, recv, p->count, p->dtype);
    else if (c->door == COLLECTIVE && p->op == WEFT_OP_REDUCE_SCATTER)
        status = weft_reduce_scatter(group, send, recv, p->count, p->dtype, p->reduction);
    else if (c->door == COLLECTIVE && p->op == WEFT_OP_ALL_TO_ALL)
        status = weft_all_to_all(group, send, recv, p->count, p->dtype);
    else if (c->door == COLLECTIVE)
        status = weft_broadcast(group, recv, p->count, p->dtype, p->root);
    else if (c->door == COUNTED && c->counted == 0)
        status = weft_all_gather_v(group, send, recv, c->counts[0], p->dtype);
    else if (c->door == COUNTED && c->counted == 1)
        status = weft_reduce_scatter_v(group, send, recv, c->counts[0], p->dtype, p->reduction);
    else if (c->door == COUNTED)
        status = weft_all_to_all_v(group, send, c->counts[rank], recv, from, p->dtype);
    else if (c->counted == 0)
        status = weft_gather(group, send, recv, p->count, p->dtype, p->root);
    else if (c->counted == 1)
        status = weft_scatter(group, send, recv, p->count, p->dtype, p->root);
    else
        status = weft_reduce(group, send, recv, p->count, p->dtype, p->reduction, p->root);
    if (c->symmetric)
        memcpy(b->d, recv, BUFFER_BYTES);
    return status;
}

static void same(void *context, int expert, int64_t rows, const void *const *in, void *const *out)
{
    (void)expert;
    for (int64_t r = 0; r < rows; r++)
        memcpy(out[r], in[r], *(const size_t *)context);
}

static weft_status route(weft_group *group, const call *c, buffers *b)
{
    size_t row = (size_t)c->layer.hidden * weft_dtype_size(c->layer.dtype);
    weft_moe_config config = c->layer;
    int32_t expert[16 * 2];
    weft_moe_input input = {.size = sizeof(input), .tokens = c->layer.tokens, .x = b->a, .expert = expert};
    weft_moe_expert block = {.size = sizeof(block), .context = &row, .block = same};
    weft_moe *moe = NULL;
    weft_status status;

    if (config.expert_rank)
        config.expert_rank = c->expert_rank;
    if (config.row_bytes && (size_t)config.row_bytes < row)
        row = (size_t)config.row_bytes;
    for (int i = 0; i < c->layer.tokens * c->layer.topk; i++)
        expert[i] = i % c->layer.experts;
    status = weft_moe_create(group, &config, &moe);
    if (status == WEFT_OK)
        status = weft_moe_forward(moe, 0, &input, &block, b->d);
    weft_moe_free(moe);
    return status;
}

static weft_status perform(weft_group *group, const call *c, buffers *b)
{
    uint64_t s = 7 + (uint64_t)weft_rank(group);
    void *memory = NULL;
    weft_status status;

    for (size_t i = 0; i < BUFFER_BYTES / sizeof(uint64_t); i++) /* small numbers in every type */
        ((uint64_t *)b->a)[i] = ((uint64_t *)b->b)[i] = ((uint64_t *)b->c)[i] =
            check_random(&s) & 0x3f3f3f3f3f3f3f3fu;
    memcpy(b->symmetric, b->a, BUFFER_BYTES);
    memcpy(b->symmetric + BUFFER_BYTES, b->c, BUFFER_BYTES);
    memcpy(b->d, b->c, BUFFER_BYTES);
    switch (c->door) {
    case ONE_CALL:
    case PLAN:
        return multiply(group, c, b);
    case LAYER:
        return route(group, c, b);
    case ALLOC:
        status = weft_alloc(group, c->bytes, c->alignment, &memory);
        weft_free(group, memory);
        return status;
    case BARRIER:
        return weft_barrier(group);
    default:
        return communicate(group, c, b);
    }
}

static bool is_lost(weft_status status)
{
    return status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_PEER_DIED || status == WEFT_ERR_ABORTED;
}

/* Whether what the ranks got of a call is as it should be; rank 0 says so for all. */
static void judge(uint64_t seed, int world, const char *what, const call *alike, const call *other,
                  bool threads)
{
    int good = 0, same_bits = 0, waited = 0, alike_good = 0, goes_on = 0;
    bool right;

    for (int r = 0; r < world; r++) {
        alike_good += all->status[r][0] == WEFT_OK;
        good += all->status[r][1] == WEFT_OK;
        goes_on += all->status[r][2] == WEFT_OK;
        same_bits += all->same[r];
        waited += is_lost((weft_status)all->status[r][0]) || is_lost((weft_status)all->status[r][1]);
    }
    right = !waited && (alike_good == 0 || alike_good == world) && (goes_on == 0 || goes_on == world);
    right = right && (good == 0 || (good == world && alike_good == world && same_bits == world));
    right = right && (goes_on == world || alike->door != other->door);
    CHECK(right);
    if (right)
        return;
    fprintf(stderr, "test_fuzz_differ: seed %" PRIu64 ", %d %s, door %d, op %d, %s:\n", seed, world,
            threads ? "threads" : "processes", alike->door, alike->problem.op, what);
    for (int r = 0; r < world; r++)
        fprintf(stderr, "  rank %d: alike %s, different %s%s, then %s: %s\n", r,
                weft_status_name((weft_status)all->status[r][0]),
                weft_status_name((weft_status)all->status[r][1]), all->same[r] ? "" : " (other bits)",
                weft_status_name((weft_status)all->status[r][2]), all->text[r]);
}

typedef struct turn {
    uint64_t first;
    int calls;
    bool threads;
} turn;

static void run_rank(weft_group *group, const turn *t)
{
    int rank = weft_rank(group), world = weft_size(group);
    buffers b = {.a = malloc(BUFFER_BYTES),
                 .b = malloc(BUFFER_BYTES),
                 .c = malloc(BUFFER_BYTES),
                 .d = malloc(BUFFER_BYTES),
                 .d_alike = malloc(BUFFER_BYTES)};
    bool ends = !b.a || !b.b || !b.c || !b.d || !b.d_alike;

    CHECK_INT(weft_set_deadlines(group, DEADLINE_S, DEADLINE_S), WEFT_OK);
    CHECK_INT(weft_alloc(group, 3 * (size_t)BUFFER_BYTES, 0, (void **)&b.symmetric), WEFT_OK);
    for (uint64_t seed = t->first; !ends && b.symmetric && seed < t->first + (uint64_t)t->calls; seed++) {
        uint64_t s = seed;
        int odd = (int)pick(&s, (uint64_t)world);
        float sum = 1;
        const char *what;
        call alike, other;

        make_call(&s, world, &alike);
        other = alike;
        if (other.layer.expert_rank)
            other.layer.expert_rank = other.expert_rank;
        what = differ(&s, world, &other);
        all->text[rank][0] = 0;
        all->status[rank][0] = perform(group, &alike, &b);
        memcpy(b.d_alike, b.d, BUFFER_BYTES);
        if (alike.door !=
            other.door) /* the group will be lost, also to a rank that is still in the call before */
            pthread_barrier_wait(&all->barrier);
        all->status[rank][1] = perform(group, rank == odd ? &other : &alike, &b);
        snprintf(all->text[rank], sizeof(all->text[rank]), "%s", weft_error(group));
        all->same[rank] = memcmp(b.d, b.d_alike, BUFFER_BYTES) == 0;
        all->status[rank][2] = weft_all_reduce(group, &sum, &sum, 1, WEFT_F32, WEFT_SUM);
        if (all->status[rank][2] == WEFT_OK)
            CHECK(sum == (float)world);
        pthread_barrier_wait(&all->barrier);
        ends = all->status[0][2] != WEFT_OK;
        if (rank == 0)
            judge(seed, world, what, &alike, &other, t->threads);
        pthread_barrier_wait(&all->barrier);
    }
    weft_free(group, b.symmetric);
    free(b.a);
    free(b.b);
    free(b.c);
    free(b.d);
    free(b.d_alike);
    weft_group_free(group);
}

typedef struct member {
    pthread_t thread;
    weft_group *group;
    const turn *turn;
} member;

static void *thread_main(void *argument)
{
    member *m = argument;

    run_rank(m->group, m->turn);
    return NULL;
}

static void run_threads(int world, const turn *t)
{
    weft_group *groups[WORLD_MOST];
    member members[WORLD_MOST];

    CHECK_INT(weft_group_threads(world, groups), WEFT_OK);
    for (int r = 0; r < world; r++) {
        members[r] = (member){.group = groups[r], .turn = t};
        CHECK_INT(pthread_create(&members[r].thread, NULL, thread_main, &members[r]), 0);
    }
    for (int r = 0; r < world; r++)
        pthread_join(members[r].thread, NULL);
}

static void run_processes(int world, const turn *t)
{
    pid_t pids[WORLD_MOST];
    weft_id id;

    CHECK_INT(weft_id_create(&id), WEFT_OK);
    fflush(NULL);
    for (int r = 0; r < world; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            weft_group *group = NULL;

            prctl(PR_SET_PDEATHSIG, SIGKILL);
            leaks_are_elsewhere = 1;
            check_failures = 0;
            CHECK_INT(weft_group_create(&id, r, world, &group), WEFT_OK);
            if (group)
                run_rank(group, t);
            exit(check_failures ? 1 : 0);
        }
    }
    for (int r = 0; r < world; r++) {
        int status = 0;

        CHECK(waitpid(pids[r], &status, 0) == pids[r] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void run_turn(turn t)
{
    int world = world_of(t.first);
    pthread_barrierattr_t attributes;

    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&all->barrier, &attributes, (unsigned)world);
    (t.threads ? run_threads : run_processes)(world, &t);
    pthread_barrier_destroy(&all->barrier);
    pthread_barrierattr_destroy(&attributes);
}

int main(int argc, char **argv)
{
    const long turns = check_repeat(40, 2000);

    all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    if (argc > 1) {
        run_turn((turn){strtoull(argv[1], NULL, 10), 1, true});
        run_turn((turn){strtoull(argv[1], NULL, 10), 1, false});
        return check_report("test_fuzz_differ");
    }
    for (long i = 0; i < turns; i++)
        run_turn((turn){(uint64_t)i * CALLS_OF_GROUP, CALLS_OF_GROUP, i % 2 == 0});
    return check_report("test_fuzz_differ");
}
