/*
 * The product on one core beside OpenBLAS and BLIS, in the time the thread itself ran: where real-time
 * priority keeps the core, the system still takes it away for 50 ms of each second, which a long product
 * meets and a short one does not.
 *
 *     cpu_gemm M N K [SECONDS [PEER [GAP]]]
 *
 * float32, nothing packed; the three (or weft and PEER, "OpenBLAS" or "BLIS") alternate. Rows of D are GAP
 * elements apart, so that they need not begin on cache lines. Prints Gop/s of
 * medians, and weft over each: the median of the rounds' ratios and their middle half.
 */
#include "bench/blas.h"
#include "core/round.h"

#include <weft/weft.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static const double AT_ONCE = 2e6; /* multiplications between two looks at the clock, at least */

enum { RUNS_MOST = 999, RUNS_LEAST = 3, HUGE_PAGE = 2 << 20 };

typedef struct product {
    int m, n, k, ldd, times; /* times: in a row, so that a small one takes longer than looking at the clock */
    float *a, *b, *d;
} product;

static double thread_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float *make(int64_t rows, int64_t cols)
{
    size_t bytes = weft_round_up_bytes((size_t)(rows * cols) * sizeof(float), HUGE_PAGE);
    float *matrix = aligned_alloc(HUGE_PAGE, bytes);
    uint64_t state = 1;

    if (matrix)
        madvise(matrix, bytes, MADV_HUGEPAGE);
    for (int64_t i = 0; matrix && i < rows * cols; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        matrix[i] = (float)(state >> 40) * 0x1p-23f - 1;
    }
    return matrix;
}

/* `peer` NULL: weft. Seconds of one of them. */
static double run(const product *p, const blas_library *peer)
{
    double start = thread_seconds();
    weft_gemm_args args;

    for (int i = 0; peer && i < p->times; i++)
        peer->sgemm(BLAS_ROW_MAJOR, BLAS_PLAIN, BLAS_PLAIN, p->m, p->n, p->k, 1, p->a, p->k, p->b, p->n, 0,
                    p->d, p->ldd);
    if (peer)
        return (thread_seconds() - start) / p->times;
    weft_gemm_args_init(&args, WEFT_F32, p->m, p->n, p->k);
    args.a = p->a;
    args.b = p->b;
    args.d = p->d;
    args.ldd = p->ldd;
    args.threads = 1;
    for (int i = 0; i < p->times; i++)
        if (weft_gemm(&args) != WEFT_OK)
            return 0;
    return (thread_seconds() - start) / p->times;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static double times[3][RUNS_MOST], ratio[3][RUNS_MOST];
    const blas_library *peer[3] = {NULL, blas_openblas(), blas_blis()};
    product p = {.m = argc > 3 ? atoi(argv[1]) : 0,
                 .n = argc > 3 ? atoi(argv[2]) : 0,
                 .k = argc > 3 ? atoi(argv[3]) : 0};
    double end = thread_seconds() + (argc > 4 ? atof(argv[4]) : 10), gops[3];
    int runs = 0;

    if (p.m < 1 || p.n < 1 || p.k < 1) {
        fprintf(stderr, "usage: cpu_gemm M N K [SECONDS [PEER [GAP]]]\n");
        return 2;
    }
    p.ldd = p.n + (argc > 6 ? atoi(argv[6]) : 0);
    p.times = 1 + (int)(AT_ONCE / ((double)p.m * p.n * p.k));
    p.a = make(p.m, p.k);
    p.b = make(p.k, p.n);
    p.d = make(p.m, p.ldd);
    if (!p.a || !p.b || !p.d)
        return 1;
    for (int i = 1; i < 3; i++) {
        if (peer[i] && argc > 5 && strncmp(peer[i]->name, argv[5], strlen(argv[5])) != 0)
            peer[i] = NULL;
        if (peer[i] && peer[i]->set_threads)
            peer[i]->set_threads(1);
    }
    for (; runs < RUNS_MOST && (runs < RUNS_LEAST || thread_seconds() < end); runs++) {
        for (int i = 0; i < 3; i++) {
            times[i][runs] = i && !peer[i] ? 0 : run(&p, peer[i]);
            ratio[i][runs] = times[i][runs] / times[0][runs];
        }
    }
    for (int i = 0; i < 3; i++) {
        qsort(times[i], (size_t)runs, sizeof(double), by_size);
        qsort(ratio[i], (size_t)runs, sizeof(double), by_size);
        gops[i] = 2e-9 * p.m * p.n * p.k / times[i][runs / 2];
    }
    printf("%d x %d x %d, %d runs each: weft %.2f Gop/s\n", p.m, p.n, p.k, runs, gops[0]);
    for (int i = 1; i < 3; i++) {
        if (peer[i])
            printf("  %-16s %.2f, weft is %.3f x that (%.3f to %.3f)\n", peer[i]->name, gops[i],
                   ratio[i][runs / 2], ratio[i][runs / 4], ratio[i][runs - 1 - runs / 4]);
    }
    free(p.a);
    free(p.b);
    free(p.d);
    return 0;
}
