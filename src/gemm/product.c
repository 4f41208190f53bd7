#include "gemm/product.h"
#include "core/dtype.h"
#include "core/part.h"
#include "core/pool.h"
#include "core/round.h"
#include "core/signal.h"
#include "gemm/epilogue.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>

enum {
    TASKS_PER_MEMBER = 4,
    OWN_PANELS = 8,              /* of B for each member: fewer are packed together */
    PIECES_LEAST = 4,            /* of a strip's B: who comes to help at the end packs some of them too */
    POLLS = 1024,                /* of a piece that another packs, before the CPU is offered to it */
    LINE_BYTES = 16 << 10,       /* of B that is read as it lies: shorter ones are fetched badly */
    NEAR_SUMS_BYTES = 16 << 10,  /* of a task that has longer ones instead: L1 has its sums */
    SHORT_LINE_BYTES = 1 << 10,  /* each is in a page of its own, whose address takes longer than it */
    LINE_END_BYTES = 2560,       /* could be read in the time that the end of a strip's line costs */
    STACK_BYTES = 32 << 10,      /* of workspace that a small product has there */
    SUM_BYTES = 4,               /* of a sum, whatever its type */
    PACKED_BYTES_MOST = 64 << 20 /* of B packed at a time; wider ones are worked off in column blocks */
};

static const double flops_per_member = 2e6; /* below this a second thread costs more than it gives */

/* A block of few rows takes this much longer: its kernel fetches a B from memory that is near. */
static const double few_rows_cost = 1.15;

/* Columns of a product and who works on them. */
typedef struct strip {
    _Alignas(WEFT_LINE_BYTES) _Atomic int64_t piece; /* of its B, taken by fetch_add */
    _Atomic int64_t packed; /* pieces: release by who packed one, partner: the acquire in await_strip */
    _Atomic int64_t block;  /* of rows, taken by fetch_add */
} strip;

/*
 * A product, or packing alone, cut into strips of columns and these into blocks of rows. A member has a strip
 * to begin with, so that its B stays in its caches for one block of rows after another, and packs it together
 * with the others that begin there; then it goes on to the next strips and takes what is left of them. So
 * members need not be equally fast, nor be there at the same time: nobody waits but for a piece of B that
 * another is packing right now.
 */
typedef struct grid {
    const weft_gemm_tile *tile;
    weft_packed *packing; /* not NULL: B is packed into it */
    int64_t rows, cols;   /* of a block and a strip; the last ones take what is left */
    int64_t down, across; /* blocks of a strip, strips */
    int64_t pieces;       /* of B in a strip, of piece_k x piece_cols */
    int64_t piece_k, piece_cols;
    int members;
    strip *strips;
    char *workspace;
    size_t workspace_bytes; /* of one member */
} grid;

/* The part of a tile at (i, j): every operand moved to where it starts. */
static weft_gemm_tile tile_at(const weft_gemm_tile *whole, int64_t i, int64_t j, int64_t rows, int64_t cols)
{
    weft_gemm_tile t = *whole;
    int64_t d_size = (int64_t)weft_dtype_size(t.raw ? WEFT_F32 : t.d_dtype);

    t.m = rows;
    t.n = cols;
    t.a = (const char *)t.a + i * t.a_rs * (int64_t)weft_dtype_size(t.a_dtype);
    if (t.packed_b)
        t.packed_n0 += j;
    else
        t.b = (const char *)t.b + j * t.b_cs * (int64_t)weft_dtype_size(t.b_dtype);
    if (t.acc)
        t.acc = (const char *)t.acc + (i * t.acc_ld + j) * 4;
    if (t.c)
        t.c = (const char *)t.c + (i * t.c_ld + j) * d_size;
    if (t.bias)
        t.bias = (const char *)t.bias + j * d_size;
    if (t.row_scale)
        t.row_scale += i;
    if (t.col_scale)
        t.col_scale += j;
    for (int d = 0; d < t.d_count; d++)
        t.d[d] = (char *)t.d[d] + (i * t.d_ld[d] + j / weft_act_width(t.act)) * d_size;
    return t;
}

/* Packs what nobody has taken of a strip's B. */
static void pack_strip(const grid *g, int64_t index)
{
    const weft_gemm_tile *tile = g->tile;
    strip *s = &g->strips[index];
    int64_t begin = index * g->cols, cols = weft_min(g->cols, tile->n - begin), piece;
    int64_t wide = weft_divide_up(cols, g->piece_cols);

    while ((piece = atomic_fetch_add_explicit(&s->piece, 1, memory_order_relaxed)) < g->pieces) {
        int64_t k0 = piece / wide * g->piece_k, j = piece % wide * g->piece_cols;

        if (k0 < tile->k)
            weft_packed_fill(tile->bind, g->packing, tile->b, tile->b_dtype, tile->b_rs, tile->b_cs, k0,
                             weft_min(g->piece_k, tile->k - k0), begin + j,
                             weft_min(g->piece_cols, cols - j));
        atomic_fetch_add_explicit(&s->packed, 1, memory_order_release);
    }
}

/* Until the pieces that others have taken are packed: they are at it. */
static void await_strip(const grid *g, const strip *s)
{
    for (int poll = 1; atomic_load_explicit(&s->packed, memory_order_acquire) < g->pieces; poll++) {
        if (poll % POLLS)
            weft_pause();
        else
            sched_yield();
    }
}

static void multiply_strip(const grid *g, int64_t index, char *workspace)
{
    strip *s = &g->strips[index];
    int64_t j = index * g->cols, cols = weft_min(g->cols, g->tile->n - j), block;

    while ((block = atomic_fetch_add_explicit(&s->block, 1, memory_order_relaxed)) < g->down) {
        int64_t i = block * g->rows, rows = block == g->down - 1 ? g->tile->m - i : g->rows;
        weft_gemm_tile part = tile_at(g->tile, i, j, rows, cols);

        weft_gemm_run_tile(&part, workspace);
    }
}

static void work_grid(void *argument, int member)
{
    const grid *g = argument;
    int64_t first = member * g->across / g->members;

    for (int64_t visit = 0; visit < g->across; visit++) {
        int64_t index = (first + visit) % g->across;
        strip *s = &g->strips[index];

        if (g->packing)
            pack_strip(g, index);
        if (atomic_load_explicit(&s->block, memory_order_relaxed) >= g->down)
            continue;
        if (g->packing)
            await_strip(g, s);
        multiply_strip(g, index, g->workspace + (size_t)member * g->workspace_bytes);
    }
}

/* Few rows read such a B where it lies, in lines as long as a task has columns: the longer, the more of what
 * hardware fetches ahead is wanted. */
static bool lies_row_major(const weft_gemm_tile *tile)
{
    return !tile->packed_b && tile->b_cs == 1 && tile->m <= tile->bind->kernel->mr;
}

/* Rows that are one block of A use a packed panel of B once: members with columns enough each pack their own,
 * a piece at a time, which is still in their caches then. */
static bool packs_own_columns(const weft_gemm_tile *tile, int members)
{
    return tile->m <= tile->bind->mc && tile->n >= (int64_t)members * OWN_PANELS * tile->bind->kernel->nr;
}

/* B is packed by the members, each strip by those that begin there. */
static bool packs(const weft_gemm_tile *tile, int members)
{
    return members > 1 && !tile->packed_b && tile->k > 0 && tile->m > tile->bind->kernel->mr &&
           !packs_own_columns(tile, members);
}

/*
 * Strips of about `across` to the grid, and so many blocks of rows that there are `tasks` in all. Less than
 * mr rows are no block of their own beside others: a kernel for few rows may sum in another order, and what
 * is left depends on the members.
 */
static void cut_into(grid *g, const weft_gemm_steps *steps, int64_t across, int64_t tasks)
{
    int64_t m = g->tile->m, n = g->tile->n;

    g->cols = weft_round_up(weft_divide_up(n, across), steps->nr);
    g->across = weft_divide_up(n, g->cols);
    g->rows = weft_round_up(weft_divide_up(m, weft_divide_up(tasks, g->across)), steps->mr);
    g->down = m > steps->mr ? (m - steps->mr) / g->rows + 1 : 1;
}

/*
 * How long a member takes, in multiplications: it packs the rows of A of each block, and fetches the columns
 * of B of each strip, an element in the time of about nr and mr of them; of a strip that is larger than a
 * block of A may be, for every block of A again. Lines of a row-major B end where the strip does, and
 * hardware goes on. At the end all members but one wait, a quarter of a block in the mean.
 */
static double time_of(const grid *g, const weft_gemm_steps *steps)
{
    static const double idle = 0.25;
    const weft_gemm_tile *tile = g->tile;
    const weft_binding *bind = tile->bind;
    int64_t line_end = !tile->packed_b && tile->b_cs == 1 && g->across > 1
                           ? LINE_END_BYTES / (int64_t)weft_dtype_size(tile->b_dtype)
                           : 0;
    bool stays = g->cols * g->tile->k <= (int64_t)bind->mc * bind->kc;
    int64_t blocks = weft_divide_up(g->across * g->down, g->members);
    int64_t again = stays ? 1 : weft_divide_up(g->rows, bind->mc);
    int64_t fetches = stays ? weft_divide_up(blocks, g->down) : blocks;
    double block = (double)g->rows * (double)(g->cols + steps->nr),
           fetch = (double)(again * (g->cols + line_end) * steps->mr);

    if (bind->kernel->run_ahead && g->down > 1 && g->rows <= WEFT_GEMM_STREAM_ROWS)
        block *= few_rows_cost;
    return (double)blocks * block + (double)fetches * fetch + idle * (block + fetch);
}

/* The grid that is done first. A B that is not packed for all has whole columns for each. */
static void cut_grid(grid *g, bool packing)
{
    weft_gemm_steps steps = weft_gemm_steps_of(g->tile->bind);
    bool lines = lies_row_major(g->tile), whole = lines || !(packing || g->tile->packed_b);
    int64_t members = g->members, turns = lines ? 1 : TASKS_PER_MEMBER;
    int64_t most = lines ? members : weft_min(turns * members, weft_divide_up(g->tile->n, steps.nr));
    double least = INFINITY;
    grid best = *g;

    for (int64_t across = whole ? weft_min(members, most) : 1; across <= most; across += 1 + across / 8) {
        for (int64_t tasks = whole ? across : members; tasks <= turns * members; tasks += members) {
            cut_into(g, &steps, across, tasks);
            double time = time_of(g, &steps);

            if (time < least) {
                least = time;
                best = *g;
            }
            if (whole)
                break;
        }
    }
    *g = best;
}

/* Pieces of a strip's B for those that begin there: lines of a row-major one stay as wide as the strip. */
static void cut_pieces(grid *g)
{
    const weft_gemm_tile *tile = g->tile;
    const weft_kernel *kernel = tile->bind->kernel;
    int64_t wanted = 2 * weft_divide_up(g->members, g->across);

    wanted = weft_max(wanted, PIECES_LEAST);
    g->piece_k = tile->k;
    g->piece_cols = g->cols;
    if (tile->b_cs == 1)
        g->piece_k = weft_round_up(weft_divide_up(tile->k, wanted), kernel->k_step);
    else
        g->piece_cols = weft_round_up(weft_divide_up(g->cols, wanted), kernel->nr);
    g->pieces = weft_divide_up(tile->k, g->piece_k) * weft_divide_up(g->cols, g->piece_cols);
}

static size_t strips_bytes(int members)
{
    return (size_t)(TASKS_PER_MEMBER * members) * sizeof(strip);
}

static void run_grid(grid *g, weft_pool *pool)
{
    for (int64_t i = 0; i < g->across; i++) {
        atomic_init(&g->strips[i].piece, 0);
        atomic_init(&g->strips[i].packed, 0);
        atomic_init(&g->strips[i].block, 0);
    }
    weft_pool_run(pool, g->members, work_grid, g);
}

/*
 * Few rows of a row-major B whose lines are too short to be shared: members take blocks of k instead, with
 * the whole lines of B, or where there are fewer blocks than members longer pieces of them. Each block is
 * summed by itself; then the blocks are added in ascending k, as one thread does, so that the bits are the
 * same.
 */
typedef struct by_blocks {
    const weft_gemm_tile *tile;
    int members;
    int64_t block, blocks; /* k of one; how many */
    int64_t whole;         /* of these a task each; each of the others is cut into `strips` of `cols` */
    int64_t strips, cols;
    int64_t add_cols; /* of the sums that a member adds up */
    void *sums;       /* blocks x m x n, float or of int8 int32_t */
    char *workspace;
    size_t workspace_bytes; /* of one member */
    _Atomic int64_t next;   /* taken by fetch_add; the pool's start and end order the data */
} by_blocks;

static size_t sums_bytes(const weft_gemm_tile *tile, int64_t block)
{
    return (size_t)(weft_divide_up(tile->k, block) * tile->m * tile->n) * SUM_BYTES;
}

/* Of a block that is cut: for each member, or where blocks are fewer, as many as keep nearly all at work. */
static int64_t strips_of_block(int64_t blocks, int members)
{
    return blocks >= members ? members : members / blocks;
}

/* Whether fewer blocks than members are worth sharing: longer lines, in a third of as many pages, for nearly
 * all members, whose sums are near. */
static bool few_blocks_pay(const weft_gemm_tile *tile, int64_t blocks, int members)
{
    int64_t strips = strips_of_block(blocks, members), line = tile->n / members;

    return blocks > 1 && line >= tile->bind->kernel->nr &&
           line * (int64_t)weft_dtype_size(tile->b_dtype) <= SHORT_LINE_BYTES &&
           tile->m * weft_divide_up(tile->n, strips) * SUM_BYTES <= NEAR_SUMS_BYTES &&
           10 * blocks * strips >= 9 * members;
}

/* The k of such a block; 0 where columns are shared out. */
static int64_t block_to_share(const weft_gemm_tile *tile, int members)
{
    int64_t line = tile->n / members * (int64_t)weft_dtype_size(tile->b_dtype), block, blocks;

    if (members == 1 || !weft_gemm_streams(tile))
        return 0;
    block = weft_gemm_block(tile->bind, tile->k);
    blocks = weft_divide_up(tile->k, block);
    if (blocks >= members)
        return line < LINE_BYTES ? block : 0;
    return few_blocks_pay(tile, blocks, members) ? block : 0;
}

/* The most columns that a member has at a time where it packs them itself; a member alone has all. */
static int64_t columns_of_task(const weft_gemm_tile *tile, int members)
{
    grid g = {.tile = tile, .members = members};

    if (members == 1 || tile->n == 0 || block_to_share(tile, members) > 0 || tile->packed_b ||
        packs(tile, members))
        return tile->n;
    cut_grid(&g, false);
    return weft_min(g.cols, tile->n);
}

size_t weft_product_member_bytes(const weft_gemm_tile *tile, int members)
{
    bool packed = tile->packed_b || (block_to_share(tile, members) == 0 && packs(tile, members));
    size_t bytes =
        weft_gemm_workspace_bytes(tile->bind, tile->m, columns_of_task(tile, members), tile->k, packed);

    return weft_round_up_bytes(bytes, WEFT_GEMM_ALIGNMENT);
}

static void sum_blocks(void *argument, int member)
{
    by_blocks *s = argument;
    const weft_gemm_tile *tile = s->tile;
    int64_t tasks = s->whole + (s->blocks - s->whole) * s->strips, task;

    while ((task = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < tasks) {
        bool whole = task < s->whole;
        int64_t b = whole ? task : s->whole + (task - s->whole) / s->strips, k0 = b * s->block;
        int64_t j = whole ? 0 : (task - s->whole) % s->strips * s->cols;

        if (j >= tile->n)
            continue;
        weft_gemm_tile part = tile_at(tile, 0, j, tile->m, whole ? tile->n : weft_min(s->cols, tile->n - j));

        part.a = (const char *)part.a + k0 * part.a_cs * (int64_t)weft_dtype_size(part.a_dtype);
        part.b = (const char *)part.b + k0 * part.b_rs * (int64_t)weft_dtype_size(part.b_dtype);
        part.k = weft_min(s->block, tile->k - k0);
        part.raw = true;
        part.d[0] = (char *)s->sums + (b * tile->m * tile->n + j) * SUM_BYTES;
        part.d_ld[0] = tile->n;
        weft_gemm_run_tile(&part, s->workspace + (size_t)member * s->workspace_bytes);
    }
}

/* Integers wrap around, as in the kernels. */
static void add_sums(weft_dtype type, void *sums, int64_t to, int64_t from, int64_t count)
{
    uint32_t *integers = sums;
    float *floats = sums;

    if (type == WEFT_I8) {
        for (int64_t x = 0; x < count; x++)
            integers[to + x] += integers[from + x];
        return;
    }
    for (int64_t x = 0; x < count; x++)
        floats[to + x] += floats[from + x];
}

static void add_blocks(void *argument, int member)
{
    by_blocks *s = argument;
    const weft_gemm_tile *tile = s->tile;
    int64_t j = member * s->add_cols, cols = weft_min(s->add_cols, tile->n - j);

    if (cols <= 0)
        return;
    for (int64_t i = 0; i < tile->m; i++) {
        int64_t to = i * tile->n + j;

        for (int64_t b = 1; b < s->blocks; b++)
            add_sums(tile->bind->kernel->type, s->sums, to, to + b * tile->m * tile->n, cols);
    }
    weft_gemm_tile part = tile_at(tile, 0, j, tile->m, cols);

    part.k = 0;
    part.acc = (const char *)s->sums + j * SUM_BYTES;
    part.acc_ld = tile->n;
    weft_gemm_run_tile(&part, s->workspace + (size_t)member * s->workspace_bytes);
}

static void run_by_blocks(const weft_gemm_tile *tile, int64_t block, weft_pool *pool, int members,
                          char *workspace, size_t workspace_bytes)
{
    int64_t blocks = weft_divide_up(tile->k, block), strips = strips_of_block(blocks, members);
    int nr = tile->bind->kernel->nr;
    by_blocks s = {.tile = tile,
                   .members = members,
                   .block = block,
                   .blocks = blocks,
                   .whole = blocks / members * members,
                   .strips = strips,
                   .cols = weft_round_up(weft_divide_up(tile->n, strips), nr),
                   .add_cols = weft_round_up(weft_divide_up(tile->n, members), nr),
                   .sums = workspace + (size_t)members * workspace_bytes,
                   .workspace = workspace,
                   .workspace_bytes = workspace_bytes};

    atomic_init(&s.next, 0);
    weft_pool_run(pool, members, sum_blocks, &s);
    weft_pool_run(pool, members, add_blocks, &s);
}

/* Columns of B that are packed at a time. */
static int64_t columns_at_once(const weft_gemm_tile *tile)
{
    int nr = tile->bind->kernel->nr;
    int64_t panel = (int64_t)(weft_packed_bytes(tile->bind, tile->k, nr));
    int64_t cols = PACKED_BYTES_MOST / panel * nr;

    return weft_min(weft_max(cols, nr), tile->n);
}

/* What members share lies after their workspaces: strips, then B as they pack it, or the sums of blocks. */
static void run_one(const weft_gemm_tile *tile, int members, const weft_loan *loan, size_t workspace_bytes)
{
    char *scratch = loan->scratch, *shared = scratch + (size_t)members * workspace_bytes;
    int64_t block = block_to_share(tile, members);
    bool packing = packs(tile, members);
    int64_t step = packing ? columns_at_once(tile) : tile->n;

    if (members == 1) {
        weft_gemm_run_tile(tile, scratch);
        return;
    }
    if (block > 0) {
        run_by_blocks(tile, block, loan->pool, members, scratch, workspace_bytes);
        return;
    }
    for (int64_t j = 0; j < tile->n; j += step) {
        weft_gemm_tile part = tile_at(tile, 0, j, tile->m, weft_min(step, tile->n - j));
        grid g = {.tile = &part,
                  .members = members,
                  .strips = (strip *)shared,
                  .workspace = scratch,
                  .workspace_bytes = workspace_bytes};

        cut_grid(&g, packing);
        if (packing) {
            g.packing = weft_packed_begin(tile->bind, part.k, part.n, shared + strips_bytes(members));
            cut_pieces(&g);
            part.packed_b = g.packing;
            part.packed_k0 = part.packed_n0 = 0;
        }
        run_grid(&g, loan->pool);
    }
}

/*
 * A single column of dense results is a single row, of the transposed product: kernels that read B as it lies
 * then read A so, and compute nothing beside the column. Every sum has the order it had.
 */
static void turn_column(weft_product *product)
{
    weft_gemm_tile *t = &product->tile, turned = *t;
    int64_t stride = product->a_stride;

    if (t->n != 1 || t->m == 1 || t->k == 0 || t->packed_b || t->bias || t->d_ld[0] != 1 ||
        (t->c && t->c_ld != 1))
        return;
    turned.m = 1;
    turned.n = t->m;
    turned.a = t->b;
    turned.a_dtype = t->b_dtype;
    turned.a_rs = t->b_cs;
    turned.a_cs = t->b_rs;
    turned.b = t->a;
    turned.b_dtype = t->a_dtype;
    turned.b_rs = t->a_cs;
    turned.b_cs = t->a_rs;
    turned.row_scale = t->col_scale;
    turned.col_scale = t->row_scale;
    turned.d_ld[0] = turned.c_ld = t->m;
    product->a_stride = product->b_stride;
    product->b_stride = stride;
    *t = turned;
}

static int members_for(double flops, int threads)
{
    double useful = flops / flops_per_member + 1;
    /* Asking the system for its CPUs takes as long as a product of 16 x 16 x 16. */
    int members = threads == 1 || useful < 2 ? 1 : weft_pool_members(threads);

    return useful < members ? (int)useful : members;
}

/* The l-th product of a batch. */
static weft_gemm_tile product_at(const weft_product *product, int64_t l)
{
    weft_gemm_tile tile = product->tile;

    tile.a = (const char *)tile.a + l * product->a_stride * (int64_t)weft_dtype_size(tile.a_dtype);
    if (!tile.packed_b)
        tile.b = (const char *)tile.b + l * product->b_stride * (int64_t)weft_dtype_size(tile.b_dtype);
    if (tile.c)
        tile.c = (const char *)tile.c + l * product->c_stride * (int64_t)weft_dtype_size(tile.d_dtype);
    tile.d[0] = (char *)tile.d[0] + l * product->d_stride * (int64_t)weft_dtype_size(tile.d_dtype);
    return tile;
}

/* A batch of products of which none is worth two threads: members take some of them at a time. */
typedef struct by_products {
    const weft_product *product;
    int64_t some;
    char *workspace;
    size_t workspace_bytes; /* of one member */
    _Atomic int64_t next;   /* taken by fetch_add; the pool's start and end order the data */
} by_products;

static void run_some(void *argument, int member)
{
    by_products *s = argument;
    int64_t l;

    while ((l = atomic_fetch_add_explicit(&s->next, s->some, memory_order_relaxed)) < s->product->batch)
        for (int64_t end = weft_min(l + s->some, s->product->batch); l < end; l++) {
            weft_gemm_tile tile = product_at(s->product, l);

            weft_gemm_run_tile(&tile, s->workspace + (size_t)member * s->workspace_bytes);
        }
}

static weft_status run_by_products(const weft_product *product, int members, weft_error_text *error)
{
    by_products s = {.product = product,
                     .some = weft_divide_up(product->batch, (int64_t)members * TASKS_PER_MEMBER),
                     .workspace_bytes = weft_product_member_bytes(&product->tile, 1)};
    weft_loan loan;
    weft_status status = weft_pool_borrow(members, (size_t)members * s.workspace_bytes, &loan, error);

    if (status)
        return status;
    s.workspace = loan.scratch;
    atomic_init(&s.next, 0);
    weft_pool_run(loan.pool, members, run_some, &s);
    weft_pool_return(&loan);
    return WEFT_OK;
}

/* One after the other, each by all members. */
static weft_status run_in_turn(const weft_product *product, int members, weft_error_text *error)
{
    const weft_gemm_tile *first = &product->tile;
    int64_t block = block_to_share(first, members);
    size_t workspace = weft_product_member_bytes(first, members), shared = strips_bytes(members);
    weft_loan loan;
    weft_status status;

    if (block > 0)
        shared = sums_bytes(first, block);
    else if (packs(first, members))
        shared += weft_packed_bytes(first->bind, first->k, columns_at_once(first));
    status = weft_pool_borrow(members, (size_t)members * workspace + shared, &loan, error);
    if (status)
        return status;
    for (int64_t l = 0; l < product->batch; l++) {
        weft_gemm_tile tile = product_at(product, l);

        run_one(&tile, members, &loan, workspace);
    }
    weft_pool_return(&loan);
    return WEFT_OK;
}

/* A small product on the caller's stack: borrowing memory would take longer than it does. */
static bool run_at_once(const weft_gemm_tile *tile)
{
    _Alignas(WEFT_GEMM_ALIGNMENT) char workspace[STACK_BYTES];
    int64_t bytes = weft_gemm_small_bytes(tile);

    if (bytes < 0 || bytes > STACK_BYTES)
        return false;
    weft_gemm_run_small(tile, workspace);
    return true;
}

weft_status weft_product_run(const weft_product *given, weft_error_text *error)
{
    const weft_gemm_tile *tile = &given->tile;
    double flops = 2.0 * (double)tile->m * (double)tile->n * (double)tile->k;
    int members = members_for(flops, given->threads), several;

    if (tile->m == 0 || tile->n == 0 || given->batch == 0)
        return WEFT_OK;
    if (members == 1 && given->batch == 1 && tile->n > 1 && run_at_once(tile))
        return WEFT_OK;
    weft_product turned = *given;

    turn_column(&turned);
    several = members > 1 ? 1 : members_for(flops * (double)given->batch, given->threads);
    several = (int)weft_min(several, given->batch);
    return several > 1 ? run_by_products(&turned, several, error) : run_in_turn(&turned, members, error);
}

weft_status weft_product_pack(const weft_binding *bind, weft_packed *packed, const void *b,
                              weft_dtype b_dtype, int64_t b_rs, int64_t b_cs, int threads,
                              weft_error_text *error)
{
    weft_gemm_tile tile = weft_gemm_tile_init(bind, b_dtype);
    int members = members_for((double)packed->k * (double)packed->n, threads), nr = bind->kernel->nr;
    int64_t panels = weft_divide_up(packed->n, nr),
            strips = weft_min(panels, (int64_t)members * TASKS_PER_MEMBER);
    grid g = {.tile = &tile, .packing = packed, .pieces = 1, .piece_k = packed->k, .members = members};
    weft_loan loan;
    weft_status status;

    if (panels == 0)
        return WEFT_OK;
    status = weft_pool_borrow(members, strips_bytes(members), &loan, error);
    if (status)
        return status;
    tile.b = b;
    tile.b_rs = b_rs;
    tile.b_cs = b_cs;
    tile.k = packed->k;
    tile.n = packed->n;
    g.cols = g.piece_cols = weft_divide_up(panels, strips) * nr;
    g.across = weft_divide_up(tile.n, g.cols);
    g.strips = loan.scratch;
    run_grid(&g, loan.pool);
    weft_pool_return(&loan);
    return WEFT_OK;
}
