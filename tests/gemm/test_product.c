/* weft_gemm and weft_pack: exact against a plain sum, for any number of threads, batched, packed or not. */
#include "core/dtype.h"
#include "core/pool.h"
#include "gemm/product.h"
#include "support/check.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>
#include <weft/weft.h>

typedef struct shape {
    int64_t m, n, k, l;
} shape;

static void fill(weft_dtype dtype, void *data, int64_t count, uint64_t *seed)
{
    for (int64_t i = 0; i < count; i++)
        weft_element_set(dtype, data, (size_t)i, (double)(check_random(seed) % 5) - 2.0);
}

static void check_case(weft_dtype dtype, shape s, int transa, int transb, bool pack, int threads,
                       uint64_t seed)
{
    size_t size = weft_dtype_size(dtype);
    int64_t b_count = s.k * s.n * (pack ? 1 : s.l);
    char *a = malloc((size_t)(s.m * s.k * s.l) * size + 1), *b = malloc((size_t)b_count * size + 1);
    float *c = malloc((size_t)(s.m * s.n * s.l) * 4 + 1), *d = malloc((size_t)(s.m * s.n * s.l) * 4 + 1);
    void *memory = NULL;
    weft_gemm_args args;

    fill(dtype, a, s.m * s.k * s.l, &seed);
    fill(dtype, b, b_count, &seed);
    fill(WEFT_F32, c, s.m * s.n * s.l, &seed);
    weft_gemm_args_init(&args, dtype, s.m, s.n, s.k);
    args.l = s.l;
    args.a = a;
    args.b = b;
    args.c = c;
    args.d = d;
    args.d_dtype = WEFT_F32;
    args.alpha = 2;
    args.beta = -1;
    args.transa = transa;
    args.transb = transb;
    args.threads = threads;
    if (pack) {
        size_t bytes = weft_pack_bytes(&args);

        CHECK(bytes > 0);
        memory = aligned_alloc(128, (bytes + 127) / 128 * 128);
        CHECK_INT(weft_pack(&args, memory, &args.packed_b), WEFT_OK);
        args.b = NULL;
    }
    CHECK_INT(weft_gemm(&args), WEFT_OK);
    for (int64_t l = 0; l < s.l; l++) {
        for (int64_t i = 0; i < s.m; i++) {
            for (int64_t j = 0; j < s.n; j++) {
                size_t a0 = (size_t)(l * s.m * s.k), b0 = pack ? 0 : (size_t)(l * s.k * s.n);
                double sum = 0;

                for (int64_t p = 0; p < s.k; p++)
                    sum += weft_element_get(dtype, a, a0 + (size_t)(transa ? p * s.m + i : i * s.k + p)) *
                           weft_element_get(dtype, b, b0 + (size_t)(transb ? j * s.k + p : p * s.n + j));
                int64_t at = (l * s.m + i) * s.n + j;

                CHECK(d[at] == 2 * sum - c[at]);
            }
        }
    }
    free(a);
    free(b);
    free(c);
    free(d);
    free(memory);
}

/* Gates and ups in pairs: by weft_gate_up, packed or not, against two products. */
static void check_gated(weft_dtype dtype, shape s, int transb, bool pack, int threads, uint64_t seed)
{
    size_t size = weft_dtype_size(dtype);
    char *a = malloc((size_t)(s.m * s.k) * size + 1), *half[2],
         *b = malloc((size_t)(2 * s.k * s.n) * size + 1);
    float *bias = malloc((size_t)(2 * s.n) * 4 + 1), *d = malloc((size_t)(s.m * s.n) * 4 + 1);
    void *memory = NULL;
    weft_gemm_args args;

    fill(dtype, a, s.m * s.k, &seed);
    for (int i = 0; i < 2; i++) {
        half[i] = malloc((size_t)(s.k * s.n) * size + 1);
        fill(dtype, half[i], s.k * s.n, &seed);
    }
    fill(WEFT_F32, bias, 2 * s.n, &seed);
    CHECK_INT(weft_gate_up(dtype, transb, s.k, s.n, half[0], 0, half[1], 0, b, 0), WEFT_OK);
    weft_gemm_args_init(&args, dtype, s.m, s.n, s.k);
    args.act = WEFT_ACT_RELU_GATED;
    args.a = a;
    args.b = b;
    args.bias = bias;
    args.d = d;
    args.d_dtype = WEFT_F32;
    args.alpha = 2;
    args.transb = transb;
    args.threads = threads;
    if (pack) {
        memory = aligned_alloc(128, (weft_pack_bytes(&args) + 127) / 128 * 128);
        CHECK_INT(weft_pack(&args, memory, &args.packed_b), WEFT_OK);
        args.b = NULL;
    }
    CHECK_INT(weft_gemm(&args), WEFT_OK);
    for (int64_t i = 0; i < s.m; i++) {
        for (int64_t j = 0; j < s.n; j++) {
            double sum[2];

            for (int h = 0; h < 2; h++) {
                sum[h] = 0;
                for (int64_t p = 0; p < s.k; p++)
                    sum[h] += weft_element_get(dtype, a, (size_t)(i * s.k + p)) *
                              weft_element_get(dtype, half[h], (size_t)(transb ? j * s.k + p : p * s.n + j));
                sum[h] = 2 * sum[h] + (double)bias[2 * j + h];
            }
            CHECK(d[i * s.n + j] == (float)((sum[0] > 0 ? sum[0] : 0) * sum[1]));
        }
    }
    free(a);
    free(b);
    free(half[0]);
    free(half[1]);
    free(bias);
    free(d);
    free(memory);
}

static void gated(void)
{
    static const shape shapes[] = {{1, 1, 5, 1},    {3, 7, 300, 1},  {17, 40, 33, 1},
                                   {70, 96, 16, 1}, {130, 61, 9, 1}, {9, 50, 1100, 1}};
    float x[4] = {0};
    weft_gemm_args args;
    uint64_t seed = 11;

    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (weft_dtype dtype = WEFT_F32; dtype <= WEFT_I8; dtype++)
            for (int way = 0; way < 8; way++)
                check_gated(dtype, shapes[i], way & 1, way & 2, way & 4 ? 0 : 1, seed++);
    weft_gemm_args_init(&args, WEFT_F32, 1, 1, 1);
    args.act = WEFT_ACT_SILU_GATED;
    args.a = args.b = args.c = x;
    args.d = x + 2;
    args.beta = 1;
    CHECK_INT(weft_gemm(&args), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "gated");
    args.beta = 0;
    CHECK_INT(weft_gemm(&args), WEFT_OK);
    CHECK_INT(weft_gate_up(WEFT_F64, 0, 1, 1, x, 0, x, 0, x, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_gate_up(WEFT_F32, 0, 1, -1, x, 0, x, 0, x, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_gate_up(WEFT_F32, 0, 1, 2, x, 1, x, 0, x, 0), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "ld_gate = 1");
    CHECK_INT(weft_gate_up(WEFT_F32, 0, 1, 1, NULL, 0, x, 0, x, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_gate_up(WEFT_F32, 0, 0, 1, NULL, 0, NULL, 0, NULL, 0), WEFT_OK);
}

/* With values whose sums round: the same bits from one thread and from all, whatever rows are left over. */
static void check_threads(weft_dtype dtype, shape s, int transb, bool pack, uint64_t seed)
{
    size_t size = weft_dtype_size(dtype), d_bytes = (size_t)(s.m * s.n) * 4;
    char *a = malloc((size_t)(s.m * s.k) * size), *b = malloc((size_t)(s.k * s.n) * size);
    float *d[2] = {malloc(d_bytes), malloc(d_bytes)};
    void *memory = NULL;
    weft_gemm_args args;
    bool same = true;

    for (int64_t i = 0; i < s.m * s.k; i++)
        weft_element_set(dtype, a, (size_t)i, (double)(check_random(&seed) >> 11) * 0x1p-52 - 1.0);
    for (int64_t i = 0; i < s.k * s.n; i++)
        weft_element_set(dtype, b, (size_t)i, (double)(check_random(&seed) >> 11) * 0x1p-52 - 1.0);
    weft_gemm_args_init(&args, dtype, s.m, s.n, s.k);
    args.a = a;
    args.b = b;
    args.d_dtype = WEFT_F32;
    args.transb = transb;
    args.act = WEFT_ACT_GELU;
    if (pack) {
        memory = aligned_alloc(128, (weft_pack_bytes(&args) + 127) / 128 * 128);
        CHECK_INT(weft_pack(&args, memory, &args.packed_b), WEFT_OK);
    }
    for (int i = 0; i < 3; i++) {
        args.d = d[i > 0];
        args.threads = (int[]){1, 0, 3}[i];
        memset(args.d, 0xff, d_bytes);
        CHECK_INT(weft_gemm(&args), WEFT_OK);
        same = same && (i == 0 || !memcmp(d[0], d[1], d_bytes));
    }
    CHECK(same);
    if (!same)
        fprintf(stderr, "%s %lld x %lld x %lld%s%s\n", weft_dtype_name(dtype), (long long)s.m, (long long)s.n,
                (long long)s.k, transb ? " transb" : "", pack ? " packed" : "");
    free(a);
    free(b);
    free(d[0]);
    free(d[1]);
    free(memory);
}

/* Pools in which members are not there at the same time: one after the other, the last one first; and one
 * that comes when the others have done its work. */
static void backwards(void *context, int count, void (*body)(void *argument, int index), void *argument)
{
    (void)context;
    for (int i = count - 1; i >= 0; i--)
        body(argument, i);
}

enum { CROWD = 12 };

typedef struct late_member {
    void (*body)(void *argument, int index);
    void *argument;
    int index;
    pthread_t thread;
} late_member;

static void *arrive(void *argument)
{
    late_member *me = argument;

    if (me->index % 3 == 1)
        usleep(2000);
    me->body(me->argument, me->index);
    return NULL;
}

static void some_late(void *context, int count, void (*body)(void *argument, int index), void *argument)
{
    late_member members[CROWD];

    (void)context;
    for (int i = 0; i < count; i++) {
        members[i] = (late_member){body, argument, i, 0};
        CHECK_INT(pthread_create(&members[i].thread, NULL, arrive, &members[i]), 0);
    }
    for (int i = 0; i < count; i++)
        pthread_join(members[i].thread, NULL);
}

/* Many members in strips of columns: those whose members come late are packed and multiplied by others. */
static void check_crowd(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_BF16, WEFT_I8, WEFT_F16};
    static const shape shapes[] = {
        {300, 401, 150, 1}, {130, 1203, 70, 1}, {1030, 97, 96, 1}, {64, 7000, 33, 1}, {40, 33, 0, 1}};

    for (int i = 0; i < 20; i++) {
        CHECK_INT(weft_set_parallel(i & 4 ? backwards : some_late, NULL, CROWD), WEFT_OK);
        check_threads(types[i % 4], shapes[i / 4], i >> 1 & 1, (i + i / 4) % 4 == 3, (uint64_t)i);
    }
    CHECK_INT(weft_set_parallel(NULL, NULL, 0), WEFT_OK);
}

/* Few rows of a row-major B in three blocks of k, of which each has four strips for twelve members: so many
 * columns that all twelve are wanted. What a member works in says that it has strips of blocks: it may need
 * all columns then, and else a twelfth of them. */
static void check_crowd_on_few_rows(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_BF16, WEFT_I8, WEFT_F16};
    weft_error_text error;
    const weft_core *core;

    CHECK_INT(weft_core_current(&core, &error), WEFT_OK);
    for (int i = 0; i < 4; i++) {
        const weft_binding *bind = weft_core_binding(core, types[i], false);
        shape s = {4 + i % 2, 3077, 2 * (int64_t)bind->kc + bind->kc * 9 / 10, 1};
        weft_gemm_tile tile = weft_gemm_tile_init(bind, types[i]);

        tile.m = s.m;
        tile.n = tile.b_rs = s.n;
        tile.k = tile.a_rs = s.k;
        CHECK(!weft_gemm_streams(&tile) || weft_product_member_bytes(&tile, CROWD) >=
                                               weft_gemm_workspace_bytes(bind, s.m, s.n, s.k, false));
        CHECK_INT(weft_set_parallel(i & 2 ? backwards : some_late, NULL, CROWD), WEFT_OK);
        check_threads(types[i], s, 0, false, (uint64_t)i);
    }
    CHECK_INT(weft_set_parallel(NULL, NULL, 0), WEFT_OK);
}

static void *call_from_thread(void *argument)
{
    check_case(WEFT_F32, (shape){70, 130, 90, 1}, 0, 0, false, 2, (uint64_t)(uintptr_t)argument);
    return NULL;
}

/* A product needs nobody: not the threads that another call has for as long as it likes. */
static void check_alone(void)
{
    weft_loan loan;

    CHECK_INT(weft_pool_borrow(2, 0, &loan, weft_error_thread()), WEFT_OK);
    alarm(60);
    check_case(WEFT_F32, (shape){70, 130, 90, 1}, 0, 0, false, 1, 5);
    check_case(WEFT_F32, (shape){70, 130, 900, 1}, 0, 0, false, 2, 7);
    check_case(WEFT_I8, (shape){3, 20, 9, 2}, 0, 1, true, 1, 6);
    alarm(0);
    weft_pool_return(&loan);
}

static void check_errors(void)
{
    float data[16] = {0};
    const weft_packed *packed;
    weft_gemm_args args;

    weft_gemm_args_init(&args, WEFT_F32, 2, 2, 2);
    CHECK_INT(weft_gemm(&args), WEFT_ERR_ARGUMENT);
    args.a = args.b = args.d = data;
    CHECK_INT(weft_gemm(&args), WEFT_OK);
    args.lda = 1;
    CHECK_INT(weft_gemm(&args), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "lda = 1");
    args.lda = 0;
    args.beta = 1;
    CHECK_INT(weft_gemm(&args), WEFT_ERR_ARGUMENT);
    args.beta = 0;
    args.dtype = WEFT_I64;
    CHECK_INT(weft_gemm(&args), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "int64");
    CHECK_INT(weft_pack_bytes(&args), 0);
    args.dtype = WEFT_FP8_E4M3; /* reads fp8 alone, and only such a product gives it */
    CHECK_INT(weft_gemm(&args), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "reads A and B of fp8, not float32 and float32");
    args.dtype = WEFT_F32;
    args.d_dtype = WEFT_FP8_E5M2;
    CHECK_INT(weft_gemm(&args), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "cannot be float8_e5m2");
    args.d_dtype = WEFT_F32;
    CHECK_INT(weft_pack(&args, (char *)data + 1, &packed), WEFT_ERR_ARGUMENT);
    args.size = 3;
    CHECK_INT(weft_gemm(&args), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_gemm(NULL), WEFT_ERR_ARGUMENT);
}

/* A packed B is taken as it was packed: another k or n would be another matrix, or memory behind it. */
static void check_other_packed(weft_dtype dtype)
{
    enum { K = 256, N = 192, SIDE = 256 };
    static const int64_t others[][2] = {{K / 2, N}, {2 * K, N}, {K, N / 2}, {K, 2 * N}, {K - 1, N}};
    size_t size = weft_dtype_size(dtype);
    char *a = calloc((size_t)(SIDE * 2 * K), size), *d = calloc((size_t)(SIDE * 2 * N), 4);
    weft_gemm_args args;
    weft_grouped_args g;
    const int64_t offset[] = {0, SIDE};
    void *memory;

    weft_gemm_args_init(&args, dtype, SIDE, N, K);
    args.a = args.b = a;
    args.d = d;
    memory = aligned_alloc(128, (weft_pack_bytes(&args) + 127) / 128 * 128);
    CHECK_INT(weft_pack(&args, memory, &args.packed_b), WEFT_OK);
    for (int with_b = 0; with_b < 2; with_b++)
        for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
            args.b = with_b ? a : NULL;
            args.k = others[i][0];
            args.n = others[i][1];
            CHECK_INT(weft_gemm(&args), WEFT_ERR_ARGUMENT);
            CHECK_HAS(weft_error(NULL), "packed_b is a B of 256 x 192, and this product's is");
            weft_grouped_args_init(&g, dtype, 1, SIDE, args.n, args.k);
            g.a = a;
            g.d = d;
            g.offset = offset;
            g.packed_b = &args.packed_b;
            CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_ERR_ARGUMENT);
            CHECK_HAS(weft_error(NULL), "packed_b is a B of 256 x 192");
        }
    args.n = N / 2; /* of columns of D, gated */
    args.k = K;
    args.act = WEFT_ACT_SILU_GATED;
    CHECK_INT(weft_gemm(&args), dtype == WEFT_I8 ? WEFT_ERR_ARGUMENT : WEFT_OK);
    free(a);
    free(d);
    free(memory);
}

/* alpha = 0: A and B need not be there, and what they hold does not matter. */
static void check_alpha_zero(weft_dtype dtype)
{
    enum { SIDE = 5 };
    float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE], d[SIDE * SIDE];
    weft_gemm_args args;

    for (int i = 0; i < SIDE * SIDE; i++) {
        weft_element_set(dtype, a, (size_t)i, NAN);
        weft_element_set(dtype, b, (size_t)i, INFINITY);
        c[i] = (float)i;
    }
    weft_gemm_args_init(&args, dtype, SIDE, SIDE, SIDE);
    args.d_dtype = WEFT_F32;
    args.alpha = 0;
    args.beta = 2;
    args.c = c;
    args.d = d;
    for (int given = 0; given < 2; given++) {
        args.a = given ? a : NULL;
        args.b = given ? b : NULL;
        memset(d, 0xff, sizeof(d));
        CHECK_INT(weft_gemm(&args), WEFT_OK);
        for (int i = 0; i < SIDE * SIDE; i++)
            CHECK(d[i] == 2 * c[i]);
    }
}

/* Numbers at the edge of int64 are refused or do not matter; nothing is computed with them before. */
static void check_extremes(void)
{
    float data[16] = {0}, untouched[4] = {7, 7, 7, 7};
    weft_gemm_args args, with;

    weft_gemm_args_init(&args, WEFT_F32, 2, 2, 2);
    args.a = args.b = data;
    args.d = untouched;
    args.act = (weft_act)7;
    CHECK_INT(weft_gemm(&args), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "act 7");
    args.act = WEFT_ACT_NONE;
    for (int which = 0; which < 6; which++) {
        with = args;
        with.c = data;
        with.beta = 1;
        with.l = 3;
        *(int64_t *[]){&with.lda, &with.ldb, &with.ldc, &with.ldd, &with.stride_a, &with.stride_d}[which] =
            INT64_MAX;
        CHECK_INT(weft_gemm(&with), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(NULL), "at most 2^46 elements");
    }
    with = args;
    with.l = 3;
    with.stride_b = INT64_MIN;
    CHECK_INT(weft_gemm(&with), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "at most 2^46 elements");
    with = args;
    with.l = 2;
    with.stride_d = -3;
    CHECK_INT(weft_gemm(&with), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "stride_d = -3: the 2 matrices of D");
    with.stride_d = 3; /* the last element of the first is the first of the second */
    CHECK_INT(weft_gemm(&with), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL),
              "stride_d = 3: the 2 matrices of D, of 2 x 2 with rows 2 elements apart, would");
    with = args;
    with.l = 0;
    with.k = (int64_t)1 << 45; /* no products: no memory for them either */
    with.threads = 2;
    CHECK_INT(weft_gemm(&with), WEFT_OK);
    CHECK(untouched[0] == 7 && untouched[3] == 7);
    with = args; /* one row and one product: neither number is used */
    with.m = 1;
    with.lda = with.ldd = INT64_MAX;
    with.stride_a = with.stride_b = with.stride_d = INT64_MIN;
    CHECK_INT(weft_gemm(&with), WEFT_OK);
    CHECK(untouched[0] == 0 && untouched[1] == 0 && untouched[2] == 7);
}

/* Matrices of a batch of D may lie side by side: columns of a wider one, as the heads of a layer do. */
static void check_side_by_side(void)
{
    enum { HEADS = 3, ROWS = 5, COLS = 4 };
    float a[HEADS * ROWS], b[HEADS * COLS], d[ROWS * HEADS * COLS];
    weft_gemm_args args;

    for (int i = 0; i < HEADS * ROWS; i++)
        a[i] = (float)(i + 1);
    for (int i = 0; i < HEADS * COLS; i++)
        b[i] = (float)(i - 3);
    weft_gemm_args_init(&args, WEFT_F32, ROWS, COLS, 1);
    args.l = HEADS;
    args.a = a;
    args.b = b;
    args.d = d;
    args.ldd = (int64_t)HEADS * COLS;
    args.stride_d = COLS;
    CHECK_INT(weft_gemm(&args), WEFT_OK);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < HEADS * COLS; j++)
            CHECK(d[i * HEADS * COLS + j] == a[j / COLS * ROWS + i] * b[j]);
}

/* A batch whose matrices are taken from the last to the first, as a view of an array may be. */
static void check_backwards(void)
{
    enum { BATCH = 3, M = 5, N = 7, K = 6 };
    float a[BATCH * M * K], b[BATCH * K * N], c[BATCH * M * N], forth[BATCH * M * N], back[BATCH * M * N];
    weft_gemm_args args;

    for (int i = 0; i < BATCH * M * K; i++)
        a[i] = (float)(i % 11 - 5);
    for (int i = 0; i < BATCH * K * N; i++)
        b[i] = (float)(i % 13 - 6);
    for (int i = 0; i < BATCH * M * N; i++)
        c[i] = (float)(i % 7);
    weft_gemm_args_init(&args, WEFT_F32, M, N, K);
    args.l = BATCH;
    args.beta = 1;
    args.a = a;
    args.b = b;
    args.c = c;
    args.d = forth;
    CHECK_INT(weft_gemm(&args), WEFT_OK);
    args.a = a + (BATCH - 1) * M * K;
    args.b = b + (BATCH - 1) * K * N;
    args.c = c + (BATCH - 1) * M * N;
    args.d = back + (BATCH - 1) * M * N;
    args.stride_a = -M * K;
    args.stride_b = -K * N;
    args.stride_c = args.stride_d = -M * N;
    CHECK_INT(weft_gemm(&args), WEFT_OK);
    CHECK(memcmp(forth, back, sizeof(back)) == 0);
}

int main(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8, WEFT_FP8_E4M3, WEFT_FP8_E5M2};
    static const shape shapes[] = {{1, 1, 1, 1},     {5, 300, 70, 1},    {1, 1000, 200, 1},
                                   {130, 97, 61, 2}, {400, 40, 90, 1},   {37, 53, 0, 1},
                                   {0, 5, 5, 1},     {210, 250, 300, 1}, {300, 1, 70, 2}};
    /* some of one kernel, and one more than the rows of tasks */
    static const int64_t rows[] = {1,   3,   4,   9,   12,  16,  257, 193, 260, 225, 196, 258,
                                   481, 484, 513, 516, 965, 962, 770, 961, 964, 769, 772};
    size_t step = check_brief() ? 5 : 1; /* all types and kinds come in either */
    pthread_t threads[3];

    for (size_t i = 0; i < 72; i += step)
        check_case(types[i % 4], shapes[i / 4 % 9], i & 1, i >> 1 & 1, i >> 2 & 1, (int)(i % 3), i);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i += step)
        check_threads(types[i % 3], (shape){rows[i], rows[i] < 32 ? 2601 : 101, rows[i] < 8 ? 401 : 61, 1},
                      i & 1, i >> 1 & 1, i);
    for (size_t i = 0; i < 20; i += step) /* several blocks of k, which threads share */
        check_threads(types[i % 4], (shape){1 + (int64_t)(i / 4), 701, i & 4 ? 2203 : 9001, 1}, 0, false, i);
    for (size_t i = 0; i < 6;
         i += step) /* as many rows as are streamed, which may be more than a micro-tile has */
        check_threads(types[i % 3], (shape){5 + (int64_t)(i / 3) * 3 - (int64_t)(i & 1), 200, 8192, 1}, 0,
                      false, i);
    for (size_t i = 0; i < 16;
         i += step) /* one block of rows, and columns enough that each thread packs its own */
        check_threads(types[i % 4], (shape){(int64_t[]){33, 64, 97, 130}[i / 4], 801, i & 4 ? 2203 : 61, 1},
                      i >> 1 & 1, false, i);
    for (size_t i = 0; i < 4; i++)
        check_case(types[i], (shape){(int64_t[]){70, 33, 96, 45}[i], 1601, 40, 1 + (int64_t)(i & 1)}, i & 1,
                   i >> 1, false, 2 + (int)(i & 1), i);
    for (size_t i = 0; i < 16; i++) /* many products, none of which is worth two threads */
        check_case(types[i % 4], (shape){20, i & 8 ? 1 : 30, 25, i & 8 ? 2503 : 301}, i & 1, i >> 1 & 1,
                   i >> 2 & 1, 2 + (int)(i & 1), i);
    for (size_t i = 0; i < 3; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, call_from_thread, (void *)(uintptr_t)(i + 1)), 0);
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    gated();
    check_crowd();
    check_crowd_on_few_rows();
    check_alone();
    check_errors();
    check_other_packed(WEFT_F32);
    check_other_packed(WEFT_BF16);
    check_other_packed(WEFT_I8);
    check_extremes();
    check_side_by_side();
    check_backwards();
    for (int i = 0; i < 6; i++)
        check_alpha_zero(types[i]);
    for (size_t i = 0; i < 18; i++)
        check_case(types[4 + i % 2], shapes[i / 2], i >> 1 & 1, i >> 2 & 1, i >> 3 & 1, (int)(i % 3), i);
    for (size_t i = 0; i < 6; i++)
        check_threads(types[4 + i % 2], (shape){rows[3 * i], rows[3 * i] < 32 ? 1301 : 101, 61, 1}, i & 1,
                      i >> 1 & 1, i);
    return check_report("gemm product");
}
