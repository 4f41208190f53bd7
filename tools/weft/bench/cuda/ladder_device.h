/*
 * What the kernels of the ladder are given: the rungs below fused, for one rank of a process. Included by C
 * and by CUDA. Every rank has as many tokens; a pair is a token and one of its experts, number token * topk +
 * k.
 *
 * reference and sorted meet twice in a round, all ranks: then rows may be read and, later, results be summed.
 * So what one round reads is overwritten in the next only after all are through. rows does not meet: a row
 * comes with a word of its own, {round, expert}, and so does a result. Words are doubled by the parity of the
 * round: rank s may send round e + 1 while d still reads its words of e, if d got no rows of s; not e + 2,
 * for which it needs d's words of e + 1.
 */
#ifndef WEFT_TOOLS_BENCH_CUDA_LADDER_DEVICE_H
#define WEFT_TOOLS_BENCH_CUDA_LADDER_DEVICE_H

#include <stdint.h>

enum { LADDER_THREADS = 256, LADDER_CHUNK = 256, LADDER_TOPK = 1024, LADDER_LINE_WORDS = 16 };

typedef enum ladder_rung { LADDER_REFERENCE, LADDER_SORTED, LADDER_ROWS, LADDER_FUSED } ladder_rung;

/* A name each, in ladder_kernels.h and as functions of the GPU. */
#define LADDER_KERNELS(X)                                                                                    \
    X(stage)                                                                                                 \
    X(meet)                                                                                                  \
    X(collect)                                                                                               \
    X(look)                                                                                                  \
    X(fetch)                                                                                                 \
    X(count)                                                                                                 \
    X(scan)                                                                                                  \
    X(pack)                                                                                                  \
    X(pieces)                                                                                                \
    X(take)                                                                                                  \
    X(push)                                                                                                  \
    X(await)                                                                                                 \
    X(list)                                                                                                  \
    X(give)                                                                                                  \
    X(answer)                                                                                                \
    X(sum)                                                                                                   \
    X(scale)

typedef enum ladder_kernel {
#define LADDER_NUMBER(name) LADDER_##name,
    LADDER_KERNELS(LADDER_NUMBER)
#undef LADDER_NUMBER
        LADDER_COUNT_OF_KERNELS
} ladder_kernel;

/* Where the rows of an expert begin among those that a rank has sorted, and how many they are. */
typedef struct ladder_piece {
    int64_t begin, count;
} ladder_piece;

typedef struct ladder_state {
    uint64_t round;  /* rows: dispatched so far */
    uint64_t meets;  /* so far */
    uint64_t rounds; /* begun */
    uint32_t lost;   /* a wait has expired */
    uint32_t pad;
    uint64_t began_ns[2], ended_ns[2]; /* dispatch and combine of the last round */
    uint64_t total_ns[2];              /* of the rounds before it */
} ladder_state;

typedef struct ladder_args {
    int64_t stride; /* bytes from a rank's symmetric memory to the next one's */
    int32_t world, rank, rung, dtype;
    int32_t experts, topk, first, experts_here; /* the rank has experts first, first + 1, ... */
    int64_t tokens, pairs, row_bytes, row_stride;
    int32_t begins, ends; /* 1 + the half that begins or ends with this kernel; 0: none */
    uint64_t deadline_ns;

    /* symmetric, at this rank's addresses; [world]: by the rank that writes */
    uint64_t *met;       /* [world], a line apart */
    char *staged;        /* rows: reference [tokens]; sorted [pairs], in order; rows [world][pairs] */
    int32_t *shown;      /* reference: [pairs], its experts */
    ladder_piece *piece; /* sorted: [world][experts] */
    uint64_t *word;      /* rows: [2][world][pairs]: round << 32 | expert + 1, or 0: not for this rank */
    char *slot;          /* [pairs] rows: results; sorted: in the order of what was sent */
    uint64_t *answered;  /* rows: [pairs]: the round */

    /* the rank's own */
    const void *x;
    const int32_t *expert, *owner;
    const float *weight;
    char *packed; /* rows in the order of experts, and results */
    void *y;
    ladder_state *state;
    int32_t *key; /* reference, rows: [world][pairs]: experts of what came, -1: not for this rank */

    /* counting and placing: of the experts in `keys`, less first_key, those below `buckets` */
    const int32_t *keys;
    int64_t key_count;
    int32_t first_key, buckets;
    int32_t *earlier;     /* [keys]: the same ones before it in its chunk */
    int32_t *chunk;       /* [chunks][buckets]: how many; from scan on: in the chunks before */
    int64_t *bucket;      /* [buckets + 1]: where they begin */
    int64_t *bucket_rows; /* [buckets] */

    int64_t *base;        /* [experts_here + 1]: where the rows of an expert begin in `packed` */
    int32_t *from, *pair; /* reference, rows: of a row there */
    int32_t *place;       /* sorted: [pairs]: where it lies among those sent */
    int64_t *arrive;      /* sorted: [experts_here][world]: where a piece begins in `packed` */
} ladder_args;

#endif
