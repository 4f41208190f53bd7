/*
 * weft: tensor-parallel matrix products and mixture-of-experts routing over several ranks, with the
 * communication woven into the compute.
 *
 * This is the whole public interface. It is C11, may be included from C++, and names no CUDA or MPI
 * type. Handles are opaque. Every function that can fail returns a weft_status; the sentence that says
 * what went wrong is weft_error(group), or weft_error(NULL) when there is no group yet. The library
 * never exits, aborts or prints.
 */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif

/* ---- status and types ---------------------------------------------------------------------------- */

typedef enum weft_status {
    WEFT_OK = 0,
    WEFT_ERR_ARGUMENT,    /* a value the call cannot take */
    WEFT_ERR_MISMATCH,    /* the ranks asked for different things */
    WEFT_ERR_MEMORY,      /* host, symmetric or device memory is exhausted */
    WEFT_ERR_TIMEOUT,     /* a wait reached its deadline */
    WEFT_ERR_PEER_DIED,   /* a rank ended before its work did */
    WEFT_ERR_PEER,        /* another rank failed or rejected its arguments */
    WEFT_ERR_LAUNCH,      /* ranks were announced that could not be met */
    WEFT_ERR_SYSTEM,      /* the operating system refused something */
    WEFT_ERR_UNSUPPORTED, /* this build or machine cannot do it */
    WEFT_ERR_STATE        /* calls out of order */
} weft_status;

typedef enum weft_dtype {
    WEFT_F32 = 0,
    WEFT_F16,
    WEFT_BF16,
    WEFT_I8,
    WEFT_I32,
    WEFT_I64,
    WEFT_BYTE /* opaque bytes: movement only */
} weft_dtype;

typedef struct weft_group weft_group;

/* A short name and one sentence for a status. Never NULL. */
WEFT_API const char *weft_status_name(weft_status status);
WEFT_API const char *weft_status_text(weft_status status);

/* The library's version, "major.minor.patch". */
WEFT_API const char *weft_version(void);

/* ---- groups --------------------------------------------------------------------------------------- */

/*
 * A group handle stands for one rank and is used by one thread at a time. Calls marked collective must be
 * made by every rank of the group, in the same order; ranks that call different things, or with different
 * sizes, all get an error. After WEFT_ERR_TIMEOUT, WEFT_ERR_PEER_DIED or ranks in different calls the group
 * is poisoned: every call returns that same error at once, and only freeing remains.
 */

/*
 * The world: the group of all ranks that this process's launcher started (weft run, torchrun, mpirun or
 * srun), or a group of one when there is no launcher. Returns when every rank has come. Ranks that were
 * announced and cannot be met are WEFT_ERR_LAUNCH. weft_error(NULL) has the sentence of a failure.
 */
WEFT_API weft_status weft_init(weft_group **group);

/* Leaves the world. Waits for nobody: a rank whose peers may still need its memory calls weft_barrier before.
 */
WEFT_API weft_status weft_finalize(weft_group *group);

/* Makes a group of `size` ranks that are threads of this process: groups[r] is the handle of rank r. Free
 * each with weft_group_free. */
WEFT_API weft_status weft_group_threads(int size, weft_group **groups);

/* Collective over `parent`: ranks that give the same colour become a group, ranked by key, then by their rank
 * in the parent. A negative colour joins none and gets NULL. Free the sub-group with weft_group_free; memory
 * of the parent may be used in it. */
WEFT_API weft_status weft_group_split(weft_group *parent, int colour, int key, weft_group **sub);

/* Drops a handle, with whatever the rank still had allocated in the group. Waits for nobody; NULL is fine. */
WEFT_API void weft_group_free(weft_group *group);

WEFT_API int weft_rank(const weft_group *group);
WEFT_API int weft_size(const weft_group *group);

/* The sentence of the last error of this handle; with NULL, of the calling thread's last call that failed
 * without one. Never NULL. */
WEFT_API const char *weft_error(const weft_group *group);

/* How long this rank waits for a peer to enter a call (600 s unless WEFT_ENTER_TIMEOUT says otherwise) and
 * for progress once all have entered (30 s, WEFT_PROGRESS_TIMEOUT). */
WEFT_API weft_status weft_set_deadlines(weft_group *group, double enter_seconds, double progress_seconds);

/* Collective: returns when every rank has called it. */
WEFT_API weft_status weft_barrier(weft_group *group);

/* ---- symmetric memory ----------------------------------------------------------------------------- */

/* Collective, with the same size and alignment everywhere: memory at the same offset on every rank, zeroed.
 * `alignment` is a power of two up to 2 MiB; 0 means 128. */
WEFT_API weft_status weft_alloc(weft_group *group, size_t bytes, size_t alignment, void **pointer);

/* Collective: gives back what weft_alloc of the same group gave. NULL is fine when every rank passes it. */
WEFT_API weft_status weft_free(weft_group *group, void *pointer);

/* Where `rank` has the object that this rank has at `pointer`; NULL when that is not symmetric memory. */
WEFT_API void *weft_peer(const weft_group *group, const void *pointer, int rank);

/* ---- problems ------------------------------------------------------------------------------------- */

typedef enum weft_op {
    WEFT_OP_AG_GEMM = 0, /* gather A (or B) while multiplying */
    WEFT_OP_GEMM_RS,     /* multiply, sum over ranks, each rank keeps its part */
    WEFT_OP_GEMM_AR,     /* multiply, sum over ranks, every rank keeps all */
    WEFT_OP_GEMM_AS,     /* multiply a column part, every rank gets all columns */
    WEFT_OP_ALL_REDUCE,
    WEFT_OP_ALL_GATHER,
    WEFT_OP_REDUCE_SCATTER,
    WEFT_OP_ALL_TO_ALL,
    WEFT_OP_BROADCAST
} weft_op;

typedef enum weft_schedule {
    WEFT_SCHEDULE_AUTO = 0, /* the fastest by the simulator on this machine's description */
    WEFT_SCHEDULE_UNFUSED,  /* collective, then GEMM; or GEMM, then collective */
    WEFT_SCHEDULE_DIRECT,   /* read a peer's operand in place; push partial tiles to their owner */
    WEFT_SCHEDULE_ALLGATHER_ROTATING_A,
    WEFT_SCHEDULE_ALLGATHER_ROTATING_B,
    WEFT_SCHEDULE_REDUCESCATTER_TILING_A,
    WEFT_SCHEDULE_REDUCESCATTER_TILING_B,
    WEFT_SCHEDULE_ONE_SHOT,
    WEFT_SCHEDULE_TWO_SHOT,
    WEFT_SCHEDULE_MULTIMEM,
    WEFT_SCHEDULE_ALL_SCATTER,
    WEFT_SCHEDULE_PULL,
    WEFT_SCHEDULE_PUSH
} weft_schedule;

/* Which dimension of the result a rank owns: `rows` unless the problem says otherwise. */
typedef enum weft_layout {
    WEFT_LAYOUT_DEFAULT = 0, /* ag_gemm gathers A; gemm_rs scatters rows */
    WEFT_LAYOUT_GATHER_A,
    WEFT_LAYOUT_GATHER_B,
    WEFT_LAYOUT_SCATTER_ROWS,
    WEFT_LAYOUT_SCATTER_COLS
} weft_layout;

typedef enum weft_act { WEFT_ACT_NONE = 0, WEFT_ACT_RELU, WEFT_ACT_GELU, WEFT_ACT_SILU } weft_act;

typedef enum weft_reduction { WEFT_SUM = 0, WEFT_MIN, WEFT_MAX, WEFT_PRODUCT } weft_reduction;

/* How a GEMM op gets B. */
typedef enum weft_b_form {
    WEFT_B_PLAIN = 0,   /* as the caller has it; the plan packs nothing */
    WEFT_B_PACK_IN_RUN, /* as the caller has it; each run packs it once into scratch memory (CPU default) */
    WEFT_B_PREPACKED    /* a handle made by weft_pack: weights that stay */
} weft_b_form;

/*
 * What is to be computed. Sizes are global; part(x, W, r) of them lies on rank r. `size` is
 * sizeof(weft_problem), so that the struct can grow. Fill it with weft_problem_init, then change what
 * differs. Fields a given op does not use are ignored.
 */
typedef struct weft_problem {
    size_t size;
    weft_op op;
    weft_schedule schedule;
    weft_layout layout;
    int64_t m, n, k;       /* D is m x n */
    int64_t l;             /* batch */
    weft_dtype dtype;      /* of A and B; of the buffers of a collective */
    weft_dtype d_dtype;    /* of C, D and bias */
    weft_dtype wire_dtype; /* of partial sums that travel: float32 (int32) unless changed */
    int transa, transb;
    weft_b_form b_form;
    float alpha, beta; /* D = act(alpha A B + beta C + bias) */
    int bias;          /* whether there is one */
    weft_act act;
    int64_t count; /* collectives: elements (all_reduce, broadcast: of the buffer; the others: of one rank's
                      share) */
    weft_reduction reduction;
    int root;
    int64_t tile_m, tile_n, tile_k; /* 0 = chosen for the machine */
    int workers;                    /* compute lanes of a rank; 0 = chosen for the machine */
} weft_problem;

#ifdef __cplusplus
}
#endif

#endif
