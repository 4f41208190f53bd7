/*
 * Mixture of experts on a backend that has memory of its own: what a layer is, what its kernels are given,
 * and what they find wrong. Which calls are in order, and what is said of input that is wrong, is decided
 * above (src/api/moe_device.c).
 */
#ifndef WEFT_RUN_EXPERTS_H
#define WEFT_RUN_EXPERTS_H

#include "group/group.h"

#include <weft/weft.h>

typedef struct weft_device_moe weft_device_moe;

typedef enum weft_device_moe_kernel {
    WEFT_DEVICE_MOE_DISPATCH_SEND, /* the phases of a round, in order */
    WEFT_DEVICE_MOE_DISPATCH_RECV,
    WEFT_DEVICE_MOE_COMBINE_SEND,
    WEFT_DEVICE_MOE_COMBINE_RECV,
    WEFT_DEVICE_MOE_MOVE, /* rows whose lists alone were dispatched; packs them too */
    WEFT_DEVICE_MOE_LAYOUT,
    WEFT_DEVICE_MOE_GATHER,
    WEFT_DEVICE_MOE_KERNELS
} weft_device_moe_kernel;

typedef enum weft_device_moe_wrong {
    WEFT_DEVICE_MOE_OUT_OF_RANGE = 1, /* position `first` of `token` names `expert` */
    WEFT_DEVICE_MOE_NAMED_TWICE,      /* positions `first` and `second` do */
    WEFT_DEVICE_MOE_NOT_REPEATED,     /* `first` tokens repeat a routing of `expert` */
    WEFT_DEVICE_MOE_PEER_REJECTED,    /* `rank` rejected its input in `round` */
    WEFT_DEVICE_MOE_OVERFLOW          /* the local expert `expert` has `count` rows, padded to `padded` */
} weft_device_moe_wrong;

typedef struct weft_device_moe_fault {
    weft_device_moe_wrong kind;
    int lane;
    int64_t token, count, padded;
    int expert, first, second, rank;
    uint64_t round;
    bool last; /* the lane has sent no round since */
} weft_device_moe_fault;

/* Elements of a row that share a scale, where rows travel as fp8. */
enum { WEFT_DEVICE_MOE_BLOCK = 128 };

typedef struct weft_device_moe_shape {
    int experts, topk, terms_per_token, lanes;
    int64_t capacity, hidden, row_bytes;
    int64_t wire_bytes; /* of a row that travels */
    int64_t scales_at;  /* as fp8: where its scales begin; 0: as it is given */
    weft_dtype dtype;
    bool reduced;
    const int32_t *owner, *local_index; /* of an expert */
    int experts_here, experts_most;
    /* Says what is wrong. Also called from weft_group_wait. */
    weft_status (*refuse)(void *context, const weft_device_moe_fault *fault, weft_error_text *error);
    void *context;
} weft_device_moe_shape;

/* What changes from call to call; unused members are zero. */
typedef struct weft_device_moe_args {
    const void *x; /* SEND: tokens; GIVE: results */
    const int32_t *expert;
    const float *weight;
    int64_t tokens;
    bool reject; /* SEND: only tells the others that there is nothing */
    bool lists;  /* DISPATCH: MOVE brings the rows */
    const int64_t *start;
    void *out; /* TAKE: y; GATHER: packed; LAYOUT: start */
    int64_t *rows;
    int64_t alignment;
} weft_device_moe_args;

/* Where on the device a lane has what it received; and on the host, once the stream has passed it, how much.
 */
typedef struct weft_device_moe_view {
    const void *const *row;
    const int32_t *source, *token, *entry_row;
    const int64_t *offset;
    const float *entry_weight;
    int64_t tokens, rows, entries, rows_sent;
    double dispatch_us, combine_us; /* of the last round */
} weft_device_moe_view;

/* The feed-forward experts of a rank of a layer. */
typedef struct weft_device_ffn_shape {
    weft_dtype dtype; /* of the layer */
    int experts;
    int64_t hidden, inter;
} weft_device_ffn_shape;

/* A matrix of each of them, one behind the other, as the backend's grouped products read it: what
 * weft_grouped_args says of B. */
typedef struct weft_device_matrix {
    void *memory, *col_scale; /* the latter float32; NULL: 1 */
    weft_dtype dtype;
    bool transposed;
    int64_t ld;
} weft_device_matrix;

typedef struct weft_device_ffn {
    weft_device_matrix gate_up, down; /* the former woven, as a gated activation takes it */
} weft_device_ffn;

typedef struct weft_device_moe_ops {
    /* Bytes that a layer takes of symmetric memory and of this rank's own. */
    void (*measure)(weft_group *group, const weft_device_moe_shape *shape, size_t *symmetric,
                    size_t *private_bytes);
    /* Collective. What is shared by all ranks is given back by destroy when all have. */
    weft_status (*create)(weft_group *group, const weft_device_moe_shape *shape, weft_device_moe **moe);
    weft_status (*destroy)(weft_device_moe *moe);
    /* Puts a kernel on the stream of the group's calls. */
    weft_status (*launch)(weft_device_moe *moe, int lane, weft_device_moe_kernel kernel,
                          const weft_device_moe_args *call);
    /* Whether experts are to begin with rows that have arrived, of a round that dispatches the tokens at x;
     * then DISPATCH goes by lists, MOVE packs the rows, and `multiply` makes their first product, whose sizes
     * have been checked. What each rank does is its own affair. */
    bool (*takes_arriving)(const weft_device_moe *moe, const void *x);
    weft_status (*multiply)(weft_device_moe *moe, int lane, const weft_grouped_args *args);
    /* Whether the backend has such experts; the sentence says which it has. */
    weft_status (*ffn_check)(weft_group *group, const weft_device_ffn_shape *shape);
    /* Copies their weights, laid out as its products read them, to memory that `discard` takes, each piece
     * for itself; also what there is of it after an error. */
    weft_status (*ffn_pack)(weft_group *group, const weft_device_ffn_shape *shape,
                            const weft_moe_weights *weights, weft_device_ffn *ffn);
    /* Whether calls return when they are on that stream, not when they are done. */
    bool (*ordered)(const weft_group *group);
    /* Waits for that stream; what went wrong with this layer since it was last asked. */
    weft_status (*wait)(weft_device_moe *moe);
    /* `counts`: also how much, of what the stream has passed. */
    weft_status (*view)(weft_device_moe *moe, int lane, bool counts, weft_device_moe_view *view);
    /* Whether the device can use [pointer, pointer + bytes); the sentence begins with `what`. */
    weft_status (*check)(weft_group *group, const char *what, const void *pointer, size_t bytes);
    /* Memory of the device for this rank alone; given back once the stream of the group's calls has passed
     * what uses it. NULL is fine. */
    weft_status (*memory)(weft_group *group, size_t bytes, void **memory);
    void (*discard)(weft_group *group, void *memory);
} weft_device_moe_ops;

#endif
