/* weft.h on groups of GPUs, with fake ones: memory, results, and arguments that are refused. */
#include "api_cases.h"
#include "fake_cublaslt.h"
#include "fake_gpu.h"
#include "run/cuda/plan.h"
#include "small_product.h"
#include "support/procs.h"
#include "support/ranks.h"

#include <time.h>

static void test_results(void)
{
    api_run all = {.small = true, .runs = 2, .shapes = 2}, few = {.small = true, .runs = 2, .shapes = 1},
            elsewhere = {.small = true, .runs = 2, .shapes = 1, .elsewhere = true};

    fake_gpu_install(1, 16, true);
    for (int world = 1; world <= 4; world++)
        ranks_run(world, api_rank, world == 3 ? &all : &few);
    procs_run_ranks(2, api_rank, &few);
    ranks_run(3, api_rank, &elsewhere);
    fake_gpu_install(1, 16, false);
    ranks_run(2, api_rank, &few);
}

static void memory_rank(weft_group *group, void *argument)
{
    int me = weft_rank(group), world = weft_size(group), value = -1, on_host = 1;
    void *first, *second, *far;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_ERR_STATE);
    CHECK_HAS(weft_error(group), "is already on GPUs");
    CHECK_INT(weft_alloc(group, 1000, 0, &first), WEFT_OK);
    CHECK_INT(weft_alloc(group, 100u << 20, 1 << 20, &second), WEFT_OK); /* more than one piece */
    CHECK_INT(weft_memcpy(group, &value, second, sizeof(value)), WEFT_OK);
    CHECK_INT(value, 0);
    far = (char *)second + (99 << 20);
    CHECK_INT(weft_memcpy(group, far, &me, sizeof(me)), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int rank = 0; rank < world; rank++) {
        CHECK_INT(weft_memcpy(group, &value, weft_peer(group, far, rank), sizeof(value)), WEFT_OK);
        CHECK_INT(value, rank);
    }
    CHECK(weft_peer(group, &on_host, 0) == NULL);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_alloc(group, me == 1 ? 64 : 32, 0, &far), world > 1 ? WEFT_ERR_MISMATCH : WEFT_OK);
    if (world > 1)
        CHECK_HAS(weft_error(group), "rank 1 for 64");
    CHECK_INT(weft_alloc(group, (size_t)1 << 40, 0, &far), WEFT_ERR_MEMORY);
    CHECK_INT(weft_free(group, (char *)second + 256), WEFT_ERR_ARGUMENT);
    if (world > 1) {
        CHECK_INT(weft_alloc(group, 64, 0, me == 1 ? NULL : &far),
                  me == 1 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
        CHECK_HAS(weft_error(group), "pointer is NULL");
    }
    CHECK_INT(weft_free(group, me == 1 ? first : second), WEFT_OK); /* in any order */
    CHECK_INT(weft_free(group, me == 1 ? first : second), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_free(group, me == 1 ? second : first), WEFT_OK);
    CHECK_INT(weft_free(group, NULL), WEFT_OK);
}

/* Plans that all ranks have destroyed give their memory back when the next one is made. */
static void plans_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    void *block, *probe;
    weft_plan *plan;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    weft_operands operands = operands_in(block);
    for (int i = 0; i < 60; i++) { /* 60 live ones would not fit into the fake GPU's gigabyte */
        p.m = 32 + i % 8;
        p.tuning.tile_m = p.tuning.tile_n = 8;
        p.tuning.workers = i % 2 ? 12 : 2;
        p.act = i % 4 == 2 ? WEFT_ACT_SILU_GATED : WEFT_ACT_NONE;
        CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
        if (i % 2)
            CHECK_INT(weft_run(plan, &operands), WEFT_ERR_ARGUMENT); /* more lanes than fit: on all ranks */
        else
            CHECK_INT(weft_run(plan, &operands), WEFT_OK);
        weft_plan_destroy(plan);
    }
    CHECK_INT(weft_alloc(group, 900u << 20, 0, &probe), WEFT_OK);
    CHECK_INT(weft_free(group, probe), WEFT_OK);
    /* More sets of operands than a plan keeps programs for. */
    p = product(32, 32, 16);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    for (int i = 0; i < 280; i++) {
        operands.d = (char *)block + 2 * 16384 + 16 * (i % 140);
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_OK);
    }
    CHECK_INT(weft_run_wait(plan, WEFT_STREAM_OWN), WEFT_OK);
    weft_plan_destroy(plan);
}

/* Products in one call: the plan of an alpha and a beta is that of others, wherever they lie. */
static void values_rank(weft_group *group, void *argument)
{
    enum { ALPHA = BLOCK_BYTES / 4 }; /* behind the matrices */
    weft_problem p = product(64, 64, 32);
    const float values[] = {2, 3, 0.5f, -4};
    uint16_t ones[8192], d;
    weft_plan *plan = NULL;
    float *block, *pinned, beta = 1;
    int plans = 0;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES + 64, 0, (void **)&block), WEFT_OK);
    CHECK_INT(weft_cuda_of(group)->device->cu->cuMemAllocHost((void **)&pinned, sizeof(*pinned)),
              CUDA_SUCCESS);
    weft_operands operands = operands_in((char *)block);
    for (int i = 0; i < 8192; i++)
        weft_element_set(WEFT_BF16, ones, (size_t)i, 1);
    CHECK_INT(weft_memcpy(group, block, ones, sizeof(ones)), WEFT_OK);
    CHECK_INT(weft_memcpy(group, (char *)block + 16384, ones, sizeof(ones)), WEFT_OK);
    for (int i = 0; i < 8; i++) {
        p.alpha = i < 2 ? values[i] : 2;
        *pinned = values[i % 4];
        operands.alpha = i < 2 ? NULL : i == 2 ? &values[i] : i == 3 ? pinned : block + ALPHA;
        CHECK_INT(weft_memcpy(group, block + ALPHA, &values[i % 4], sizeof(float)), WEFT_OK);
        CHECK_INT(weft_ag_gemm(group, &p, &operands), WEFT_OK);
        CHECK_INT(weft_memcpy(group, &d, operands.d, sizeof(d)), WEFT_OK);
        CHECK(weft_element_get(WEFT_BF16, &d, 0) == 32 * (double)values[i % 4]);
        /* the host's, pinned too, are those of the call: nothing is applied behind the product */
        CHECK((i < 4) == !weft_cuda_plan_of(group->session->cached)->product);
    }
    weft_cuda_of(group)->device->cu->cuMemFreeHost(pinned);
    for (const weft_plan *x = group->session->cached; x; x = x->next)
        plans++;
    CHECK_INT(plans, 1);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    operands.beta = &beta;
    CHECK_INT(weft_run(plan, &operands), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "made with beta = 0 and has no C");
    weft_plan_destroy(plan);
}

static void run_sets(weft_plan *plan, weft_operands operands, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        weft_operands other = operands;

        other.b = (const char *)operands.b + (ptrdiff_t)16 * i; /* which no peer knows */
        CHECK_INT(weft_run_on(plan, &other, WEFT_STREAM_OWN), WEFT_OK);
    }
}

/* Programs of a group's plans that have too much memory go, those that have not run for longest first; not
 * the first of a plan, nor one that still runs. */
static void spare_rank(weft_group *group, void *argument)
{
    weft_problem p = product(32, 32, 16);
    weft_plan *plans[2];
    weft_cuda_plan *of[2];
    void *block;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    weft_operands operands = operands_in(block);
    for (int i = 0; i < 2; i++) {
        p.m = 32 - 8 * i;
        CHECK_INT(weft_plan_create(group, &p, &plans[i]), WEFT_OK);
        of[i] = weft_cuda_plan_of(plans[i]);
        CHECK_INT(weft_run(plans[i], &operands), WEFT_OK);
    }
    /* the memory of one: what the first ones have is not counted */
    weft_cuda_of(group)->spare_most = weft_cuda_executor_bytes(&of[0]->bound[0].executor);
    CHECK(weft_cuda_of(group)->spare_most > 0);
    for (int i = 1; i < 6; i++) {
        run_sets(plans[0], operands, i, 1);
        CHECK_INT(weft_run_wait(plans[0], WEFT_STREAM_OWN), WEFT_OK);
        CHECK_INT(of[0]->bound_count, i < 2 ? 2 : 3);
    }
    CHECK(of[0]->bound[0].operands.b == operands.b);
    /* another plan's go, too */
    weft_cuda_of(group)->spare_most = 0;
    run_sets(plans[1], operands, 1, 1);
    CHECK_INT(weft_run_wait(plans[1], WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(of[0]->bound_count, 1);
    CHECK_INT(of[1]->bound_count, 2);
    /* while rank 0 waits for its peer in all of them none can go: that is no reason to fail */
    if (weft_rank(group) == 1)
        CHECK_INT(weft_barrier(group), WEFT_OK);
    run_sets(plans[0], operands, 1, 4);
    if (weft_rank(group) == 0) {
        CHECK_INT(of[0]->bound_count, 5);
        CHECK_INT(weft_barrier(group), WEFT_OK);
    }
    CHECK_INT(weft_run_wait(plans[0], WEFT_STREAM_OWN), WEFT_OK);
    for (int i = 0; i < 2; i++)
        weft_plan_destroy(plans[i]);
}

static void errors_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    int me = weft_rank(group);
    char on_host[64];
    weft_plan *plan = NULL;
    void *block;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 7), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "there is no GPU 7; this machine has 1");
    CHECK_INT(weft_group_use_gpu(group, me == 1 ? 3 : 0), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "rank 1: weft_group_use_gpu: there is no GPU 3");
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_all_reduce(group, on_host, on_host, 4, WEFT_F32, WEFT_SUM), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "not memory that a GPU can use");
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    p.dtype = p.d_dtype = WEFT_F32;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(group), "float16, bfloat16 and fp8, not float32");
    p.dtype = p.d_dtype = WEFT_BF16;
    p.k = me == 1 ? 48 : 32;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_ERR_MISMATCH);
    p.k = 32;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    weft_operands operands = operands_in(block);
    if (me == 1)
        operands.a = on_host;
    CHECK_INT(weft_run(plan, &operands), me == 1 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(group), me == 1 ? "not memory that a GPU can use" : "rank 1 rejected");
    operands = operands_in(block);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    /* Peers do not touch B, and know the rest: rank 1 is told alone, and its next call is the run. */
    operands.b = on_host;
    if (me == 1) {
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "not memory that a GPU can use");
        operands = operands_in(block);
        operands.ldb = (int64_t)1 << 33;
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "reach beyond the memory there");
        operands = operands_in(block);
        operands.ldb = 72;
        fake_gpu_allocation(operands.b, 1000); /* and the next begins right behind it */
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "reach beyond the memory there");
        fake_gpu_allocation(NULL, 0);
        fake_gpu_own(1);
        operands = operands_in(block);
        operands.ldb = 40;
        CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(group), "which is memory of GPU 1; rank 1 runs on GPU 0");
        fake_gpu_own(-1);
    }
    operands = operands_in(block);
    CHECK_INT(weft_run_on(plan, &operands, NULL), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "cannot share its default stream");
    CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(weft_run_wait(plan, WEFT_STREAM_OWN), WEFT_OK);
    weft_plan_destroy(plan);
}

/* NULL is the default stream: a rank that has its GPU to itself may use it. */
static void default_stream_rank(weft_group *group, void *argument)
{
    weft_problem p = product(64, 64, 32);
    weft_operands operands;
    weft_plan *plan = NULL;
    void *block;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, weft_rank(group)), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    operands = operands_in(block);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    fake_gpu_take_streams();
    CHECK_INT(weft_run_on(plan, &operands, NULL), WEFT_OK);
    CHECK_INT(weft_run_wait(plan, NULL), WEFT_OK);
    CHECK(fake_gpu_take_streams() & 1u << 1);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    CHECK(!(fake_gpu_take_streams() & 1u << 1));
    weft_plan_destroy(plan);
}

/* All of a group's life while somebody captures, in whatever mode. */
static void test_capture(void)
{
    api_run few = {.small = true, .runs = 1, .shapes = 1};

    fake_gpu_capture(true);
    ranks_run(2, api_rank, &few);
    fake_gpu_capture(false);
}

/* GPUs that cannot address one another are found before anything is mapped, and what their ranks run goes
 * through the host; on one of them it is no matter. */
static void apart_rank(weft_group *group, void *argument)
{
    const int *same = argument;
    int me = weft_rank(group), other = (me + 1) % weft_size(group);
    api_run run = {.small = true, .runs = 2, .shapes = 1};
    weft_group *cpu = NULL;
    void *memory = NULL;

    if (api_groups(group, !*same, &cpu)) {
        CHECK_INT(weft_alloc(group, 4096, 0, &memory), WEFT_OK);
        CHECK(weft_peer(group, memory, me) == memory);
        CHECK((weft_peer(group, memory, other) == NULL) == !*same);
        for (int i = 0; i < 1024; i++)
            ((float *)memory)[i] = (float)(i * (me + 1));
        CHECK_INT(weft_all_reduce(group, memory, memory, 1024, WEFT_F32, WEFT_SUM), WEFT_OK);
        for (int i = 0; i < 1024; i++)
            CHECK(((float *)memory)[i] == (float)(i * 6));
        CHECK_INT(weft_free(group, memory), WEFT_OK);
        if (!*same)
            api_all(group, cpu, group, &run);
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
    weft_group_free(cpu);
}

static void test_peer_access(void)
{
    fake_gpu_install(3, 16, true);
    fake_gpu_break("peer access", 0);
    for (int same = 0; same < 2; same++)
        ranks_run(3, apart_rank, &same);
    fake_gpu_break("peer access", 1); /* one of the ranks finds it */
    ranks_run(3, apart_rank, &(int){0});
    fake_gpu_break(NULL, 0);
    fake_gpu_install(1, 16, true);
}

/* Ranks on several GPUs, fewer and more than there are, with and without atomics between them. */
static void test_apart(void)
{
    api_run few = {.small = true, .runs = 2, .shapes = 1, .apart = true}, elsewhere = few;

    elsewhere.elsewhere = true;
    fake_gpu_install(2, 16, true);
    ranks_run(2, api_rank, &few);
    ranks_run(2, api_rank, &elsewhere); /* each with a GPU: all that are fused stage in chunks */
    ranks_run(3, api_rank, &elsewhere);
    fake_gpu_atomics(true);
    ranks_run(2, api_rank, &elsewhere);
    ranks_run(3, api_rank, &few);
    procs_run_ranks(2, api_rank, &few);
    fake_gpu_atomics(false);
    fake_gpu_install(2, 4, false); /* copy lanes take the places of crews there */
    ranks_run(2, api_rank, &elsewhere);
    fake_gpu_install(1, 16, true);
}

/* A rank that comes late loads kernels of the library while its peers' could wait for it already: the parts
 * of k differ, and so do the kernels. */
static void late_rank(weft_group *group, void *argument)
{
    weft_problem p = product(48, 64, 63);
    weft_operands operands;
    weft_plan *plan = NULL;
    void *block;

    (void)argument;
    p.op = WEFT_OP_GEMM_RS;
    p.schedule = WEFT_SCHEDULE_UNFUSED;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    operands = operands_in(block);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    if (weft_rank(group) == 1)
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    weft_plan_destroy(plan);
}

/* Ranks that share a GPU begin to wait with many CTAs only when all have come. */
static void gate_rank(weft_group *group, void *argument)
{
    weft_problem p = product(600, 160, 160);
    weft_plan *plan = NULL;
    void *block;

    (void)argument;
    p.schedule = WEFT_SCHEDULE_UNFUSED;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, (size_t)3 << 20, 0, &block), WEFT_OK);
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    weft_operands operands = {.size = sizeof(operands),
                              .a = block,
                              .b = (char *)block + ((size_t)1 << 20),
                              .d = (char *)block + ((size_t)2 << 20)};
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    weft_plan_destroy(plan);
}

/* From lines without gaps to lines `ld` apart, in place, or back. */
static void spread(uint16_t *matrix, int64_t rows, int64_t cols, int64_t ld, bool back)
{
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = back ? i : rows - 1 - i;

        memmove(matrix + row * (back ? cols : ld), matrix + row * (back ? ld : cols),
                (size_t)cols * sizeof(*matrix));
    }
}

/* Results of a run with operands in the memory of a group, which are those of every rank. What the collective
 * moves has `gap` elements between its lines on this rank. */
static void *halves_run(weft_group *group, weft_group *memory, weft_plan *plan, const weft_problem *p,
                        int64_t gap)
{
    bool gathers = p->op == WEFT_OP_AG_GEMM;
    int64_t rows = p->op == WEFT_OP_GEMM_AR ? p->m : p->m / weft_size(group), cols = gathers ? p->k : p->n;
    size_t part = (size_t)1 << 20;
    uint16_t *host = calloc(3, part);
    uint64_t state = 1 + (uint64_t)weft_rank(group);
    void *block = NULL;

    for (size_t i = 0; i < part; i++)
        host[i] = (uint16_t)(0x3f80 + check_random(&state) % 4 * 0x40); /* 1, 1.5, 2, 3 */
    if (gathers)
        spread(host, rows, cols, cols + gap, false);
    CHECK_INT(weft_alloc(memory, 3 * part, 0, &block), WEFT_OK);
    CHECK_INT(weft_memcpy(group, block, host, 2 * part), WEFT_OK);
    weft_operands operands = {
        .size = sizeof(operands), .a = block, .b = (char *)block + part, .d = (char *)block + 2 * part};
    *(gathers ? &operands.lda : &operands.ldd) = cols + gap;
    for (int i = 0; i < 3; i++)
        CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    CHECK_INT(weft_memcpy(group, host, operands.d, part), WEFT_OK);
    if (!gathers)
        spread(host, rows, cols, cols + gap, true);
    CHECK_INT(weft_free(memory, block), WEFT_OK);
    return host;
}

/* Unfused products whose other half is a collective: operands that peers cannot reach are copied nowhere, by
 * packets and by the kernel of the arrays, but for a large D that all ranks store to; and give the same bits.
 * So do lines with gaps, of which any rank may have some in any run, and no other knows.
 */
static void halves_rank(weft_group *group, void *argument)
{
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR};
    int world = weft_size(group);
    weft_group *apart = NULL;

    (void)argument;
    CHECK_INT(weft_group_split(group, 0, weft_rank(group), &apart), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(apart, 0), WEFT_OK);
    for (int i = 0; i < 6; i++) {
        weft_problem p = product(i < 3 ? 8 * world : 1632, 304, 32);
        size_t bytes = sizeof(uint16_t) * (size_t)(p.m * p.n);
        size_t laid;
        weft_plan *plan = NULL;
        void *near, *far;

        p.op = ops[i % 3];
        p.schedule = WEFT_SCHEDULE_UNFUSED;
        p.wire_dtype = WEFT_BF16;
        p.tuning.library = 1;
        if (p.op == WEFT_OP_AG_GEMM) /* what is gathered is large */
            p.k = 304, p.n = 32 * world, bytes = sizeof(uint16_t) * (size_t)(p.m * 32);
        else if (p.op == WEFT_OP_GEMM_RS)
            bytes /= (size_t)world;
        CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
        CHECK_INT(weft_plan_problem(plan)->tuning.exchange, 3);
        laid = plan->bytes;
        near = halves_run(group, group, plan, &p, 0);
        far = halves_run(group, apart, plan, &p, 0);
        CHECK_INT(memcmp(near, far, bytes), 0);
        for (int odd = 0; odd < world; odd++) {
            void *gaps = halves_run(group, apart, plan, &p, i == 5 || odd == weft_rank(group) ? 8 : 0);

            CHECK_INT(memcmp(near, gaps, bytes), 0);
            free(gaps);
        }
        CHECK_INT(memcmp(near, (char *)near + 2, bytes - 2) != 0, 1); /* not all the same */
        CHECK_INT(weft_cuda_plan_of(plan)->staging != NULL, i == 5);
        CHECK(weft_cuda_plan_of(plan)->bound_count > 1); /* for other places, and one workspace for all */
        for (int b = 0; b < weft_cuda_plan_of(plan)->bound_count; b++) {
            CHECK(weft_cuda_plan_of(plan)->bound[b].executor.library.workspace ==
                  weft_cuda_of(group)->workspace.at);
        }
        /* what the GPU has beside symmetric memory is counted, too */
        CHECK(plan->bytes > laid);
        weft_plan_destroy(plan);
        free(near);
        free(far);
    }
    weft_group_free(apart);
}

static void test_library(void)
{
    api_run elsewhere = {.small = true, .runs = 2, .shapes = 1, .elsewhere = true};

    fake_cublaslt_install(true);
    ranks_run(2, halves_rank, NULL);
    ranks_run(3, halves_rank, NULL);
    ranks_run(2, api_rank, &elsewhere);
    ranks_run(2, late_rank, NULL);
    CHECK(fake_cublaslt_take_products() > 0);
    fake_gpu_take_counts();
    ranks_run(5, gate_rank, NULL);
    CHECK_INT(fake_gpu_take_counts().gates, 5);
    fake_cublaslt_install(false);
}

int main(void)
{
    test_results();
    test_apart();
    fake_gpu_install(2, 16, true);
    ranks_run(1, memory_rank, NULL);
    ranks_run(3, memory_rank, NULL);
    ranks_run(1, default_stream_rank, NULL);
    fake_gpu_install(1, 16, true);
    ranks_run(2, plans_rank, NULL);
    ranks_run(2, values_rank, NULL);
    ranks_run(2, spare_rank, NULL);
    ranks_run(2, errors_rank, NULL);
    test_capture();
    test_peer_access();
    test_library();
    return check_report("test_cuda_api");
}
