/*
 * An all-gather with a matrix product, written by hand with symmetric memory and signals: what weft_ag_gemm
 * does in one call, as a place to start for schedules of your own.
 *
 *     weft run -n 4 -- ./own_all_gather_gemm
 *
 * Rank r has rows part r of A and columns part r of B, and gets columns part r of D = A B. Every rank puts
 * its rows into the others' memory, a piece at a time and the nearest neighbour first, then multiplies its
 * own; rows of others it multiplies as their pieces arrive. The buffer is used again in the next round, which
 * a second signal allows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

enum { M = 500, N = 256, K = 128, PIECE = 32 /* rows */, ROUNDS = 3 };

static void check(weft_status status, weft_group *group)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "%s\n", weft_error(group));
    exit(1);
}

/* Elements of the whole matrices: small, so that sums are exact. */
static float a_at(int round, int64_t i, int64_t j)
{
    return (float)((i * 7 + j * 3 + round) % 5 - 2);
}

static float b_at(int64_t i, int64_t j)
{
    return (float)((i * 5 + j) % 7 - 3);
}

/* `rows` rows of A, which lie at `a`, times this rank's columns of B. */
static void multiply(const float *a, const float *b, float *d, int64_t rows, int64_t cols)
{
    weft_gemm_args args;

    weft_gemm_args_init(&args, WEFT_F32, rows, cols, K);
    args.a = a, args.b = b, args.d = d;
    args.threads = 1;
    check(weft_gemm(&args), NULL);
}

int main(void)
{
    weft_group *group;
    float *a, *b, *d; /* all rows of A, this rank's columns of B and D */
    char *arrived, *free_again;
    int64_t wrong = 0;

    check(weft_init(&group), NULL);
    int rank = weft_rank(group), ranks = weft_size(group);
    weft_span mine = weft_part(M, ranks, rank), cols = weft_part(N, ranks, rank);

    /* arrived: one signal for each rank that sends, counting rows; free_again: one, counting ranks. */
    check(weft_alloc(group, sizeof(float) * M * K, 0, (void **)&a), group);
    check(weft_alloc(group, (size_t)ranks * WEFT_SIGNAL_BYTES, 0, (void **)&arrived), group);
    check(weft_alloc(group, WEFT_SIGNAL_BYTES, 0, (void **)&free_again), group);
    b = malloc(sizeof(float) * K * (size_t)(cols.count + 1));
    d = malloc(sizeof(float) * M * (size_t)(cols.count + 1));
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < cols.count; j++)
            b[i * cols.count + j] = b_at(i, cols.begin + j);

    for (int round = 0; round < ROUNDS; round++) {
        for (int64_t i = mine.begin; i < mine.begin + mine.count; i++)
            for (int64_t j = 0; j < K; j++)
                a[i * K + j] = a_at(round, i, j);

        /* Nobody needs the rows of the round before any more. */
        check(weft_wait_signal(group, free_again, (uint64_t)round * (uint64_t)(ranks - 1), -1), group);
        for (int step = 1; step < ranks; step++) {
            for (int64_t i = 0; i < mine.count; i += PIECE) {
                int64_t rows = mine.count - i < PIECE ? mine.count - i : PIECE;
                float *piece = a + (mine.begin + i) * K;

                check(weft_put_signal(group, piece, piece, sizeof(float) * (size_t)(rows * K),
                                      arrived + rank * WEFT_SIGNAL_BYTES, (uint64_t)rows,
                                      (rank + step) % ranks),
                      group);
            }
        }
        for (int step = 0; step < ranks; step++) {
            int from = (rank + ranks - step) % ranks;
            weft_span theirs = weft_part(M, ranks, from);

            for (int64_t i = 0; i < theirs.count; i += PIECE) {
                int64_t rows = theirs.count - i < PIECE ? theirs.count - i : PIECE;
                int64_t row = theirs.begin + i;

                if (from != rank)
                    check(weft_wait_signal(group, arrived + from * WEFT_SIGNAL_BYTES,
                                           (uint64_t)(round * theirs.count + i + rows), from),
                          group);
                multiply(a + row * K, b, d + row * cols.count, rows, cols.count);
            }
            if (from != rank)
                check(weft_post_signal(group, free_again, 1, from), group);
        }
        for (int64_t i = 0; i < M; i++) {
            for (int64_t j = 0; j < cols.count; j++) {
                float sum = 0;

                for (int64_t x = 0; x < K; x++)
                    sum += a_at(round, i, x) * b_at(x, cols.begin + j);
                wrong += d[i * cols.count + j] != sum;
            }
        }
    }
    printf("rank %d of %d: %d rounds, %lld elements wrong\n", rank, ranks, ROUNDS, (long long)wrong);
    free(b);
    free(d);
    check(weft_barrier(group), group); /* a peer may still need this rank's memory */
    return weft_finalize(group) == WEFT_OK && !wrong ? 0 : 1;
}
