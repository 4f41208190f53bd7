/*
 * Every call of weft.h, with values that no caller means: NULL, numbers below 0 and beyond all memory, names
 * that are none, memory and handles of somebody else. Each is refused, with a sentence of its own, and the
 * group goes on. The header is read for calls that nobody thought of here.
 */
#include "core/status.h"
#include "group/group.h"
#include "support/check.h"

#include <limits.h>
#include <math.h>
#include <weft/weft.h>

#define HUGE INT64_MAX
#define STRAY ((void *)0x40) /* no memory, on a boundary of 64 */

enum { CALLS_MOST = 256, NAME_MOST = 64 };

static char noted_calls[CALLS_MOST][NAME_MOST];
static int noted_count;
static weft_group *group;

static bool is_called(const char *name, size_t length)
{
    for (int i = 0; i < noted_count; i++)
        if (strlen(noted_calls[i]) == length && strncmp(noted_calls[i], name, length) == 0)
            return true;
    return false;
}

static void note(const char *call)
{
    size_t length = strcspn(call, "(");

    if (!is_called(call, length) && noted_count < CALLS_MOST)
        snprintf(noted_calls[noted_count++], NAME_MOST, "%.*s", (int)length, call);
}

static void clear(void)
{
    weft_error_thread()->text[0] = group->error.text[0] = 0;
}

static void refused(const char *call, weft_status status, weft_status want, const char *sentence)
{
    bool right = status == want && strlen(sentence) > 8;

    note(call);
    CHECK(right);
    if (!right)
        fprintf(stderr, "  %s: %s, \"%s\"\n", call, weft_status_name(status), sentence);
}

/* `handle`: whose sentence says why. */
#define IS(want, handle, call) (clear(), refused(#call, (call), (want), weft_error(handle)))
#define REFUSED(handle, call) IS(WEFT_ERR_ARGUMENT, handle, call)
#define NO_GROUP(call) REFUSED(NULL, call)

static void noted(const char *call, bool right)
{
    note(call);
    CHECK(right);
    if (!right)
        fprintf(stderr, "  %s\n", call);
}

/* Calls that have no status, and change nothing. */
#define GIVES(call, right) noted(#call, (call)right)

static int gather_nothing(void *context, const void *mine, size_t bytes, void *all)
{
    (void)context, (void)mine, (void)bytes, (void)all;
    return 1;
}

static void names(void)
{
    static const int senseless[] = {INT_MIN, -2, 99, INT_MAX};
    int count = 7;

    for (size_t i = 0; i < sizeof(senseless) / sizeof(senseless[0]); i++) {
        int none = senseless[i];

        GIVES(weft_status_name((weft_status)none), [0] != 0);
        GIVES(weft_status_text((weft_status)none), [0] != 0);
        GIVES(weft_dtype_name((weft_dtype)none), [0] != 0);
        GIVES(weft_dtype_size((weft_dtype)none), == 0);
        GIVES(weft_op_name((weft_op)none), [0] != 0);
        GIVES(weft_schedule_name((weft_op)none, (weft_schedule)none), [0] != 0);
        GIVES(weft_schedule_name(WEFT_OP_AG_GEMM, (weft_schedule)none), [0] != 0);
        GIVES(weft_schedule_list((weft_op)none, WEFT_LAYOUT_DEFAULT, &count), == NULL);
        CHECK_INT(count, 0);
        GIVES(weft_schedule_list(WEFT_OP_AG_GEMM, (weft_layout)none, NULL), == NULL);
        GIVES(weft_part(none < 0 ? none : 5, none, none).count, == 0);
        GIVES(weft_part_granular(none < 0 ? none : 5, none, none, none).count, == 0);
    }
    GIVES(weft_part_granular(HUGE, HUGE, HUGE, HUGE).count, == 0);
    GIVES(weft_version(), [0] != 0);
    GIVES(weft_error(NULL), != NULL);
    GIVES(weft_rank(NULL), == -1);
    GIVES(weft_size(NULL), == 0);
}

static void groups(void)
{
    weft_group *made = NULL, *many[2] = {0};
    weft_id id = {0};

    NO_GROUP(weft_init(NULL));
    NO_GROUP(weft_finalize(NULL));
    NO_GROUP(weft_id_create(NULL));
    NO_GROUP(weft_group_create(NULL, 0, 1, &made));
    NO_GROUP(weft_group_create(&id, 0, 1, &made));
    NO_GROUP(weft_group_create(&id, -1, 2, &made));
    NO_GROUP(weft_group_create(&id, 2, 2, &made));
    NO_GROUP(weft_group_create(&id, 0, INT_MAX, &made));
    NO_GROUP(weft_group_create(&id, 0, 0, &made));
    NO_GROUP(weft_group_create_from(NULL, NULL, 0, 1, &made));
    NO_GROUP(weft_group_create_from(gather_nothing, NULL, 0, -1, &made));
    IS(WEFT_ERR_PEER, NULL, weft_group_create_from(gather_nothing, NULL, 0, 2, &made));
    NO_GROUP(weft_group_threads(0, many));
    NO_GROUP(weft_group_threads(INT_MAX, many));
    NO_GROUP(weft_group_threads(2, NULL));
    CHECK(!made && !many[0]);
    NO_GROUP(weft_group_split(NULL, 0, 0, &made));
    REFUSED(group, weft_group_split(group, 0, 0, NULL));
    NO_GROUP(weft_group_abort(NULL, NULL));
    NO_GROUP(weft_group_check_peer(NULL, 0));
    REFUSED(group, weft_group_check_peer(group, 1));
    REFUSED(group, weft_group_check_peer(group, INT_MIN));
    NO_GROUP(weft_set_deadlines(NULL, 1, 1));
    REFUSED(group, weft_set_deadlines(group, 0, 1));
    REFUSED(group, weft_set_deadlines(group, 1, -1));
    REFUSED(group, weft_set_deadlines(group, NAN, 1));
    REFUSED(group, weft_set_deadlines(group, 1, INFINITY));
    NO_GROUP(weft_barrier(NULL));
    weft_group_free(NULL);
    note("weft_group_free(NULL)");
}

static void memory(void)
{
    void *pointer = NULL;
    char local[256];

    NO_GROUP(weft_alloc(NULL, 64, 0, &pointer));
    REFUSED(group, weft_alloc(group, 64, 0, NULL));
    REFUSED(group, weft_alloc(group, 64, 3, &pointer));
    REFUSED(group, weft_alloc(group, 64, SIZE_MAX, &pointer));
    IS(WEFT_ERR_MEMORY, group, weft_alloc(group, SIZE_MAX, 0, &pointer));
    IS(WEFT_ERR_MEMORY, group, weft_alloc(group, SIZE_MAX / 2, 0, &pointer));
    CHECK(!pointer);
    NO_GROUP(weft_free(NULL, local));
    REFUSED(group, weft_free(group, local));
    REFUSED(group, weft_free(group, STRAY));
    NO_GROUP(weft_memcpy(NULL, local, local, 1));
    REFUSED(group, weft_memcpy(group, NULL, local, 1));
    REFUSED(group, weft_memcpy(group, local, NULL, SIZE_MAX));
    GIVES(weft_peer(NULL, local, 0), == NULL);
    GIVES(weft_peer(group, local, 0), == NULL);
    GIVES(weft_peer(group, NULL, 0), == NULL);
    GIVES(weft_peer(group, local, INT_MIN), == NULL);
}

static void collectives(void)
{
    static const int64_t below[] = {-1}, beyond[] = {HUGE};
    int64_t one[] = {1};
    float a[4] = {0}, b[4];
    const weft_dtype none = (weft_dtype)77;
    const weft_reduction no_sum = (weft_reduction)-3;

    NO_GROUP(weft_all_reduce(NULL, a, b, 4, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_all_reduce(group, NULL, b, 4, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_all_reduce(group, a, NULL, 4, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_all_reduce(group, a, b, -4, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_all_reduce(group, a, b, HUGE, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_all_reduce(group, a, b, 4, none, WEFT_SUM));
    REFUSED(group, weft_all_reduce(group, a, b, 4, WEFT_F32, no_sum));
    REFUSED(group, weft_all_reduce(group, a, b, 4, WEFT_BYTE, WEFT_SUM));
    REFUSED(group, weft_all_reduce(group, a, b, 4, WEFT_I32, WEFT_AVERAGE));
    NO_GROUP(weft_all_gather(NULL, a, b, 4, WEFT_F32));
    REFUSED(group, weft_all_gather(group, NULL, b, 4, WEFT_F32));
    REFUSED(group, weft_all_gather(group, a, b, HUGE, WEFT_F32));
    REFUSED(group, weft_all_gather(group, a, b, 4, WEFT_DTYPE_DEFAULT));
    NO_GROUP(weft_reduce_scatter(NULL, a, b, 4, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_reduce_scatter(group, a, NULL, 4, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_reduce_scatter(group, a, b, INT64_MIN, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_reduce_scatter(group, a, b, 4, WEFT_FP8_E4M3, WEFT_MAX));
    NO_GROUP(weft_all_to_all(NULL, a, b, 4, WEFT_F32));
    REFUSED(group, weft_all_to_all(group, a, NULL, 4, WEFT_F32));
    REFUSED(group, weft_all_to_all(group, a, b, HUGE / 4, WEFT_F32));
    REFUSED(group, weft_all_to_all(group, a, b, 4, none));
    NO_GROUP(weft_broadcast(NULL, b, 4, WEFT_F32, 0));
    REFUSED(group, weft_broadcast(group, NULL, 4, WEFT_F32, 0));
    REFUSED(group, weft_broadcast(group, b, 4, WEFT_F32, 1));
    REFUSED(group, weft_broadcast(group, b, 4, WEFT_F32, INT_MIN));
    REFUSED(group, weft_broadcast(group, b, HUGE, WEFT_BYTE, 0));

    NO_GROUP(weft_all_gather_v(NULL, a, b, one, WEFT_F32));
    REFUSED(group, weft_all_gather_v(group, a, b, NULL, WEFT_F32));
    REFUSED(group, weft_all_gather_v(group, a, b, below, WEFT_F32));
    REFUSED(group, weft_all_gather_v(group, a, b, beyond, WEFT_F32));
    REFUSED(group, weft_all_gather_v(group, NULL, b, one, WEFT_F32));
    NO_GROUP(weft_reduce_scatter_v(NULL, a, b, one, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_reduce_scatter_v(group, a, b, NULL, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_reduce_scatter_v(group, a, b, beyond, WEFT_F32, WEFT_SUM));
    REFUSED(group, weft_reduce_scatter_v(group, a, b, one, WEFT_F32, no_sum));
    NO_GROUP(weft_all_to_all_v(NULL, a, one, b, one, WEFT_F32));
    REFUSED(group, weft_all_to_all_v(group, a, NULL, b, one, WEFT_F32));
    REFUSED(group, weft_all_to_all_v(group, a, one, b, below, WEFT_F32));
    REFUSED(group, weft_all_to_all_v(group, a, one, NULL, one, WEFT_F32));
    REFUSED(group, weft_all_to_all_v(group, a, one, b, one, none));
    NO_GROUP(weft_gather(NULL, a, b, 1, WEFT_F32, 0));
    REFUSED(group, weft_gather(group, a, b, -1, WEFT_F32, 0));
    REFUSED(group, weft_gather(group, a, b, 1, WEFT_F32, -1));
    CHECK_HAS(weft_error(group), "root");
    NO_GROUP(weft_scatter(NULL, a, b, 1, WEFT_F32, 0));
    REFUSED(group, weft_scatter(group, a, NULL, 1, WEFT_F32, 0));
    REFUSED(group, weft_scatter(group, a, b, HUGE, WEFT_F32, 0));
    REFUSED(group, weft_scatter(group, a, b, 1, WEFT_F32, INT_MAX));
    NO_GROUP(weft_reduce(NULL, a, b, 1, WEFT_F32, WEFT_SUM, 0));
    REFUSED(group, weft_reduce(group, a, NULL, 1, WEFT_F32, WEFT_SUM, 0));
    REFUSED(group, weft_reduce(group, a, b, 1, WEFT_F32, no_sum, 0));
    REFUSED(group, weft_reduce(group, a, b, 1, WEFT_F32, WEFT_SUM, 1));

    NO_GROUP(weft_send(NULL, a, 1, WEFT_F32, 0));
    REFUSED(group, weft_send(group, a, 1, WEFT_F32, 0));
    REFUSED(group, weft_send(group, NULL, 1, WEFT_F32, 1));
    REFUSED(group, weft_send(group, a, -1, WEFT_F32, 1));
    NO_GROUP(weft_recv(NULL, b, 1, WEFT_F32, 0));
    REFUSED(group, weft_recv(group, b, HUGE, WEFT_F32, 1));
    REFUSED(group, weft_recv(group, b, 1, none, 1));
    REFUSED(group, weft_recv(group, b, 1, WEFT_F32, INT_MIN));
}

static void problems(void)
{
    weft_problem base, p;
    weft_plan *plan = NULL;
    weft_operands operands = {.size = sizeof(operands)}, unsized = {.size = 3};
    char longer[sizeof(weft_problem) + 64];
    size_t size = sizeof(longer);

    weft_problem_init(&base, WEFT_OP_AG_GEMM);
    base.m = base.n = base.k = 8;
#define weft_plan_with(field, value) (p = base, p.field = (value), weft_plan_create(group, &p, &plan))
    REFUSED(group, weft_plan_with(size, 0));
    REFUSED(group, weft_plan_with(size, SIZE_MAX));
    REFUSED(group, weft_plan_with(op, (weft_op)-1));
    REFUSED(group, weft_plan_with(op, (weft_op)99));
    REFUSED(group, weft_plan_with(schedule, (weft_schedule)-1));
    REFUSED(group, weft_plan_with(schedule, (weft_schedule)99));
    REFUSED(group, weft_plan_with(schedule, WEFT_SCHEDULE_CUSTOM));
    REFUSED(group, weft_plan_with(layout, (weft_layout)-1));
    REFUSED(group, weft_plan_with(layout, WEFT_LAYOUT_SCATTER_ROWS));
    REFUSED(group, weft_plan_with(m, -1));
    REFUSED(group, weft_plan_with(n, INT64_MIN));
    REFUSED(group, weft_plan_with(k, HUGE));
    REFUSED(group, weft_plan_with(l, -1));
    REFUSED(group, weft_plan_with(l, HUGE));
    REFUSED(group, weft_plan_with(dtype, (weft_dtype)99));
    REFUSED(group, weft_plan_with(dtype, WEFT_I64));
    REFUSED(group, weft_plan_with(d_dtype, (weft_dtype)99));
    REFUSED(group, weft_plan_with(wire_dtype, (weft_dtype)-9));
    REFUSED(group, weft_plan_with(b_form, (weft_b_form)9));
    REFUSED(group, weft_plan_with(act, (weft_act)-1));
    REFUSED(group, weft_plan_with(scales, 2));
    REFUSED(group, weft_plan_with(scales, -1));
    REFUSED(group, weft_plan_with(granule_m, -1));
    REFUSED(group, weft_plan_with(tuning.tile_m, -1));
    REFUSED(group, weft_plan_with(tuning.tile_n, INT64_MIN));
    REFUSED(group, weft_plan_with(tuning.workers, -1));
    REFUSED(group, weft_plan_with(tuning.workers, INT_MAX));
    REFUSED(group, weft_plan_with(tuning.copiers, -1));
    REFUSED(group, weft_plan_with(tuning.copiers, INT_MAX));
    REFUSED(group, weft_plan_with(tuning.chunk_k, -1));
    REFUSED(group, weft_plan_with(tuning.raster, -1));
    REFUSED(group, weft_plan_with(tuning.grain_n, -1));
    REFUSED(group, weft_plan_with(tuning.crew, 3));
    REFUSED(group, weft_plan_with(tuning.library, -1));
    REFUSED(group, weft_plan_with(tuning.exchange, 4));
    REFUSED(group, weft_plan_with(tuning.reserved[1], 1));
    weft_problem_init(&base, WEFT_OP_BROADCAST);
    base.count = 8;
    REFUSED(group, weft_plan_with(count, -1));
    REFUSED(group, weft_plan_with(count, HUGE));
    REFUSED(group, weft_plan_with(root, 1));
    REFUSED(group, weft_plan_with(root, -1));
    base.op = WEFT_OP_REDUCE_SCATTER;
    REFUSED(group, weft_plan_with(reduction, (weft_reduction)99));
#undef weft_plan_with

    NO_GROUP(weft_plan_create(NULL, &base, &plan));
    REFUSED(group, weft_plan_create(group, NULL, &plan));
    REFUSED(group, weft_plan_create(group, &base, NULL));
    memset(longer, 1, sizeof(longer)); /* of a later version, with something in it */
    memcpy(longer, &size, sizeof(size));
    REFUSED(group, weft_plan_create(group, (const weft_problem *)longer, &plan));
    CHECK(!plan);
    NO_GROUP(weft_plan_load(NULL, "/", &plan));
    REFUSED(group, weft_plan_load(group, NULL, &plan));
    REFUSED(group, weft_plan_load(group, "/dev/null", &plan));
    REFUSED(group, weft_plan_load(group, "/dev/null", NULL));
    NO_GROUP(weft_run(NULL, &operands));
    NO_GROUP(weft_run_on(NULL, &operands, NULL));
    NO_GROUP(weft_run_wait(NULL, NULL));
    weft_plan_destroy(NULL);
    note("weft_plan_destroy(NULL)");
    GIVES(weft_plan_problem(NULL), == NULL);
    CHECK_INT(weft_plan_create(group, &base, &plan), WEFT_OK);
    REFUSED(group, weft_run(plan, NULL));
    REFUSED(group, weft_run(plan, &operands));
    REFUSED(group, weft_run(plan, &unsized));
    REFUSED(group, weft_run_on(plan, &operands, STRAY));
    weft_plan_destroy(plan);
    weft_problem_init_sized(NULL, sizeof(p), WEFT_OP_AG_GEMM);
    weft_problem_init_sized(&p, 0, WEFT_OP_AG_GEMM);
    note("weft_problem_init_sized(NULL)");
}

static void products(void)
{
    float data[64] = {0}, d[64];
    weft_operands base = {.size = sizeof(base), .a = data, .b = data, .d = d}, o;
    weft_operands unsized = {.size = 1};
    weft_problem p;

    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    p.m = p.n = p.k = 4;
    p.l = 2;
    p.b_form = WEFT_B_PLAIN;
    NO_GROUP(weft_ag_gemm(NULL, &p, &base));
    NO_GROUP(weft_gemm_rs(NULL, &p, &base));
    NO_GROUP(weft_gemm_ar(NULL, &p, &base));
    NO_GROUP(weft_gemm_as(NULL, &p, &base));
#define refuse_all(call)                                                                                     \
    REFUSED(group, call(group, NULL, &base));                                                                \
    REFUSED(group, call(group, &p, NULL));                                                                   \
    REFUSED(group, call(group, &p, &unsized))
    refuse_all(weft_ag_gemm);
    refuse_all(weft_gemm_rs);
    refuse_all(weft_gemm_ar);
    refuse_all(weft_gemm_as);
#undef refuse_all
#define weft_ag_gemm_with(field, value) (o = base, o.field = (value), weft_ag_gemm(group, &p, &o))
    REFUSED(group, weft_ag_gemm_with(a, NULL));
    REFUSED(group, weft_ag_gemm_with(b, NULL));
    REFUSED(group, weft_ag_gemm_with(d, NULL));
    REFUSED(group, weft_ag_gemm_with(a, (const char *)data + 1));
    REFUSED(group, weft_ag_gemm_with(lda, 3));
    REFUSED(group, weft_ag_gemm_with(ldb, -4));
    REFUSED(group, weft_ag_gemm_with(ldd, HUGE));
    REFUSED(group, weft_ag_gemm_with(stride_a, -1));
    REFUSED(group, weft_ag_gemm_with(stride_b, HUGE));
    REFUSED(group, weft_ag_gemm_with(stride_d, INT64_MIN));
    REFUSED(group, weft_ag_gemm_with(stride_d, 1));
    p.b_form = WEFT_B_PREPACKED;
    REFUSED(group, weft_ag_gemm_with(b, data)); /* nothing that weft_pack made */
#undef weft_ag_gemm_with
}

static void one_rank(void)
{
    _Alignas(128) char memory[1 << 14] = {0};
    float data[64] = {0}, d[64];
    int64_t offset[] = {0, 2, 4}, start[] = {0, HUGE};
    const weft_packed *packed;
    weft_gemm_args base, a;
    weft_grouped_args grouped, g;

    weft_gemm_args_init(&base, WEFT_F32, 4, 4, 4);
    base.a = base.b = base.c = data;
    base.d = d;
    base.l = 2;
    base.beta = 1;
#define weft_gemm_with(field, value) (a = base, a.field = (value), weft_gemm(&a))
    NO_GROUP(weft_gemm(NULL));
    NO_GROUP(weft_gemm_with(size, 0));
    NO_GROUP(weft_gemm_with(size, SIZE_MAX));
    NO_GROUP(weft_gemm_with(m, -1));
    NO_GROUP(weft_gemm_with(n, HUGE));
    NO_GROUP(weft_gemm_with(k, INT64_MIN));
    NO_GROUP(weft_gemm_with(l, -1));
    NO_GROUP(weft_gemm_with(dtype, (weft_dtype)99));
    NO_GROUP(weft_gemm_with(a_dtype, WEFT_I64));
    NO_GROUP(weft_gemm_with(b_dtype, (weft_dtype)-5));
    NO_GROUP(weft_gemm_with(d_dtype, WEFT_BOOL));
    NO_GROUP(weft_gemm_with(a, NULL));
    NO_GROUP(weft_gemm_with(b, NULL));
    NO_GROUP(weft_gemm_with(c, NULL));
    NO_GROUP(weft_gemm_with(d, NULL));
    NO_GROUP(weft_gemm_with(packed_b, (const weft_packed *)(const void *)memory));
    NO_GROUP(weft_gemm_with(lda, -4));
    NO_GROUP(weft_gemm_with(ldd, 3));
    NO_GROUP(weft_gemm_with(stride_c, INT64_MIN));
    NO_GROUP(weft_gemm_with(stride_d, -1));
    NO_GROUP(weft_gemm_with(stride_d, 1));
    NO_GROUP(weft_gemm_with(act, (weft_act)-1));
    NO_GROUP(weft_gemm_with(threads, -1));
#undef weft_gemm_with
    GIVES(weft_pack_bytes(NULL), == 0);
    NO_GROUP(weft_pack(NULL, memory, &packed));
    NO_GROUP(weft_pack(&base, NULL, &packed));
    NO_GROUP(weft_pack(&base, memory + 1, &packed));
    NO_GROUP(weft_pack(&base, memory, NULL));
    a = base;
    a.k = -1;
    NO_GROUP(weft_pack(&a, memory, &packed));
    GIVES(weft_pack_bytes(&a), == 0);
    NO_GROUP(weft_gate_up((weft_dtype)99, 0, 4, 4, data, 0, data, 0, d, 0));
    NO_GROUP(weft_gate_up(WEFT_F32, 0, -1, 4, data, 0, data, 0, d, 0));
    NO_GROUP(weft_gate_up(WEFT_F32, 0, 4, HUGE, data, 0, data, 0, d, 0));
    NO_GROUP(weft_gate_up(WEFT_F32, 0, 4, 4, NULL, 0, data, 0, d, 0));
    NO_GROUP(weft_gate_up(WEFT_F32, 0, 4, 4, data, -4, data, 0, d, 0));
    NO_GROUP(weft_gate_up(WEFT_F32, 1, 4, 4, data, 0, data, 0, d, HUGE));

    weft_grouped_args_init(&grouped, WEFT_F32, 2, 4, 4, 4);
    grouped.a = grouped.b = data;
    grouped.d = d;
    grouped.offset = offset;
#define weft_grouped_gemm_with(field, value) (g = grouped, g.field = (value), weft_grouped_gemm(group, &g))
    NO_GROUP(weft_grouped_gemm(NULL, NULL));
    REFUSED(group, weft_grouped_gemm_with(size, 0));
    REFUSED(group, weft_grouped_gemm_with(experts, -1));
    REFUSED(group, weft_grouped_gemm_with(rows, 3));
    REFUSED(group, weft_grouped_gemm_with(rows, HUGE));
    REFUSED(group, weft_grouped_gemm_with(n, -1));
    REFUSED(group, weft_grouped_gemm_with(k, HUGE));
    REFUSED(group, weft_grouped_gemm_with(dtype, (weft_dtype)99));
    REFUSED(group, weft_grouped_gemm_with(b_dtype, (weft_dtype)99));
    REFUSED(group, weft_grouped_gemm_with(d_dtype, (weft_dtype)-1));
    REFUSED(group, weft_grouped_gemm_with(offset, NULL));
    REFUSED(group, weft_grouped_gemm_with(start, start));
    REFUSED(group, weft_grouped_gemm_with(a, NULL));
    REFUSED(group, weft_grouped_gemm_with(b, NULL));
    REFUSED(group, weft_grouped_gemm_with(d, NULL));
    REFUSED(group, weft_grouped_gemm_with(lda, 3));
    REFUSED(group, weft_grouped_gemm_with(ldd, INT64_MIN));
    REFUSED(group, weft_grouped_gemm_with(stride_b, -1));
    REFUSED(group, weft_grouped_gemm_with(act, (weft_act)99));
    REFUSED(group, weft_grouped_gemm_with(threads, -1));
    offset[0] = -1;
    REFUSED(group, weft_grouped_gemm(group, &grouped));
#undef weft_grouped_gemm_with
    NO_GROUP(weft_set_parallel((weft_parallel)STRAY, NULL, 0));
    NO_GROUP(weft_set_parallel((weft_parallel)STRAY, NULL, INT_MAX));
    weft_gemm_args_init_sized(NULL, 8, WEFT_F32, 1, 1, 1);
    note("weft_gemm_args_init_sized(NULL)");
    weft_grouped_args_init_sized(NULL, 8, WEFT_F32, 1, 1, 1, 1);
    note("weft_grouped_args_init_sized(NULL)");
}

static void block(void *context, int expert, int64_t rows, const void *const *in, void *const *out)
{
    (void)context, (void)expert, (void)rows, (void)in, (void)out;
}

static void layers(void)
{
    static const int nowhere[] = {0, 9};
    int32_t expert[] = {0, 1}, wrong[] = {0, 7};
    float x[16] = {0}, y[16];
    const void *matrices[] = {x, x}, *missing[] = {x, NULL};
    int64_t start[3], rows;
    size_t bytes;
    weft_moe *moe = NULL;
    weft_moe_ffn *ffn = NULL;
    weft_moe_config base, c;
    weft_moe_input good = {.size = sizeof(good), .tokens = 1, .x = x, .expert = expert}, input;
    weft_moe_view unsized = {.size = 1};
    weft_moe_expert called = {.size = sizeof(called), .block = block}, none = {.size = sizeof(none)};
    weft_moe_stats no_stats = {.size = 2};
    weft_moe_weights weights = {.size = sizeof(weights), .inter = 4, .dtype = WEFT_I64};

    weft_moe_config_init(&base);
    base.experts = base.topk = 2;
    base.hidden = 8;
    base.tokens = 2;
    base.dtype = WEFT_F32;
#define weft_moe_with(field, value) (c = base, c.field = (value), weft_moe_create(group, &c, &moe))
    NO_GROUP(weft_moe_create(NULL, &base, &moe));
    REFUSED(group, weft_moe_create(group, NULL, &moe));
    REFUSED(group, weft_moe_create(group, &base, NULL));
    REFUSED(group, weft_moe_with(size, 7));
    REFUSED(group, weft_moe_with(experts, 0));
    REFUSED(group, weft_moe_with(experts, INT_MAX));
    REFUSED(group, weft_moe_with(topk, 3));
    REFUSED(group, weft_moe_with(topk, -1));
    REFUSED(group, weft_moe_with(hidden, 0));
    REFUSED(group, weft_moe_with(hidden, HUGE));
    REFUSED(group, weft_moe_with(tokens, -1));
    REFUSED(group, weft_moe_with(tokens, HUGE));
    REFUSED(group, weft_moe_with(dtype, WEFT_I8));
    REFUSED(group, weft_moe_with(dtype, (weft_dtype)99));
    REFUSED(group, weft_moe_with(row_bytes, -1));
    REFUSED(group, weft_moe_with(row_bytes, HUGE));
    REFUSED(group, weft_moe_with(expert_rank, nowhere));
    REFUSED(group, weft_moe_with(mode, (weft_moe_mode)9));
    REFUSED(group, weft_moe_with(impl, (weft_moe_impl)-1));
    REFUSED(group, weft_moe_with(lanes, 0));
    REFUSED(group, weft_moe_with(lanes, INT_MAX));
    REFUSED(group, weft_moe_with(threads, -1));
    REFUSED(group, weft_moe_with(wire, (weft_moe_wire)9));
#undef weft_moe_with
    NO_GROUP(weft_moe_bytes(NULL, 1, &bytes, &bytes));
    NO_GROUP(weft_moe_bytes(&base, 0, &bytes, &bytes));
    NO_GROUP(weft_moe_bytes(&base, INT_MAX, &bytes, &bytes));
    NO_GROUP(weft_moe_bytes(&base, 1, NULL, &bytes));
    NO_GROUP(weft_moe_group_bytes(NULL, &base, &bytes, &bytes));
    REFUSED(group, weft_moe_group_bytes(group, &base, &bytes, NULL));
    CHECK(!moe);

    NO_GROUP(weft_moe_dispatch_send(NULL, 0, &good));
    NO_GROUP(weft_moe_dispatch_recv(NULL, 0, NULL));
    NO_GROUP(weft_moe_dispatch(NULL, 0, &good, NULL));
    NO_GROUP(weft_moe_layout(NULL, 0, 1, start, &rows));
    NO_GROUP(weft_moe_gather(NULL, 0, start, y));
    NO_GROUP(weft_moe_combine_send(NULL, 0, x, NULL));
    NO_GROUP(weft_moe_combine_recv(NULL, 0, y));
    NO_GROUP(weft_moe_combine(NULL, 0, x, NULL, y));
    NO_GROUP(weft_moe_forward(NULL, 0, &good, &called, y));
    NO_GROUP(weft_moe_get_stats(NULL, 0, &no_stats));
    NO_GROUP(weft_moe_ffn_create(NULL, 4, matrices, matrices, matrices, &ffn));
    NO_GROUP(weft_moe_ffn_create_stored(NULL, &weights, &ffn));
    NO_GROUP(weft_moe_ffn_expert(NULL, &called));
    GIVES(weft_moe_local_experts(NULL, NULL), == 0);
    GIVES(weft_moe_free(NULL), == WEFT_OK);
    weft_moe_ffn_free(NULL);
    note("weft_moe_ffn_free(NULL)");
    weft_moe_config_init_sized(NULL, 8);
    note("weft_moe_config_init_sized(NULL)");

    CHECK_INT(weft_moe_create(group, &base, &moe), WEFT_OK);
    REFUSED(group, weft_moe_dispatch_send(moe, 1, &good));
    REFUSED(group, weft_moe_dispatch_send(moe, 0, NULL));
#define weft_moe_dispatch_with(field, value)                                                                 \
    (input = good, input.field = (value), weft_moe_dispatch_send(moe, 0, &input))
    REFUSED(group, weft_moe_dispatch_with(size, 0));
    REFUSED(group, weft_moe_dispatch_with(tokens, -1));
    REFUSED(group, weft_moe_dispatch_with(tokens, 3));
    REFUSED(group, weft_moe_dispatch_with(tokens, HUGE));
    REFUSED(group, weft_moe_dispatch_with(x, NULL));
    REFUSED(group, weft_moe_dispatch_with(expert, NULL)); /* nothing was routed before */
    REFUSED(group, weft_moe_dispatch_with(expert, wrong));
#undef weft_moe_dispatch_with
    REFUSED(group, weft_moe_dispatch(moe, INT_MIN, &good, NULL));
    REFUSED(group, weft_moe_dispatch(moe, 0, &good, &unsized));
    IS(WEFT_ERR_STATE, group, weft_moe_dispatch_recv(moe, 0, NULL));
    IS(WEFT_ERR_STATE, group, weft_moe_layout(moe, 0, 1, start, &rows));
    IS(WEFT_ERR_STATE, group, weft_moe_gather(moe, 0, NULL, y));
    IS(WEFT_ERR_STATE, group, weft_moe_combine_send(moe, 0, x, NULL));
    IS(WEFT_ERR_STATE, group, weft_moe_combine_recv(moe, 0, y));
    IS(WEFT_ERR_STATE, group, weft_moe_combine(moe, 0, x, NULL, y));
    REFUSED(group, weft_moe_forward(moe, 0, &good, NULL, y));
    REFUSED(group, weft_moe_forward(moe, 0, &good, &none, y));
    REFUSED(group, weft_moe_forward(moe, 0, &good, &called, NULL));
    CHECK_INT(weft_moe_dispatch(moe, 0, &good, NULL), WEFT_OK);
    REFUSED(group, weft_moe_layout(moe, 0, 0, start, &rows));
    REFUSED(group, weft_moe_layout(moe, 0, INT64_MIN, start, &rows));
    REFUSED(group, weft_moe_layout(moe, 0, 1, NULL, &rows));
    REFUSED(group, weft_moe_gather(moe, 0, NULL, NULL));
    REFUSED(group, weft_moe_combine(moe, 0, NULL, NULL, y));
    REFUSED(group, weft_moe_combine(moe, 0, x, NULL, NULL));
    REFUSED(group, weft_moe_get_stats(moe, 0, NULL));
    REFUSED(group, weft_moe_get_stats(moe, 0, &no_stats));
    REFUSED(group, weft_moe_get_stats(moe, INT_MAX, &no_stats));
    REFUSED(group, weft_moe_ffn_create(moe, 0, matrices, matrices, matrices, &ffn));
    REFUSED(group, weft_moe_ffn_create(moe, HUGE, matrices, matrices, matrices, &ffn));
    REFUSED(group, weft_moe_ffn_create(moe, 4, NULL, matrices, matrices, &ffn));
    REFUSED(group, weft_moe_ffn_create(moe, 4, matrices, missing, matrices, &ffn));
    REFUSED(group, weft_moe_ffn_create(moe, 4, matrices, matrices, matrices, NULL));
    REFUSED(group, weft_moe_ffn_create_stored(moe, NULL, &ffn));
    REFUSED(group, weft_moe_ffn_create_stored(moe, &weights, &ffn));
    CHECK(!ffn);
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
}

static void memory_of_others(void)
{
    char local[256];
    void *mine, *signal;
    int64_t *word;

    CHECK_INT(weft_alloc(group, 4096, 0, &mine), WEFT_OK);
    word = mine;
    signal = mine;
    NO_GROUP(weft_put(NULL, mine, local, 8, 0));
    REFUSED(group, weft_put(group, local, mine, 8, 0));
    REFUSED(group, weft_put(group, mine, NULL, 8, 0));
    REFUSED(group, weft_put(group, mine, local, SIZE_MAX, 0));
    REFUSED(group, weft_put(group, mine, local, 8, 1));
    NO_GROUP(weft_get(NULL, local, mine, 8, 0));
    REFUSED(group, weft_get(group, mine, STRAY, 8, 0));
    REFUSED(group, weft_get(group, NULL, mine, 8, 0));
    REFUSED(group, weft_get(group, local, mine, 8, INT_MIN));
    NO_GROUP(weft_put_signal(NULL, mine, local, 8, signal, 1, 0));
    REFUSED(group, weft_put_signal(group, mine, local, 8, (char *)signal + 8, 1, 0));
    REFUSED(group, weft_put_signal(group, mine, local, 8, NULL, 1, 0));
    NO_GROUP(weft_post_signal(NULL, signal, 1, 0));
    REFUSED(group, weft_post_signal(group, local, 1, 0));
    REFUSED(group, weft_post_signal(group, signal, 1, -1));
    NO_GROUP(weft_wait_signal(NULL, signal, 0, 0));
    REFUSED(group, weft_wait_signal(group, STRAY, 0, 0));
    REFUSED(group, weft_wait_signal(group, signal, 0, 1));
    REFUSED(group, weft_wait_signal(group, signal, 0, -2));
    NO_GROUP(weft_atomic_add(NULL, word, 1, 0, NULL));
    REFUSED(group, weft_atomic_add(group, NULL, 1, 0, NULL));
    REFUSED(group, weft_atomic_add(group, (int64_t *)(void *)((char *)mine + 4), 1, 0, NULL));
    REFUSED(group, weft_atomic_add(group, word, 1, 9, NULL));
    CHECK_INT(weft_free(group, mine), WEFT_OK);
}

/* On a group that has been used on the CPU. */
static void gpus(void)
{
    void *const *table;
    weft_signal_pad pad = {.size = sizeof(pad)};

    NO_GROUP(weft_group_use_gpu(NULL, 0));
    IS(WEFT_ERR_STATE, group, weft_group_use_gpu(group, INT_MIN));
    NO_GROUP(weft_group_set_stream(NULL, 0, NULL));
    IS(WEFT_ERR_STATE, group, weft_group_set_stream(group, 1, STRAY));
    NO_GROUP(weft_group_wait(NULL));
    NO_GROUP(weft_peer_table(NULL, STRAY, &table));
    IS(WEFT_ERR_UNSUPPORTED, group, weft_peer_table(group, STRAY, &table));
    NO_GROUP(weft_signal_pad_create(NULL, 1, &pad));
    IS(WEFT_ERR_UNSUPPORTED, group, weft_signal_pad_create(group, 0, &pad));
    NO_GROUP(weft_signal_pad_wait(NULL, &pad, NULL));
    IS(WEFT_ERR_UNSUPPORTED, group, weft_signal_pad_wait(group, &pad, STRAY));
}

/* What the header declares: the word before the first bracket behind each WEFT_API. */
static void none_is_left_out(void)
{
    static char text[1 << 18];
    FILE *file = fopen(WEFT_HEADER, "r");
    size_t length = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    int declared = 0;

    CHECK(length > 0 && length < sizeof(text) - 1);
    for (const char *at = strstr(text, "\nWEFT_API "); at; at = strstr(at + 1, "\nWEFT_API ")) {
        const char *end = strchr(at, '('), *name = end;

        while (name[-1] != ' ' && name[-1] != '*')
            name--;
        CHECK(is_called(name, (size_t)(end - name)));
        if (!is_called(name, (size_t)(end - name)))
            fprintf(stderr, "  nothing senseless is asked of %.*s\n", (int)(end - name), name);
        declared++;
    }
    CHECK(declared > 90);
    if (file)
        fclose(file);
}

int main(void)
{
    float one = 1, sum = 0;

    CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
    names();
    groups();
    memory();
    collectives();
    problems();
    products();
    one_rank();
    layers();
    memory_of_others();
    gpus();
    none_is_left_out();
    CHECK_INT(weft_all_reduce(group, &one, &sum, 1, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK(sum == 1);
    weft_group_free(group);
    return check_report("test_run_senseless");
}
