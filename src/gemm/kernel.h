/*
 * What a micro-kernel is, and how a core binds its kernels.
 *
 * A micro-kernel is a leaf: one function in one file that multiplies one packed panel of A by one packed
 * panel of B. It allocates nothing, knows no leading dimension of A or B, and tells its caller its steps.
 *
 * Panels. A panel of A holds mr rows, a panel of B nr columns; both hold k_step * s elements of k, padded
 * with zeros in every direction. Elements of k are grouped: a_kr (b_kr) consecutive ones lie side by side.
 *
 *     A(i, p) is element ((p / a_kr) * mr + i) * a_kr + p % a_kr of its panel
 *     B(p, j) is element ((p / b_kr) * nr + j) * b_kr + p % b_kr of its panel
 *
 * so kr = 1 is the classic layout (mr rows for each k), BFMMLA wants kr = 4, SMMLA 8, VNNI b_kr = 4, and an
 * AMX tile a_kr = 32 with b_kr = 2. A panels start on 64 bytes; a B panel may start at any multiple of k_step
 * inside a longer one. The element type is the kernel's `type`, except
 * that `b_flip` asks the packer to add 128 to every int8 of B (padding included), for instructions that want
 * one unsigned side; such a kernel takes 128 * (row sums of A) off again itself.
 *
 * To add a kernel: write the file, declare it in the folder's kernels.h, bind it in the folder's cores.c.
 */
#ifndef WEFT_GEMM_KERNEL_H
#define WEFT_GEMM_KERNEL_H

#include <weft/weft.h>

#include <stdbool.h>

/*
 * C (mr x nr, row-major, fp32 or int32, any alignment) = A * B, or C += A * B when `add`. The sum over k is
 * formed first and added to C once. k > 0 is a multiple of k_step. Reads mr*k and nr*k elements, no more.
 */
typedef void (*weft_microkernel)(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add);

/* The same for a micro-tile at an edge, of which C has only the first rows x cols: nothing else is touched,
 * and little else computed. The sums are those of the whole one, to the last bit. */
typedef void (*weft_edge_kernel)(int64_t rows, int64_t cols, int64_t k, const void *a, const void *b, void *c,
                                 int64_t c_ld, int add);

/* A row of micro-tiles: one panel of A against `count` panels of B, and what is to be brought closer
 * meanwhile: with the g-th of them `slice` bytes of the g-th of `ahead_count` panels that come next. */
typedef struct weft_panels {
    const char *first;
    int64_t bytes; /* from one panel to the next */
    int64_t count;
    const char *ahead;
    int64_t ahead_count, slice;
} weft_panels;

/* A row of them at once: C (mr x count * nr) = A * B, or +=. Not one after the other, if it pleases. */
typedef void (*weft_row_kernel)(int64_t k, const void *a, const weft_panels *b, void *c, int64_t c_ld,
                                int add);

/*
 * Where finished micro-tiles go, and what they start from: the first of a row of them. `start` are
 * micro-tiles as weft_keeper left them, the accumulators' first values; `acc` are rows that are added at the
 * end; at most one of them, NULL = zero. One or two destinations (d[1] may be NULL) of the kernel's type.
 */
typedef struct weft_places {
    const char *start;
    const char *acc;
    int64_t acc_ld;
    bool acc_below; /* the mr rows of acc after these are needed next */
    char *d[2];
    int64_t d_ld[2];
} weft_places;

/* D = acc + A * B, rounded to the kernel's type: tiles without a detour through memory. A whole row of them
 * in one call: what a call stores for itself competes with results for the store buffer. */
typedef void (*weft_finisher)(int64_t k, const void *a, const weft_panels *b, const weft_places *places);

/*
 * Leaves the accumulators as they lie in registers, mr * nr of them side by side, for a later call to start
 * from: blocks of keep_block x keep_block elements, a row of blocks after the other. `start` may be `to`, or
 * NULL.
 */
typedef void (*weft_keeper)(int64_t k, const void *a, const void *b, const void *start, void *to);

/* A row of them: `start` and `to` are micro-tiles side by side. */
typedef void (*weft_row_keeper)(int64_t k, const void *a, const weft_panels *b, const void *start, void *to);

/*
 * Packs one full panel of a matrix that already has the kernel's type, for k > 0, a multiple of k_step.
 * `ld` counts elements: between rows of A (columns of B) when k runs along memory, between successive k
 * when rows of A (columns of B) lie side by side. Reads exactly the panel's elements.
 */
typedef void (*weft_panel_packer)(void *panel, const void *source, int64_t ld, int64_t k);

/*
 * The same for `count` panels side by side, panel_bytes apart, of a matrix whose rows of A (columns of B) lie
 * side by side: reads several whole lines at a time, as hardware likes to fetch them.
 */
typedef void (*weft_wide_packer)(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                                 int64_t count);

/* Fast packers of the panels of one side. */
typedef struct weft_packers {
    weft_panel_packer along;
    weft_wide_packer wide;
} weft_packers;

/* A micro-kernel for at most `rows` rows: its panels of A have that many. */
typedef struct weft_few {
    int rows;
    weft_microkernel run;
} weft_few;

/*
 * For at most `rows` rows of A (up to 8, also where mr is less) and a B of the kernel's type that is used
 * once: C (m x n) = A * B, or += when `add`, straight from B as it lies in memory, lines `ldb` elements
 * apart. A is one packed panel of `rows` rows over all of k. The sum over each `block` of k is formed first
 * and added to C once. `sums` are WEFT_STREAM_BYTES to work in.
 */
enum { WEFT_STREAM_BYTES = 512 << 10 };

typedef struct weft_stream {
    int rows;
    void (*run)(int64_t m, int64_t n, int64_t k, int64_t block, const void *a, const void *b, int64_t ldb,
                void *sums, void *c, int64_t c_ld, int add);
} weft_stream;

/*
 * Small products, whose operands are not worth packing: C (m x n) = A * B, or += when `add`, of the kernel's
 * type, as they lie: element (i, p) of A at a[i * a_rs + p * a_cs], lines of B ldb elements apart. The sum
 * over k is formed first and added to C once. Reads what A and B have, no more.
 */
typedef struct weft_unpacked {
    int64_t m, n, k;
    const void *a;
    int64_t a_rs, a_cs;
    const void *b;
    int64_t ldb;
    void *c;
    int64_t c_ld;
    bool add;
} weft_unpacked;

typedef void (*weft_unpacked_kernel)(const weft_unpacked *product);

typedef struct weft_kernel {
    const char *name; /* isa_type_mrxnr_instruction */
    weft_dtype type;  /* of the panels: F32, F16, BF16 or I8 */
    int mr, nr;
    int a_kr, b_kr;
    int k_step;  /* a multiple of a_kr and b_kr */
    bool b_flip; /* int8 B is packed as value + 128 */

    /* Optional: called by the thread before and after any of what follows: registers that are set up once. */
    void (*prepare)(void), (*release)(void);
    weft_microkernel run;
    weft_edge_kernel edge;    /* optional */
    weft_row_kernel run_row;  /* optional; with it: */
    int row_panels, row_most; /* of B that a row had best have, whose panels come from L2 then; where all of B
                                 stays there while A passes */
    weft_keeper keep;         /* optional; with it: */
    int keep_block;           /* 1 or 2 */
    weft_row_keeper keep_row; /* optional */
    weft_finisher finish;     /* optional; with `keep`; and with it: */
    weft_finisher settle;     /* the same into one place, as sums; takes `start` only */

    /* Optional: the same, for a panel of B that streams from memory; prefetches what follows it. */
    weft_microkernel run_ahead;
    weft_finisher finish_ahead; /* optional; finishes panel by panel */

    bool fetches; /* panels are fetched ahead by the kernels themselves: the next one need not be brought
                     closer */

    /* Optional, each a list by ascending rows that ends with rows = 0. */
    const weft_few *few;               /* packed B */
    const weft_stream *along, *across; /* B as it lies: n lines of k; k lines of n */
    weft_unpacked_kernel unpacked;     /* optional */

    /* Optional fast packers; where NULL, or for edges and conversions, portable code packs. */
    weft_panel_packer pack_a_along, pack_a_across, pack_b_along, pack_b_across;
    weft_wide_packer pack_a_wide, pack_b_wide;
} weft_kernel;

/* What the arithmetic is done in. */
typedef enum weft_compute {
    WEFT_COMPUTE_F32,
    WEFT_COMPUTE_F16,      /* fp16 products, fp32 sums */
    WEFT_COMPUTE_F16_FAST, /* fp16 products and sums inside one k block, fp32 between blocks */
    WEFT_COMPUTE_BF16,
    WEFT_COMPUTE_I8,
    WEFT_COMPUTE_COUNT
} weft_compute;

/* Bytes of the caches of a core; 0 is unknown. */
typedef struct weft_caches {
    int64_t l1, l2, l3;
} weft_caches;

/*
 * A kernel with the cache blocks it wants on one core: mc rows of A and kc of k per block, nc columns of B,
 * nc_once of them where all rows are one block: then each panel of B is read once after it was packed, and is
 * better still near than packed beside many others (0: nc).
 * A core's table has those that were measured best with the caches it names; weft_core_at gives those for the
 * caches that are there (blocks.c).
 * An fp32 kernel may stand in for a half type: `narrow` is that type, to which everything is rounded while it
 * is packed, so that a product has the same operands on every core; F32 (0) otherwise. Then `along` and
 * `across` take the place of the kernel's: they read a B of that type, and an A as the kernel has it;
 * `finish` is the kernel's that rounds to that type; and `widen_a`, `widen_b` pack what has that type already
 * in one pass (without them it is converted beside the panel first). Packed weights keep that type, for they
 * come from memory: `few` reads such panels in place of the kernel's, which is given widened ones.
 */
typedef struct weft_binding {
    const weft_kernel *kernel;
    int mc, kc, nc, nc_once;
    weft_dtype narrow;
    weft_finisher finish;              /* optional */
    const weft_stream *along, *across; /* optional */
    weft_packers widen_a, widen_b;     /* optional, each of them */
    const weft_few *few;               /* optional */
    int l1_bytes;                      /* of the core; 0 in a core's table */
} weft_binding;

/* All kernels of one kind of core. `needs` are weft_cpu_feature bits. */
typedef struct weft_core {
    const char *name; /* what WEFT_ISA accepts */
    uint32_t needs;
    weft_caches caches; /* that its blocks are for */
    weft_binding bind[WEFT_COMPUTE_COUNT];
} weft_core;

/* The cores of this architecture, best first; the portable one is not among them. kernels/<arch>/cores.c */
extern const weft_core *const weft_cores_of_arch[];
extern const int weft_cores_of_arch_count;

/* Plain C, every architecture, the reference. kernels/portable/ */
extern const weft_core weft_core_portable;

#endif
