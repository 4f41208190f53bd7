/* Collectives with counts or a root, messages, averages and the types that only collectives have: exact
 * against what each rank can compute by itself, in memory of every kind; and what ranks do wrong. */
#include <stdbool.h>

#include "core/dtype.h"
#include "support/check.h"
#include "support/ranks.h"

enum { MOST = 5, LARGE = 150001 };

/* Element `i` of what `from` has for `to`; a whole number that every type has. */
static double value_of(int from, int to, int64_t i)
{
    return (double)((from * 7 + to * 3 + i) % 13 % 2);
}

/* Memory of the rank: symmetric when `kind` is 1, on rank 0 alone when 2. */
typedef struct memory {
    void *at;
    bool symmetric;
} memory;

static memory take(weft_group *group, int kind, int64_t bytes)
{
    memory m = {.symmetric = kind == 1};
    void *other = NULL;

    if (kind) {
        CHECK_INT(weft_alloc(group, (size_t)bytes + 64, 0, &other), WEFT_OK);
        m.at = other;
        if (kind == 2 && weft_rank(group)) { /* others use their own memory */
            weft_free(group, other);
            m.at = NULL;
        } else
            m.symmetric = true;
    }
    if (!m.at)
        m.at = calloc(1, (size_t)bytes + 64);
    memset(m.at, 0xee, (size_t)bytes);
    return m;
}

static void give(weft_group *group, memory m)
{
    if (m.symmetric)
        CHECK_INT(weft_free(group, m.at), WEFT_OK);
    else
        free(m.at);
}

typedef struct job {
    int64_t unit; /* elements that counts are made of */
    int kind;
    weft_dtype dtype;
} job;

static int64_t count_of(const job *j, int rank)
{
    return rank == 1 ? 0 : j->unit * (rank + 1) + rank;
}

static void gathers(weft_group *group, void *argument)
{
    const job *j = argument;
    int rank = weft_rank(group), size = weft_size(group), wrong = 0;
    int64_t counts[MOST], total = 0, at = 0;
    size_t element = weft_dtype_size(j->dtype);
    memory send, recv;

    for (int r = 0; r < size; r++)
        total += counts[r] = count_of(j, r);
    send = take(group, j->kind, total * (int64_t)element);
    recv = take(group, j->kind, total * (int64_t)element);
    for (int64_t i = 0; i < counts[rank]; i++)
        weft_element_set(j->dtype, send.at, (size_t)i, value_of(rank, 0, i));
    CHECK_INT(weft_all_gather_v(group, send.at, recv.at, counts, j->dtype), WEFT_OK);
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < counts[r]; i++, at++)
            wrong += weft_element_get(j->dtype, recv.at, (size_t)at) != value_of(r, 0, i);
    CHECK_INT(wrong, 0);

    /* The sum of what all have for this rank. */
    give(group, send);
    send = take(group, j->kind, total * (int64_t)element);
    at = 0;
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < counts[r]; i++, at++)
            weft_element_set(j->dtype, send.at, (size_t)at, value_of(rank, r, i));
    CHECK_INT(weft_reduce_scatter_v(group, send.at, recv.at, counts, j->dtype, WEFT_SUM), WEFT_OK);
    for (int64_t i = 0; i < counts[rank]; i++) {
        double sum = 0;

        for (int r = 0; r < size; r++)
            sum += value_of(r, rank, i);
        sum = j->dtype == WEFT_BOOL ? sum != 0 : sum;
        wrong += weft_element_get(j->dtype, recv.at, (size_t)i) != sum;
    }
    CHECK_INT(wrong, 0);
    give(group, recv);
    give(group, send);
}

static void exchanges(weft_group *group, void *argument)
{
    const job *j = argument;
    int rank = weft_rank(group), size = weft_size(group), wrong = 0, root = size - 1;
    int64_t to[MOST], from[MOST], sent = 0, got = 0, at = 0;
    size_t element = weft_dtype_size(j->dtype);
    memory send, recv;

    for (int r = 0; r < size; r++) {
        sent += to[r] = count_of(j, (rank + r) % size);
        got += from[r] = count_of(j, (rank + r) % size);
    }
    send = take(group, j->kind, sent * (int64_t)element);
    recv = take(group, j->kind, got * (int64_t)element);
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < to[r]; i++)
            weft_element_set(j->dtype, send.at, (size_t)at++, value_of(rank, r, i));
    CHECK_INT(weft_all_to_all_v(group, send.at, to, recv.at, from, j->dtype), WEFT_OK);
    at = 0;
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < from[r]; i++)
            wrong += weft_element_get(j->dtype, recv.at, (size_t)at++) != value_of(r, rank, i);
    CHECK_INT(wrong, 0);
    give(group, recv);
    give(group, send);

    /* Roots. */
    send = take(group, j->kind, j->unit * size * (int64_t)element);
    recv = take(group, j->kind, j->unit * size * (int64_t)element);
    for (int64_t i = 0; i < j->unit * size; i++)
        weft_element_set(j->dtype, send.at, (size_t)i, value_of(rank, 0, i));
    CHECK_INT(weft_gather(group, send.at, rank == root ? recv.at : NULL, j->unit, j->dtype, root), WEFT_OK);
    for (int64_t i = 0; rank == root && i < j->unit * size; i++)
        wrong +=
            weft_element_get(j->dtype, recv.at, (size_t)i) != value_of((int)(i / j->unit), 0, i % j->unit);
    CHECK_INT(weft_scatter(group, rank == root ? send.at : NULL, recv.at, j->unit, j->dtype, root), WEFT_OK);
    for (int64_t i = 0; i < j->unit; i++)
        wrong += weft_element_get(j->dtype, recv.at, (size_t)i) != value_of(root, 0, rank * j->unit + i);
    CHECK_INT(weft_reduce(group, send.at, rank == root ? recv.at : NULL, j->unit, j->dtype, WEFT_MAX, root),
              WEFT_OK);
    for (int64_t i = 0; rank == root && i < j->unit; i++) {
        double most = 0;

        for (int r = 0; r < size; r++)
            most = value_of(r, 0, i) > most ? value_of(r, 0, i) : most;
        wrong += weft_element_get(j->dtype, recv.at, (size_t)i) != most;
    }
    CHECK_INT(wrong, 0);
    give(group, recv);
    give(group, send);
}

/* The plain collectives, with every type and the average. */
static void types(weft_group *group, void *argument)
{
    static const weft_dtype all[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_F64, WEFT_I8,
                                     WEFT_U8,  WEFT_I32, WEFT_I64,  WEFT_BOOL};
    int rank = weft_rank(group), size = weft_size(group), wrong = 0;
    int64_t count = *(int64_t *)argument;
    void *send = malloc((size_t)count * 8), *recv = malloc((size_t)count * 8);

    for (size_t t = 0; t < sizeof(all) / sizeof(all[0]); t++)
        for (weft_reduction reduction = WEFT_SUM; reduction <= WEFT_AVERAGE; reduction++) {
            bool rejected = reduction == WEFT_AVERAGE && t > 3;

            for (int64_t i = 0; i < count; i++)
                weft_element_set(all[t], send, (size_t)i, value_of(rank, 1, i));
            CHECK_INT(weft_all_reduce(group, send, recv, count, all[t], reduction),
                      rejected ? WEFT_ERR_ARGUMENT : WEFT_OK);
            for (int64_t i = 0; !rejected && i < count; i++) {
                double sum = 0, expected[1];

                for (int r = 0; r < size; r++)
                    sum += value_of(r, 1, i);
                if (reduction == WEFT_MIN || reduction == WEFT_PRODUCT)
                    sum = sum == size;
                else if (reduction == WEFT_MAX || (all[t] == WEFT_BOOL && reduction == WEFT_SUM))
                    sum = sum > 0;
                else if (reduction == WEFT_AVERAGE)
                    sum = all[t] == WEFT_F64 ? sum / size : (double)((float)sum / (float)size);
                weft_element_set(all[t], expected, 0, sum);
                wrong += weft_element_get(all[t], recv, (size_t)i) != weft_element_get(all[t], expected, 0);
            }
        }
    CHECK_INT(wrong, 0);
    /* A sum that float16 cannot hold has an average that it can. */
    for (int64_t i = 0; i < count; i++)
        weft_element_set(WEFT_F16, send, (size_t)i, 60000);
    CHECK_INT(weft_all_reduce(group, send, recv, count, WEFT_F16, WEFT_AVERAGE), WEFT_OK);
    CHECK(weft_element_get(WEFT_F16, recv, (size_t)count - 1) == 60000 - 60000 % 32);
    free(send);
    free(recv);
}

/* Messages of several sizes around the ring, even ranks first. */
static void messages(weft_group *group, void *argument)
{
    static const int64_t sizes[] = {0, 1, 1000, LARGE, 65536, 65537};
    int rank = weft_rank(group), size = weft_size(group), wrong = 0;
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    float *out = malloc(LARGE * sizeof(float)), *in = malloc(LARGE * sizeof(float));

    (void)argument;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (int64_t i = 0; i < sizes[s]; i++)
            out[i] = (float)(i + rank);
        for (int turn = 0; turn < 2; turn++)
            if ((turn == 0) == (rank % 2 == 0 && rank != size - 1))
                CHECK_INT(weft_send(group, out, sizes[s], WEFT_F32, next), WEFT_OK);
            else
                CHECK_INT(weft_recv(group, in, sizes[s], WEFT_F32, before), WEFT_OK);
        for (int64_t i = 0; i < sizes[s]; i++)
            wrong += in[i] != (float)(i + before);
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(weft_send(group, out, 1, WEFT_F32, rank), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_recv(group, NULL, 1, WEFT_F32, next), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (rank < 2) /* of different lengths */
        CHECK_INT(rank ? weft_recv(group, in, 9, WEFT_F32, 0) : weft_send(group, out, 8, WEFT_F32, 1),
                  WEFT_ERR_MISMATCH);
    free(out);
    free(in);
}

static void both_send(weft_group *group, void *argument)
{
    (void)argument;
    CHECK_INT(weft_send(group, "x", 1, WEFT_BYTE, 1 - weft_rank(group)), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "waited in weft_send for rank");
    CHECK_HAS(weft_error(group), "is in weft_send, which waits for it");
}

static void other_type(weft_group *group, void *argument)
{
    float some[4] = {0};
    int rank = weft_rank(group);

    (void)argument;
    CHECK_INT(rank ? weft_recv(group, some, 4, WEFT_I32, 0) : weft_send(group, some, 4, WEFT_F32, 1),
              WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group),
              "rank 0 sends 4 elements of float32 to rank 1, which wants to receive 4 of int32");
}

static void mistakes(weft_group *group, void *argument)
{
    bool bad = weft_rank(group) == 1;
    int64_t counts[] = {1, bad ? 3 : 2}, good[] = {1, 2}, less[] = {1, -1};
    float some[8] = {0}, sum = 0, one = 1;

    (void)argument;
    CHECK_INT(weft_all_gather_v(group, some, some + 4, counts, WEFT_F32), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "bytes to rank");
    CHECK_INT(weft_all_gather_v(group, some, some + 4, bad ? less : good, WEFT_F32),
              bad ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_INT(weft_gather(group, some, some + 4, 1, WEFT_F32, bad ? 7 : 0),
              bad ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_INT(weft_reduce(group, some, some + 4, 1, bad ? WEFT_F64 : WEFT_F32, WEFT_SUM, 0),
              WEFT_ERR_MISMATCH);
    CHECK_INT(weft_all_gather_v(group, bad ? some : NULL, some + 4, good, WEFT_F32),
              bad ? WEFT_ERR_PEER : WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_all_reduce(group, &one, &sum, 1, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK(sum == 2);
}

int main(void)
{
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F64, WEFT_BOOL};
    static const int64_t units[] = {1, 1000, LARGE};
    int64_t few = 37, many = 9001;

    for (int world = 1; world <= MOST; world += world < 3 ? 1 : 2)
        for (int u = 0; u < 3; u++)
            for (int kind = 0; kind < 3; kind++) {
                job j = {units[u], kind, dtypes[(u + kind + world) % 4]};

                if (u == 2 && world == MOST)
                    j.unit = LARGE / 4;
                ranks_run(world, gathers, &j);
                ranks_run(world, exchanges, &j);
            }
    for (int world = 1; world <= 3; world++) {
        ranks_run(world, types, &few);
        ranks_run(world, types, &many);
    }
    ranks_run(2, messages, NULL);
    ranks_run(4, messages, NULL);
    ranks_run(2, both_send, NULL);
    ranks_run(2, other_type, NULL);
    ranks_run(2, mistakes, NULL);
    return check_report("test_run_counted");
}
