/*
 * The cases of the CUDA backend, run on a real GPU by test_device.c and on a fake one by test_fake.c: the
 * GEMM alone in all its forms, every operation and schedule over virtual ranks, many runs without a pause, a
 * missing rank. Integer data, compared for equality.
 */
#ifndef WEFT_TESTS_CUDA_CASES_H
#define WEFT_TESTS_CUDA_CASES_H

#include "matrices.h"
#include "support/check.h"

static weft_cuda_device device;
static int many_runs = 3;
static bool thorough = true; /* false: fewer sizes and worlds, for the fake GPU */

/* The exact result of the last problem that differs in what counts, kept: most cases share a few. */
static const double *expected_of(const weft_problem *p)
{
    static weft_problem kept;
    static double *d;
    if (!d || kept.m != p->m || kept.n != p->n || kept.k != p->k || kept.l != p->l ||
        kept.alpha != p->alpha || kept.beta != p->beta || kept.bias != p->bias || kept.act != p->act) {
        free(d);
        d = matrix_expected(p, 7);
        kept = *p;
    }
    return d;
}

/* Runs a problem `runs` times back to back and compares the last result. */
static void try(const char *name, const weft_problem *problem, int world,
                const weft_cuda_world_options *options, int runs)
{
    weft_error_text error = {0};
    weft_cuda_world w;
    weft_status status = weft_cuda_world_make(&device, problem, world, options, &w, &error);
    double got = 0, want = 0;
    int64_t wrong = -1;
    if (status == WEFT_OK) {
        const double *expected = expected_of(problem);
        CHECK_INT(matrix_fill(&w, 7), 0);
        for (int i = 0; i < runs && status == WEFT_OK; i++)
            status = weft_cuda_world_launch(&w, &error);
        weft_status last = weft_cuda_world_finish(&w, &error);
        status = status == WEFT_OK ? last : status;
        if (status == WEFT_OK)
            wrong = matrix_wrong(&w, problem, expected, &got, &want);
        weft_cuda_world_free(&w);
    }
    if (status != WEFT_OK || wrong)
        fprintf(
            stderr,
            "%s: m %lld n %lld k %lld l %lld, %d ranks, ta %d tb %d: %s, %lld wrong (first: %g, not %g)\n",
            name, (long long)problem->m, (long long)problem->n, (long long)problem->k, (long long)problem->l,
            world, problem->transa, problem->transb, status == WEFT_OK ? "ran" : error.text, (long long)wrong,
            got, want);
    CHECK(status == WEFT_OK && wrong == 0);
}

/* By the walkers, or by the kernel for products by themselves where it can. */
static void test_gemm_alone_by(int library)
{
    static const int64_t shapes[][3] = {{256, 256, 64},   {256, 256, 512},  {512, 768, 320},
                                        {1000, 520, 200}, {130, 264, 1000}, {77, 1032, 72},
                                        {8, 8, 8},        {600, 304, 0},    {2048, 2048, 256}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int form = 0; form < 4 && (thorough || i != 8); form++) {
            weft_problem p =
                problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, shapes[i][0], shapes[i][1], shapes[i][2]);
            p.transa = form & 1;
            p.transb = form >> 1;
            p.tuning.library = library;
            try("gemm", &p, 1, &plain, 1);
        }
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 700, 520, 328);
    p.dtype = p.d_dtype = WEFT_F16;
    p.tuning.library = library;
    for (int form = 0; form < 4; form++) {
        p.transa = form & 1;
        p.transb = form >> 1;
        try("gemm f16", &p, 1, &plain, 1);
    }
    p.transa = p.transb = 0;
    p.d_dtype = WEFT_F32;
    try("gemm f32 out", &p, 1, &plain, 1);
    p.d_dtype = WEFT_F16;
    p.alpha = 2;
    p.beta = 3;
    p.bias = 1;
    p.act = WEFT_ACT_RELU;
    try("gemm epilogue", &p, 1, &plain, 1);
    p.l = 3;
    try("gemm batch", &p, 1, &plain, 2);
}

static void test_gemm_alone(void)
{
    test_gemm_alone_by(2);
    if (thorough)
        test_gemm_alone_by(3);
}

/* Few rows and few tiles, where every tile of the kernel for products by themselves, slices, groups and
 * sharing come in; D, C and bias that do not lie on vectors; the next run finds all as the first did. */
static void test_products_by_themselves(void)
{
    static const int64_t shapes[][3] = {{1, 1280, 1024}, {2, 264, 4096},   {8, 64, 64},     {16, 520, 512},
                                        {31, 200, 1000}, {64, 128, 2048},  {100, 768, 128}, {256, 64, 6144},
                                        {130, 72, 6144}, {300, 1032, 200}, {208, 264, 512}, {139, 136, 2048}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int form = 0; form < 2; form++) {
            weft_problem p =
                problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, shapes[i][0], shapes[i][1], shapes[i][2]);
            p.transb = form;
            p.tuning.library = 3;
            p.bias = i % 2;
            p.beta = form && i % 4 ? 2 : 0;
            p.alpha = i % 3 ? 1 : 2;
            p.act = i % 4 == 1 ? WEFT_ACT_RELU : WEFT_ACT_NONE;
            p.d_dtype = i % 5 == 3 ? WEFT_F32 : p.dtype;
            try("product by itself", &p, 1, &plain, 2);
        }
    weft_cuda_world_options dense = plain;
    dense.dense = true;
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 9, 301, 1000);
    p.transb = 1;
    p.tuning.library = 3;
    p.beta = 1;
    p.bias = 1;
    try("odd D by itself", &p, 1, &dense, 2);
    p.transb = 0; /* which the walker makes: B's lines are not aligned */
    try("odd B by itself", &p, 1, &dense, 2);
}

/* A product that is divided in one way after another. */
typedef struct divided {
    weft_cuda_world w;
    const weft_problem *problem;
    const double *expected;
    int seen, every, sent; /* ways; which of them are tried; of those, how many send */
} divided;

static void try_way(void *context, const weft_splitk_way *way)
{
    divided *t = context;
    weft_splitk_product *made = &t->w.executors[0].splitk;
    weft_error_text error = {0};
    double got, want;
    int64_t wrong = -1;

    if (t->seen++ % t->every)
        return;
    t->sent += way->sent;
    weft_splitk_product_free(&device, made);
    CHECK_INT(weft_splitk_product_make(&device, &t->w.parts[0], t->w.places, &t->w.parts[0].tasks[0],
                                       device.crews, way, made, &error),
              WEFT_OK);
    CHECK_INT(matrix_fill(&t->w, 7), 0);
    for (int i = 0; i < 2; i++)
        CHECK_INT(weft_cuda_world_launch(&t->w, &error), WEFT_OK);
    if (weft_cuda_world_finish(&t->w, &error) == WEFT_OK)
        wrong = matrix_wrong(&t->w, t->problem, t->expected, &got, &want);
    if (wrong)
        fprintf(stderr, "m %lld n %lld, tile %d, down %d, %d sharers, %d slices, %d groups%s: %lld wrong\n",
                (long long)t->problem->m, (long long)t->problem->n, way->tile, way->down, way->sharers,
                way->slices, way->groups, way->sent ? ", sent" : "", (long long)wrong);
    CHECK_INT(wrong, 0);
}

/* Every way of dividing a product by itself, some of them on a fake GPU. */
static void test_every_way(void)
{
    static const int64_t shapes[][3] = {{139, 136, 2048}, {300, 264, 1024}, {64, 72, 4096}, {450, 520, 1032}};

    for (int i = 0; device.hopper && i < 4; i++) {
        weft_problem p =
            problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, shapes[i][0], shapes[i][1], shapes[i][2]);
        divided t = {.problem = &p, .every = thorough ? 1 : 7};
        weft_error_text error = {0};

        p.transb = i % 2;
        p.bias = i == 1;
        p.tuning.library = 3;
        t.expected = expected_of(&p);
        CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &t.w, &error), WEFT_OK);
        weft_splitk_ways(p.m, p.n, p.k, p.transb, device.sm_count, try_way, &t);
        CHECK(t.sent > 0);
        weft_cuda_world_free(&t.w);
    }
}

/* Sums that the product's kernel sends as marked words and the one behind it adds up, in one hop and in two:
 * shares that differ, lines that go on in the next row, both types of 16 bits, an epilogue; a rank's k is
 * divided, so that no kernel receives what it sent itself. */
static void test_sums_sent(void)
{
    static const struct {
        weft_op op;
        int64_t m, n;
        int hops, world;
    } cases[] = {{WEFT_OP_GEMM_AR, 1, 264, 1, 2},  {WEFT_OP_GEMM_AR, 5, 72, 1, 3},
                 {WEFT_OP_GEMM_AR, 30, 128, 2, 4}, {WEFT_OP_GEMM_AR, 37, 200, 2, 3},
                 {WEFT_OP_GEMM_RS, 19, 72, 1, 8},  {WEFT_OP_GEMM_AR, 61, 136, 2, 8}};

    for (int i = 0; i < 12; i++) {
        int at = i % 6, world = cases[at].world;
        weft_problem p =
            problem_of(cases[at].op, WEFT_SCHEDULE_UNFUSED, cases[at].m, cases[at].n, 512 * (int64_t)world);
        p.dtype = p.d_dtype = p.wire_dtype = i < 6 ? WEFT_BF16 : WEFT_F16;
        p.transb = i % 3 == 1;
        p.alpha = i % 4 == 1 ? 2 : 1;
        p.beta = i % 4 == 2 ? 1 : 0;
        p.bias = i % 4 == 3;
        p.act = i % 5 == 1 ? WEFT_ACT_RELU : WEFT_ACT_NONE;
        p.tuning.library = 3;
        p.tuning.exchange = cases[at].hops;
        try("sums sent", &p, world, &plain, 3);
    }
}

static void test_any_strides(void)
{
    weft_cuda_world_options dense = plain;
    dense.dense = true;
    for (int form = 0; form < 4; form++) {
        weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 333, 301, 205);
        p.transa = form & 1;
        p.transb = form >> 1;
        p.bias = 1;
        p.beta = 1;
        try("odd strides", &p, 1, &dense, 1); /* A or B out of the copy engine's reach */
    }
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 333, 301, 208);
    p.transb = 1;
    p.beta = 1;
    try("odd D", &p, 1, &dense, 1); /* only C and D are */
}

static void test_operations(void)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
        const char *name;
    } cases[] = {
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, "ag rotating a"},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_B, "ag rotating b"},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, "ag direct"},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_UNFUSED, "ag unfused"},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, "rs tiling a"},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_B, "rs tiling b"},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_DIRECT, "rs direct"},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_UNFUSED, "rs unfused"},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_ONE_SHOT, "ar one shot"},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, "ar two shot"},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED, "ar unfused"},
        {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER, "as"},
        {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_UNFUSED, "as unfused"},
    };
    static const int64_t shapes[][3] = {{520, 392, 600}, {1024, 512, 512}, {301, 275, 131}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
            for (int world = 1; world <= WEFT_CUDA_WORLD_MAX; world += s == 1 ? 3 : 1) {
                if (!thorough && (s == 1 || world == 4 || world > 5))
                    continue;
                weft_problem p =
                    problem_of(cases[i].op, cases[i].schedule, shapes[s][0], shapes[s][1], shapes[s][2]);
                p.bias = s != 1;
                p.beta = s == 0;
                try(cases[i].name, &p, world, &plain, 3);
            }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_problem p = problem_of(cases[i].op, cases[i].schedule, 512, 512, 256);
        try(cases[i].name, &p, 4, &plain, many_runs);
    }
}

/* A ring through every width the Hopper walker has, whatever would be chosen: the sums of the last step come
 * as float32 and in 16 bits, whole tiles and cut ones, and where they do not begin on 16 bytes. */
static void test_ring_widths(void)
{
    static const int64_t widths[] = {128, 224, WEFT_CUDA_TILE_N}, columns[] = {512, 600, 602};
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        for (size_t j = 0; j < sizeof(columns) / sizeof(columns[0]); j++)
            for (int narrow = 0; narrow < 2; narrow++) {
                weft_problem p = problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A,
                                            j ? 700 : 768, columns[j], narrow ? 48 : 400);
                p.tuning.tile_n = widths[i];
                p.wire_dtype = narrow ? p.dtype : WEFT_F32; /* k is so small that all sums are exact in it */
                try("ring of a width", &p, 3, &plain, 2);
            }
}

/* Every walker on one rank, its tiles whole and divided along k, whatever would be chosen: all transposes,
 * edges in every direction, the epilogue, batches, an unaligned D, and sums of D's own type. */
static void test_every_walker(void)
{
    static const int64_t shapes[][3] = {{1, 136, 1024}, {64, 256, 520}, {200, 392, 968}, {129, 1032, 72}};
    weft_cuda_world_options dense = plain;
    dense.dense = true;
    for (int walker = 0; walker < WEFT_CUDA_WALKERS; walker++)
        for (int form = 0; form < 8; form++)
            for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
                weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, shapes[i][0], shapes[i][1],
                                            shapes[i][2]);
                if (!thorough && (form + (int)i + walker) % 5)
                    continue;
                p.tuning.crew = weft_cuda_walkers[walker].ctas;
                p.tuning.tile_m = weft_cuda_walkers[walker].tile_m;
                p.tuning.tile_n = weft_cuda_walkers[walker].tile_n;
                p.transa = form & 1;
                p.transb = form >> 1 & 1;
                p.tuning.chunk_k = form & 4 ? 64 * (1 + (int64_t)i) : 0;
                p.tuning.workers = 7;
                p.bias = i != 1;
                p.beta = i == 2 ? 2 : 0;
                p.l = i == 1 ? 2 : 1;
                p.d_dtype = form == 2 ? WEFT_F32 : p.dtype;
                p.act = i == 3 ? WEFT_ACT_RELU : WEFT_ACT_NONE;
                try("a walker", &p, 1, &plain, 2);
                p.n -= 3; /* only C and D are unaligned where B is transposed, else B, too */
                if (p.transb)
                    try("a walker, odd D", &p, 1, &dense, 1);
            }
}

/* fp8 of both kinds: along k, as the tensor cores take it, and the other ways, turned or converted; every
 * type of D, epilogues, k that ends inside a step; then over ranks, where it travels as it is. */
static void test_fp8(void)
{
    static const int64_t large[][3] = {{256, 128, 128}, {200, 392, 976}, {64, 256, 4096}, {1000, 136, 272}};
    static const int64_t small[][3] = {{72, 136, 128}, {40, 72, 272}, {24, 64, 400}, {130, 40, 144}};
    static const weft_dtype outputs[] = {WEFT_BF16, WEFT_F16, WEFT_F32, WEFT_FP8_E4M3, WEFT_FP8_E5M2};
    static const struct {
        weft_op op;
        weft_schedule schedule;
    } over[] = {{WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A},
                {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT},
                {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_UNFUSED},
                {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A},
                {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_UNFUSED},
                {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT},
                {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_ONE_SHOT},
                {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER}};

    for (int i = 0; i < 40; i++) {
        const int64_t *s = (thorough ? large : small)[i % 4];
        weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, s[0], s[1], s[2]);

        p.dtype = i / 20 ? WEFT_FP8_E5M2 : WEFT_FP8_E4M3;
        p.d_dtype = outputs[i % 5];
        p.transb = i % 3 != 2;
        p.transa = i % 7 == 6;
        p.tuning.library = 2;
        p.bias = i % 6 == 1;
        p.beta = i % 6 == 3 ? 2 : 0;
        p.alpha = i % 6 == 5 ? 0.25f : 1;
        p.l = i % 11 == 10 ? 2 : 1;
        if (i % 8 == 7)
            p.tuning.crew = 1, p.tuning.tile_m = p.tuning.tile_n = 128, p.tuning.workers = 5;
        try("fp8", &p, 1, &plain, 2);
    }
    for (size_t i = 0; i < 2 * sizeof(over) / sizeof(over[0]); i++) {
        weft_problem p = problem_of(over[i / 2].op, over[i / 2].schedule, thorough ? 1030 : 70,
                                    thorough ? 656 : 80, thorough ? 784 : 304);

        p.dtype = i % 2 ? WEFT_FP8_E5M2 : WEFT_FP8_E4M3;
        p.d_dtype = i % 4 == 3 ? p.dtype : WEFT_BF16;
        p.transb = 1;
        try("fp8 over ranks", &p, i % 4 ? 3 : 2, &plain, 2);
    }
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_UNFUSED, 64, 48, 96); /* cuBLASLt's */
    p.dtype = WEFT_FP8_E4M3;
    p.d_dtype = WEFT_BF16;
    p.transb = 1;
    try("fp8 unfused", &p, 1, &plain, 2);
    int ctas = weft_cuda_ctas(&device, device.crews); /* a tile for each, whichever walker takes them */
    p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 3, 128 * (int64_t)ctas, 64);
    p.dtype = WEFT_FP8_E4M3;
    p.d_dtype = WEFT_BF16;
    p.tuning.library = 2;
    p.tuning.crew = 1, p.tuning.tile_m = p.tuning.tile_n = 128, p.tuning.workers = ctas;
    for (p.transb = 0; p.transb < 2; p.transb++)
        try("fp8, a tile a CTA", &p, 1, &plain, 2);
}

/* What is chosen for one rank, over sizes that lead to every walker. */
static void test_chosen(void)
{
    static const int64_t shapes[][3] = {{1, 1024, 2048}, {7, 1280, 520},   {33, 2048, 264},
                                        {100, 512, 512}, {256, 256, 1024}, {600, 700, 136}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++) {
            weft_problem p =
                problem_of((weft_op)op, WEFT_SCHEDULE_AUTO, shapes[i][0], shapes[i][1], shapes[i][2]);
            if (thorough || op == WEFT_OP_AG_GEMM + (int)i % 4)
                try("chosen", &p, 1, &plain, 2);
        }
}

/* The collectives that baselines are made of: float32, each element of RECV from its rule. */
static void try_collective(weft_op op, weft_schedule schedule, int world, int64_t count)
{
    const weft_cuda_driver *cu = device.cu;
    weft_problem asked = {.size = sizeof(asked), .op = op, .schedule = schedule, .l = 1, .count = count}, p;
    int64_t send = op == WEFT_OP_REDUCE_SCATTER ? count * world : count,
            recv = op == WEFT_OP_ALL_GATHER ? count * world : count;
    float *image = malloc((size_t)(send > recv ? send : recv) * sizeof(*image));
    weft_error_text error = {0};
    weft_cuda_world w;
    long wrong = 0;

    asked.tuning.tile_n = 96;
    asked.tuning.workers = 3;
    CHECK_INT(weft_problem_resolve(&asked, world, &p, &error), WEFT_OK);
    weft_status status = weft_cuda_world_make(&device, &p, world, &plain, &w, &error);
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK) {
        fprintf(stderr, "%s\n", error.text);
        free(image);
        return;
    }
    for (int r = 0; r < world; r++) {
        for (int64_t i = 0; i < send; i++)
            image[i] = (float)((r + 1) * 1000 + i % 97);
        CHECK_INT(
            cu->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)weft_cuda_world_place(&w, WEFT_ROLE_SEND, r).base,
                                  image, (size_t)send * sizeof(*image), NULL),
            CUDA_SUCCESS);
        CHECK_INT(cu->cuStreamSynchronize(NULL), CUDA_SUCCESS);
    }
    for (int i = 0; i < 3; i++)
        CHECK_INT(weft_cuda_world_launch(&w, &error), WEFT_OK);
    CHECK_INT(weft_cuda_world_finish(&w, &error), WEFT_OK);
    for (int r = 0; r < world; r++) {
        int64_t begin = op == WEFT_OP_REDUCE_SCATTER ? r * count : 0;

        CHECK_INT(cu->cuMemcpyDtoHAsync(
                      image, (CUdeviceptr)(uintptr_t)weft_cuda_world_place(&w, WEFT_ROLE_RECV, r).base,
                      (size_t)recv * sizeof(*image), NULL),
                  CUDA_SUCCESS);
        CHECK_INT(cu->cuStreamSynchronize(NULL), CUDA_SUCCESS);
        for (int64_t i = 0; i < recv; i++) {
            double want = op == WEFT_OP_ALL_GATHER
                              ? (double)(i / count + 1) * 1000 + (double)(i % count % 97)
                              : 500.0 * world * (world + 1) + (double)(world * ((begin + i) % 97));

            wrong += image[i] != want;
        }
    }
    if (wrong)
        fprintf(stderr, "%s over %d ranks: %ld wrong\n", weft_op_name(op), world, wrong);
    CHECK_INT(wrong, 0);
    free(image);
    weft_cuda_world_free(&w);
}

static void test_collectives(void)
{
    for (int world = 1; world <= 4; world++) {
        try_collective(WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PULL, world, 1000);
        try_collective(WEFT_OP_REDUCE_SCATTER, WEFT_SCHEDULE_PULL, world, 1000);
        try_collective(WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_TWO_SHOT, world, 1003);
    }
}

/* Rank 1 never comes: rank 0 must say so in time, and the GPU must work afterwards. */
static void test_missing_rank(void)
{
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 512, 512, 256);
    weft_cuda_world_options options = {.limits = {0.1, 2}};
    weft_error_text error = {0};
    weft_cuda_world w;
    weft_status status = weft_cuda_world_make(&device, &p, 2, &options, &w, &error);
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK)
        return;
    CHECK_INT(matrix_fill(&w, 7), 0);
    CHECK_INT(weft_cuda_executor_launch(&w.executors[0], w.streams[0], &error), WEFT_OK);
    CHECK_INT(weft_cuda_executor_outcome(&w.executors[0], w.streams[0], NULL, &error), WEFT_ERR_TIMEOUT);
    CHECK_HAS(error.text, "rank 0 waited");
    CHECK_HAS(error.text, "for rank 1");
    weft_cuda_world_free(&w);
    try("after an error", &p, 2, &plain, 1);
}

#endif
