/*
 * weft: tensor-parallel matrix products and mixture-of-experts routing over several ranks, with the
 * communication woven into the compute.
 *
 * The whole interface: C11, also from C++, without a type of CUDA or MPI. Here stands what a caller needs;
 * docs/contract.md has the rest of what calls promise. What can fail returns a weft_status, and weft_error
 * says what went wrong. The library never exits, aborts or prints.
 *
 * The shortest way: weft_init, weft_alloc, weft_problem_init, a product or a collective in one call,
 * weft_finalize (examples/mlp.c). The first six parts are for that; of the others read what you use.
 *
 * Structs that callers make begin with `size`, their sizeof; functions that fill one with defaults set it, of
 * the others (weft_moe_input, _view, _expert, _stats, weft_signal_pad) the caller. They only grow, at their
 * end, where zero is the default. Frozen since 0.2: functions, fields, enumerators (docs/architecture.md).
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
    WEFT_F64,  /* this and the next two: collectives only */
    WEFT_U8,
    WEFT_BOOL,     /* a byte, 0 or 1; its sum is "or", its product "and" */
    WEFT_FP8_E4M3, /* products and movement; no reductions */
    WEFT_FP8_E5M2
} weft_dtype;

/* fp8 is what torch calls float8_e4m3fn and float8_e5m2: products multiply it exactly and add up in float32;
 * stored results are rounded to nearest even and saturate. */

typedef struct weft_group weft_group;

/* As it stands above, and one sentence for it. Never NULL. */
WEFT_API const char *weft_status_name(weft_status status);
WEFT_API const char *weft_status_text(weft_status status);

/* Of this header, and of the library that runs, which may be any later one of the same soname. */
#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 2
#define WEFT_VERSION_PATCH 0
WEFT_API const char *weft_version(void);

/* Bytes of an element (0: no dtype), and its name, "float32" and so on. Never NULL. */
WEFT_API size_t weft_dtype_size(weft_dtype dtype);
WEFT_API const char *weft_dtype_name(weft_dtype dtype);

/* ---- groups --------------------------------------------------------------------------------------- */

/* A handle stands for one rank and is used by one thread at a time (weft_group_abort: by any). A process may
 * have any number of groups; a rank is a process, or a thread that made its handle itself.
 *
 * Calls marked collective are made by every rank of the group, in the same order. A rank that rejects its
 * arguments gets WEFT_ERR_ARGUMENT, the others WEFT_ERR_PEER, and the group goes on, unless a call says
 * otherwise; ranks that ask for different things get WEFT_ERR_MISMATCH. After WEFT_ERR_TIMEOUT,
 * WEFT_ERR_PEER_DIED, WEFT_ERR_ABORTED or ranks in different calls the group is poisoned: every call returns
 * that error at once, and only freeing remains.
 *
 * Frees (of NULL too) and weft_finalize wait for nobody, and ranks make them in any order. */

/* The world: all ranks that this process's launcher started (weft run, torchrun, mpirun, srun), or this one
 * alone. Returns when every rank has come; those who cannot be met are WEFT_ERR_LAUNCH. */
WEFT_API weft_status weft_init(weft_group **group);

/* Leaves the world: weft_barrier comes before, where peers may still need this rank's memory. */
WEFT_API weft_status weft_finalize(weft_group *group);

/* A group without a launcher: one rank makes an id, which is a secret, the program carries its bytes to the
 * others, and each member calls weft_group_create with it, once. */
typedef struct weft_id {
    unsigned char bytes[128];
} weft_id;

WEFT_API weft_status weft_id_create(weft_id *id);
WEFT_API weft_status weft_group_create(const weft_id *id, int rank, int size, weft_group **group);

/* The same where the members can gather: the function, called once on each (on several nodes twice), puts the
 * `bytes` bytes at `mine` of every rank into `all`, rank by rank, and returns 0, as MPI_Allgather does. */
typedef int (*weft_allgather_fn)(void *context, const void *mine, size_t bytes, void *all);
WEFT_API weft_status weft_group_create_from(weft_allgather_fn allgather, void *context, int rank, int size,
                                            weft_group **group);

/* A group whose ranks are threads of this process: groups[r] is rank r's handle, freed by weft_group_free. */
WEFT_API weft_status weft_group_threads(int size, weft_group **groups);

/* Collective over `parent`: ranks that give the same colour become a group, ranked by key, then by their rank
 * in the parent; a negative colour gets NULL. Memory of the parent may be used in it. */
WEFT_API weft_status weft_group_split(weft_group *parent, int colour, int key, weft_group **sub);

WEFT_API void weft_group_free(weft_group *group); /* with whatever the rank still had allocated in it */

/* Ends the group, from any thread of any rank: every wait of every rank, and every later call, returns
 * WEFT_ERR_ABORTED with `why` (may be NULL). Groups split from it, or it from, go on. */
WEFT_API weft_status weft_group_abort(weft_group *group, const char *why);

/* For waits of one's own: WEFT_ERR_PEER_DIED when `rank` has died or left the group; with -1, when any rank
 * has died or all others have left. */
WEFT_API weft_status weft_group_check_peer(weft_group *group, int rank);

WEFT_API int weft_rank(const weft_group *group);
WEFT_API int weft_size(const weft_group *group);

/* The sentence of this handle's last error; NULL: of this thread's last call without one. Never NULL. */
WEFT_API const char *weft_error(const weft_group *group);

/* How long this rank waits for a peer to enter a call (600 s, WEFT_ENTER_TIMEOUT) and, once all have, for any
 * peer to finish its next task (30 s, WEFT_PROGRESS_TIMEOUT). */
WEFT_API weft_status weft_set_deadlines(weft_group *group, double enter_seconds, double progress_seconds);

WEFT_API weft_status weft_barrier(weft_group *group); /* collective */

/* ---- symmetric memory ----------------------------------------------------------------------------- */

/* Collective: an object that every rank has, zeroed. `alignment` is a power of two up to 2 MiB; 0 means 128.
 * A rank may have as much as WEFT_HEAP says; where there is no memory all get WEFT_ERR_MEMORY, and go on. */
WEFT_API weft_status weft_alloc(weft_group *group, size_t bytes, size_t alignment, void **pointer);

/* This rank lets go; memory is used again when all ranks have. */
WEFT_API weft_status weft_free(weft_group *group, void *pointer);

/* Between memory of this process and of weft_alloc, or within either; done when it returns. */
WEFT_API weft_status weft_memcpy(weft_group *group, void *to, const void *from, size_t bytes);

/* Where `rank` has what this rank has at `pointer` in memory of weft_alloc; NULL: not so, or another node. */
WEFT_API void *weft_peer(const weft_group *group, const void *pointer, int rank);

/* ---- collectives ---------------------------------------------------------------------------------- */

/* WEFT_AVERAGE, of floats: the sum divided by the number of ranks before it is rounded. */
typedef enum weft_reduction { WEFT_SUM = 0, WEFT_MIN, WEFT_MAX, WEFT_PRODUCT, WEFT_AVERAGE } weft_reduction;

/* Collective. Reductions take float32, float16, bfloat16 (combined in float32, in rank order), float64,
 * integers (sums wrap) and bool; movement takes any dtype. `count` is of the buffer (all_reduce, broadcast)
 * or of one rank's share (the others). Every rank gets the same bits. recv may be send; all_gather and
 * reduce_scatter: the rank's own share of the larger one. */
WEFT_API weft_status weft_all_reduce(weft_group *group, const void *send, void *recv, int64_t count,
                                     weft_dtype dtype, weft_reduction reduction);
WEFT_API weft_status weft_all_gather(weft_group *group, const void *send, void *recv, int64_t count,
                                     weft_dtype dtype);
WEFT_API weft_status weft_reduce_scatter(weft_group *group, const void *send, void *recv, int64_t count,
                                         weft_dtype dtype, weft_reduction reduction);
WEFT_API weft_status weft_all_to_all(weft_group *group, const void *send, void *recv, int64_t count,
                                     weft_dtype dtype);
WEFT_API weft_status weft_broadcast(weft_group *group, void *buffer, int64_t count, weft_dtype dtype,
                                    int root);

/* With a count for each rank, in rank order, one after another in the larger buffer. Every rank gives the
 * same `counts` (what each sends; of reduce_scatter, keeps), in all_to_all what it sends to and gets from
 * each. On GPUs, as the calls with a root and messages, in groups of up to 96 ranks; counts are memory of the
 * host. */
WEFT_API weft_status weft_all_gather_v(weft_group *group, const void *send, void *recv, const int64_t *counts,
                                       weft_dtype dtype);
WEFT_API weft_status weft_reduce_scatter_v(weft_group *group, const void *send, void *recv,
                                           const int64_t *counts, weft_dtype dtype, weft_reduction reduction);
WEFT_API weft_status weft_all_to_all_v(weft_group *group, const void *send, const int64_t *send_counts,
                                       void *recv, const int64_t *recv_counts, weft_dtype dtype);

/* With a root. gather: `count` elements of every rank to the root's recv; scatter: for each from its send;
 * reduce: it gets what all_reduce would give. What only the root has may be NULL elsewhere. */
WEFT_API weft_status weft_gather(weft_group *group, const void *send, void *recv, int64_t count,
                                 weft_dtype dtype, int root);
WEFT_API weft_status weft_scatter(weft_group *group, const void *send, void *recv, int64_t count,
                                  weft_dtype dtype, int root);
WEFT_API weft_status weft_reduce(weft_group *group, const void *send, void *recv, int64_t count,
                                 weft_dtype dtype, weft_reduction reduction, int root);

/* From one rank to another, in order. weft_send returns when the receiver has the message, so two ranks that
 * first send to each other get WEFT_ERR_MISMATCH, as do another count or dtype. */
WEFT_API weft_status weft_send(weft_group *group, const void *buffer, int64_t count, weft_dtype dtype,
                               int to);
WEFT_API weft_status weft_recv(weft_group *group, void *buffer, int64_t count, weft_dtype dtype, int from);

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
    WEFT_SCHEDULE_AUTO = 0, /* chosen: as tuned, else simulated once calibrated, else by rule */
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

/* GELU is x Phi(x), SILU x / (1 + exp(-x)). Gated: D = act(gate) * up; see weft_gate_up. */
typedef enum weft_act {
    WEFT_ACT_NONE = 0,
    WEFT_ACT_RELU,
    WEFT_ACT_GELU,
    WEFT_ACT_SILU,
    WEFT_ACT_RELU_GATED,
    WEFT_ACT_GELU_GATED,
    WEFT_ACT_SILU_GATED
} weft_act;

/* Gated products take gate and up of column j of D from columns 2 j and 2 j + 1 of B; n, tiles and parts
 * count columns of D; B, bias and col_scale have 2 n. This writes such a B from its halves, k x n each
 * (`trans`: stored n x k), rows ld_* elements apart. */
WEFT_API weft_status weft_gate_up(weft_dtype dtype, int trans, int64_t k, int64_t n, const void *gate,
                                  int64_t ld_gate, const void *up, int64_t ld_up, void *b, int64_t ld_b);

/* Names as the command and plans have them, never NULL; the schedules of an op in a layout, without AUTO. */
WEFT_API const char *weft_op_name(weft_op op);
WEFT_API const char *weft_schedule_name(weft_op op, weft_schedule schedule);
WEFT_API const weft_schedule *weft_schedule_list(weft_op op, weft_layout layout, int *count);

/* How a GEMM op gets B. */
typedef enum weft_b_form {
    WEFT_B_PLAIN = 0,   /* as the caller has it; the plan packs nothing */
    WEFT_B_PACK_IN_RUN, /* as the caller has it; each run packs it once into scratch memory (CPU default) */
    WEFT_B_PREPACKED    /* a handle made by weft_pack: weights that stay */
} weft_b_form;

/* How it is done, not what is computed; 0 leaves it to weft (docs/contract.md has every field). */
typedef struct weft_tuning {
    int64_t tile_m, tile_n, tile_k; /* a worker makes D tile by tile: rows, columns, and of k at a time */
    int workers;                    /* of a rank: threads, on GPUs one or two SMs each */
    int copiers;     /* of a rank, beside workers: they fetch together what these need next of a peer */
    int64_t chunk_k; /* of k, that copiers fetch at a time; on one rank: at whose multiples k is divided */
    int64_t raster;  /* rows of tiles (gathering B: columns of them) that are made side by side */
    int sums_stay;   /* 1 = sums stay with the rank that keeps them: others add to them or fetch them there */
    int grain_n;     /* columns are divided evenly over their tiles, in multiples of this */
    int crew;        /* GPUs: SMs of a worker, 1 or 2 */
    int library;     /* GPUs: 1 = cuBLASLt multiplies, 2 = weft's kernel for plans, 3 = weft's for split k */
    int exchange;    /* unfused: 1 = sums pushed to who needs them, 2 = through who adds, 3 = a collective */
    int staged;      /* 1 = no rank touches another's operands: chunks go through symmetric memory */
    int32_t reserved[4]; /* zero */
} weft_tuning;

/* What of an extent lies on each of `parts` ranks: contiguous, sizes differ by at most one, the longer ones
 * first; in granules, by at most one of them, of which the extent's last may be shorter. */
typedef struct weft_span {
    int64_t begin;
    int64_t count;
} weft_span;

WEFT_API weft_span weft_part(int64_t extent, int64_t parts, int64_t index);
WEFT_API weft_span weft_part_granular(int64_t extent, int64_t granule, int64_t parts, int64_t index);

/* What is to be computed. Sizes are global; weft_part(x, W, r) of them lies on rank r. What an op does not
 * use is ignored. Begin with weft_problem_init. */
typedef struct weft_problem {
    size_t size;
    weft_op op;
    weft_schedule schedule;
    weft_layout layout;
    int64_t m, n, k;       /* D is m x n */
    int64_t l;             /* batch: this many products; 0 are none */
    weft_dtype dtype;      /* of A and B; of the buffers of a collective */
    weft_dtype d_dtype;    /* of C, D and bias; by default dtype, for int8 int32, for fp8 bfloat16 */
    weft_dtype wire_dtype; /* of partial sums that travel; by default float32, for int8 always int32 */
    int transa, transb;
    weft_b_form b_form;
    float alpha, beta; /* D = act(alpha A B + beta C + bias); alpha = 0: whatever A and B hold */
    int bias;          /* whether there is one */
    weft_act act;
    int64_t count; /* collectives: elements of the buffer (all_reduce, broadcast), or of a rank's share */
    weft_reduction reduction;
    int root;
    weft_tuning tuning;
    /* m, n and k are divided over the ranks in multiples of these (weft_part_granular); 0 = 1 */
    int64_t granule_m, granule_n, granule_k;
    /* What runs bring: 0 = no scales; 1 = alpha, row_scale, col_scale, which every run may; 128 = also
     * a_scale and b_scale, of products of fp8. On GPUs it lets the plan be ready for them. */
    int scales;
    int fp8_fast; /* fp8 on GPUs: sums stay in the tensor cores, which keep about 14 bits of them */
} weft_problem;

/* Defaults: float32, l = 1, alpha = 1, schedule AUTO; d_dtype and wire_dtype follow dtype. */
#define weft_problem_init(problem, op) weft_problem_init_sized((problem), sizeof(*(problem)), (op))
WEFT_API void weft_problem_init_sized(weft_problem *problem, size_t size, weft_op op);

/* ---- tensor-parallel products in one call --------------------------------------------------------- */

/* The buffers of one run, each the part of its matrix that lies on this rank; what an op does not use is
 * ignored. Leading dimensions and strides of a batch are in elements; 0 means dense. Buffers may lie
 * anywhere; in memory of weft_alloc peers reach them in place. C may be D. */
typedef struct weft_operands {
    size_t size;
    const void *a;
    const void *b; /* WEFT_B_PREPACKED: of weft_pack; of a batch in a row, each rounded up to 128 bytes */
    const void *c;
    const void *bias; /* one value for each column of D on this rank */
    void *d;
    int64_t lda, ldb, ldc, ldd;
    int64_t stride_a, stride_b, stride_c, stride_d;
    const void *send; /* collectives */
    void *recv;       /* may be send; all_gather and reduce_scatter: the rank's own share of the larger one */
    /* Values of this run, the same alpha and beta on every rank; scales on all ranks or none. On GPUs these
     * are in the GPU's memory; alpha and beta may be. */
    const float *alpha, *beta;          /* NULL = the problem's; beta is for problems whose own is not 0 */
    const float *row_scale, *col_scale; /* a factor for each row (column) of D on this rank; NULL = 1 */
    /* `scales` of 128: factors of every 128 of k in a row of A, of blocks of 128 x 128 of B; NULL = 1 */
    const float *a_scale, *b_scale;
} weft_operands;

/* Collective. Plans are kept by problem in the group, so that a known one costs no more than a run: the 64
 * used last, within 64 MiB (on GPUs 512), and on CPUs as many again of those that a rank planned by itself;
 * ranks plan a new m, as a rule, without an exchange of their hosts (docs/contract.md has the exceptions).
 * The op is the function's, not the problem's. What rank r holds and gets:
 * - ag_gemm: A rows part r, B columns part r; D = A B, columns (with GATHER_B rows) part r.
 *   GATHER_A_K: A columns part r, B columns part r; columns part r. GATHER_B_K: A rows part r, B rows part
 *   r; rows part r. B is plain in both.
 * - gemm_rs: A columns part r, B rows part r; the sum over ranks, rows (with SCATTER_COLS columns) part r.
 * - gemm_ar: A columns part r, B rows part r; the sum over ranks, whole, on every rank.
 * - gemm_as: A whole, B columns part r; D = A B, whole, on every rank. */
WEFT_API weft_status weft_ag_gemm(weft_group *group, const weft_problem *problem,
                                  const weft_operands *operands);
WEFT_API weft_status weft_gemm_rs(weft_group *group, const weft_problem *problem,
                                  const weft_operands *operands);
WEFT_API weft_status weft_gemm_ar(weft_group *group, const weft_problem *problem,
                                  const weft_operands *operands);
WEFT_API weft_status weft_gemm_as(weft_group *group, const weft_problem *problem,
                                  const weft_operands *operands);

/* ---- plans and runs ------------------------------------------------------------------------------- */

typedef struct weft_plan weft_plan;

/* Collective: a plan of the problem, the same on all ranks; rank 0 decides what was left open. It holds no
 * buffers and may run any number of times. */
WEFT_API weft_status weft_plan_create(weft_group *group, const weft_problem *problem, weft_plan **plan);

/* Collective: a plan from a file, text or JSON (docs/plans.md). Every rank checks all of it: what is not
 * right is WEFT_ERR_ARGUMENT with what is wrong, and never runs. */
WEFT_API weft_status weft_plan_load(weft_group *group, const char *path, weft_plan **plan);

/* Collective: one run. When it returns, results are complete and inputs may be overwritten. */
WEFT_API weft_status weft_run(weft_plan *plan, const weft_operands *operands);

/* Collective: one run in the order of a stream of this rank's GPU (a cudaStream_t; NULL: the default stream;
 * WEFT_STREAM_OWN: the group's own). Returns when the run is on the stream; what goes wrong in it is told by
 * weft_run_wait. New operands are told to the peers in the same call on every rank; later runs may be
 * captured into a CUDA graph. A rank's runs follow each other. On the CPU this is weft_run. */
WEFT_API weft_status weft_run_on(weft_plan *plan, const weft_operands *operands, void *stream);

/* Until the stream has passed everything: how the plan's runs went. */
WEFT_API weft_status weft_run_wait(weft_plan *plan, void *stream);

WEFT_API void weft_plan_destroy(weft_plan *plan);
/* What the plan does, with everything decided. */
WEFT_API const weft_problem *weft_plan_problem(const weft_plan *plan);

/* ---- products on one rank ------------------------------------------------------------------------- */

/* B packed for this CPU's kernels, for the k and n it was packed with. Holds no pointers: ranks may share one
 * in symmetric memory. */
typedef struct weft_packed weft_packed;

/* D = act(alpha * row_scale[i] * col_scale[j] * A * B + beta * C + bias[j]), row-major, by the threads of
 * this process. Sums are fp32 (int8: int32), in an order that does not depend on the number of threads. */
typedef struct weft_gemm_args {
    size_t size;
    int64_t m, n, k;
    int64_t l;                   /* batch: this many products, the strides apart; 0 are none */
    weft_dtype dtype;            /* F32, F16, BF16, I8, FP8_E4M3 or FP8_E5M2: what is multiplied */
    weft_dtype a_dtype, b_dtype; /* of floats: any float is rounded to dtype, I8 and fp8 read exactly */
    weft_dtype d_dtype;          /* of C, D and bias: F32, F16, BF16; of I8 also I32, I8; of fp8 also fp8 */
    int transa, transb;          /* A is stored k x m; B is stored n x k */
    const void *a, *b;           /* b may be NULL when packed_b is given */
    const weft_packed *packed_b; /* from weft_pack; used instead of b, for every l */
    const void *c, *bias;        /* c is not read when beta is 0; bias may be NULL */
    const float *row_scale, *col_scale;             /* m and n factors; NULL = 1 */
    void *d;                                        /* may be c */
    int64_t lda, ldb, ldc, ldd;                     /* elements between rows as stored; 0 = no gap */
    int64_t stride_a, stride_b, stride_c, stride_d; /* elements between batch entries; 0 = no gap */
    float alpha, beta;
    weft_act act;
    int f16_fast; /* F16: sum in fp16 inside a block of k; twice as fast, less exact */
    int threads;  /* 0 = all CPUs this thread may run on, or of weft_set_parallel; 1 = the caller alone */
} weft_gemm_args;

#define weft_gemm_args_init(args, dtype, m, n, k)                                                            \
    weft_gemm_args_init_sized((args), sizeof(*(args)), (dtype), (m), (n), (k))
WEFT_API void weft_gemm_args_init_sized(weft_gemm_args *args, size_t size, weft_dtype dtype, int64_t m,
                                        int64_t n, int64_t k);
WEFT_API weft_status weft_gemm(const weft_gemm_args *args);

/* Packs B (args->b with k, n, dtype, b_dtype, transb, ldb, act, f16_fast, threads) into `memory`, of
 * weft_pack_bytes(args) bytes (0: impossible) on a 128-byte boundary; then args->packed_b = *packed. */
WEFT_API size_t weft_pack_bytes(const weft_gemm_args *args);
WEFT_API weft_status weft_pack(const weft_gemm_args *args, void *memory, const weft_packed **packed);

/* Products of many experts in one call, not collective: for each expert e, D = act(alpha * row_scale[i] *
 * col_scale[e][j] * A * B[e] + bias[e][j]) over its rows of A and D: offset[e + 1] - offset[e] of them from
 * row start[e] on. With NULL or a group on the CPU each is weft_gemm's, to the bit. On (Hopper) GPUs
 * everything, also offset and start, is memory of the GPU, and the call goes on the group's stream: float16
 * and bfloat16 (B also fp8, transposed), rows on 16-byte boundaries. */
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

/* The program's own threads in place of weft's, for the whole process: `run` calls body(argument, i) for each
 * i below count, on any of its `threads` threads, and returns when all are through. NULL: weft's own. */
typedef void (*weft_parallel)(void *context, int count, void (*body)(void *argument, int index),
                              void *argument);
WEFT_API weft_status weft_set_parallel(weft_parallel run, void *context, int threads);

/* ---- mixture of experts --------------------------------------------------------------------------- */

/* A layer routes each token to its experts, wherever they live, and brings the weighted sum of their results
 * back. A round is dispatch, experts, combine; no barrier comes between rounds. A lane is one round in
 * flight, and all ranks make the same rounds on it. A rejected input is WEFT_ERR_ARGUMENT here, WEFT_ERR_PEER
 * elsewhere, and the next round works. On GPUs the calls put kernels on the group's stream, and every array
 * but view.expert is memory of the GPU; ordered on a stream (weft_group_set_stream) they may be captured, and
 * view.rows is -1. */
typedef struct weft_moe weft_moe;

typedef enum weft_moe_mode {
    WEFT_MOE_EXACT = 0, /* every result row travels; summed in ascending expert id: same bits for any ranks */
    WEFT_MOE_REDUCED    /* one row per token and rank travels, its local experts already summed;
                           between nodes, one per token and node where that pays */
} weft_moe_mode;

/* The ladder: the same results by ever better means. All but `fused` are exact mode only. */
typedef enum weft_moe_impl {
    WEFT_MOE_FUSED = 0, /* one row per token and rank, read in place; results written where they are summed */
    WEFT_MOE_ROWS,      /* one row and one flag per token and expert */
    WEFT_MOE_SORTED,    /* sort by expert, all-to-all, inverse */
    WEFT_MOE_REFERENCE  /* loops */
} weft_moe_impl;

/* How tokens travel. As fp8: every 128 elements as e4m3 with a float32 scale; of dtype again where rows are
 * gathered or an expert is called. */
typedef enum weft_moe_wire {
    WEFT_MOE_WIRE_GIVEN = 0, /* the bytes that are given */
    WEFT_MOE_WIRE_FP8
} weft_moe_wire;

/* What a layer is. Every rank gives the same, but for threads. */
typedef struct weft_moe_config {
    size_t size;
    int experts, topk;
    int64_t hidden;         /* elements of a result row */
    int64_t tokens;         /* capacity: the most tokens a rank gives in one round */
    weft_dtype dtype;       /* of results and outputs: float16, bfloat16, float32 */
    int64_t row_bytes;      /* of a token as it is dispatched (any bytes); 0 = hidden elements of dtype */
    const int *expert_rank; /* where each expert lives; NULL = contiguous parts, the larger ones first */
    weft_moe_mode mode;
    weft_moe_impl impl;
    int lanes;
    int threads; /* of a round on CPUs; 1 = the caller's (default), 0 = all; 1 for ranks that are threads */
    weft_moe_wire wire; /* fp8: rows are hidden elements of dtype, and row_bytes is 0 or says so */
} weft_moe_config;

#define weft_moe_config_init(config) weft_moe_config_init_sized((config), sizeof(*(config)))
WEFT_API void weft_moe_config_init_sized(weft_moe_config *config, size_t size);

/* Bytes that a rank of `ranks` will need on CPUs; and this rank of a group, whatever it works on. */
WEFT_API weft_status weft_moe_bytes(const weft_moe_config *config, int ranks, size_t *symmetric_bytes,
                                    size_t *private_bytes);
WEFT_API weft_status weft_moe_group_bytes(weft_group *group, const weft_moe_config *config,
                                          size_t *symmetric_bytes, size_t *private_bytes);

/* Collective. */
WEFT_API weft_status weft_moe_create(weft_group *group, const weft_moe_config *config, weft_moe **moe);
WEFT_API weft_status weft_moe_free(weft_moe *moe); /* when this rank has finished its last round */

/* Tokens of one round. */
typedef struct weft_moe_input {
    size_t size;
    int64_t tokens;
    /* tokens x row_bytes; in symmetric memory read in place, and unchanged until combine returns */
    const void *x;
    const int32_t *expert; /* tokens x topk, distinct in a token, -1 = none; NULL = the routing before */
    const float *weight;   /* tokens x topk; NULL = the weights before with that routing, else 1 */
} weft_moe_input;

/* What a rank received. A row is a token of a rank; an entry is a row for one local expert, those of expert j
 * at offset[j] .. offset[j + 1]. Valid until the lane's next dispatch, rows until its combine has sent. */
typedef struct weft_moe_view {
    size_t size;
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

/* Where packed rows of each local expert start: `alignment` > 0: one after another, at multiples of it; < 0:
 * padded to -alignment rows each, more are an error. *rows receives the rows the buffer needs. */
WEFT_API weft_status weft_moe_layout(weft_moe *moe, int lane, int64_t alignment, int64_t *start,
                                     int64_t *rows);

/* The received rows, as they were before they travelled, to `packed` in that layout. */
WEFT_API weft_status weft_moe_gather(weft_moe *moe, int lane, const int64_t *start, void *packed);

/* Results: rows of `hidden` elements in the layout of `start`; NULL: entries in a row. y: tokens x hidden */
WEFT_API weft_status weft_moe_combine_send(weft_moe *moe, int lane, const void *results,
                                           const int64_t *start);
WEFT_API weft_status weft_moe_combine_recv(weft_moe *moe, int lane, void *y);
WEFT_API weft_status weft_moe_combine(weft_moe *moe, int lane, const void *results, const int64_t *start,
                                      void *y);

/* An expert as a callback. */
typedef struct weft_moe_expert {
    size_t size;
    void *context;
    /* `rows` rows through one expert (global id); in and out do not overlap. Required. */
    void (*block)(void *context, int expert, int64_t rows, const void *const *in, void *const *out);
    /* Instead of `block` in reduced mode, may be NULL: one row through all of its experts here, out = sum of
     * weight[i] * expert[i](in), in order, rounded; then plus `other` if not NULL, rounded again. */
    void (*row)(void *context, int64_t experts, const int32_t *expert, const float *weight, const void *in,
                const void *other, void *out);
    int64_t block_rows;  /* received rows worked on together; 0 = as many as stay in the cache */
    int64_t expert_rows; /* with block_rows 0: rows of one expert that are worth a call; 0 = any */
} weft_moe_expert;

/* A whole round: experts start on rows that have arrived while others are on their way. */
WEFT_API weft_status weft_moe_forward(weft_moe *moe, int lane, const weft_moe_input *input,
                                      const weft_moe_expert *expert, void *y);

/* What the last round of a lane did on this rank. */
typedef struct weft_moe_stats {
    size_t size;
    int64_t tokens;
    int64_t rows_sent, results_sent;       /* rows this rank sent in dispatch and in combine, to any rank */
    int64_t rows_received, entries;        /* rows that came here, and rows times their experts here */
    int64_t dispatch_bytes, combine_bytes; /* of the rows sent */
    double dispatch_us, combine_us;        /* forward: until rows could be read; the rest, experts included */
} weft_moe_stats;

WEFT_API weft_status weft_moe_get_stats(const weft_moe *moe, int lane, weft_moe_stats *stats);

/* The feed-forward expert: down(silu(x gate) * (x up)), for weft_moe_forward. For each expert that lives
 * here, in ascending id: gate and up are hidden x inter, down is inter x hidden, row-major, of the layer's
 * dtype. On GPUs (Hopper, float16 and bfloat16, multiples of 8) they are memory of the GPU. */
typedef struct weft_moe_ffn weft_moe_ffn;

WEFT_API weft_status weft_moe_ffn_create(weft_moe *moe, int64_t inter, const void *const *gate,
                                         const void *const *up, const void *const *down, weft_moe_ffn **ffn);

/* With weights as a model stores them: any type that a product of the layer's type reads; NULL scales = 1. */
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

/* ---- memory of other ranks ------------------------------------------------------------------------- */

/* For programs of one's own, called on the host, where weft_peer is not NULL, also on GPUs: only the caller
 * takes part, and it is done when they return. What lies on `rank` is named by the caller's own address of
 * it. A signal is WEFT_SIGNAL_BYTES of symmetric memory on such a boundary: a 64-bit count from 0 that only
 * grows. A post comes after everything its caller did before; what follows a wait, after everything the
 * posters did before their posts. Puts are seen in any order until then. */
#define WEFT_SIGNAL_BYTES 128

WEFT_API weft_status weft_put(weft_group *group, void *to, const void *from, size_t bytes, int rank);
WEFT_API weft_status weft_get(weft_group *group, void *to, const void *from, size_t bytes, int rank);
WEFT_API weft_status weft_put_signal(weft_group *group, void *to, const void *from, size_t bytes,
                                     void *signal, uint64_t add, int rank);
WEFT_API weft_status weft_post_signal(weft_group *group, void *signal, uint64_t add, int rank);

/* Until this rank's own signal is at least `value`. `from` is the rank that will post, or -1 where it is not
 * one. */
WEFT_API weft_status weft_wait_signal(weft_group *group, void *signal, uint64_t value, int from);

/* To a 64-bit word of `rank`; `before` (may be NULL) gets what it was. */
WEFT_API weft_status weft_atomic_add(weft_group *group, int64_t *word, int64_t add, int rank,
                                     int64_t *before);

/* ---- GPUs ----------------------------------------------------------------------------------------- */

/* Collective, once, before the group's first plan: from here on its ranks work on NVIDIA GPUs, and weft_alloc
 * gives GPU memory. `device` is as CUDA numbers them; -1 takes the GPUs in turn. Ranks may share a GPU
 * (processes on one should run under MPS). Without a GPU, driver or kernels it is WEFT_ERR_UNSUPPORTED on
 * every rank. On GPUs: products of float16, bfloat16 and fp8, collectives, mixture of experts and
 * weft_grouped_gemm, with operands in any memory the GPU can use; over nodes see docs/nodes.md. A rank that
 * rejects its arguments may be told alone there: its peers wait for its next call. */
WEFT_API weft_status weft_group_use_gpu(weft_group *group, int device);

/* Not collective: with `ordered` not 0 this handle's products, collectives, messages and rounds go on
 * `stream` (as of weft_run_on) from here on: they return when they are on it, and may be captured into CUDA
 * graphs. With 0, as at first, they return when they are done. */
#define WEFT_STREAM_OWN ((void *)(intptr_t)-1) /* the group's own stream */
WEFT_API weft_status weft_group_set_stream(weft_group *group, int ordered, void *stream);

/* Until that stream has passed everything that is on it: how the calls went. */
WEFT_API weft_status weft_group_wait(weft_group *group);

/* For kernels of one's own on GPUs, in CUDA C++ (weft/device.cuh), Triton or CuPy. `table` gets the address,
 * in the GPU's memory, of where each rank has `pointer`, in rank order; it lives as long as the group. */
WEFT_API weft_status weft_peer_table(weft_group *group, const void *pointer, void *const **table);

/* How a wait on the device ended that did not get what it waited for. */
typedef struct weft_signal_record {
    uint32_t ended; /* not 0: on some rank a wait was given up, and all others end too */
    uint32_t set;   /* 2: on this rank, and the rest says which */
    uint32_t signal;
    uint32_t reserved;
    uint64_t have, want;
} weft_signal_record;

/* Signals that kernels post and wait for, passed to them by value: 64-bit counts from 0 that only grow, one
 * every WEFT_SIGNAL_BYTES; another rank's is `stride` bytes further for every rank between. Post and wait as
 * weft/device.cuh does: a wait ends when `record->ended` or `*stop` is not 0, or after `deadline_ns`. */
typedef struct weft_signal_pad {
    size_t size;
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

/* Until the stream has passed everything that is on it: how the pad's waits went. */
WEFT_API weft_status weft_signal_pad_wait(weft_group *group, const weft_signal_pad *pad, void *stream);

#ifdef __cplusplus
}
#endif

#endif
