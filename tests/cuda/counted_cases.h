/*
 * Collectives with counts or a root, and messages, on a group of GPUs, each beside the same call on a group
 * of CPUs: the same bits, and nothing outside recv changes. The GPU may be a fake one.
 */
#ifndef WEFT_TESTS_CUDA_COUNTED_CASES_H
#define WEFT_TESTS_CUDA_COUNTED_CASES_H

#include "collective_cases.h"
#include "group/sync_kind.h"

enum { COUNTED_RANKS = 16, COUNTED_CALLS = 6, COUNTED_ROOM = 3 << 20 };

static const weft_entry counted_calls[COUNTED_CALLS] = {WEFT_ENTRY_ALL_GATHER_V, WEFT_ENTRY_REDUCE_SCATTER_V,
                                                        WEFT_ENTRY_ALL_TO_ALL_V, WEFT_ENTRY_GATHER,
                                                        WEFT_ENTRY_SCATTER,      WEFT_ENTRY_REDUCE};

typedef struct counted_case {
    weft_entry entry;
    weft_dtype dtype;
    weft_reduction reduction;
    int root;
    int64_t count;
    int64_t between[COUNTED_RANKS]
                   [COUNTED_RANKS]; /* elements, from and to; of the others [0] is everybody's */
    bool in_place;
    int shift; /* bytes; elements where they are reduced */
    coll_place place;
    uint64_t seed;
} counted_case;

static inline bool counted_reduces(weft_entry entry)
{
    return entry == WEFT_ENTRY_REDUCE_SCATTER_V || entry == WEFT_ENTRY_REDUCE;
}

static inline weft_status counted_call(weft_group *group, const counted_case *t, const void *send, void *recv)
{
    int64_t from[COUNTED_RANKS];
    int rank = weft_rank(group);

    for (int r = 0; r < weft_size(group); r++)
        from[r] = t->between[r][rank];
    switch (t->entry) {
    case WEFT_ENTRY_ALL_GATHER_V:
        return weft_all_gather_v(group, send, recv, t->between[0], t->dtype);
    case WEFT_ENTRY_REDUCE_SCATTER_V:
        return weft_reduce_scatter_v(group, send, recv, t->between[0], t->dtype, t->reduction);
    case WEFT_ENTRY_ALL_TO_ALL_V:
        return weft_all_to_all_v(group, send, t->between[rank], recv, from, t->dtype);
    case WEFT_ENTRY_GATHER:
        return weft_gather(group, send, recv, t->count, t->dtype, t->root);
    case WEFT_ENTRY_SCATTER:
        return weft_scatter(group, send, recv, t->count, t->dtype, t->root);
    default:
        return weft_reduce(group, send, recv, t->count, t->dtype, t->reduction, t->root);
    }
}

/* A case that every rank makes alike: counts from nothing to several rounds of all tracks. */
static inline counted_case counted_make(const weft_group *group, weft_entry entry, uint64_t seed,
                                        int64_t most)
{
    uint64_t state = seed * 7907u + 13;
    int world = weft_size(group);
    counted_case t = {.entry = entry,
                      .dtype = (weft_dtype)(check_random(&state) % (WEFT_BOOL + 1)),
                      .root = (int)(check_random(&state) % (uint64_t)world),
                      .in_place = check_random(&state) % 3 == 0,
                      .place = (coll_place)(check_random(&state) % (COLL_MIXED + 1)),
                      .seed = seed};

    if (counted_reduces(entry)) {
        t.dtype = t.dtype == WEFT_BYTE ? WEFT_F32 : t.dtype;
        t.reduction = coll_reduction(t.dtype, seed);
    }
    t.shift = check_random(&state) % 3 ? 0
                                       : (int)(1 + check_random(&state) % 5) *
                                             (counted_reduces(entry) ? (int)weft_dtype_size(t.dtype) : 1);
    for (int r = 0; r < world; r++)
        for (int to = 0; to < world; to++) {
            uint64_t kind = check_random(&state) % 4;

            t.between[r][to] = kind == 0   ? 0
                               : kind == 1 ? (int64_t)(check_random(&state) % 9)
                                           : (int64_t)(check_random(&state) % (uint64_t)most);
        }
    t.count = t.between[0][0];
    return t;
}

/* Elements of a rank's send and recv, and where its own share is in them. */
static inline void counted_sizes(const counted_case *t, int world, int rank, int64_t *sent, int64_t *received,
                                 int64_t *own)
{
    bool root = rank == t->root;

    *sent = *received = *own = 0;
    for (int r = 0; r < world; r++) {
        if (t->entry == WEFT_ENTRY_ALL_TO_ALL_V) {
            *sent += t->between[rank][r];
            *received += t->between[r][rank];
            continue;
        }
        *sent += t->between[0][r];
        *own += r < rank ? t->between[0][r] : 0;
    }
    switch (t->entry) {
    case WEFT_ENTRY_ALL_TO_ALL_V:
        break;
    case WEFT_ENTRY_ALL_GATHER_V:
        *received = *sent;
        *sent = t->between[0][rank];
        break;
    case WEFT_ENTRY_REDUCE_SCATTER_V:
        *received = t->between[0][rank];
        break;
    default:
        *sent = t->count * (t->entry == WEFT_ENTRY_SCATTER ? (root ? world : 0) : 1);
        *received = t->count * (t->entry == WEFT_ENTRY_GATHER    ? (root ? world : 0)
                                : t->entry == WEFT_ENTRY_SCATTER ? 1
                                                                 : root);
    }
}

static inline void counted_try(const coll_rank *r, const counted_case *t)
{
    int world = weft_size(r->gpu), rank = weft_rank(r->gpu);
    int64_t size = (int64_t)weft_dtype_size(t->dtype), sent, received, own;
    coll_job fill = {.dtype = t->dtype, .reduction = t->reduction, .seed = t->seed};
    coll_job where = {.place = t->place, .count = (int64_t)t->seed};
    int64_t send_at = COLL_GUARD + t->shift, recv_at = COUNTED_ROOM + COLL_GUARD + 3 * t->shift,
            bytes = 2 * COUNTED_ROOM;
    char *device = coll_memory(r, &where);
    weft_status status;

    counted_sizes(t, world, rank, &sent, &received, &own);
    if (t->in_place && t->entry == WEFT_ENTRY_ALL_GATHER_V)
        send_at = recv_at + own * size;
    if (t->in_place && t->entry == WEFT_ENTRY_REDUCE_SCATTER_V)
        recv_at = send_at + own * size;
    CHECK((sent > received ? sent : received) * size + 4 * COLL_GUARD <= COUNTED_ROOM);
    memset(r->host, 0x5a, (size_t)bytes);
    coll_fill(&fill, rank, r->host + send_at, sent);
    memcpy(r->want, r->host, (size_t)bytes);
    CHECK_INT(weft_memcpy(r->gpu, device, r->host, (size_t)bytes), WEFT_OK);
    status = counted_call(r->gpu, t, sent ? device + send_at : NULL, received ? device + recv_at : NULL);
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK)
        fprintf(stderr, "%s on rank %d of %d: %s\n", weft_entry_name(t->entry), rank, world,
                weft_error(r->gpu));
    CHECK_INT(counted_call(r->cpu, t, sent ? r->want + send_at : NULL, received ? r->want + recv_at : NULL),
              WEFT_OK);
    CHECK_INT(weft_memcpy(r->gpu, r->got, device, (size_t)bytes), WEFT_OK);
    if (memcmp(r->got, r->want, (size_t)bytes) != 0)
        fprintf(stderr, "%s of %s, reduction %d, seed %d: gpu and cpu differ on rank %d of %d\n",
                weft_entry_name(t->entry), weft_dtype_name(t->dtype), (int)t->reduction, (int)t->seed, rank,
                world);
    CHECK_INT(memcmp(r->got, r->want, (size_t)bytes), 0);
}

static inline void counted_all(const coll_rank *r, int rounds)
{
    int64_t most = (COUNTED_ROOM - 512) / 8 / weft_size(r->gpu);

    for (int i = 0; i < rounds; i++)
        for (int call = 0; call < COUNTED_CALLS; call++) {
            counted_case t = counted_make(r->gpu, counted_calls[call], (uint64_t)(i * COUNTED_CALLS + call),
                                          i % 4 ? most / 50 : most);

            counted_try(r, &t);
        }
}

/* A message to the next rank, from the one before; ranks of even numbers send first. */
static inline weft_status counted_pass(weft_group *group, const void *send, void *recv, int64_t count,
                                       weft_dtype dtype)
{
    int world = weft_size(group), rank = weft_rank(group), next = (rank + 1) % world,
        last = (rank + world - 1) % world;
    weft_status status = WEFT_OK;

    for (int i = 0; i < 2 && status == WEFT_OK; i++)
        status = (i + rank) % 2 ? weft_recv(group, recv, count, dtype, last)
                                : weft_send(group, send, count, dtype, next);
    return status;
}

static inline void counted_messages(const coll_rank *r)
{
    static const int64_t counts[] = {0, 1, 61, 4099, 300007, 7};
    char *device = r->memory[COLL_ELSEWHERE];
    int world = weft_size(r->gpu), rank = weft_rank(r->gpu), last = (rank + world - 1) % world;

    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts) && world > 1; i++) {
        size_t bytes = (size_t)counts[i] * 4;
        coll_job mine = {.dtype = WEFT_I32, .seed = i};

        coll_fill(&mine, rank, r->host, counts[i] + 1);
        coll_fill(&mine, last, r->want, counts[i]);
        CHECK_INT(weft_memcpy(r->gpu, device, r->host, bytes + 4), WEFT_OK);
        CHECK_INT(counted_pass(r->gpu, device, device + COUNTED_ROOM + i, counts[i], WEFT_F32), WEFT_OK);
        CHECK_INT(weft_memcpy(r->gpu, r->got, device + COUNTED_ROOM + i, bytes), WEFT_OK);
        CHECK_INT(memcmp(r->got, r->want, bytes), 0);
    }
}

/*
 * On the caller's own stream, other counts in every call and none of them made before, captured at once and
 * replayed, with calls beside the graph's: what a call reads the one before it wrote.
 */
static inline void counted_graph(const coll_rank *r, int replays)
{
    enum { MOST = 20000, CALLS = 4 };
    const weft_cuda_device *device = weft_cuda_of(r->gpu)->device;
    const weft_cuda_driver *cu = device->cu;
    char *memory = r->memory[COLL_ELSEWHERE];
    int world = weft_size(r->gpu), rank = weft_rank(r->gpu);
    size_t bytes = (size_t)3 * COUNTED_ROOM;
    counted_case t[CALLS];
    coll_job fill = {.dtype = WEFT_I32, .seed = 5};
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;

    for (int i = 0; i < CALLS; i++) {
        t[i] = counted_make(r->gpu, counted_calls[i % 3], 100 + (uint64_t)i, MOST);
        t[i].dtype = WEFT_I32;
        t[i].reduction = WEFT_SUM;
    }
    coll_fill(&fill, rank, r->want, (int64_t)bytes / 4);
    CHECK_INT(weft_memcpy(r->gpu, memory, r->want, bytes), WEFT_OK);
    CHECK_INT(cu->cuCtxSetCurrent(device->context), CUDA_SUCCESS);
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, stream), WEFT_OK);
    CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    for (int i = 0; i < CALLS; i++)
        CHECK_INT(
            counted_call(r->gpu, &t[i], memory + i % 3 * COUNTED_ROOM, memory + (i + 1) % 3 * COUNTED_ROOM),
            WEFT_OK);
    if (world % 2 == 0)
        CHECK_INT(counted_pass(r->gpu, memory, memory + COUNTED_ROOM, MOST, WEFT_I32), WEFT_OK);
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < replays; i++) {
        CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
        CHECK_INT(counted_call(r->gpu, &t[1], memory, memory + 2 * COUNTED_ROOM), WEFT_OK);
    }
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    CHECK_INT(weft_memcpy(r->gpu, r->got, memory, bytes), WEFT_OK);
    for (int round = 0; round < replays; round++) {
        for (int i = 0; i < CALLS; i++)
            CHECK_INT(counted_call(r->cpu, &t[i], r->want + i % 3 * COUNTED_ROOM,
                                   r->want + (i + 1) % 3 * COUNTED_ROOM),
                      WEFT_OK);
        if (world % 2 == 0)
            CHECK_INT(counted_pass(r->cpu, r->want, r->want + COUNTED_ROOM, MOST, WEFT_I32), WEFT_OK);
        CHECK_INT(counted_call(r->cpu, &t[1], r->want, r->want + 2 * COUNTED_ROOM), WEFT_OK);
    }
    CHECK_INT(memcmp(r->got, r->want, bytes), 0);
    CHECK_INT(weft_barrier(r->gpu), WEFT_OK);
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    cu->cuStreamDestroy(stream);
}

/* How two ranks go wrong, and what both are told. */
typedef enum counted_fault {
    COUNTED_ALIKE,  /* other counts where all give the same */
    COUNTED_PAIR,   /* one expects other than it is sent */
    COUNTED_CALL,   /* other calls */
    COUNTED_PLAN,   /* a call with counts and one without */
    COUNTED_LENGTH, /* a message of another length */
    COUNTED_TYPE,
    COUNTED_SENDS, /* both send first */
    COUNTED_WAITS, /* both receive first */
    COUNTED_FAULTS
} counted_fault;

static inline weft_status counted_wrong(weft_group *group, counted_fault fault, char *memory)
{
    int me = weft_rank(group);
    int64_t counts[2] = {5, 6 + (fault == COUNTED_ALIKE && me == 1)}, to[2] = {3, 4 + me},
            from[2] = {3 + me, 5};

    from[1] += me ? 0 : fault == COUNTED_PAIR;
    if (me) {
        to[0] = 5;
        to[1] = from[1];
        from[0] = 4;
    }
    switch (fault) {
    case COUNTED_ALIKE:
        return weft_all_gather_v(group, memory, memory + 4096, counts, WEFT_F32);
    case COUNTED_PAIR:
        return weft_all_to_all_v(group, memory, to, memory + 4096, from, WEFT_F32);
    case COUNTED_CALL:
        return me ? weft_gather(group, memory, memory + 4096, 5, WEFT_F32, 0)
                  : weft_reduce(group, memory, memory + 4096, 5, WEFT_F32, WEFT_SUM, 0);
    case COUNTED_PLAN:
        return me ? weft_gather(group, memory, memory + 4096, 5, WEFT_F32, 0)
                  : weft_all_reduce(group, memory, memory + 4096, 5, WEFT_F32, WEFT_SUM);
    case COUNTED_SENDS:
        return weft_send(group, memory, 5, WEFT_F32, 1 - me);
    case COUNTED_WAITS:
        return weft_recv(group, memory, 5, WEFT_F32, 1 - me);
    default:
        return me ? weft_send(group, memory, 5, WEFT_F32, 0)
                  : weft_recv(group, memory, 5 + (fault == COUNTED_LENGTH),
                              fault == COUNTED_TYPE ? WEFT_I32 : WEFT_F32, 1);
    }
}

/* Of two ranks, each such fault with a group of its own: all are told at once, and the group is lost. */
static inline void counted_fault_rank(weft_group *group, void *argument)
{
    static const char *const sentences[COUNTED_FAULTS] = {
        "with other counts",         "which expects",          "is in weft_",
        "ranks make the same calls", "sends 20 bytes",         "is in weft_send",
        "both send to each other",   "both wait for a message"};
    counted_fault fault = *(const counted_fault *)argument;
    void *memory = NULL;

    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 8192, 0, &memory), WEFT_OK);
    CHECK_INT(weft_all_reduce(group, memory, (char *)memory + 4096, 5, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK_INT(counted_pass(group, memory, (char *)memory + 4096, 5, WEFT_F32), WEFT_OK);
    CHECK_INT(counted_wrong(group, fault, memory), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), sentences[fault]);
    CHECK_INT(counted_pass(group, memory, (char *)memory + 4096, 5, WEFT_F32), WEFT_ERR_MISMATCH);
}

/* What a rank rejects it is told alone, and its next call is the one that the others wait for. */
static inline void counted_rejects(const coll_rank *r)
{
    int64_t counts[COUNTED_RANKS] = {1, 1, 1, 1, 1, 1, 1, 1}, none[COUNTED_RANKS] = {-1};
    float on_host[4] = {0};
    char *memory = r->memory[COLL_SYMMETRIC];

    if (weft_rank(r->gpu) == 1) {
        CHECK_INT(weft_all_gather_v(r->gpu, memory, memory + 4096, none, WEFT_F32), WEFT_ERR_ARGUMENT);
        CHECK_INT(weft_all_gather_v(r->gpu, on_host, memory, counts, WEFT_F32), WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(r->gpu), "not memory that a GPU can use");
        CHECK_INT(weft_reduce_scatter_v(r->gpu, memory + 1, memory + 4096, counts, WEFT_F32, WEFT_SUM),
                  WEFT_ERR_ARGUMENT);
        CHECK_HAS(weft_error(r->gpu), "not aligned");
        CHECK_INT(weft_recv(r->gpu, on_host, 1, WEFT_F32, 0), WEFT_ERR_ARGUMENT);
        CHECK_INT(weft_gather(r->gpu, memory, memory, 1, WEFT_F32, 99), WEFT_ERR_ARGUMENT);
    }
    CHECK_INT(weft_all_gather_v(r->gpu, memory, memory + 4096, counts, WEFT_F32), WEFT_OK);
}

#endif
