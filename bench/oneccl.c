/*
 * Collectives beside oneCCL, in turns inside the same processes.
 *
 *     mpiexec -n RANKS oneccl [MOST_BYTES [SAMPLES]]          (Intel MPI's mpiexec, which oneCCL brings)
 *
 * all_reduce and all_gather of float32, 1 KiB to MOST_BYTES (64 MiB), where bytes are those of a rank's
 * result. Prints median µs of the slowest rank from a barrier on, after two calls that are not counted:
 * oneCCL, weft on memory of malloc as oneCCL has it, weft on symmetric memory, and oneCCL over both. Inputs
 * are written anew before every call and every element of every result is compared.
 *
 * oneCCL is loaded at run time by its C interface (libccl.so.2, of 2022 or newer): the declarations below are
 * the few that are called.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

#include "core/clock.h"
#include "report/report.h"

enum { ONECCL_FLOAT32 = 7, ONECCL_SUM = 0, ONECCL_ID_BYTES = 4096 };
enum { ONECCL, WEFT_OWN, WEFT_SYMMETRIC, CONTENDERS, MOST_SAMPLES = 1001, WARM = 2 };

typedef struct oneccl_id {
    char bytes[ONECCL_ID_BYTES];
} oneccl_id;

typedef struct oneccl_library {
    int (*get_unique_id)(oneccl_id *id);
    int (*comm_init_rank)(void **comm, size_t ranks, oneccl_id id, int rank);
    int (*comm_destroy)(void *comm);
    int (*all_reduce)(void *send, void *recv, size_t count, int type, int reduction, void *comm,
                      void *stream);
    int (*all_gather)(const void *send, void *recv, size_t count, int type, void *comm, void *stream);
    void *comm;
} oneccl_library;

typedef struct bench {
    weft_group *group;
    oneccl_library ccl;
    int64_t count; /* elements that a rank gives */
    bool gather;
    float *in[CONTENDERS], *out[CONTENDERS];
} bench;

static void need(bool good, const char *what, const char *why)
{
    if (good)
        return;
    fprintf(stderr, "oneccl: %s: %s\n", what, why ? why : "failed");
    exit(1);
}

static void need_weft(weft_group *group, weft_status status)
{
    need(status == WEFT_OK, "weft", weft_error(group));
}

/* Copying the bits avoids a cast ISO C does not define. */
static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    need(symbol, name, "not in libccl.so.2");
    memcpy(function, &symbol, sizeof(symbol));
}

static void open_oneccl(weft_group *group, oneccl_library *ccl)
{
    void *library = dlopen("libccl.so.2", RTLD_NOW | RTLD_LOCAL);
    oneccl_id id = {{0}};

    need(library, "oneCCL", dlerror());
    find(library, "onecclGetUniqueId", &ccl->get_unique_id);
    find(library, "onecclCommInitRank", &ccl->comm_init_rank);
    find(library, "onecclCommDestroy", &ccl->comm_destroy);
    find(library, "onecclAllReduce", &ccl->all_reduce);
    find(library, "onecclAllGather", &ccl->all_gather);
    if (weft_rank(group) == 0)
        need(ccl->get_unique_id(&id) == 0, "onecclGetUniqueId", NULL);
    need_weft(group, weft_broadcast(group, &id, sizeof(id), WEFT_I8, 0));
    need(ccl->comm_init_rank(&ccl->comm, (size_t)weft_size(group), id, weft_rank(group)) == 0,
         "onecclCommInitRank", NULL);
}

static void call(const bench *b, int who)
{
    const oneccl_library *ccl = &b->ccl;
    size_t count = (size_t)b->count;

    if (who != ONECCL && b->gather)
        need_weft(b->group, weft_all_gather(b->group, b->in[who], b->out[who], b->count, WEFT_F32));
    else if (who != ONECCL)
        need_weft(b->group, weft_all_reduce(b->group, b->in[who], b->out[who], b->count, WEFT_F32, WEFT_SUM));
    else if (b->gather)
        need(ccl->all_gather(b->in[who], b->out[who], count, ONECCL_FLOAT32, ccl->comm, NULL) == 0,
             "onecclAllGather", NULL);
    else
        need(ccl->all_reduce(b->in[who], b->out[who], count, ONECCL_FLOAT32, ONECCL_SUM, ccl->comm, NULL) ==
                 0,
             "onecclAllReduce", NULL);
}

/* What rank `rank` gives in element i of a round. */
static float given(int rank, int64_t i, int round)
{
    return (float)((i + rank * 7 + round) % 61);
}

static void fill(const bench *b, int who, int round)
{
    int64_t results = b->gather ? b->count * weft_size(b->group) : b->count;

    for (int64_t i = 0; i < b->count; i++)
        b->in[who][i] = given(weft_rank(b->group), i, round);
    memset(b->out[who], 0xff, (size_t)results * sizeof(float));
}

static void check(const bench *b, int who, int round)
{
    int ranks = weft_size(b->group);

    for (int64_t i = 0; i < b->count; i++) {
        float sum = 0;

        for (int rank = 0; rank < ranks; rank++) {
            float one = given(rank, i, round);

            need(!b->gather || b->out[who][rank * b->count + i] == one, "wrong", "result of all_gather");
            sum += one;
        }
        need(b->gather || b->out[who][i] == sum, "wrong", "result of all_reduce");
    }
}

static void measure(bench *b, int64_t bytes, int samples)
{
    static double us[CONTENDERS][MOST_SAMPLES];
    double median[CONTENDERS];
    size_t most = (size_t)bytes;

    b->count = bytes / (int64_t)sizeof(float) / (b->gather ? weft_size(b->group) : 1);
    for (int who = 0; who < CONTENDERS; who++) {
        if (who == WEFT_SYMMETRIC) {
            need_weft(b->group, weft_alloc(b->group, most, 0, (void **)&b->in[who]));
            need_weft(b->group, weft_alloc(b->group, most, 0, (void **)&b->out[who]));
        } else {
            b->in[who] = aligned_alloc(4096, (most + 4095) / 4096 * 4096);
            b->out[who] = aligned_alloc(4096, (most + 4095) / 4096 * 4096);
            need(b->in[who] && b->out[who], "memory", "none");
        }
    }
    for (int round = -WARM; round < samples; round++) {
        for (int turn = 0; turn < CONTENDERS; turn++) {
            int who = (turn + round + WARM) % CONTENDERS;
            int64_t begun;
            double took;

            fill(b, who, round + WARM);
            need_weft(b->group, weft_barrier(b->group));
            begun = weft_clock_ns();
            call(b, who);
            took = (double)(weft_clock_ns() - begun) * 1e-3;
            need_weft(b->group, weft_all_reduce(b->group, &took, &took, 1, WEFT_F64, WEFT_MAX));
            if (round >= 0)
                us[who][round] = took;
            check(b, who, round + WARM);
        }
    }
    for (int who = 0; who < CONTENDERS; who++) {
        median[who] = report_summarise(us[who], samples).median;
        if (who == WEFT_SYMMETRIC) {
            need_weft(b->group, weft_free(b->group, b->in[who]));
            need_weft(b->group, weft_free(b->group, b->out[who]));
        } else {
            free(b->in[who]);
            free(b->out[who]);
        }
    }
    if (weft_rank(b->group) == 0) {
        printf("%-10s %10lld %10.1f %10.1f %10.1f %9.2f %9.2f\n", b->gather ? "all_gather" : "all_reduce",
               (long long)bytes, median[ONECCL], median[WEFT_OWN], median[WEFT_SYMMETRIC],
               median[ONECCL] / median[WEFT_OWN], median[ONECCL] / median[WEFT_SYMMETRIC]);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    int64_t most = argc > 1 ? atoll(argv[1]) : 64 << 20;
    int samples = argc > 2 ? atoi(argv[2]) : 41;
    bench b = {0};

    need(samples >= 1 && samples <= MOST_SAMPLES, "SAMPLES", "1 to 1001");
    need_weft(NULL, weft_init(&b.group));
    open_oneccl(b.group, &b.ccl);
    if (weft_rank(b.group) == 0)
        printf("%-10s %10s %10s %10s %10s %9s %9s\n", "us", "bytes", "oneCCL", "weft", "symmetric", "times",
               "times");
    for (int gather = 0; gather < 2; gather++) {
        b.gather = gather;
        for (int64_t bytes = 1 << 10; bytes <= most; bytes *= 4)
            measure(&b, bytes, samples);
    }
    need(b.ccl.comm_destroy(b.ccl.comm) == 0, "onecclCommDestroy", NULL);
    need_weft(b.group, weft_barrier(b.group)); /* for mpiexec a rank that leaves before others has failed */
    weft_finalize(b.group);
    return 0;
}
