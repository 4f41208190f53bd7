/*
 * The loops around the micro-kernel, for one tile.
 *
 *     columns > stretches of k: pack B > rows: pack A > B panel > k block > A panel: micro-kernel
 *
 * A stretch is several k blocks: as many as keep the packed rows of A inside the L2 cache. One panel of B
 * over one k block stays in L1 while all packed rows pass by; the sums of those rows and one panel's columns
 * stay in L1 too, until all k blocks are done and the epilogue empties them. So sums leave the cache only
 * between stretches, which takes a long k: then they wait in D if D can hold them, else in the workspace.
 * (With AMX it is a piece of A that stays in L1: macro_kernel.c.)
 */
#include "core/dtype.h"
#include "core/round.h"
#include "gemm/epilogue.h"
#include "gemm/job.h"

#include <string.h>

enum {
    PANELS_MIN = 12,           /* packed panels of A that make it worth reading a panel of B */
    M_TILE_MOST = 512,         /* rows of a tile of a plan: more are cut too coarsely */
    SUMS_BYTES = 4 << 20,      /* of sums kept in the workspace between stretches, */
    SUMS_ROW_BYTES = 16 << 20, /* where kernels have rows of panels: those are so fast that packing counts */
    SPREAD_LINES = 3,          /* of a row of D that make it worth writing two places at once */
    GROUP_FEWEST = 4,          /* panels that are worth a group */
    STREAMED_ROWS = 8,         /* the most that a list of streams has, whatever mr is */
    WIDE_COLUMNS = 1536,       /* of a wide group, at most */
    WIDE_BYTES = 192 << 10,    /* of its panels, which stay in L2 */
    STAYS_BYTES = 1 << 20,     /* of a B that stays in L2: half of it, wherever kernels have rows of panels */
    WIDE_K = 40                /* for each byte of an element: a longer k waits for B more than it gains */
};

/* Rows and columns for stretches of this length: mc * kc elements of A and kc * nc of B fit their caches. */
static int64_t rows_for(const weft_binding *bind, int64_t stretch)
{
    int64_t rows = (int64_t)bind->mc * bind->kc / stretch / bind->kernel->mr * bind->kernel->mr;

    return rows > bind->mc ? bind->mc : rows > bind->kernel->mr ? rows : bind->kernel->mr;
}

static int64_t columns_for(const weft_binding *bind, int64_t m, int64_t stretch)
{
    int64_t nc = bind->nc_once > 0 && m <= bind->mc ? weft_min(bind->nc_once, bind->nc) : bind->nc;
    int64_t cols = bind->kc * nc / stretch / bind->kernel->nr * bind->kernel->nr;

    return cols > nc ? nc : cols > bind->kernel->nr ? cols : bind->kernel->nr;
}

/* Where a panel of B over a k block does not stay in L1, nothing is gained by several blocks in a row. */
static bool panel_is_in_l1(const weft_binding *bind)
{
    return bind->kc * bind->kernel->nr * (int64_t)weft_dtype_size(bind->kernel->type) < bind->l1_bytes;
}

/* Each band of rows whose sums wait packs B again. */
static int64_t sums_bytes(const weft_kernel *kernel)
{
    return kernel->run_row ? SUMS_ROW_BYTES : SUMS_BYTES;
}

/*
 * For a kernel whose panels of B come from L2: whether all of a block of B stays there. Then a panel of A
 * passes all of it at once, while it is in L1 since it was packed, and no block of A goes to L2 and back.
 * With rows of panels k is one block; otherwise B has the place of a block of A.
 */
static bool b_stays(const weft_gemm_tile *tile)
{
    const weft_binding *bind = tile->bind;
    const weft_kernel *kernel = bind->kernel;
    int64_t cols = weft_round_up(tile->n, kernel->nr), size = (int64_t)weft_dtype_size(kernel->type);

    if (tile->acc_in_order || tile->d_in_order || tile->d_count != 1 || tile->m <= WEFT_GEMM_STREAM_ROWS)
        return false;
    if (kernel->run_row)
        return !tile->packed_b && tile->k <= bind->kc &&
               cols * weft_pack_k(kernel, tile->k) * size <= STAYS_BYTES;
    return kernel->fetches && !panel_is_in_l1(bind) && tile->a_cs == 1 &&
           !(tile->packed_b && bind->narrow != WEFT_F32) &&
           cols * weft_min(weft_pack_k(kernel, tile->k), bind->kc) <= (int64_t)bind->mc * bind->kc;
}

static blocks cut_blocks(const weft_binding *bind, int64_t m, int64_t n, int64_t k, bool packed,
                         bool sums_in_d)
{
    const weft_kernel *kernel = bind->kernel;
    int64_t fewest = weft_min(weft_round_up(m > 0 ? m : 1, kernel->mr), PANELS_MIN * kernel->mr);
    int64_t longest = bind->kc * (bind->mc > fewest && panel_is_in_l1(bind) ? bind->mc / fewest : 1);
    blocks cut = {.k = weft_job_cut_evenly(k, bind->kc, kernel->k_step)};

    cut.k_count = weft_divide_up(k, cut.k);
    cut.stretch = weft_min(weft_max(longest / cut.k, 1), cut.k_count > 0 ? cut.k_count : 1) * cut.k;
    cut.waits = k > cut.stretch;
    cut.m = weft_job_cut_evenly(m, rows_for(bind, cut.stretch), kernel->mr);
    cut.n =
        weft_job_cut_evenly(n, packed && !cut.waits ? n + 1 : columns_for(bind, m, cut.stretch), kernel->nr);
    cut.band = weft_round_up(m, cut.m);
    if (cut.waits && !sums_in_d) {
        int64_t rows = sums_bytes(kernel) / (4 * cut.n) / cut.m * cut.m;

        cut.band = weft_min(cut.band, packed || rows < cut.m ? cut.m : rows);
    }
    return cut;
}

static size_t a_block_bytes(const weft_kernel *kernel, const blocks *cut)
{
    return aligned_bytes(cut->m * cut->stretch, weft_dtype_size(kernel->type));
}

static size_t b_block_bytes(const weft_kernel *kernel, const blocks *cut)
{
    return aligned_bytes(cut->n * cut->stretch, weft_dtype_size(kernel->type));
}

/*
 * Every tile of at most m x n x k must fit, also those that are cut otherwise: few rows allow a longer
 * stretch, a short k more rows and columns. What holds for all of them: packed rows times stretch stay within
 * mc * kc, since a stretch is at most kc * mc / mr; likewise columns, within kc * nc or one panel of the
 * longest stretch.
 */
size_t weft_gemm_workspace_bytes(const weft_binding *bind, int64_t m, int64_t n, int64_t k, bool packed_b)
{
    const weft_kernel *kernel = bind->kernel;
    size_t size = weft_dtype_size(kernel->type);
    int64_t mc = weft_round_up(bind->mc, kernel->mr), kc = weft_round_up(bind->kc, kernel->k_step);
    int64_t nc = weft_round_up(bind->nc, kernel->nr);
    int64_t rows = weft_round_up(m, kernel->mr), cols = weft_round_up(n, kernel->nr);
    int64_t padded_k = k + (k / bind->kc + 2) * kernel->k_step; /* each block may be rounded up */
    int64_t longest = kc * (mc / kernel->mr), wide = weft_min(rows, mc) * weft_min(cols, nc);
    int64_t a = weft_min(mc * kc, rows * padded_k), sums = weft_min(rows, mc) * kernel->nr;
    int64_t group = weft_round_up(GROUP_COLUMNS, kernel->nr), row = (int64_t)kernel->row_most * kernel->nr;
    int64_t strip = kernel->mr * weft_max(group, row);
    int64_t b = weft_min(weft_max(kc * nc, kernel->nr * longest), cols * padded_k);
    int64_t lines = weft_max(kernel->mr, STREAMED_ROWS);
    size_t bytes, streamed = 0;

    if (bind->narrow != WEFT_F32) /* packed halves are widened where another B would be packed */
        packed_b = false;
    if (k > bind->kc) {
        int64_t most = sums_bytes(kernel) / 4, waiting = weft_max(wide, most);

        waiting = packed_b ? wide : weft_min(waiting, 2 * rows * weft_min(cols, nc));
        sums = weft_max(sums, waiting);
    }
    sums = weft_max(sums, strip);
    bytes = aligned_bytes(a, size) + (packed_b ? 0 : aligned_bytes(b, size)) + aligned_bytes(sums, 4);
    if (!packed_b && (kernel->along || kernel->across))
        streamed = aligned_bytes(weft_pack_k(kernel, k) * lines, size) + WEFT_STREAM_BYTES +
                   aligned_bytes(weft_min(m, lines) * n, 4);
    if (!packed_b && kernel->keep) {
        size_t pieces = weft_few_rows_bytes(bind, m, n, k);

        bytes = weft_max_bytes(bytes, pieces);
    }
    if (!packed_b && kernel->unpacked)
        bytes = weft_max_bytes(bytes, weft_gemm_small_bytes_most(bind, n, k));
    return weft_max_bytes(bytes, streamed);
}

weft_gemm_steps weft_gemm_steps_of(const weft_binding *bind)
{
    const weft_kernel *kernel = bind->kernel;

    return (weft_gemm_steps){
        .mr = kernel->mr,
        .nr = kernel->nr,
        .k_step = kernel->k_step,
        .m_tile = (int)weft_round_up(weft_min(bind->mc, M_TILE_MOST), kernel->mr),
        .n_tile = (int)weft_round_up(512, kernel->nr),
        .k_tile = (int)weft_pack_k(kernel, bind->kc),
        .widens = bind->narrow != WEFT_F32,
    };
}

/* As many panels of B over k as take half of L1, or as the kernel itself walks through. */
static int64_t panels_in_l1(const weft_binding *bind, int64_t k)
{
    const weft_kernel *kernel = bind->kernel;
    int64_t panel = weft_pack_k(kernel, k) * kernel->nr * (int64_t)weft_dtype_size(kernel->type);
    int64_t count = GROUP_COLUMNS / kernel->nr;

    if (kernel->run_row)
        return kernel->row_panels;
    while (count > 1 && count * panel > bind->l1_bytes / 2)
        count /= 2;
    return count;
}

/* Panels of A that stay in L1 while panels of B pass through it: one at least. */
static int64_t panels_of_a_in_l1(const weft_binding *bind, int64_t k)
{
    int64_t panel = k * bind->kernel->mr * (int64_t)weft_dtype_size(bind->kernel->type);

    return bind->kernel->run_row ? 1 : weft_max(bind->l1_bytes / 2 / panel, 1);
}

/* As many as stay in L2. */
static int64_t panels_in_l2(const weft_kernel *kernel, int64_t k)
{
    int64_t panel = weft_pack_k(kernel, k) * kernel->nr * (int64_t)weft_dtype_size(kernel->type);

    return weft_min(WIDE_BYTES / panel, WIDE_COLUMNS / kernel->nr);
}

/*
 * For results that go to two places, in rows of some lines at least. A product of four-byte elements takes so
 * long that B may come from L2 meanwhile, which leaves long rows; one of shorter elements does not.
 */
static int64_t panels_for_two(const weft_binding *bind, int64_t k)
{
    const weft_kernel *kernel = bind->kernel;
    int64_t size = (int64_t)weft_dtype_size(kernel->type), panel = weft_pack_k(kernel, k) * kernel->nr * size;
    int64_t few = SPREAD_LINES * 64 / (kernel->nr * size), count = panels_in_l1(bind, k);

    if (size >= 4) {
        count = panels_in_l2(kernel, k);
        return weft_max(count, 3 * few);
    }
    return count < few && few * panel <= bind->l1_bytes ? few : count;
}

/* For sums that another core has: so many that each of their pages is visited once, if k is short. */
static int64_t panels_in_order(const weft_binding *bind, int64_t k, bool two)
{
    const weft_kernel *kernel = bind->kernel;
    int64_t size = (int64_t)weft_dtype_size(kernel->type);

    if (k <= WIDE_K * size)
        return panels_in_l2(kernel, k);
    return two && size >= 4 ? 2 * SPREAD_LINES * 64 / (kernel->nr * size) : panels_in_l1(bind, k);
}

bool weft_job_has_groups(const weft_binding *bind, int64_t k)
{
    return k <= bind->kc || (bind->kernel->run_row && !panel_is_in_l1(bind));
}

int weft_gemm_order(const weft_binding *bind, int64_t m, int64_t k, bool two)
{
    int64_t panels;

    if (!bind->kernel->finish || m <= WEFT_GEMM_STREAM_ROWS)
        return 0;
    panels = k > 0 && weft_job_has_groups(bind, k) ? panels_in_order(bind, k, two) : 1;
    return panels < GROUP_FEWEST ? 1 : (int)panels;
}

weft_gemm_tile weft_gemm_tile_init(const weft_binding *bind, weft_dtype dtype)
{
    return (weft_gemm_tile){
        .bind = bind,
        .a_cs = 1,
        .a_dtype = dtype,
        .b_cs = 1,
        .b_dtype = dtype,
        .order = 1,
        .alpha = 1,
        .d_dtype = weft_dtype_result(dtype),
        .d_count = 1,
    };
}

/* Rows of A are packed one k block after the other: each is read in one sweep for every panel of B. */
static void run_band(const gemm_job *job, const block_b *b, int64_t s0, int64_t band_rows)
{
    const weft_gemm_tile *tile = job->tile;
    size_t a_size = weft_dtype_size(tile->a_dtype);

    for (int64_t i = s0; i < s0 + band_rows; i += job->cut.m) {
        int64_t rows = weft_min(job->cut.m, s0 + band_rows - i);
        char *to = job->a_block;

        for (int64_t p = 0; p < b->k; p += job->cut.k) {
            int64_t k = weft_min(job->cut.k, b->k - p);
            int64_t panel_bytes = weft_pack_k(job->kernel, k) * job->side_a.lines * (int64_t)job->type_bytes;
            int64_t at = i * tile->a_rs + (b->k0 + p) * tile->a_cs;

            weft_pack_panels(job->kernel, &job->side_a, to, panel_bytes,
                             (const char *)tile->a + (size_t)at * a_size, tile->a_dtype, tile->a_rs,
                             tile->a_cs, rows, k);
            to += weft_round_up(rows, job->side_a.lines) / job->side_a.lines * panel_bytes;
        }
        (job->carried ? weft_carried_rows : weft_job_rows)(job, b, s0, i, rows);
    }
}

/* Makes the block of B ready: a window of the packed B, or packed here. Halves that the kernel does not read
 * are widened group by group, while they are in cache; carried sums may want so many panels at a time that
 * the whole block is. */
static void prepare_b(const gemm_job *job, block_b *b)
{
    const weft_gemm_tile *tile = job->tile;
    const weft_kernel *kernel = job->kernel;

    if (tile->packed_b) {
        const weft_packed *packed = tile->packed_b;

        b->type_bytes = (int64_t)weft_dtype_size(weft_packed_type(tile->bind));
        b->panel_bytes = packed->panel_bytes;
        b->panels = (const char *)(packed + 1) +
                    (tile->packed_n0 + b->j0) / kernel->nr * packed->panel_bytes +
                    (tile->packed_k0 + b->k0) * kernel->nr * b->type_bytes;
        if (job->carried && job->widens) {
            int64_t k = weft_pack_k(kernel, b->k);

            b->type_bytes = (int64_t)job->type_bytes;
            b->panel_bytes = k * kernel->nr * b->type_bytes;
            weft_packed_widen(tile->bind, job->b_block, b->panel_bytes, b->panels, packed->panel_bytes, k,
                              weft_divide_up(b->cols, kernel->nr));
            b->panels = job->b_block;
        }
        return;
    }
    weft_pack_side side = weft_pack_side_b(tile->bind);
    const char *source = (const char *)tile->b +
                         (size_t)(b->k0 * tile->b_rs + b->j0 * tile->b_cs) * weft_dtype_size(tile->b_dtype);

    b->type_bytes = (int64_t)job->type_bytes;
    b->panel_bytes = weft_pack_k(kernel, b->k) * kernel->nr * b->type_bytes;
    b->panels = job->b_block;
    weft_pack_panels(kernel, &side, job->b_block, b->panel_bytes, source, tile->b_dtype, tile->b_cs,
                     tile->b_rs, b->cols, b->k);
}

/* Whether a tile with these operands goes straight through a streaming kernel. */
static const weft_stream *stream_of(const weft_gemm_tile *tile)
{
    const weft_binding *bind = tile->bind;
    const weft_kernel *kernel = bind->kernel;
    const weft_stream *along = bind->narrow ? bind->along : kernel->along;
    const weft_stream *across = bind->narrow ? bind->across : kernel->across;
    const weft_stream *stream = tile->b_rs == 1 ? along : tile->b_cs == 1 ? across : NULL;

    if (tile->packed_b || tile->b_dtype != (bind->narrow ? bind->narrow : kernel->type))
        return NULL;
    while (stream && stream->rows && stream->rows < tile->m)
        stream++;
    return stream && stream->rows ? stream : NULL;
}

int64_t weft_gemm_block(const weft_binding *bind, int64_t k)
{
    return weft_job_cut_evenly(k, bind->kc, bind->kernel->k_step);
}

bool weft_gemm_streams(const weft_gemm_tile *tile)
{
    return tile->k > 0 && tile->b_rs != 1 && !tile->acc_in_order && !tile->d_in_order && stream_of(tile);
}

/* Few rows, B used once: A is packed whole, B is read where it lies. */
static void run_streamed(const weft_gemm_tile *tile, const weft_stream *stream, char *workspace)
{
    const weft_kernel *kernel = tile->bind->kernel;
    weft_pack_side side = weft_pack_side_a(tile->bind, stream->rows);
    size_t a_bytes = aligned_bytes(weft_pack_k(kernel, tile->k) * side.lines, weft_dtype_size(kernel->type));
    char *scratch = workspace + a_bytes, *sums = scratch + WEFT_STREAM_BYTES;

    weft_pack_panels(kernel, &side, workspace, (int64_t)a_bytes, tile->a, tile->a_dtype, tile->a_rs,
                     tile->a_cs, tile->m, tile->k);
    if (tile->acc)
        weft_job_copy(sums, tile->n, tile->acc, tile->acc_ld, tile->m, tile->n);
    stream->run(tile->m, tile->n, tile->k, weft_gemm_block(tile->bind, tile->k), workspace, tile->b,
                tile->b_rs == 1 ? tile->b_cs : tile->b_rs, scratch, sums, tile->n, tile->acc != NULL);
    weft_job_store(tile, 0, tile->m, 0, tile->n, sums, tile->n);
}

/* k = 0: the sums are what came in, or zero. */
static void run_empty(const gemm_job *job)
{
    const weft_gemm_tile *tile = job->tile;
    int nr = job->kernel->nr;

    if (tile->acc) {
        weft_job_store(tile, 0, tile->m, 0, tile->n, tile->acc, tile->acc_ld);
        return;
    }
    memset(job->sums, 0, (size_t)nr * 4);
    for (int64_t i = 0; i < tile->m; i++) {
        for (int64_t j = 0; j < tile->n; j += nr)
            weft_job_store(tile, i, 1, j, weft_min(nr, tile->n - j), job->sums, 0);
    }
}

/* The narrowest kernel for so few rows, or NULL. */
static const weft_few *few_of(const weft_few *few, int64_t m)
{
    while (few && few->rows && few->rows < m)
        few++;
    return few && few->rows ? few : NULL;
}

/* Panels of B at a time; one where k blocks or memory decide the order. */
static int64_t group_of(const gemm_job *job)
{
    int64_t count;

    if (job->carried)
        return job->tile->order;
    if (job->streams || job->cut.stretch > job->cut.k ||
        (job->cut.waits && !job->kernel->run_row && !job->b_stays))
        return 1;
    if (job->b_stays)
        return job->kernel->run_row ? job->kernel->row_most : GROUP_COLUMNS / job->kernel->nr;
    count =
        (job->finish && job->tile->d_count > 1 ? panels_for_two : panels_in_l1)(job->tile->bind, job->cut.k);
    /* Two panels pay only where rows of another core are read. */
    return count < GROUP_FEWEST && !job->tile->acc ? 1 : count;
}

/* Of a group of panels over a k block. */
static size_t group_bytes(const gemm_job *job)
{
    int64_t nr = job->kernel->nr, panels = weft_min(job->group, weft_divide_up(job->cut.n, nr));

    return aligned_bytes(panels * nr * job->cut.k, job->type_bytes);
}

/* What writes a D of this type from registers, or NULL. */
static weft_finisher finisher_of(const weft_binding *bind, weft_dtype d_dtype)
{
    if (bind->narrow && d_dtype == bind->narrow)
        return bind->finish;
    return d_dtype == bind->kernel->type ? bind->kernel->finish : NULL;
}

static gemm_job make_job(const weft_gemm_tile *tile, char *workspace)
{
    const weft_kernel *kernel = tile->bind->kernel;
    bool carried = kernel->finish && (tile->acc_in_order || tile->d_in_order);
    bool packed = tile->packed_b != NULL, halves = packed && tile->bind->narrow != WEFT_F32;
    const weft_few *few =
        carried ? NULL : few_of(halves && tile->bind->few ? tile->bind->few : kernel->few, tile->m);
    weft_dtype d_dtype = tile->raw ? weft_dtype_accumulator(kernel->type) : tile->d_dtype;
    bool d_holds_sums = !carried && d_dtype == weft_dtype_accumulator(kernel->type) &&
                        (tile->raw || ((tile->beta == 0 || !tile->c) && !weft_act_is_gated(tile->act)));
    gemm_job job = {
        .tile = tile,
        .kernel = kernel,
        .run = few ? few->run : kernel->run,
        .edge = few ? NULL : kernel->edge,
        .side_a = weft_pack_side_a(tile->bind, few ? few->rows : kernel->mr),
        .cut =
            cut_blocks(tile->bind, tile->m, tile->n, tile->k, packed && !(halves && carried), d_holds_sums),
        .widens = halves && !(few && tile->bind->few),
        .carried = carried,
        .b_stays = b_stays(tile),
        .type_bytes = weft_dtype_size(kernel->type),
        .d_bytes = weft_dtype_size(d_dtype),
    };

    if (job.b_stays)
        job.cut.m = weft_min(job.cut.m, panels_of_a_in_l1(tile->bind, job.cut.k) * kernel->mr);
    job.streams = few || (!carried && kernel->run_ahead && tile->m <= WEFT_GEMM_STREAM_ROWS);
    job.first = job.streams && !few ? kernel->run_ahead : job.run;
    if (weft_job_only_rounds(tile) && !job.streams)
        job.finish = finisher_of(tile->bind, d_dtype);
    else if (weft_job_only_rounds(tile) && !few && d_dtype == kernel->type)
        job.finish = kernel->finish_ahead;
    job.gathers = job.finish && !carried && job.cut.stretch > job.cut.k && weft_job_is_identity(tile) &&
                  d_dtype == kernel->type && tile->d_count == 1;
    job.direct = !carried && !job.gathers && weft_job_is_identity(tile) && (tile->d_count == 1 || job.finish);
    job.sums_in_d = d_holds_sums && job.cut.waits && !job.gathers;
    job.group = group_of(&job);
    if (carried && job.cut.n < tile->n) /* blocks of columns are whole groups of the order */
        job.cut.n = (job.cut.n > job.group * kernel->nr ? job.cut.n / (job.group * kernel->nr) : 1) *
                    job.group * kernel->nr;
    job.spreads =
        job.finish && tile->d_count > 1 && job.group * kernel->nr * (int64_t)job.d_bytes < SPREAD_LINES * 64;
    job.a_block = workspace;
    job.b_block = job.a_block + a_block_bytes(kernel, &job.cut);
    job.sums = job.b_block + (job.widens && !carried  ? group_bytes(&job)
                              : packed && !job.widens ? 0
                                                      : b_block_bytes(kernel, &job.cut));
    job.sums_ld = job.cut.waits && !job.gathers ? job.cut.n : job.group * kernel->nr;
    return job;
}

/* Without a kernel that keeps its own order, sums in order are dense rows. */
static weft_gemm_tile in_rows(const weft_gemm_tile *tile)
{
    weft_gemm_tile plain = *tile;

    if (tile->acc_in_order)
        plain.acc_ld = tile->n;
    if (tile->d_in_order)
        plain.d_ld[0] = tile->n;
    plain.acc_in_order = plain.d_in_order = false;
    return plain;
}

/*
 * For few rows: whether a block of B, packed whole, stays in L2 in the place of a block of A, so that pieces
 * of it gain nothing. Not for so few that a kernel has a loop of their own, whose sums may have another
 * order: it must not depend on columns.
 */
static bool b_is_near(const weft_gemm_tile *tile)
{
    const weft_binding *bind = tile->bind;
    blocks cut = cut_blocks(bind, tile->m, tile->n, tile->k, false, false);

    return !few_of(bind->kernel->few, tile->m) &&
           weft_round_up(tile->n, bind->kernel->nr) * cut.stretch <= (int64_t)bind->mc * bind->kc;
}

static void run_packed(const weft_gemm_tile *tile, char *workspace)
{
    if (weft_few_rows_suit(tile) && !b_is_near(tile)) {
        weft_few_rows_run(tile, workspace);
        return;
    }
    gemm_job job = make_job(tile, workspace);

    if (tile->k == 0) {
        (job.carried ? weft_carried_empty : run_empty)(&job);
        return;
    }
    for (int64_t j = 0; j < tile->n; j += job.cut.n) {
        for (int64_t s = 0; s < tile->m; s += job.cut.band) {
            for (int64_t p = 0; p < tile->k; p += job.cut.stretch) {
                block_b b = {
                    .j0 = j,
                    .cols = weft_min(job.cut.n, tile->n - j),
                    .k0 = p,
                    .k = weft_min(job.cut.stretch, tile->k - p),
                    .first = p == 0,
                    .last = p + job.cut.stretch >= tile->k,
                };

                prepare_b(&job, &b);
                run_band(&job, &b, s, weft_min(job.cut.band, tile->m - s));
            }
        }
    }
}

static void run_tile(const weft_gemm_tile *tile, char *workspace)
{
    const weft_kernel *kernel = tile->bind->kernel;
    const weft_stream *stream;

    if (weft_gemm_is_small(tile)) {
        weft_gemm_run_small(tile, workspace);
        return;
    }
    stream = tile->acc_in_order || tile->d_in_order ? NULL : stream_of(tile);
    if (stream && tile->k > 0) {
        run_streamed(tile, stream, workspace);
        return;
    }
    if (kernel->prepare)
        kernel->prepare();
    run_packed(tile, workspace);
    if (kernel->release)
        kernel->release();
}

void weft_gemm_run_tile(const weft_gemm_tile *tile, void *workspace)
{
    if ((tile->acc_in_order || tile->d_in_order) && !tile->bind->kernel->finish) {
        weft_gemm_tile plain = in_rows(tile);

        run_tile(&plain, workspace);
    } else {
        run_tile(tile, workspace);
    }
}
