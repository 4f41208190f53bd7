/* All cases on the fake GPU: what the host side makes of a plan, and whether its waits are enough. */
#include "cases.h"
#include "fake_cublaslt.h"
#include "fake_gpu.h"
#include "choose/machine.h"
#include "choose/cuda/choose.h"
#include "run/cuda/cublaslt_cost.h"
#include "run/cuda/maps.h"
#include "run/cuda/timeline.h"

static void run_all(int crews, bool hopper, uint64_t seed)
{
    device = fake_gpu(crews, hopper, seed);
    test_gemm_alone();
    fake_gpu_take_counts();
    test_products_by_themselves();
    CHECK_INT(fake_gpu_take_counts().splitk, hopper ? (12 * 2 + 1) * 2 : 0);
    test_every_way();
    fake_gpu_take_counts();
    test_any_strides();
    test_operations();
    test_ring_widths();
    test_every_walker();
    fake_gpu_take_counts();
    test_fp8(); /* all of whose lines are whole: what is copied is turned, for the tensor cores */
    CHECK_INT(fake_gpu_take_counts().repitched > 0, hopper);
    test_chosen();
    test_collectives();
    test_missing_rank();
}

static void test_paths(void)
{
    fake_gpu_counts counts;
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 512, 512, 256);
    device = fake_gpu(16, true, 3);
    fake_gpu_take_counts();
    try("paths", &p, 4, &plain, 1);
    counts = fake_gpu_take_counts();
    CHECK_INT(counts.gemms, 4 * 4 * 1); /* four shards of 128 rows, 128 columns a rank */
    CHECK_INT(counts.maps, counts.gemms);
    CHECK_INT(counts.bulk, 4 * 3 * 4); /* each piece in bands of 16 KiB */
}

/* Brought in early, a rank's next kernel could take the SMs of one that its last kernel waits for: only a
 * rank that has the GPU to itself may. */
static void test_early_launches(void)
{
    weft_problem p = problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, 256, 128, 128);
    device = fake_gpu(16, true, 15);
    fake_gpu_take_counts();
    try("shared", &p, 2, &plain, 3);
    CHECK_INT(fake_gpu_take_counts().early, 0);
    try("by itself", &p, 1, &plain, 3);
    CHECK(fake_gpu_take_counts().early >= 3);
}

static void test_refusals(void)
{
    weft_error_text error = {0};
    weft_cuda_world w;
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 64, 64, 64);
    device = fake_gpu(4, true, 5);
    p.dtype = p.d_dtype = WEFT_F32;
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(error.text, "float16, bfloat16 and fp8, not float32");
    p.dtype = WEFT_BF16;
    p.d_dtype = WEFT_F16;
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_ERR_UNSUPPORTED);
    p.d_dtype = WEFT_BF16;
    p.tuning.tile_m = 512;
    p.m = 1024;
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "at most 256 x 256");
    p.tuning.tile_m = 0;
    p.n = 2048;
    p.tuning.workers = 9;
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "9 lanes, but only 4 can be resident");
    CHECK_INT(weft_cuda_world_make(&device, &p, 9, &plain, &w, &error), WEFT_ERR_ARGUMENT);
}

/* A recorded run has an event for every task, in the order of its lane, and none goes back in time. */
static void test_timeline(void)
{
    weft_problem p = problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, 512, 512, 96);
    weft_error_text error = {0};
    weft_event *events = NULL;
    size_t count = 0, tasks = 0, seen = 0;
    weft_cuda_world w;

    device = fake_gpu(16, true, 9);
    p.tuning.tile_m = p.tuning.tile_n = 64;
    CHECK_INT(weft_cuda_world_make(&device, &p, 3, &plain, &w, &error), WEFT_OK);
    CHECK_INT(matrix_fill(&w, 7), 0);
    for (int run = 0; run < 2; run++) {
        free(events);
        CHECK_INT(weft_cuda_timeline(&w, &events, &count, &error), WEFT_OK);
    }
    for (int r = 0; r < 3; r++)
        for (uint32_t i = 0; i < w.parts[r].task_count; i++)
            tasks += w.parts[r].tasks[i].kind == WEFT_TASK_GEMM ||
                     w.parts[r].tasks[i].kind == WEFT_TASK_REDUCE ||
                     w.parts[r].tasks[i].kind == WEFT_TASK_COPY;
    for (size_t i = 0; i < count; i++) {
        bool same = i > 0 && events[i].rank == events[i - 1].rank && events[i].lane == events[i - 1].lane;

        seen += events[i].kind <= WEFT_EVENT_REDUCE;
        CHECK(events[i].end_ns > events[i].start_ns);
        CHECK(!same || events[i].start_ns >= events[i - 1].end_ns);
        CHECK(events[i].task < w.parts[events[i].rank].task_count);
    }
    CHECK(tasks > 0);
    CHECK_INT(seen, tasks);
    CHECK(w.executors[0].args.trace == NULL);
    free(events);
    weft_cuda_world_free(&w);
}

/* Maps lie where there were none before; when no such place is left, the kernels are told to fence. */
static void test_maps_are_placed_once(void)
{
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 128, 128, 64);
    weft_error_text error = {0};
    CUtensorMap *many = calloc(8192, sizeof(*many));
    const void *first = NULL;
    weft_cuda_world w;

    device = fake_gpu(4, true, 13);
    p.tuning.library = 2;
    for (int i = 0; i < 2; i++) {
        CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_OK);
        CHECK_INT(w.executors[0].args.maps_reused, 0);
        CHECK(w.executors[0].args.maps != first);
        first = w.executors[0].args.maps;
        weft_cuda_world_free(&w);
    }
    while (weft_cuda_maps_place(&device, many, 8192))
        ;
    while (weft_cuda_maps_place(&device, many, 1))
        ;
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_OK);
    CHECK_INT(w.executors[0].args.maps_reused, 1);
    weft_cuda_world_free(&w);
    try("maps with the other tables", &p, 1, &plain, 1);
    free(many);
}

/* One rank's product goes to cuBLASLt where it makes the same thing: those, and no others. */
static void test_cublaslt_makes_what_it_can(void)
{
    weft_problem p = problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_UNFUSED, 72, 40, 104), other;
    weft_cuda_world_options dense = plain;

    dense.dense = true;
    device = fake_gpu(16, true, 19);
    fake_cublaslt_install(true);
    for (int form = 0; form < 8; form++) {
        p.transa = form & 1;
        p.transb = form >> 1 & 1;
        p.dtype = form & 4 ? WEFT_F16 : WEFT_BF16;
        p.d_dtype = form == 3 ? WEFT_F32 : p.dtype;
        p.alpha = form & 2 ? 2 : 1;
        p.beta = form & 1 ? 3 : 0;
        p.bias = form > 4;
        p.act = form == 6 ? WEFT_ACT_RELU : WEFT_ACT_NONE;
        try("cublaslt", &p, 1, &plain, 2);
        CHECK_INT(fake_cublaslt_take_products(), 2);
    }
    p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_AUTO, 96, 264, 136);
    try("cublaslt by auto", &p, 1, &plain, 2);
    CHECK_INT(fake_cublaslt_take_products(), 2);
    other = p, other.l = 3;
    try("a batch", &other, 1, &plain, 1);
    other = p, other.alpha = 0, other.beta = 1;
    try("alpha = 0", &other, 1, &plain, 1);
    other = p, other.k = 0;
    try("no k", &other, 1, &plain, 1);
    other = p, other.tuning.tile_n = 128;
    try("tiles asked for", &other, 1, &plain, 1);
    other = p, other.tuning.library = 2;
    try("weft asked for", &other, 1, &plain, 1);
    other = p, other.schedule = WEFT_SCHEDULE_DIRECT;
    try("another schedule", &other, 1, &plain, 1);
    other = p, other.k = 131;
    try("odd strides", &other, 1, &dense, 1);
    other = p, other.schedule = WEFT_SCHEDULE_UNFUSED, other.transb = 1, other.n = 41, other.bias = 1;
    try("a bias beside odd D", &other, 1, &dense, 1);
    CHECK_INT(fake_cublaslt_take_products(), 0);
    other.bias = 0;
    try("odd D", &other, 1, &dense, 1);
    CHECK_INT(fake_cublaslt_take_products(), 1);
    fake_cublaslt_install(false);
    try("without it", &p, 1, &plain, 1);
    CHECK_INT(fake_cublaslt_take_products(), 0);
    CHECK_INT(fake_cublaslt_objects(), 0);
}

/* Of several ranks the product of an unfused plan is one launch, before or after the kernel that
 * communicates; making a plan tries it once on every rank. */
static void test_cublaslt_among_ranks(void)
{
    static const weft_layout layouts[] = {WEFT_LAYOUT_GATHER_A,     WEFT_LAYOUT_GATHER_B,
                                          WEFT_LAYOUT_SCATTER_ROWS, WEFT_LAYOUT_SCATTER_COLS,
                                          WEFT_LAYOUT_DEFAULT,      WEFT_LAYOUT_DEFAULT};
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS,
                                  WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR, WEFT_OP_GEMM_AS};

    device = fake_gpu(160, true, 23);
    fake_cublaslt_install(true);
    fake_cublaslt_take_products();
    for (int i = 0; i < 12; i++) {
        weft_problem p =
            problem_of(ops[i % 6], i % 2 ? WEFT_SCHEDULE_UNFUSED : WEFT_SCHEDULE_AUTO, 30, 96, 56);

        p.layout = layouts[i % 6];
        p.transa = i % 3 == 1;
        p.transb = i % 4 == 1;
        p.beta = i % 5 == 2 ? 2 : 0;
        p.bias = i % 2 && (p.op == WEFT_OP_GEMM_RS || p.op == WEFT_OP_GEMM_AR);
        p.act = i % 3 == 0 ? WEFT_ACT_RELU : WEFT_ACT_NONE;
        p.alpha = i > 6 ? 2 : 1;
        p.wire_dtype = i > 8 ? WEFT_BF16 : WEFT_F32;
        try("cublaslt among ranks", &p, 2 + i % 3, &plain, 3);
        CHECK_INT(fake_cublaslt_take_products(), (2 + i % 3) * (1 + 3));
    }
    weft_problem many = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_AUTO, 1024, 256, 64);
    try("many rows", &many, 2, &plain, 1);
    many.schedule = WEFT_SCHEDULE_UNFUSED;
    many.tuning.tile_n = 128;
    try("tiles asked for", &many, 2, &plain, 1);
    many.tuning.tile_n = 0;
    many.bias = 1;
    try("a bias", &many, 2, &plain, 1);
    CHECK_INT(fake_cublaslt_take_products(), 0);
    fake_cublaslt_install(false);
    CHECK_INT(fake_cublaslt_objects(), 0);
}

/* The product of an unfused plan by the kernel for products by themselves, before or after the one that
 * communicates. */
static void test_splitk_among_ranks(void)
{
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR, WEFT_OP_GEMM_AS};

    device = fake_gpu(160, true, 24);
    fake_cublaslt_install(true);
    fake_cublaslt_take_products();
    fake_gpu_take_counts();
    for (int i = 0; i < 8; i++) {
        weft_problem p =
            problem_of(ops[i % 4], i < 4 ? WEFT_SCHEDULE_UNFUSED : WEFT_SCHEDULE_AUTO, 30, 128, 192);

        p.transb = i % 3 == 1;
        p.alpha = i > 4 ? 2 : 1;
        p.act = i % 3 == 0 ? WEFT_ACT_RELU : WEFT_ACT_NONE;
        p.wire_dtype = i > 4 ? WEFT_BF16 : WEFT_F32;
        p.tuning.library = 3;
        try("splitk among ranks", &p, i % 3 ? 2 : 4, &plain, 3);
        CHECK_INT(fake_gpu_take_counts().splitk, (i % 3 ? 2 : 4) * 3);
        CHECK_INT(fake_cublaslt_take_products(), 0);
    }
    fake_cublaslt_install(false);
}

/* Sums as marked words, in one hop and in two, sent by the kernel that multiplies or, behind cuBLASLt, by the
 * one that adds up; where no kernel can, as the plan says. */
static void test_sums_as_packets(void)
{
    static const struct {
        weft_op op;
        int64_t m, n;
        int hops, library, world;
    } cases[] = {{WEFT_OP_GEMM_RS, 30, 128, 1, 3, 4},  {WEFT_OP_GEMM_RS, 4, 72, 1, 1, 3},
                 {WEFT_OP_GEMM_AR, 30, 128, 1, 3, 4},  {WEFT_OP_GEMM_AR, 1, 64, 1, 1, 2},
                 {WEFT_OP_GEMM_AR, 30, 128, 2, 3, 4},  {WEFT_OP_GEMM_AR, 7, 200, 2, 1, 3},
                 {WEFT_OP_GEMM_AR, 200, 640, 2, 3, 2}, {WEFT_OP_GEMM_RS, 2, 64, 1, 3, 4},
                 {WEFT_OP_GEMM_AR, 9, 68, 1, 3, 2}};

    fake_cublaslt_install(true);
    for (int i = 0; i < 18; i++) {
        int at = i % 9;
        bool kernels = at < 7;
        weft_problem p = problem_of(cases[at].op, WEFT_SCHEDULE_UNFUSED, cases[at].m, cases[at].n, 192);

        device = fake_gpu(i % 2 ? 160 : 12, true, 25);
        fake_gpu_take_counts();
        p.transb = i % 3 == 1;
        p.alpha = i % 4 == 1 ? 2 : 1;
        p.beta = i % 4 == 2 ? 1 : 0;
        p.bias = i % 4 == 3;
        p.act = i % 3 == 0 ? WEFT_ACT_RELU : WEFT_ACT_NONE;
        p.wire_dtype = i > 8 ? WEFT_BF16 : WEFT_F32;
        p.tuning.library = cases[at].library;
        p.tuning.exchange = cases[at].hops;
        try("sums as marked words", &p, cases[at].world, &plain, 3);
        CHECK_INT(fake_gpu_take_counts().exchanges, kernels ? cases[at].world * 3 : 0);
    }
    fake_cublaslt_install(false);
}

/* A collective by itself beside the product, by packets where it is small; a rank in the loop too. Where
 * ranks share the GPU, many CTAs begin to wait when every rank has come. */
static void test_halves(void)
{
    static const struct {
        weft_op op;
        int64_t m;
        int world, packets, gates;
    } cases[] = {{WEFT_OP_GEMM_RS, 8, 4, 1, 0},   {WEFT_OP_GEMM_AR, 5, 3, 1, 0},
                 {WEFT_OP_AG_GEMM, 8, 2, 1, 0},   {WEFT_OP_GEMM_RS, 600, 5, 0, 1},
                 {WEFT_OP_GEMM_AR, 600, 2, 0, 0}, {WEFT_OP_AG_GEMM, 600, 5, 0, 1}};

    fake_cublaslt_install(true);
    for (int i = 0; i < 6; i++) {
        weft_problem p = problem_of(cases[i].op, WEFT_SCHEDULE_UNFUSED, cases[i].m, 160, 160);
        weft_error_text error = {0};
        weft_cuda_world_options loop = {.alone = true, .dense = true, .limits = {5, 5}};
        weft_cuda_world w;

        device = fake_gpu(16, true, 27);
        p.wire_dtype = p.d_dtype;
        p.tuning.tile_m = p.tuning.tile_n = p.tuning.tile_k = 0;
        p.tuning.workers = 0;
        fake_gpu_take_counts();
        try("halves", &p, cases[i].world, &plain, 3);
        fake_gpu_counts counts = fake_gpu_take_counts();
        CHECK_INT(counts.packets, cases[i].packets * cases[i].world * 3);
        CHECK_INT(counts.gates, cases[i].gates * cases[i].world * 3);
        CHECK_INT(weft_cuda_world_make(&device, &p, cases[i].world, &loop, &w, &error), WEFT_OK);
        CHECK_INT(w.parts[0].problem.tuning.exchange, 3);
        for (int run = 0; run < 3; run++)
            CHECK_INT(weft_cuda_world_launch(&w, &error), WEFT_OK);
        CHECK_INT(weft_cuda_world_finish(&w, &error), WEFT_OK);
        CHECK_INT(fake_gpu_take_counts().gates, 0);
        weft_cuda_world_free(&w);
    }
    fake_cublaslt_install(false);
    CHECK_INT(fake_cublaslt_objects(), 0);
}

static void test_cublaslt_has_no_timeline(void)
{
    weft_problem p = problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED, 64, 64, 64);
    weft_error_text error = {0};
    weft_event *events = NULL;
    size_t count = 0;
    weft_cuda_world w;

    device = fake_gpu(16, true, 21);
    fake_cublaslt_install(true);
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_OK);
    CHECK_INT(weft_cuda_timeline(&w, &events, &count, &error), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(error.text, "cuBLASLt makes this product");
    weft_cuda_world_free(&w);
    fake_cublaslt_install(false);
    CHECK_INT(fake_cublaslt_objects(), 0);
    p.tuning.library = 3;
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_OK);
    CHECK_INT(weft_cuda_timeline(&w, &events, &count, &error), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(error.text, "a kernel for products by themselves makes this one");
    weft_cuda_world_free(&w);
}

static weft_problem chosen(const weft_problem *asked, int world, int crews, bool hopper, bool library)
{
    weft_cuda_basis basis = {
        .world = world, .crews = crews, .hopper = hopper, .library = library, .adds = true};
    weft_problem before = *asked, decided = weft_cuda_choose(&basis, asked);

    CHECK(memcmp(&before, asked, sizeof(before)) == 0);
    return decided;
}

/* Lines that do not begin with whole sectors come slowly: there wide tiles, which load least for a product,
 * win over those that fill the rounds. */
static void test_loose_lines(void)
{
    static const struct {
        int64_t m, n, k, tile_n;
    } cases[] = {{5000, 5000, 5000, 256}, {5008, 5008, 5008, 224}, {4096, 3584, 8192, 224}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_problem p =
            problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, cases[i].m, cases[i].n, cases[i].k);

        p = chosen(&p, 1, 66, true, false);
        CHECK_INT(p.tuning.tile_n, cases[i].tile_n);
    }
}

/* An algorithm that is its tile's number. */
static cublasStatus_t tile_alone(const cublasLtMatmulAlgo_t *algorithm,
                                 cublasLtMatmulAlgoConfigAttributes_t attribute, void *value, size_t bytes,
                                 size_t *written)
{
    if (attribute != CUBLASLT_ALGO_CONFIG_TILE_ID || bytes != sizeof(uint32_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    *(uint32_t *)value = (uint32_t)algorithm->data[0];
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

static double cost_of_tile(uint64_t tile, int64_t m, int64_t n, int64_t k)
{
    weft_cublaslt lt = {.config = tile_alone};
    cublasLtMatmulAlgo_t algorithm = {.data = {tile}};

    return weft_cublaslt_cost(&lt, &algorithm, m, n, k, 132);
}

/* As measured: the first of each list is slower by a fifth and more. Numbers of tiles are counted as
 * cuBLASLt's header does. */
static void test_tiles_of_the_library(void)
{
    static const struct {
        int64_t m, n, k;
        cublasLtMatmulTile_t first, other;
    } lists[] = {{128, 28672, 4096, CUBLASLT_MATMUL_TILE_448x64, CUBLASLT_MATMUL_TILE_256x128},
                 {128, 57344, 8192, CUBLASLT_MATMUL_TILE_448x64, CUBLASLT_MATMUL_TILE_256x128},
                 {448, 28672, 8192, CUBLASLT_MATMUL_TILE_512x64, CUBLASLT_MATMUL_TILE_320x128},
                 {160, 5120, 5120, CUBLASLT_MATMUL_TILE_128x64, CUBLASLT_MATMUL_TILE_128x80}};
    static const struct {
        cublasLtMatmulTile_t number;
        int64_t across, down;
    } tiles[] = {{CUBLASLT_MATMUL_TILE_64x16, 64, 16},     {CUBLASLT_MATMUL_TILE_64x504, 64, 504},
                 {CUBLASLT_MATMUL_TILE_64x168, 64, 168},   {CUBLASLT_MATMUL_TILE_128x8, 128, 8},
                 {CUBLASLT_MATMUL_TILE_128x168, 128, 168}, {CUBLASLT_MATMUL_TILE_128x504, 128, 504},
                 {CUBLASLT_MATMUL_TILE_192x336, 192, 336}, {CUBLASLT_MATMUL_TILE_256x256, 256, 256},
                 {CUBLASLT_MATMUL_TILE_320x200, 320, 200}, {CUBLASLT_MATMUL_TILE_384x168, 384, 168},
                 {CUBLASLT_MATMUL_TILE_448x144, 448, 144}, {CUBLASLT_MATMUL_TILE_512x128, 512, 128}};

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        CHECK(cost_of_tile(lists[i].other, lists[i].m, lists[i].n, lists[i].k) <
              0.95 * cost_of_tile(lists[i].first, lists[i].m, lists[i].n, lists[i].k));
    /* a product takes longer by more tiles, and by what tiles have beyond it, not by more of one */
    for (size_t i = 0; i < sizeof(tiles) / sizeof(tiles[0]); i++) {
        int64_t m = 11 * tiles[i].down, n = 12 * tiles[i].across;
        double one = cost_of_tile(tiles[i].number, m, n, 1 << 20);

        CHECK(cost_of_tile(tiles[i].number, m + 1, n, 1 << 20) > 1.05 * one);
        CHECK(cost_of_tile(tiles[i].number, m, n + 1, 1 << 20) > 1.05 * one);
        CHECK(cost_of_tile(tiles[i].number, m - 1, n - 1, 1 << 20) > 0.99 * one);
        CHECK(cost_of_tile(tiles[i].number, m, n - tiles[i].across / 2, 1 << 20) > 1.005 * one);
    }
    CHECK(cost_of_tile(CUBLASLT_MATMUL_TILE_UNDEFINED, 128, 128, 128) == 0);
    CHECK(cost_of_tile(CUBLASLT_MATMUL_TILE_768x64, 128, 128, 128) == 0);
}

/* With very few rows, or few columns and a long k, and where tiles of 224 columns fill the rounds weft's own
 * kernels are faster, by measurement. */
static void test_who_makes_a_product(void)
{
    static const struct {
        int64_t m, n, k;
        int library, without; /* without: cuBLASLt is not there */
    } cases[] = {{1, 8192, 8192, 3, 3},    {128, 7168, 8192, 1, 3},  {1024, 1024, 1024, 1, 3},
                 {4096, 4096, 4096, 1, 2}, {5000, 5000, 5000, 1, 2}, {4096, 1792, 4096, 2, 2},
                 {2048, 3584, 4096, 2, 2}, {56, 1280, 3584, 3, 3},   {192, 2112, 7168, 1, 3},
                 {128, 1024, 1024, 1, 3},  {2048, 2048, 2048, 1, 3}, {20, 3584, 3584, 3, 3},
                 {20, 4096, 4096, 3, 3},   {200, 3584, 18944, 1, 3}, {192, 1792, 4096, 3, 3},
                 {24, 2112, 7168, 3, 3},   {2048, 4608, 3584, 1, 2}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_AUTO, cases[i].m, cases[i].n, cases[i].k);

        p = chosen(&p, 1, 66, true, true);
        CHECK_INT(p.tuning.library, cases[i].library);
        CHECK_INT(p.schedule == WEFT_SCHEDULE_UNFUSED, cases[i].library == 1);
        p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_AUTO, cases[i].m, cases[i].n, cases[i].k);
        p = chosen(&p, 1, 132, false, true);
        CHECK_INT(p.tuning.library, 1);
        p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_AUTO, cases[i].m, cases[i].n, cases[i].k);
        p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_AUTO, cases[i].m, cases[i].n, cases[i].k);
        p = chosen(&p, 1, 66, true, false);
        CHECK_INT(p.tuning.library, cases[i].without);
        CHECK(p.schedule != WEFT_SCHEDULE_UNFUSED);
    }
}

/* The simulator takes the tiles, lanes and stripes that are run. */
static void test_what_is_simulated_is_run(void)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
        int64_t m, n, k;
    } cases[] = {{WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 4096, 14336, 4096},
                 {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 16384, 28672, 8192},
                 {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, 4096, 4096, 14336},
                 {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, 4096, 8192, 28672},
                 {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, 8192, 4096, 14336},
                 {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER, 4096, 14336, 4096}};
    weft_error_text error = {0};
    weft_machine machine;

    CHECK_INT(weft_machine_find("h200_link", &machine, &error), WEFT_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_problem asked = problem_of(cases[i].op, cases[i].schedule, cases[i].m, cases[i].n, cases[i].k),
                     run, simulated;

        asked.wire_dtype = WEFT_BF16;
        CHECK_INT(weft_problem_resolve(&asked, 8, &asked, &error), WEFT_OK);
        run = chosen(&asked, 8, 66, true, false);
        simulated = asked;
        weft_choose_tiles(&machine, 8, &simulated);
        CHECK_INT(simulated.tuning.tile_m, run.tuning.tile_m);
        CHECK_INT(simulated.tuning.tile_n, run.tuning.tile_n);
        CHECK_INT(simulated.tuning.workers, run.tuning.workers);
        CHECK_INT(simulated.tuning.sums_stay, run.tuning.sums_stay);
        CHECK(!simulated.tuning.raster || simulated.tuning.raster == run.tuning.raster);
    }
}

/* Ranks that each have a GPU send sums of few rows from the kernel that multiplies: those of a gemm_ar to all
 * while they are few bytes, else to their owners and from there; but not of weights that cuBLASLt had better
 * multiply. */
static void test_who_sends_sums(void)
{
    static const struct {
        weft_op op;
        int64_t m;
        int world, hops;
    } cases[] = {{WEFT_OP_GEMM_AR, 1, 8, 1},    {WEFT_OP_GEMM_AR, 8, 8, 1},   {WEFT_OP_GEMM_AR, 32, 8, 2},
                 {WEFT_OP_GEMM_AR, 128, 8, 2},  {WEFT_OP_GEMM_AR, 128, 2, 0}, {WEFT_OP_GEMM_AR, 8, 2, 1},
                 {WEFT_OP_GEMM_RS, 8, 8, 1},    {WEFT_OP_GEMM_RS, 128, 8, 1}, {WEFT_OP_GEMM_RS, 7, 8, 0},
                 {WEFT_OP_GEMM_AR, 1024, 8, 0}, {WEFT_OP_AG_GEMM, 8, 8, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_cuda_basis basis = {.world = cases[i].world,
                                 .crews = 66,
                                 .hopper = true,
                                 .library = true,
                                 .whole = true,
                                 .adds = true};
        weft_problem p = problem_of(cases[i].op, WEFT_SCHEDULE_AUTO, cases[i].m, 8192, 8192), decided;

        p.dtype = p.d_dtype = p.wire_dtype = WEFT_BF16;
        p.tuning = (weft_tuning){0};
        decided = weft_cuda_choose(&basis, &p);
        CHECK_INT(decided.tuning.exchange % 3, cases[i].hops);
        CHECK(!cases[i].hops || decided.tuning.library == 3);
        basis.adds = false;
        CHECK_INT(weft_cuda_choose(&basis, &p).tuning.exchange % 3, 0);
    }
}

/* Which products stage what peers cannot reach in chunks where four ranks share a GPU: large ones, by every
 * schedule but those unfused ones whose other half is no collective. */
static void test_what_is_staged(void)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
        int64_t m;
        int staged;
    } cases[] = {{WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 16384, 1},
                 {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 4096, 0},
                 {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 16384, 1},
                 {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_TWO_LEVEL, 16384, 0},
                 {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED, 4096, 1},
                 {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED, 1024, 0},
                 {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_LEVEL, 4096, 0},
                 {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, 64, 1},
                 {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_TWO_LEVEL, 4096, 1},
                 {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_TWO_LEVEL, 1024, 0},
                 {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_UNFUSED, 4096, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_cuda_basis basis = {.world = 4, .crews = 16, .hopper = true, .library = true, .adds = true};
        weft_problem p = problem_of(cases[i].op, cases[i].schedule, cases[i].m, 4096, 4096), decided;

        p.dtype = p.d_dtype = p.wire_dtype = WEFT_BF16;
        p.tuning = (weft_tuning){.staged = 1};
        decided = weft_cuda_choose(&basis, &p);
        CHECK_INT(weft_cuda_chunks_pay(&basis, &decided), cases[i].staged);
        CHECK(decided.tuning.staged || !cases[i].staged);
    }
}

/* Other GPUs than Hopper's divide k where their tiles are too few for all SMs, fp8 in whole blocks of scales.
 */
static void test_any_gpu_is_busy(void)
{
    static const int64_t shapes[][3] = {
        {64, 8192, 8192}, {256, 256, 65536}, {8192, 8192, 8192}, {128, 128, 576}};

    for (int i = 0; i < 8; i++) {
        const int64_t *s = shapes[i % 4];
        weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, s[0], s[1], s[2]);

        p.dtype = i < 4 ? WEFT_BF16 : WEFT_FP8_E4M3;
        p.d_dtype = WEFT_BF16;
        p = chosen(&p, 1, 108, false, false);
        CHECK_INT(p.tuning.tile_m, 128);
        CHECK(p.tuning.tile_n == 128 || (i < 4 && p.tuning.tile_n == 256));
        CHECK(i % 4 > 1 || (p.tuning.chunk_k > 0 && p.tuning.workers >= 86));
        CHECK(p.tuning.chunk_k % (i < 4 ? 64 : 128) == 0);
        CHECK(p.tuning.workers <= 108);
    }
}

/* Which schedule ranks take that share a GPU, where one was much faster than the others, by measurement. */
static void test_what_shared_gpus_take(void)
{
    static const struct {
        weft_op op;
        int64_t m, n, k;
        int world;
        weft_schedule schedule;
    } cases[] = {
        {WEFT_OP_AG_GEMM, 32, 9536, 12352, 2, WEFT_SCHEDULE_UNFUSED},
        {WEFT_OP_AG_GEMM, 6992, 12544, 11840, 2, WEFT_SCHEDULE_ALLGATHER_ROTATING_A},
        {WEFT_OP_AG_GEMM, 4472, 1216, 4672, 4, WEFT_SCHEDULE_DIRECT},
        {WEFT_OP_GEMM_RS, 1, 8192, 8192, 2, WEFT_SCHEDULE_UNFUSED},
        {WEFT_OP_GEMM_RS, 1, 8192, 8192, 4, WEFT_SCHEDULE_UNFUSED},
        {WEFT_OP_GEMM_RS, 40, 5760, 8000, 2, WEFT_SCHEDULE_UNFUSED},
        {WEFT_OP_GEMM_RS, 5800, 11328, 1664, 8, WEFT_SCHEDULE_REDUCESCATTER_TILING_A},
        {WEFT_OP_GEMM_AR, 432, 8448, 10816, 8, WEFT_SCHEDULE_UNFUSED},
        {WEFT_OP_GEMM_AS, 3904, 1152, 7168, 2, WEFT_SCHEDULE_UNFUSED},
        {WEFT_OP_GEMM_AS, 760, 2048, 5440, 8, WEFT_SCHEDULE_TWO_LEVEL},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_problem p = problem_of(cases[i].op, WEFT_SCHEDULE_AUTO, cases[i].m, cases[i].n, cases[i].k);

        p.wire_dtype = p.d_dtype;
        p = chosen(&p, cases[i].world, 66 / cases[i].world, true, true);
        CHECK_INT(p.schedule, cases[i].schedule);
    }
}

int main(void)
{
    thorough = check_repeat(0, 1);
    run_all(32, true, 1);
    test_paths();
    test_early_launches();
    test_refusals();
    test_timeline();
    test_maps_are_placed_once();
    test_cublaslt_makes_what_it_can();
    test_cublaslt_among_ranks();
    test_splitk_among_ranks();
    test_sums_as_packets();
    fake_cublaslt_install(true);
    test_sums_sent();
    fake_cublaslt_install(false);
    test_halves();
    test_cublaslt_has_no_timeline();
    test_loose_lines();
    test_tiles_of_the_library();
    test_who_makes_a_product();
    test_what_is_simulated_is_run();
    test_who_sends_sums();
    test_what_is_staged();
    test_any_gpu_is_busy();
    test_what_shared_gpus_take();
    return check_report("test_cuda_fake");
}
