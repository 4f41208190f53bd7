/*
 * weft: tensor-parallel matrix products and mixture-of-experts routing over several ranks, with the
 * communication woven into the compute.
 *
 * This is the whole public interface. It is C11, may be included from C++, and names no CUDA or MPI
 * type. Handles are opaque. Every function that can fail returns a weft_status; the sentence that says
 * what went wrong is weft_error(group), or weft_error(NULL) when there is no group yet. The library
 * never exits, aborts or prints.
 *
 * Structs that callers make begin with `size`, which is their sizeof; the functions that fill one with
 * defaults set it. They only grow, at their end, and zero there means the default: a program that was built
 * with an older weft.h gets what it had, and what a newer one says at the end of a struct must be zero to an
 * older library. Frozen since 0.2: functions, the place and type of every field, the values of enumerators.
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
    WEFT_ERR_STATE,       /* calls out of order */
    WEFT_ERR_ABORTED      /* weft_group_abort was called, on this rank or another */
} weft_status;

typedef enum weft_dtype {
    WEFT_DTYPE_DEFAULT = -1, /* where a field says what it means */
    WEFT_F32 = 0,
    WEFT_F16,
    WEFT_BF16,
    WEFT_I8,
    WEFT_I32,
    WEFT_I64,
    WEFT_BYTE, /* opaque bytes: movement only */
    WEFT_F64,  /* these three: collectives only */
    WEFT_U8,
    WEFT_BOOL,     /* a byte, 0 or 1; its sum is "or", its product "and" */
    WEFT_FP8_E4M3, /* products and movement; no reductions */
    WEFT_FP8_E5M2
} weft_dtype;

/*
 * fp8: a sign, 4 bits of exponent and 3 of fraction (bias 7, up to 448, no infinities, what torch calls
 * float8_e4m3fn), or 5 and 2 (bias 15, up to 57344). A product of them multiplies their values exactly and
 * adds up in float32; the scales that belong to them are the product's alpha (of a whole matrix), row_scale
 * and col_scale, and in the four products a_scale and b_scale of blocks. Stored results are rounded to
 * nearest even; what is beyond the largest number, infinities too, becomes that number with its sign; NaN
 * stays NaN.
 *
 * Hopper GPUs have tensor cores for it, which take both matrices along k: A as it is and B transposed, on
 * 16-byte boundaries, also row by row, and k a multiple of 16. They add up with about 14 bits, so their sums
 * are added to others in float32 every 128 of k. Other matrices there, and other GPUs, convert as they
 * multiply: that is right too, and several times slower.
 */

typedef struct weft_group weft_group;

/* The name of a status as it stands above, and one sentence for it. Never NULL. */
WEFT_API const char *weft_status_name(weft_status status);
WEFT_API const char *weft_status_text(weft_status status);

/* The version of this header, and of the library that runs, "major.minor.patch". Programs run with every
 * later library of the same soname. */
#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 2
#define WEFT_VERSION_PATCH 0
WEFT_API const char *weft_version(void);

/* Bytes of an element (0 for what is no dtype), and its name: "float32", "bfloat16" and so on. Never NULL. */
WEFT_API size_t weft_dtype_size(weft_dtype dtype);
WEFT_API const char *weft_dtype_name(weft_dtype dtype);

/* What of an extent lies on each of `parts` ranks: contiguous parts whose sizes differ by at most one, the
 * longer ones first. {0, 0} for a part that there is not. */
typedef struct weft_span {
    int64_t begin;
    int64_t count;
} weft_span;

WEFT_API weft_span weft_part(int64_t extent, int64_t parts, int64_t index);

/* The same in whole granules, of which the extent's last may be shorter: parts differ by at most one of them.
 * 0 and 1 are weft_part. */
WEFT_API weft_span weft_part_granular(int64_t extent, int64_t granule, int64_t parts, int64_t index);

/* ---- groups --------------------------------------------------------------------------------------- */

/*
 * A group handle stands for one rank and is used by one thread at a time (weft_group_abort: by any). Calls
 * marked collective must be made by every rank of the group, in the same order; ranks that call different
 * things, or with different sizes, all get an error. Where a rank rejects its arguments, that rank gets
 * WEFT_ERR_ARGUMENT, the others WEFT_ERR_PEER with a sentence that names it, and the group stays usable,
 * unless a call says otherwise; of a rank that passes no handle the others can know nothing. After
 * WEFT_ERR_TIMEOUT, WEFT_ERR_PEER_DIED, WEFT_ERR_ABORTED or ranks in different calls the group is poisoned:
 * every call returns that same error at once, and only freeing remains.
 *
 * Lifetimes. weft_free, weft_plan_destroy, weft_moe_free, weft_group_free and weft_finalize are calls of one
 * rank: they wait for nobody, and different ranks may make them in any order and at any time, as a garbage
 * collector does. Symmetric memory is used again when every rank has let go of it. On one rank a group may be
 * freed before what was made in it: plans and layers are then dead, and free themselves as before.
 *
 * A process may have any number of groups, one after another or at once. A rank is a process, or a thread
 * that made its handle itself; ranks of one group may be both. They have the same effective user and the same
 * version of weft, and are on one machine, in one network namespace; or on several nodes, when weft_init or
 * weft_group_create_from makes the group (docs/nodes.md). In the child of a fork the handles of
 * its parent are dead: calls return WEFT_ERR_STATE and change nothing for the parent, frees free memory of
 * the child; the child may make groups of its own.
 */

/*
 * The world: the group of all ranks that this process's launcher started (weft run, torchrun, mpirun or
 * srun), or a group of one when there is no launcher. Returns when every rank has come. Ranks that were
 * announced and cannot be met are WEFT_ERR_LAUNCH. weft_error(NULL) has the sentence of a failure. After
 * weft_finalize the ranks may call it again, for a new world. Who may come: processes of the same effective
 * user that were told the same job by their launcher. A rank that passes NULL comes to tell the others, who
 * get WEFT_ERR_PEER, as those of the two calls below do.
 */
WEFT_API weft_status weft_init(weft_group **group);

/* Leaves the world. Waits for nobody: a rank whose peers may still need its memory calls weft_barrier before.
 */
WEFT_API weft_status weft_finalize(weft_group *group);

/*
 * A group without a launcher. One rank makes an id, the program carries its bytes to the other members by its
 * own means (a store, a file, MPI), and each member, and nobody else, calls weft_group_create with it, once;
 * a thread calls it for itself. It returns when all have come, or when one came with another size or version.
 * An id is a secret: whoever has it, and runs as the same user on this machine, may join. It serves for one
 * group. A rank that has no id, or a wrong one, or no number in the group, finds nobody to tell: the others
 * wait for it until their deadline.
 */
typedef struct weft_id {
    unsigned char bytes[128];
} weft_id;

WEFT_API weft_status weft_id_create(weft_id *id);
WEFT_API weft_status weft_group_create(const weft_id *id, int rank, int size, weft_group **group);

/* The same where the members can gather: the function, called once on each, puts the `bytes` bytes at `mine`
 * of every rank into `all`, rank by rank, and returns 0, as MPI_Allgather does. */
typedef int (*weft_allgather_fn)(void *context, const void *mine, size_t bytes, void *all);
/* A rank of this machine that ends behind its all-gather is named to those who would wait for it, at once. */
WEFT_API weft_status weft_group_create_from(weft_allgather_fn allgather, void *context, int rank, int size,
                                            weft_group **group);

/* Makes a group of `size` ranks that are threads of this process: groups[r] is the handle of rank r. Free
 * each with weft_group_free. */
WEFT_API weft_status weft_group_threads(int size, weft_group **groups);

/*
 * Threads of the program's own. weft starts worker threads for plans with several workers and for weft_gemm;
 * a program that has a pool, an inference engine or OpenMP, gives it here, and weft starts none.
 *
 * `run` calls body(argument, i) once for each i from 0 to count - 1, on as many threads as it likes, and
 * returns when all of them have returned. Bodies that run one after another are right too, only slower. Ranks
 * that are threads, and weft_gemm from several threads, call `run` at the same time. `threads` is how many it
 * has: the number of workers where nobody asks for another. NULL gives weft its own threads back. For the
 * whole process; not while another call of weft is under way; by the ranks of a group between the same calls.
 */
typedef void (*weft_parallel)(void *context, int count, void (*body)(void *argument, int index),
                              void *argument);
WEFT_API weft_status weft_set_parallel(weft_parallel run, void *context, int threads);

/* Collective over `parent`: ranks that give the same colour become a group, ranked by key, then by their rank
 * in the parent. A negative colour joins none and gets NULL. Free the sub-group with weft_group_free; memory
 * of the parent may be used in it. A rank can be in 64 groups of a world at the same time, the world among
 * them: one more is WEFT_ERR_MEMORY on all ranks. */
WEFT_API weft_status weft_group_split(weft_group *parent, int colour, int key, weft_group **sub);

/* Drops a handle, with whatever the rank still had allocated in the group. Waits for nobody; NULL is fine. */
WEFT_API void weft_group_free(weft_group *group);

/* Ends the group from any thread of any rank, while the handle lives: every wait of every rank returns
 * WEFT_ERR_ABORTED within milliseconds, and so does every later call, with `why` in the sentence (NULL: no
 * reason). Of several the first counts; a group that has failed keeps its error. Sub-groups, and the group
 * it was split from, are other groups and go on. */
WEFT_API weft_status weft_group_abort(weft_group *group, const char *why);

/* For waits of one's own, outside the library: WEFT_ERR_PEER_DIED when `rank` has died or left the group, or
 * with -1, when any rank has died or all others have left, in a group that has failed too. Waits for nobody,
 * and changes nothing about the group. */
WEFT_API weft_status weft_group_check_peer(weft_group *group, int rank);

WEFT_API int weft_rank(const weft_group *group);
WEFT_API int weft_size(const weft_group *group);

/* The sentence of the last error of this handle; with NULL, of the calling thread's last call that failed
 * without one. Never NULL. */
WEFT_API const char *weft_error(const weft_group *group);

/* How long this rank waits for a peer to enter a call (600 s unless WEFT_ENTER_TIMEOUT says otherwise) and
 * for progress once all have entered (30 s, WEFT_PROGRESS_TIMEOUT): so long may pass in which no peer
 * finishes a task (a tile, a block of an expert), not the whole of their work. */
WEFT_API weft_status weft_set_deadlines(weft_group *group, double enter_seconds, double progress_seconds);

/* Collective: returns when every rank has called it. */
WEFT_API weft_status weft_barrier(weft_group *group);

/* ---- symmetric memory ----------------------------------------------------------------------------- */

/* Collective, with the same size and alignment everywhere: an object that every rank has, zeroed; weft_peer
 * finds it on the others. `alignment` is a power of two up to 2 MiB; 0 means 128. A rank may have so much as
 * WEFT_HEAP says. The memory is there when this returns: where a rank may not have it, or its system has
 * none, all get WEFT_ERR_MEMORY, never a signal later, and go on. */
WEFT_API weft_status weft_alloc(weft_group *group, size_t bytes, size_t alignment, void **pointer);

/* Not collective: this rank lets go of what weft_alloc of the same group gave. Its peers may use it, here
 * too, until they free theirs; when all have, it is given back to the system and used for later allocations.
 * NULL is fine. */
WEFT_API weft_status weft_free(weft_group *group, void *pointer);

/* Copies between memory of this process and memory of weft_alloc, in either direction or within either; when
 * it returns the copy is done. What runs on a stream meanwhile is not waited for. For groups on the CPU it is
 * memcpy. */
WEFT_API weft_status weft_memcpy(weft_group *group, void *to, const void *from, size_t bytes);

/* Where `rank` has the object that this rank has at `pointer`; NULL when that is not memory of weft_alloc, of
 * this group or of one it was split from, and when the rank is on another node: its memory cannot be
 * addressed from here. */
WEFT_API void *weft_peer(const weft_group *group, const void *pointer, int rank);

/*
 * For programs of one's own: only the caller takes part, and is told alone of what it asks wrongly. What lies
 * on `rank`, which may be the caller's own, is named by the caller's own address of it: symmetric memory of
 * the group. On the CPU, between ranks that share memory; where weft_peer is NULL, WEFT_ERR_UNSUPPORTED.
 *
 * A signal is WEFT_SIGNAL_BYTES of symmetric memory on such a boundary: a 64-bit count, which begins at 0 and
 * only grows, and room for weft's own. It is touched by these calls alone, and memory that was one is freed,
 * not used for something else.
 *
 * Order: weft_put has written, and weft_get has read, when they return, but a peer may see what was put, or
 * put something else, in any order until a signal says so. A post comes after everything the caller did
 * before; what follows a wait comes after everything that the posters of the counts waited for did before
 * their posts. So do weft_atomic_add of one word for those who see each other's values. Posts of a rank are
 * seen in their order.
 */
#define WEFT_SIGNAL_BYTES 128

WEFT_API weft_status weft_put(weft_group *group, void *to, const void *from, size_t bytes, int rank);
WEFT_API weft_status weft_get(weft_group *group, void *to, const void *from, size_t bytes, int rank);

/* weft_put, then weft_post_signal. */
WEFT_API weft_status weft_put_signal(weft_group *group, void *to, const void *from, size_t bytes,
                                     void *signal, uint64_t add, int rank);

/* Adds to a signal of `rank`, and wakes who waits for it. */
WEFT_API weft_status weft_post_signal(weft_group *group, void *signal, uint64_t add, int rank);

/* Waits until this rank's own signal is at least `value` (as counts that may wrap). `from` is the rank that
 * will post, or -1 where it is not one. As every wait it ends when a rank dies, when the group is aborted and
 * at the deadline for a peer to enter; with `from`, also when that rank waits for this one in another call
 * (WEFT_ERR_MISMATCH). */
WEFT_API weft_status weft_wait_signal(weft_group *group, void *signal, uint64_t value, int from);

/* Adds to a 64-bit word of `rank`, on an 8-byte boundary, whole as others add to it; `before` (may be NULL)
 * gets what it was. */
WEFT_API weft_status weft_atomic_add(weft_group *group, int64_t *word, int64_t add, int rank,
                                     int64_t *before);

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
    WEFT_SCHEDULE_AUTO = 0, /* what `weft tune` kept for the problem; else the fastest by simulation once
                               `weft calibrate` has run; else by a rule */
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
    WEFT_SCHEDULE_PUSH,      /* all_reduce: as multimem, by plain stores */
    WEFT_SCHEDULE_PACKETS,   /* collectives: through the peers' inboxes in one hop; for small messages */
    WEFT_SCHEDULE_CUSTOM,    /* somebody's own, from a file: weft_plan_load */
    WEFT_SCHEDULE_TWO_LEVEL, /* over nodes: inside, across, inside; data crosses to a node once */
    WEFT_SCHEDULE_TWO_SHOT_PACKETS /* all_reduce: slices through the peers' inboxes, there and back */
} weft_schedule;

/* What of an ag_gemm is gathered, and which part of a gemm_rs's result a rank keeps. */
typedef enum weft_layout {
    WEFT_LAYOUT_DEFAULT = 0, /* ag_gemm gathers A; gemm_rs scatters rows; RotatingB and TilingB the other */
    WEFT_LAYOUT_GATHER_A,
    WEFT_LAYOUT_GATHER_B,
    WEFT_LAYOUT_SCATTER_ROWS,
    WEFT_LAYOUT_SCATTER_COLS,
    WEFT_LAYOUT_GATHER_A_K, /* ag_gemm gathers k, the columns of A or the rows of B: gradients of weights */
    WEFT_LAYOUT_GATHER_B_K
} weft_layout;

/* GELU is x Phi(x), SILU x / (1 + exp(-x)); on the CPU both have a relative error of at most 2^-20 where the
 * result is a normal float32, and underflow gradually. NaN stays NaN. */
typedef enum weft_act {
    WEFT_ACT_NONE = 0,
    WEFT_ACT_RELU,
    WEFT_ACT_GELU,
    WEFT_ACT_SILU,
    WEFT_ACT_RELU_GATED,
    WEFT_ACT_GELU_GATED,
    WEFT_ACT_SILU_GATED
} weft_act;

/*
 * Gated: D = act(gate) * up, in ag_gemm, gemm_as and weft_gemm, for a D of float32, float16 or bfloat16 and
 * beta = 0. A column of D comes of two of B that lie side by side: 2 j is the gate of column j,
 * 2 j + 1 its up. n, tiles and parts count columns of D, so that a rank has both; B, bias and col_scale have
 * 2 n of them, and both are scaled and biased before they meet.
 *
 * weft_gate_up writes such a B from its two halves, of k x n elements each (`trans`: stored n x k), whose
 * rows are ld_gate, ld_up and ld_b elements apart; 0 means dense.
 */
WEFT_API weft_status weft_gate_up(weft_dtype dtype, int trans, int64_t k, int64_t n, const void *gate,
                                  int64_t ld_gate, const void *up, int64_t ld_up, void *b, int64_t ld_b);

/* WEFT_AVERAGE: the sum divided by the number of ranks, before it is rounded to the dtype; floats only. */
typedef enum weft_reduction { WEFT_SUM = 0, WEFT_MIN, WEFT_MAX, WEFT_PRODUCT, WEFT_AVERAGE } weft_reduction;

/* Names as the command and plans have them, never NULL; and the schedules of an op in a layout (DEFAULT: of
 * the op's own), without AUTO; none, and NULL, of a layout that the op cannot have. */
WEFT_API const char *weft_op_name(weft_op op);
WEFT_API const char *weft_schedule_name(weft_op op, weft_schedule schedule);
WEFT_API const weft_schedule *weft_schedule_list(weft_op op, weft_layout layout, int *count);

/* How a GEMM op gets B. */
typedef enum weft_b_form {
    WEFT_B_PLAIN = 0,   /* as the caller has it; the plan packs nothing */
    WEFT_B_PACK_IN_RUN, /* as the caller has it; each run packs it once into scratch memory (CPU default) */
    WEFT_B_PREPACKED    /* a handle made by weft_pack: weights that stay */
} weft_b_form;

/* How it is done, where the caller knows better than weft. Nothing of it changes what is computed; zeros
 * leave everything to weft. */
typedef struct weft_tuning {
    int64_t tile_m, tile_n, tile_k; /* 0 = chosen for the machine */
    int workers;                    /* compute lanes of a rank; 0 = chosen for the machine */
    int copiers; /* copy lanes that fetch every piece together; 0 = at most two, each by itself */
    int64_t
        chunk_k;    /* with copiers: in chunks of this much of k; 0 = all of it. On one rank: tiles that leave
                       workers idle are divided over them along k, at multiples of this; 0 = they are not */
    int64_t raster; /* tiles of the divided extent that are walked side by side; 0 = 1 */
    int sums_stay;  /* rotating gemm_rs, two_shot gemm_ar: ranks add to sums at their owner; two_shot
                       all_reduce: they fetch them there, and touch nobody's recv; 0 = not so */
    int grain_n;  /* columns are divided evenly over their tiles, in multiples of this; 0 = all tiles but the
                     last have tile_n */
    int crew;     /* GPUs: SMs that make a tile together, 1 or 2; 0 = chosen for the machine */
    int library;  /* GPUs: who makes the rank's own product. 1 = cuBLASLt where it is installed and can, 2 =
                     weft's walkers, 3 = weft's kernel for products by themselves; 0 = chosen for the case */
    int exchange; /* unfused products of several ranks: how they get what they share. 1 = gemm_rs, gemm_ar:
                     sums are stored into the memory of the rank that owns them, in a gemm_ar of every rank; 2
                     = gemm_ar: of the owner of their rows, who stores the result to all; 3 = GPUs: by the
                     collective of the same bytes as a launch of its own, where it can; 0 = fetched by the
                     ranks that need it, or chosen for the case */
    int staged;   /* 1 = ranks touch nothing of each other's operands: what peers read of them is copied to
                     symmetric memory chunk by chunk, in the run, and results for peers are left there (a B of
                     weft_pack, collectives over nodes by another schedule than two_level and, of all_to_all,
                     push, and on GPUs two_level ag_gemm, unfused ag_gemm, gemm_as and gemm_ar of another
                     exchange than 3 excepted); 0 = by where the operands lie */
    int32_t reserved[4]; /* zero */
} weft_tuning;

/*
 * What is to be computed. Sizes are global; weft_part(x, W, r) of them lies on rank r. `size` is
 * sizeof(weft_problem), so that the struct can grow. Fill it with weft_problem_init, then change what
 * differs. Fields a given op does not use are ignored.
 */
typedef struct weft_problem {
    size_t size;
    weft_op op;
    weft_schedule schedule;
    weft_layout layout;
    int64_t m, n, k;    /* D is m x n */
    int64_t l;          /* batch: this many products; 0 are none */
    weft_dtype dtype;   /* of A and B; of the buffers of a collective */
    weft_dtype d_dtype; /* of C, D and bias; by default dtype, for int8 int32, for fp8 bfloat16; D of fp8 is
                           for products of fp8 */
    weft_dtype wire_dtype; /* of partial sums that travel; by default float32, for int8 always int32 */
    int transa, transb;
    weft_b_form b_form;
    float alpha, beta; /* D = act(alpha A B + beta C + bias); alpha = 0: whatever A and B hold */
    int bias;          /* whether there is one */
    weft_act act;
    int64_t count; /* collectives: elements (all_reduce, broadcast: of the buffer; the others: of one rank's
                      share) */
    weft_reduction reduction;
    int root;
    weft_tuning tuning;
    /* m, n and k are divided over the ranks in multiples of these (weft_part_granular), where they are
     * divided: an attention head's columns stay together with granule_n = its size in the product that makes
     * them and granule_k = it in the one that takes them. 0 = 1. */
    int64_t granule_m, granule_n, granule_k;
    /* Whether runs bring scales (weft_operands): 0 = none; 1 = alpha, row_scale and col_scale, which every
     * run may; 128 = also a_scale and b_scale, of blocks of 128, for products of fp8. On GPUs kernels of fp8
     * apply what this says, and of other types, and for gated activations, the plan has memory for its sums.
     */
    int scales;
    int fp8_fast; /* fp8 on GPUs: sums stay in the tensor cores, which keep about 14 bits of them, instead of
                     being added up in float32 every 128 of k */
} weft_problem;

/* Fills every field with its default: float32, l = 1, alpha = 1, schedule AUTO, layout and tiles chosen by
 * weft; d_dtype and wire_dtype follow dtype. */
#define weft_problem_init(problem, op) weft_problem_init_sized((problem), sizeof(*(problem)), (op))
WEFT_API void weft_problem_init_sized(weft_problem *problem, size_t size, weft_op op);

/* ---- plans and runs ------------------------------------------------------------------------------- */

typedef struct weft_plan weft_plan;

/*
 * The buffers of one run, each the part of its matrix that lies on this rank. What an op does not use is
 * ignored. Leading dimensions and strides between the matrices of a batch are in elements; 0 means dense.
 * Buffers may lie anywhere, on each rank elsewhere (on GPUs what peers touch may move only in the same run on
 * all ranks). In symmetric memory (weft_alloc) nothing is copied on the way to a peer. Elsewhere, on CPUs,
 * what peers need of 256 KiB and more is staged chunk by chunk in the run (tuning.staged), from the first run
 * of an operation on, and in one run after its place changed on some rank as a whole before it, as smaller
 * buffers are, a B of weft_pack, all in plans of files, and over nodes those of collectives by another
 * schedule than two_level and, of all_to_all, push. C may be D. `size` is sizeof(weft_operands).
 */
typedef struct weft_operands {
    size_t size;
    const void *a;
    const void *b; /* with WEFT_B_PREPACKED: what weft_pack wrote; of a batch one after another, each rounded
                      up to 128 bytes */
    const void *c;
    const void *bias; /* one value for each column of D on this rank */
    void *d;
    int64_t lda, ldb, ldc, ldd;
    int64_t stride_a, stride_b, stride_c, stride_d;
    const void *send; /* collectives */
    void *recv;       /* may be send; all_gather and reduce_scatter: the rank's own share of the larger one */
    /* Values of this run; the plan stays. Every rank gives the same alpha and beta, in the same kind of
     * memory, and gives scales or does not. On GPUs scales are in memory of the GPU. An alpha or beta there
     * is read when the run comes to it, so that a graph takes new ones; in the host's it is that of the call.
     * A value that the plan's kernels do not apply (one of the GPU's, but for fp8 with `scales`; 0 for
     * another; an alpha where the problem's is 1) and scales that the problem does not tell of are applied by
     * a kernel behind the product, to sums in float32, for which the first such run, which is collective,
     * takes memory. */
    const float *alpha, *beta;          /* NULL = the problem's; beta is for problems whose own is not 0 */
    const float *row_scale, *col_scale; /* what is added up times these, as in weft_gemm: a factor for each
                                           row (column) of D on this rank; NULL = 1 */
    /* Problems whose `scales` is 128: a factor for every 128 of k in a row of A, and one for every block of
     * 128 of k and 128 columns of B; NULL = 1. They are those of what this rank multiplies: of all rows
     * (columns) that D has here with ag_gemm, of the rank's own A and B with the others, k counted from the
     * rank's first. Without gaps, lying as the matrix does: m x k/128, k/128 x n/128, each rounded up, and
     * transposed where A (B) is. The matrices of a batch have the same. */
    const float *a_scale, *b_scale;
} weft_operands;

/*
 * Collective: makes a plan of the problem on every rank. All ranks must ask for the same; rank 0 decides for
 * all what was left open (schedule, tiles, workers). A plan holds no buffers and may run any number of times.
 */
WEFT_API weft_status weft_plan_create(weft_group *group, const weft_problem *problem, weft_plan **plan);

/*
 * Collective: the plan in a file, as `weft plan` writes it, as text or JSON, with the parts of as many ranks
 * as the group has; docs/plans.md says how to write one. Every rank checks all of it: a plan that is not
 * right is WEFT_ERR_ARGUMENT with what is wrong, by rank, task and region, and never runs. So are files that
 * differ between the ranks, as WEFT_ERR_MISMATCH.
 */
WEFT_API weft_status weft_plan_load(weft_group *group, const char *path, weft_plan **plan);

/* Collective: one run. When it returns, this rank's results are complete and its inputs may be overwritten. A
 * rejected argument on one rank is an error on all ranks, and the group stays usable. */
WEFT_API weft_status weft_run(weft_plan *plan, const weft_operands *operands);

/*
 * One run in the order of a stream. `stream` is a CUstream (cudaStream_t) of this rank's GPU, NULL the
 * default stream, as everywhere in CUDA, WEFT_STREAM_OWN the group's own. Ranks that are threads on one GPU
 * use different streams, not the default one. Returns when the run is on the stream: when the stream has
 * passed it, results are complete and inputs may be overwritten. Runs of one rank follow each other: they are
 * on one stream, or on streams that wait for one another.
 *
 * It is collective. Operands that peers touch are told to them on the host when they are new to the plan, in
 * the same call on every rank. Otherwise a kernel is put on the stream and nothing else happens, so that a
 * run whose operands are known may be captured into a CUDA graph and replayed; ranks whose replays differ
 * wait until the deadline. Then a rejected argument puts nothing on the stream, and the peers wait for this
 * rank's next call. Operands that were told in one call belong together: a run in which ranks mix those of
 * different calls ends with WEFT_ERR_MISMATCH.
 *
 * What goes wrong in the run (a rank that dies, a wait that expires) is told by weft_run_wait, and by every
 * call after it. On the CPU, where stream must be NULL or WEFT_STREAM_OWN, this is weft_run.
 */
WEFT_API weft_status weft_run_on(weft_plan *plan, const weft_operands *operands, void *stream);

/* Waits until the stream has passed everything that is on it; how the plan's runs went. */
WEFT_API weft_status weft_run_wait(weft_plan *plan, void *stream);

/* Not collective. NULL is fine. */
WEFT_API void weft_plan_destroy(weft_plan *plan);

/* What the plan does, with everything decided: schedule, layout, tiles, workers. Lives as long as the plan.
 */
WEFT_API const weft_problem *weft_plan_problem(const weft_plan *plan);

/* ---- tensor-parallel products in one call --------------------------------------------------------- */

/*
 * Collective. Plans are kept by problem in the group, so that a call of a known one costs no more than a run;
 * another alpha or beta is no other problem. Kept are the 64 that were used last, and of those as
 * many as have 64 MiB together; on GPUs 512 MiB, of symmetric memory and what a plan's first run takes beside
 * it, and any that a graph captured; what runs with other operands take beside it has 512 MiB on a rank. For
 * a new one, another m, each rank plans by itself, and they exchange nothing but what a run does: on the CPUs
 * of one node, after the first, unless it needs more memory than all before it, ranks have different CPUs,
 * calibrations or numbers of workers, or there is a file of `weft tune`. `problem` may leave its op open; the
 * function sets it. What rank r holds, and what it gets:
 * - ag_gemm: A rows part r, B columns part r; D = A B, columns (with GATHER_B rows) part r.
 *   GATHER_A_K: A columns part r, B columns part r; columns part r. GATHER_B_K: A rows part r, B rows part
 *   r; rows part r. B is plain in both.
 * - gemm_rs: A columns part r, B rows part r; the sum over ranks, rows (with SCATTER_COLS columns) part r.
 * - gemm_ar: A columns part r, B rows part r; the sum over ranks, whole, on every rank.
 * - gemm_as: A whole, B columns part r; D = A B, whole, on every rank.
 */
WEFT_API weft_status weft_ag_gemm(weft_group *group, const weft_problem *problem,
                                  const weft_operands *operands);
WEFT_API weft_status weft_gemm_rs(weft_group *group, const weft_problem *problem,
                                  const weft_operands *operands);
WEFT_API weft_status weft_gemm_ar(weft_group *group, const weft_problem *problem,
                                  const weft_operands *operands);
WEFT_API weft_status weft_gemm_as(weft_group *group, const weft_problem *problem,
                                  const weft_operands *operands);

/* ---- collectives ---------------------------------------------------------------------------------- */

/*
 * Collective. Reductions take float32, float16, bfloat16 (combined in float32, in rank order), float64,
 * integers (sums wrap) and bool; movement takes any dtype, WEFT_BYTE for plain bytes. `count` is the number
 * of elements of the buffer (all_reduce, broadcast) or of one rank's share (the others). Every rank gets the
 * same bits. recv may be send; all_gather and reduce_scatter: the rank's own share of the larger one.
 *
 * On GPUs buffers are any memory the GPU can use; large ones that do not come from weft_alloc are copied on
 * their way. A rank that rejects its arguments is told alone, and the others wait for its next call. Ranks
 * that make different calls all get WEFT_ERR_MISMATCH, where they wait for their results.
 */
WEFT_API weft_status weft_all_reduce(weft_group *group, const void *send, void *recv, int64_t count,
                                     weft_dtype dtype, weft_reduction reduction);
WEFT_API weft_status weft_all_gather(weft_group *group, const void *send, void *recv, int64_t count,
                                     weft_dtype dtype);
WEFT_API weft_status weft_reduce_scatter(weft_group *group, const void *send, void *recv, int64_t count,
                                         weft_dtype dtype, weft_reduction reduction);
WEFT_API weft_status weft_all_to_all(weft_group *group, const void *send, void *recv, int64_t count,
                                     weft_dtype dtype);
/* The root's buffer to every rank's. */
WEFT_API weft_status weft_broadcast(weft_group *group, void *buffer, int64_t count, weft_dtype dtype,
                                    int root);

/*
 * With a count for each rank, all of which lie one after another in the larger buffer, in rank order. Every
 * rank gives the same `counts` (all_gather: what each sends; reduce_scatter: what each keeps); in all_to_all
 * a rank gives what it sends to each and what it gets from each. Different counts are WEFT_ERR_MISMATCH on
 * every rank. `recv` and `send` do not overlap, but for a rank's own share in its place (all_gather,
 * reduce_scatter).
 *
 * On GPUs buffers are any memory the GPU can use and counts memory of the host, which a call has read when it
 * returns. Hosts tell each other nothing, so that other counts and buffers cost no more than those before,
 * and a graph may capture a call at once. A rank that rejects its arguments is told alone. Different counts
 * are told where the ranks wait for their results, and the group is lost; to a rank of an all_to_all whose
 * own are as its peers expect, by its next call.
 */
WEFT_API weft_status weft_all_gather_v(weft_group *group, const void *send, void *recv, const int64_t *counts,
                                       weft_dtype dtype);
WEFT_API weft_status weft_reduce_scatter_v(weft_group *group, const void *send, void *recv,
                                           const int64_t *counts, weft_dtype dtype, weft_reduction reduction);
WEFT_API weft_status weft_all_to_all_v(weft_group *group, const void *send, const int64_t *send_counts,
                                       void *recv, const int64_t *recv_counts, weft_dtype dtype);

/* With a root, as above. gather: `count` elements of every rank, in rank order, to the root's recv. scatter:
 * `count` elements for each from the root's send. reduce: the root gets what all_reduce would give. What only
 * the root has may be NULL elsewhere. */
WEFT_API weft_status weft_gather(weft_group *group, const void *send, void *recv, int64_t count,
                                 weft_dtype dtype, int root);
WEFT_API weft_status weft_scatter(weft_group *group, const void *send, void *recv, int64_t count,
                                  weft_dtype dtype, int root);
WEFT_API weft_status weft_reduce(weft_group *group, const void *send, void *recv, int64_t count,
                                 weft_dtype dtype, weft_reduction reduction, int root);

/*
 * From one rank to another; nobody else takes part. Messages between two ranks arrive in the order they were
 * sent. weft_send returns when the receiver has the message, so two ranks that first send to each other both
 * get WEFT_ERR_MISMATCH; a message of another count or dtype than the receiver asks for is that too, and
 * poisons the group. On GPUs a message goes on the stream of the group's calls, like a collective with
 * counts: the stream has passed a send when the receiver has the message, and what goes wrong is told by who
 * waits for the stream.
 */
WEFT_API weft_status weft_send(weft_group *group, const void *buffer, int64_t count, weft_dtype dtype,
                               int to);
WEFT_API weft_status weft_recv(weft_group *group, void *buffer, int64_t count, weft_dtype dtype, int from);

/* ---- products on one rank ------------------------------------------------------------------------- */

/* B packed for this CPU's kernels. Holds no pointers: ranks may share one in symmetric memory. */
typedef struct weft_packed weft_packed;

/*
 * D = act(alpha * row_scale[i] * col_scale[j] * A * B + beta * C + bias[j]), row-major, by the threads of
 * this process (weft_set_parallel). Calls of several threads run beside each other. `size` is
 * sizeof(weft_gemm_args); fill it with weft_gemm_args_init, then change what differs. Sums are fp32 (int8:
 * int32) in an order that does not depend on the number of threads. With alpha = 0 A and B are not read.
 */
typedef struct weft_gemm_args {
    size_t size;
    int64_t m, n, k;
    int64_t l;                          /* batch: this many products, the strides apart; 0 are none */
    weft_dtype dtype;                   /* F32, F16, BF16, I8, FP8_E4M3 or FP8_E5M2: what is multiplied */
    weft_dtype a_dtype, b_dtype;        /* F32, F16 and BF16 are rounded to dtype. I8 and either fp8 are read,
                                           exactly, by products of F32, F16 and BF16: weights stored so, with
                                           col_scale. A product of I8 reads I8 alone, one of fp8 fp8 alone */
    weft_dtype d_dtype;                 /* of C, D and bias: F32, F16, BF16; for I8 products also I32, I8; for
                                           fp8 ones (BF16 unless set) also either fp8 */
    int transa, transb;                 /* A is stored k x m; B is stored n x k */
    const void *a, *b;                  /* b may be NULL when packed_b is given */
    const weft_packed *packed_b;        /* from weft_pack; used instead of b, for every l */
    const void *c, *bias;               /* c is not read when beta is 0; bias may be NULL */
    const float *row_scale, *col_scale; /* m and n factors; NULL = 1 */
    void *d;                            /* may be c */
    int64_t lda, ldb, ldc, ldd;         /* elements between rows as stored; 0 = no gap */
    int64_t stride_a, stride_b, stride_c, stride_d; /* elements between batch entries; 0 = no gap */
    float alpha, beta;
    weft_act act;
    int f16_fast; /* F16: sum in fp16 inside a block of k; twice as fast, less exact */
    int threads;  /* 0 = all CPUs this thread may run on, as far as a container's quota goes, or those of
                     weft_set_parallel; 1 = the caller alone */
} weft_gemm_args;

#define weft_gemm_args_init(args, dtype, m, n, k)                                                            \
    weft_gemm_args_init_sized((args), sizeof(*(args)), (dtype), (m), (n), (k))
WEFT_API void weft_gemm_args_init_sized(weft_gemm_args *args, size_t size, weft_dtype dtype, int64_t m,
                                        int64_t n, int64_t k);
WEFT_API weft_status weft_gemm(const weft_gemm_args *args);

/*
 * Packs B (args->b with k, n, dtype, b_dtype, transb, ldb, act, f16_fast, threads) into `memory`, which has
 * weft_pack_bytes(args) bytes on a 128-byte boundary; then args->packed_b = *packed for any m.
 * weft_pack_bytes is 0 when the arguments are impossible; weft_error(NULL) says why.
 */
WEFT_API size_t weft_pack_bytes(const weft_gemm_args *args);
WEFT_API weft_status weft_pack(const weft_gemm_args *args, void *memory, const weft_packed **packed);

/*
 * Products of many experts in one call: for each expert e, D = act(alpha * row_scale[i] * col_scale[e][j] * A
 * * B[e] + bias[e][j]) over its rows. Those of A and D lie together, expert after expert: offset[e + 1] -
 * offset[e] of them from row start[e] on, or from row offset[e] where start is NULL: what weft_moe_dispatch
 * shows, and weft_moe_layout gives. The other rows of D stay as they are. `size` is
 * sizeof(weft_grouped_args); fill it with weft_grouped_args_init, then change what differs. A gated act is as
 * above: B, bias and col_scale of an expert have 2 n columns.
 *
 * Not collective. With NULL or a group on the CPU each product is weft_gemm's, to the bit. With a group on
 * GPUs everything is memory of its GPU, also offset and start, which the kernel reads there: so the call goes
 * on the stream of the group's calls (weft_group_set_stream), waits for nobody, and may be captured into a
 * CUDA graph and replayed with other offsets. There it takes float16 and bfloat16 (a_dtype and b_dtype are
 * dtype, d_dtype that or float32; b_dtype also fp8 with transb, converted, exactly, in the kernel), on Hopper
 * GPUs, with A and B on 16-byte boundaries, also row by row and matrix by matrix; others are
 * WEFT_ERR_UNSUPPORTED. Offsets that do not rise, and rows beyond `rows`, are
 * WEFT_ERR_ARGUMENT on the CPU; on a GPU such rows are left out. Calls of a group on a GPU follow each other.
 */
typedef struct weft_grouped_args {
    size_t size;
    int experts;
    int64_t rows; /* of A and D: so many may be read and written */
    int64_t n, k;
    weft_dtype dtype, a_dtype, b_dtype, d_dtype; /* as of weft_gemm; d_dtype of D and bias */
    int transb;                                  /* a matrix of B is stored n x k */
    const int64_t *offset;                       /* experts + 1 */
    const int64_t *start;                        /* experts; NULL = offset */
    const void *a, *b;                           /* b: the experts' matrices, stride_b elements apart */
    const weft_packed *const *packed_b; /* used instead of b: what weft_pack made of each; CPU only */
    const void *bias;                   /* experts x n; NULL = none */
    const float *row_scale, *col_scale; /* `rows`, and experts x n; NULL = 1 */
    void *d;
    int64_t lda, ldb, ldd, stride_b; /* elements; 0 = no gap */
    float alpha;
    weft_act act;
    int f16_fast, threads; /* as of weft_gemm; CPU only */
} weft_grouped_args;

#define weft_grouped_args_init(args, dtype, experts, rows, n, k)                                             \
    weft_grouped_args_init_sized((args), sizeof(*(args)), (dtype), (experts), (rows), (n), (k))
WEFT_API void weft_grouped_args_init_sized(weft_grouped_args *args, size_t size, weft_dtype dtype,
                                           int experts, int64_t rows, int64_t n, int64_t k);
WEFT_API weft_status weft_grouped_gemm(weft_group *group, const weft_grouped_args *args);

/* ---- mixture of experts --------------------------------------------------------------------------- */

/*
 * A layer routes each token to its experts, wherever they live, and brings the weighted sum of their
 * results back. One round is dispatch, experts, combine; the round after it needs no barrier. All ranks make
 * the same sequence of rounds on a lane. A lane is one round in flight: two lanes keep two micro-batches.
 *
 * If a rank's input is rejected, its call returns WEFT_ERR_ARGUMENT and names the token, the others return
 * WEFT_ERR_PEER in the same round, and the next round works. A call out of order returns WEFT_ERR_STATE, one
 * with a wrong lane, a view of a wrong size or NULL for results or y WEFT_ERR_ARGUMENT: it changes nothing
 * and can be made again, which the others wait for.
 *
 * On a group of GPUs (weft_group_use_gpu) the same calls put kernels on the group's stream, and every array
 * they are given or show is memory of the GPU: tokens, experts, weights, results, y, `start` and `rows` of a
 * layout, and the arrays of a view but `expert`. Routing, placement and sums are made there, so that calls
 * ordered on a stream (weft_group_set_stream) never wait for it and a captured round may be replayed with
 * other routings; view.rows is then -1. A routing that cannot be right is told by weft_group_wait, and the
 * round does nothing; a layout that is too narrow likewise: rows of that expert are left out and count as
 * zeros. Experts are the caller's kernels between dispatch and combine, or weft_moe_forward with the
 * feed-forward expert, and with it alone. The rungs below fused are for CPUs.
 */
typedef struct weft_moe weft_moe;

typedef enum weft_moe_mode {
    WEFT_MOE_EXACT = 0, /* every result row travels; summed in ascending expert id: same bits for any ranks */
    WEFT_MOE_REDUCED    /* one row per token and rank travels, its local experts already summed */
} weft_moe_mode;

/* The ladder: the same results by ever better means. All but `fused` are exact mode only. */
typedef enum weft_moe_impl {
    WEFT_MOE_FUSED = 0, /* one row per token and rank, read in place; results written where they are summed */
    WEFT_MOE_ROWS,      /* one row and one flag per token and expert */
    WEFT_MOE_SORTED,    /* sort by expert, all-to-all, inverse */
    WEFT_MOE_REFERENCE  /* loops */
} weft_moe_impl;

/*
 * How tokens travel. As fp8: every 128 elements of a token, of the layer's dtype, are divided by their scale,
 * a float32: 1/448 of their largest magnitude, which counts as 2^-100 if it is less. They become e4m3, and
 * are multiplied by it again, and rounded to dtype, where rows are gathered or an expert is called; own
 * tokens too, so that results do not depend on where experts live. What is rounded and how is the same on
 * CPUs and GPUs, to the bit. 128 elements with an infinity or NaN among them all become NaN. Results travel
 * as they are.
 */
typedef enum weft_moe_wire {
    WEFT_MOE_WIRE_GIVEN = 0, /* the bytes that are given */
    WEFT_MOE_WIRE_FP8
} weft_moe_wire;

/* What a layer is. Every rank gives the same, but for threads. Fill with weft_moe_config_init, then set what
 * differs. */
typedef struct weft_moe_config {
    size_t size; /* sizeof(weft_moe_config) */
    int experts, topk;
    int64_t hidden;         /* elements of a result row */
    int64_t tokens;         /* capacity: the most tokens a rank gives in one round */
    weft_dtype dtype;       /* of results and outputs: float16, bfloat16, float32 */
    int64_t row_bytes;      /* of a token as it is dispatched (any bytes); 0 = hidden elements of dtype */
    const int *expert_rank; /* where each expert lives; NULL = contiguous parts, the larger ones first */
    weft_moe_mode mode;
    weft_moe_impl impl;
    int lanes;
    int threads;        /* on CPUs, that share the rows which a round copies and sums, and each product of the
                           feed-forward expert; 1 = the caller's alone (default), 0 = all CPUs it may run on. They
                           belong to the process: not for ranks that are threads. */
    weft_moe_wire wire; /* fp8: rows are hidden elements of dtype, and row_bytes is 0 or says so */
} weft_moe_config;

#define weft_moe_config_init(config) weft_moe_config_init_sized((config), sizeof(*(config)))
WEFT_API void weft_moe_config_init_sized(weft_moe_config *config, size_t size);

/* Bytes of symmetric memory and of private memory a rank of `ranks` will need, on CPUs. */
WEFT_API weft_status weft_moe_bytes(const weft_moe_config *config, int ranks, size_t *symmetric_bytes,
                                    size_t *private_bytes);

/* Not collective: the same for this rank of a group, whatever it works on; on GPUs both are the GPU's memory.
 */
WEFT_API weft_status weft_moe_group_bytes(weft_group *group, const weft_moe_config *config,
                                          size_t *symmetric_bytes, size_t *private_bytes);

/* Collective. Ranks that disagree on the configuration all get WEFT_ERR_MISMATCH. */
WEFT_API weft_status weft_moe_create(weft_group *group, const weft_moe_config *config, weft_moe **moe);

/* Not collective, when this rank has finished its last round. NULL is fine. */
WEFT_API weft_status weft_moe_free(weft_moe *moe);

/* Tokens of one round. */
typedef struct weft_moe_input {
    size_t size; /* sizeof(weft_moe_input) */
    int64_t tokens;
    /* tokens x row_bytes. In symmetric memory of the group it is read in place, by every rank, and must stay
     * unchanged until combine returns; other memory, and tokens that travel as fp8, are free again when
     * dispatch (send) returns. */
    const void *x;
    const int32_t *expert; /* tokens x topk, distinct in a token, -1 = none; NULL = the routing before */
    const float *weight;   /* tokens x topk; NULL = the weights before with that routing, else 1 */
} weft_moe_input;

/*
 * What a rank received. A row is one token of one rank; an entry is a row for one local expert. Entries of
 * local expert j are offset[j] .. offset[j + 1], ordered by source rank, then token. Valid until the lane's
 * next dispatch; the rows themselves until its combine has sent. Rows are shown as they travelled: as fp8, a
 * byte for each element, then, from the next multiple of 16 bytes on, their scales.
 */
typedef struct weft_moe_view {
    size_t size; /* sizeof(weft_moe_view), set by the caller */
    int64_t rows;
    const void *const *row; /* read only */
    const int32_t *source, *token;
    int experts;           /* that live here */
    const int32_t *expert; /* their global ids, ascending */
    const int64_t *offset; /* experts + 1 */
    const int32_t *entry_row;
    const float *entry_weight;
} weft_moe_view;

/* dispatch = send, then receive; the parts allow other work in between. `view` may be NULL. */
WEFT_API weft_status weft_moe_dispatch_send(weft_moe *moe, int lane, const weft_moe_input *input);
WEFT_API weft_status weft_moe_dispatch_recv(weft_moe *moe, int lane, weft_moe_view *view);
WEFT_API weft_status weft_moe_dispatch(weft_moe *moe, int lane, const weft_moe_input *input,
                                       weft_moe_view *view);

/*
 * Where packed rows of each local expert start, in rows. `alignment` > 0: experts one after another, each
 * starting at a multiple of it. `alignment` < 0: padded, each expert has -alignment rows, and more entries
 * than that are an error. `start` has view.experts places; *rows receives the rows the buffer needs.
 */
WEFT_API weft_status weft_moe_layout(weft_moe *moe, int lane, int64_t alignment, int64_t *start,
                                     int64_t *rows);

/* Copies the received rows, as they were before they travelled, to `packed` (row_bytes apart) in that layout;
 * padding is left as it is. */
WEFT_API weft_status weft_moe_gather(weft_moe *moe, int lane, const int64_t *start, void *packed);

/* Results are rows of `hidden` elements in the layout of `start`; NULL = entries one after another. Tokens
 * without an expert give zeros. `y` is tokens x hidden. */
WEFT_API weft_status weft_moe_combine_send(weft_moe *moe, int lane, const void *results,
                                           const int64_t *start);
WEFT_API weft_status weft_moe_combine_recv(weft_moe *moe, int lane, void *y);
WEFT_API weft_status weft_moe_combine(weft_moe *moe, int lane, const void *results, const int64_t *start,
                                      void *y);

/* An expert as a callback. */
typedef struct weft_moe_expert {
    size_t size; /* sizeof(weft_moe_expert) */
    void *context;
    /* `rows` rows through one expert (global id); in and out do not overlap. Required. */
    void (*block)(void *context, int expert, int64_t rows, const void *const *in, void *const *out);
    /* One row through all of its experts here: out = sum of weight[i] * expert[i](in), in the order given,
     * rounded to the type of results; then, if `other` is not NULL, plus that row of results, rounded again.
     * Used instead of `block` in reduced mode when not NULL: for experts too cheap to store their results. */
    void (*row)(void *context, int64_t experts, const int32_t *expert, const float *weight, const void *in,
                const void *other, void *out);
    int64_t block_rows; /* received rows worked on together; 0 = as many as stay in the cache */
    /* Rows of one expert that are worth a call, for experts that gain from many (a GEMM); with block_rows 0.
     * `block` is called with so many as soon as they have arrived, from whichever ranks, and last with what
     * is left: half to one and a half times as many, or all rows of an expert that has fewer. 0 = any. */
    int64_t expert_rows;
} weft_moe_expert;

/* A whole round. Experts start on rows that have arrived while others are on their way, and their results
 * are written straight to where they are summed. */
WEFT_API weft_status weft_moe_forward(weft_moe *moe, int lane, const weft_moe_input *input,
                                      const weft_moe_expert *expert, void *y);

/* What the last round of a lane did on this rank. */
typedef struct weft_moe_stats {
    size_t size; /* sizeof(weft_moe_stats), set by the caller */
    int64_t tokens;
    int64_t rows_sent, results_sent;       /* rows this rank sent in dispatch and in combine, to any rank */
    int64_t rows_received, entries;        /* rows that came here, and rows times their experts here */
    int64_t dispatch_bytes, combine_bytes; /* of the rows sent */
    double dispatch_us, combine_us;        /* forward: until rows could be read; the rest, experts included */
} weft_moe_stats;

WEFT_API weft_status weft_moe_get_stats(const weft_moe *moe, int lane, weft_moe_stats *stats);

/*
 * The feed-forward expert: down(silu(x gate) * (x up)), weights packed once for the GEMM engine, as an expert
 * for weft_moe_forward. For each expert that lives here, in ascending id: gate and up are hidden x inter,
 * down is inter x hidden, row-major, of the layer's dtype. They may be freed after the call.
 *
 * On GPUs the matrices are memory of the GPU, their products weft_grouped_gemm's: float16 and bfloat16,
 * hidden and inter multiples of 8, one Hopper GPU or several. What lies between the two products is rounded
 * to dtype. It keeps room for all rows that a round can bring: ranks x tokens x topk (or experts here, if
 * fewer) of hidden + inter elements. Not collective.
 */
typedef struct weft_moe_ffn weft_moe_ffn;

WEFT_API weft_status weft_moe_ffn_create(weft_moe *moe, int64_t inter, const void *const *gate,
                                         const void *const *up, const void *const *down, weft_moe_ffn **ffn);

/*
 * The same with weights as a model stores them: of any type that a product of the layer's type reads
 * (weft_gemm_args), so also int8 and fp8, which are converted exactly while they are packed. On GPUs fp8
 * stays so in memory, and is converted where it is multiplied; others are converted while they are copied. A
 * list of scales has for each expert that lives here a factor for every column of its matrix (inter of gate
 * and up, hidden of down), on GPUs in their memory, by which products are multiplied; NULL, the list or one
 * of it, is 1. Everything may be freed after the call. `size` is sizeof(weft_moe_weights).
 */
typedef struct weft_moe_weights {
    size_t size;
    int64_t inter;
    weft_dtype dtype;
    const void *const *gate;
    const void *const *up;
    const void *const *down;
    const float *const *gate_scale;
    const float *const *up_scale;
    const float *const *down_scale;
} weft_moe_weights;

WEFT_API weft_status weft_moe_ffn_create_stored(weft_moe *moe, const weft_moe_weights *weights,
                                                weft_moe_ffn **ffn);
/* Fills an expert whose size is set. */
WEFT_API weft_status weft_moe_ffn_expert(weft_moe_ffn *ffn, weft_moe_expert *expert);
WEFT_API void weft_moe_ffn_free(weft_moe_ffn *ffn);

/* The experts that live on this rank: their number, and their global ids, ascending. */
WEFT_API int weft_moe_local_experts(const weft_moe *moe, const int32_t **expert);

/* ---- GPUs ----------------------------------------------------------------------------------------- */

/*
 * Collective, once, before the group's first plan: from here on its ranks work on NVIDIA GPUs. weft_alloc
 * gives GPU memory, and plans run as kernels. `device` is this rank's GPU as CUDA numbers them; -1 takes the
 * GPUs in turn, rank by rank. A machine, driver or build without one is WEFT_ERR_UNSUPPORTED on every rank.
 * Before this returns, peers' access to each other's memory has been shown by a transfer, and that their
 * kernels run at the same time by a meeting of them; WEFT_ERR_TIMEOUT says that they do not.
 *
 * Ranks may share a GPU, as threads or as processes: each uses its part of the SMs, so that kernels which
 * wait for each other are there at once. Processes on one GPU should run under MPS; without it they take
 * turns, with the same results but slowly.
 *
 * On GPUs: products of float16, bfloat16 and fp8 (weft_plan_create, weft_run, weft_ag_gemm and its kin),
 * and the collectives, whose operands may be any memory the GPU can use. What peers touch of them, where it
 * does not come from weft_alloc, is staged chunk by chunk in the run (tuning.staged) where ranks have a GPU
 * each and the schedule can; where ranks share one, in a fused gemm_ar (of more than two ranks not by
 * two_level), in other products from 16 MiB of a rank on, and in an all_gather from 4 MiB on, where that was
 * measured to be faster. Else it is copied as a whole, on the stream. A gemm_rs of a D without gaps between
 * its lines copies nothing, nor does an unfused ag_gemm of such an A in equal shares and k in eights. A
 * collective's may be other memory in every call. Collectives with counts or a root, and messages, in groups
 * of up to 96 ranks. Mixture of experts, and weft_grouped_gemm. weft_gemm works
 * on the CPU, with memory of the CPU.
 *
 * Ranks on several nodes, and on GPUs that have no access to each other's memory (cuDeviceCanAccessPeer),
 * have collectives, messages and the four products, with the types of the CPU, staged through the host
 * (docs/nodes.md): calls return when their results are there. weft_alloc gives memory that only its rank can
 * address; mixture of experts and weft_grouped_gemm are WEFT_ERR_UNSUPPORTED.
 */
WEFT_API weft_status weft_group_use_gpu(weft_group *group, int device);

/*
 * For groups on GPUs, not collective: with `ordered` not 0, products in one call, collectives, messages and
 * rounds of mixture of experts of this handle go on `stream` from here on, as weft_run_on puts a run there:
 * they return when they are on it, may be captured into CUDA graphs once a call with such operands has been
 * made (and its plan is still kept: capture before many others), those with counts or a root and messages at
 * once, and a rejected argument puts nothing on the stream.
 * `stream` is as of weft_run_on. With 0, as at first, they return when they are done. What a capture holds is
 * kept: capture on every rank.
 */
#define WEFT_STREAM_OWN ((void *)(intptr_t)-1) /* the group's own stream */
WEFT_API weft_status weft_group_set_stream(weft_group *group, int ordered, void *stream);

/* Waits until that stream has passed everything that is on it; how the calls went. */
WEFT_API weft_status weft_group_wait(weft_group *group);

/*
 * For kernels of one's own on a group's GPU memory, in CUDA C++ (weft/device.cuh), Triton or CuPy. Groups on
 * the CPU: WEFT_ERR_UNSUPPORTED.
 *
 * Not collective: `table` gets the address of as many addresses as the group has ranks, in the memory of this
 * rank's GPU: where each rank has what this rank has at `pointer`, as weft_peer says, in rank order. It lives
 * as long as the group, and is the same for the same pointer.
 */
WEFT_API weft_status weft_peer_table(weft_group *group, const void *pointer, void *const **table);

/* How a wait on the device ended that did not get what it waited for. */
typedef struct weft_signal_record {
    uint32_t ended; /* not 0: on some rank a wait was given up, and all others end too */
    uint32_t set;   /* 2: on this rank, and the rest says which */
    uint32_t signal;
    uint32_t reserved;
    uint64_t have, want;
} weft_signal_record;

/*
 * Signals that kernels post and wait for, passed to them by value. They are 64-bit counts, which begin at 0
 * and only grow, one every WEFT_SIGNAL_BYTES; that of another rank is `stride` bytes further for every rank
 * between them, as all symmetric memory is.
 *
 * Order, in PTX: a post is red.release.sys, after a barrier of the threads whose stores it stands for; a wait
 * is ld.acquire.sys until the count is there, then a barrier of the threads that go on. So what follows a
 * wait comes after everything that came before the posts it waited for, on any rank. A kernel that waits ends
 * when `record->ended` or `*stop` is not 0, or `deadline_ns` have passed, and then writes the record and
 * raises `ended` on every rank, as weft/device.cuh does: nothing hangs. Kernels that wait for others' must be
 * on the GPU with them: of ranks that share one, each has at most its share of the SMs.
 */
typedef struct weft_signal_pad {
    size_t size; /* sizeof(weft_signal_pad), set by the caller */
    int32_t rank, ranks;
    int64_t stride;
    uint64_t *signals; /* this rank's, symmetric memory: weft_free gives the pad back */
    uint32_t count, reserved;
    weft_signal_record *record; /* this rank's, symmetric too */
    const uint32_t *stop;       /* the host's word: the group is lost */
    uint64_t deadline_ns;       /* that for a peer to enter a call; may be changed */
} weft_signal_pad;

/* Collective: `count` signals on every rank. */
WEFT_API weft_status weft_signal_pad_create(weft_group *group, uint32_t count, weft_signal_pad *pad);

/* Waits until the stream (as of weft_run_on) has passed everything that is on it, looking after the peers
 * meanwhile: when one dies or the group is aborted, the kernels' waits end. How the pad's waits went: one
 * that was given up is WEFT_ERR_TIMEOUT on every rank that asks, and the group is lost. */
WEFT_API weft_status weft_signal_pad_wait(weft_group *group, const weft_signal_pad *pad, void *stream);

#ifdef __cplusplus
}
#endif

#endif
