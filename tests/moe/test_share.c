/*
 * Threads of a layer share the rows that a round stages, gathers, returns and sums: they are called for, and
 * the results are those of one thread, to the bit.
 */
#include <stdatomic.h>
#include <string.h>

#include "support/check.h"
#include "support/ranks.h"

enum { RANKS = 2, THREADS = 3, EXPERTS = 8, TOPK = 4, HIDDEN = 1024, TOKENS = 96 };
enum { CALLS, BLOCKS, MANY_ROWS, FORMS }; /* dispatch, gather, combine; forward by blocks; by expert */

typedef struct share_case {
    weft_moe_mode mode;
    int form, threads;
} share_case;

typedef struct job {
    void (*body)(void *argument, int i);
    void *argument;
    int i;
} job;

static _Atomic int jobs;
static float results[RANKS][TOKENS * HIDDEN];

static void *run_job(void *argument)
{
    const job *j = argument;

    j->body(j->argument, j->i);
    return NULL;
}

/* A thread for each i. */
static void with_threads(void *context, int count, void (*body)(void *argument, int i), void *argument)
{
    pthread_t thread[THREADS];
    job part[THREADS];

    atomic_fetch_add((_Atomic int *)context, 1);
    CHECK(count <= THREADS);
    for (int i = 0; i < count; i++) {
        part[i] = (job){body, argument, i};
        CHECK_INT(pthread_create(&thread[i], NULL, run_job, &part[i]), 0);
    }
    for (int i = 0; i < count; i++)
        pthread_join(thread[i], NULL);
}

static void block(void *context, int expert, int64_t rows, const void *const *in, void *const *out)
{
    (void)context;
    for (int64_t i = 0; i < rows; i++)
        for (int j = 0; j < HIDDEN; j++)
            ((float *)out[i])[j] = ((const float *)in[i])[j] * (1 + 0.37f * (float)expert);
}

/* A round by the calls that are its parts. */
static void by_calls(weft_moe *moe, const weft_moe_input *input, float *y)
{
    enum { MOST = RANKS * TOKENS * TOPK };
    float *packed = malloc((size_t)MOST * HIDDEN * sizeof(float));
    const void **in = malloc(MOST * sizeof(*in));
    void **out = malloc(MOST * sizeof(*out));
    weft_moe_view view = {.size = sizeof(view)};
    int64_t start[EXPERTS], rows;

    CHECK_INT(weft_moe_dispatch(moe, 0, input, &view), WEFT_OK);
    CHECK_INT(weft_moe_layout(moe, 0, 1, start, &rows), WEFT_OK);
    CHECK(rows <= MOST);
    CHECK_INT(weft_moe_gather(moe, 0, start, packed), WEFT_OK);
    for (int e = 0; e < view.experts; e++) {
        for (int64_t i = view.offset[e]; i < view.offset[e + 1]; i++)
            in[i] = out[i] = packed + i * HIDDEN;
        block(NULL, view.expert[e], view.offset[e + 1] - view.offset[e], in + view.offset[e],
              out + view.offset[e]);
    }
    CHECK_INT(weft_moe_combine(moe, 0, packed, start, y), WEFT_OK);
    free(packed);
    free(in);
    free(out);
}

static void run(weft_group *group, void *argument)
{
    const share_case *c = argument;
    int rank = weft_rank(group);
    uint64_t state = 5 + (uint64_t)rank;
    float *x = malloc(TOKENS * HIDDEN * sizeof(*x)), *y = malloc(TOKENS * HIDDEN * sizeof(*y));
    float weight[TOKENS * TOPK];
    int32_t expert[TOKENS * TOPK];
    weft_moe_input input = {
        .size = sizeof(input), .tokens = TOKENS, .x = x, .expert = expert, .weight = weight};
    weft_moe_expert called = {.size = sizeof(called),
                              .block = block,
                              .block_rows = c->form == BLOCKS ? TOKENS : 0,
                              .expert_rows = c->form == MANY_ROWS ? TOKENS : 0};
    weft_moe_config config;
    weft_moe *moe;

    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (float)(check_random(&state) % 2048) * 0.001f - 1;
    for (int i = 0; i < TOKENS * TOPK; i++) {
        expert[i] = i % TOPK * (EXPERTS / TOPK) + (int32_t)(check_random(&state) % (EXPERTS / TOPK));
        weight[i] = (float)(check_random(&state) % 100) * 0.01f;
    }
    weft_moe_config_init(&config);
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.hidden = HIDDEN;
    config.tokens = TOKENS;
    config.dtype = WEFT_F32;
    config.mode = c->mode;
    config.threads = c->threads;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    memset(y, 0xff, TOKENS * HIDDEN * sizeof(*y));
    if (c->form == CALLS)
        by_calls(moe, &input, y);
    else
        CHECK_INT(weft_moe_forward(moe, 0, &input, &called, y), WEFT_OK);
    if (c->threads == 1)
        memcpy(results[rank], y, sizeof(results[rank]));
    else
        CHECK(!memcmp(results[rank], y, sizeof(results[rank])));
    weft_moe_free(moe);
    free(x);
    free(y);
}

int main(void)
{
    CHECK_INT(weft_set_parallel(with_threads, &jobs, THREADS), WEFT_OK);
    for (int mode = 0; mode < 2; mode++)
        for (int form = 0; form < FORMS; form++) {
            /* Staging; in reduced mode sums that go back; of the calls, gathering, giving back and taking.
             * How many own tokens forward finds to sum at a time is a matter of timing. */
            int least = form == CALLS ? 4 : mode ? 2 : 1;
            share_case c = {mode ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT, form, 1};

            atomic_store(&jobs, 0);
            ranks_run(RANKS, run, &c);
            CHECK_INT(atomic_load(&jobs), 0);
            c.threads = THREADS;
            ranks_run(RANKS, run, &c);
            CHECK(atomic_load(&jobs) >= RANKS * least);
        }
    CHECK_INT(weft_set_parallel(NULL, NULL, 0), WEFT_OK);
    return check_report("test_moe_share");
}
