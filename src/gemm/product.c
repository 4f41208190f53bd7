#include "gemm/product.h"
#include "core/dtype.h"
#include "core/part.h"
#include "core/pool.h"
#include "core/round.h"
#include "gemm/epilogue.h"

#include <math.h>
#include <stdatomic.h>

enum {
    TASKS_PER_MEMBER = 4,
    OWN_PANELS = 8,              /* of B for each member: fewer are packed together */
    OWN_COLUMNS = 512,           /* for each member, that make it worth packing all of A too */
    LINE_BYTES = 16 << 10,       /* of B that is read as it lies: shorter ones are fetched badly */
    PACKED_BYTES_MOST = 64 << 20 /* of B packed at a time; wider ones are worked off in column blocks */
};

static const double flops_per_member = 2e6; /* below this a second thread costs more than it gives */

/* One step of a product: a tile cut into a grid of tasks that members take in turn. */
typedef struct grid {
    const weft_gemm_tile *tile;
    weft_packed *packing; /* not NULL: the step packs B into it */
    int64_t rows, cols;   /* of a task; the last ones take what is left */
    int64_t down, across; /* tasks in a column and in a row of the grid */
    int64_t tasks;
    char *workspace;
    size_t workspace_bytes; /* of one member */
    _Atomic int64_t next;   /* taken by fetch_add; the pool's start and end order the data */
} grid;

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

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

static void work_grid(void *argument, int member)
{
    grid *g = argument;
    int64_t task;

    while ((task = atomic_fetch_add_explicit(&g->next, 1, memory_order_relaxed)) < g->tasks) {
        int64_t i = task / g->across * g->rows, j = task % g->across * g->cols;
        int64_t rows = task / g->across == g->down - 1 ? g->tile->m - i : g->rows;
        int64_t cols = min64(g->cols, g->tile->n - j);

        if (g->packing) {
            weft_packed_fill(g->tile->bind, g->packing, g->tile->b, g->tile->b_dtype, g->tile->b_rs,
                             g->tile->b_cs, 0, g->tile->k, j, cols);
            continue;
        }
        weft_gemm_tile part = tile_at(g->tile, i, j, rows, cols);

        weft_gemm_run_tile(&part, g->workspace + (size_t)member * g->workspace_bytes);
    }
}

/* Few rows read such a B where it lies, in lines as long as a task has columns: the longer, the more of what
 * hardware fetches ahead is wanted. */
static bool lies_row_major(const weft_gemm_tile *tile)
{
    return !tile->packed_b && tile->b_cs == 1 && tile->m <= tile->bind->kernel->mr;
}

/* Rows that are one block of A use a packed panel of B once: members with columns enough each pack their own,
 * which are then still in their caches, and leave whole columns to one member. With so many columns that
 * packing all rows of A does not count, they do so for any number of rows: nobody waits for B. */
static bool packs_own_columns(const weft_gemm_tile *tile, int members)
{
    const weft_kernel *kernel = tile->bind->kernel;
    int64_t fewest = tile->m <= tile->bind->mc ? OWN_PANELS * kernel->nr : OWN_COLUMNS;

    return members > 1 && !tile->packed_b && tile->k > 0 && tile->m > kernel->mr &&
           tile->n >= (int64_t)members * fewest;
}

/* How long a task takes, in multiplications: it packs its rows of A itself and fetches the columns of B that
 * others packed, an element of the one in the time of about nr multiplications, of the other of mr / 2. */
static double task_cost(const weft_gemm_steps *steps, int64_t rows, int64_t cols)
{
    return (double)rows * (double)(cols + steps->nr) + 0.5 * (double)(cols * steps->mr);
}

/*
 * Tasks of about `down` to a column, and so many to a row that there are `tasks` in all. Less than mr rows
 * are no task of their own beside others: a kernel for few rows may sum in another order, and what is left
 * depends on the members.
 */
static void cut_into(grid *g, const weft_gemm_steps *steps, int64_t down, int64_t tasks)
{
    int64_t m = g->tile->m, n = g->tile->n;

    g->rows = weft_round_up(weft_divide_up(m, down), steps->mr);
    g->down = (m - steps->mr) / g->rows + 1;
    int64_t across = weft_divide_up(tasks, g->down);

    g->cols = weft_round_up(weft_divide_up(n, across), steps->nr);
    g->across = weft_divide_up(n, g->cols);
    g->tasks = g->down * g->across;
}

/* The grid that is done first. Members are not equally fast, so more turns are better where they cost little:
 * at the end all but one wait, a quarter of a task in the mean. */
static void cut_grid(grid *g, int members)
{
    static const double idle = 0.25;
    weft_gemm_steps steps = weft_gemm_steps_of(g->tile->bind);
    bool lines = lies_row_major(g->tile), own = packs_own_columns(g->tile, members), whole = lines || own;
    int64_t narrowest = own && g->tile->m > g->tile->bind->mc ? OWN_COLUMNS : 0;
    int64_t most = min64(TASKS_PER_MEMBER * (int64_t)members, g->tile->m / steps.mr);
    double least = INFINITY;
    grid best = {0};

    for (int64_t down = 1; down == 1 || (down <= most && !whole); down += 1 + down / 4) {
        for (int turns = 1; turns <= (lines ? 1 : TASKS_PER_MEMBER); turns++) {
            cut_into(g, &steps, down, (int64_t)members * turns);
            int64_t longest = weft_divide_up(g->tasks, members);
            double time = ((double)longest + idle) * task_cost(&steps, g->rows, g->cols);

            if (time < least && g->cols >= narrowest) {
                least = time;
                best = (grid){.rows = g->rows, .cols = g->cols, .down = g->down, .across = g->across};
            }
        }
    }
    g->rows = best.rows;
    g->cols = best.cols;
    g->down = best.down;
    g->across = best.across;
    g->tasks = best.down * best.across;
    atomic_store_explicit(&g->next, 0, memory_order_relaxed);
}

static void run_packed(const weft_gemm_tile *tile, weft_pool *pool, int members, char *workspace,
                       size_t workspace_bytes)
{
    grid g = {.tile = tile, .workspace = workspace, .workspace_bytes = workspace_bytes};

    cut_grid(&g, members);
    weft_pool_run(pool, members, work_grid, &g);
}

/*
 * Few rows of a row-major B whose lines are too short to be shared: members take blocks of k instead, with
 * the whole lines of B. Each block is summed by itself; then the blocks are added in ascending k, as one
 * thread does, so that the bits are the same.
 */
typedef struct by_blocks {
    const weft_gemm_tile *tile;
    int members;
    int64_t block, blocks; /* k of one; how many */
    int64_t whole;         /* of these a task each; each of the others is cut into `members` tasks */
    int64_t cols;          /* of a member: of such a task, and of the sums that it adds up */
    float *sums;           /* blocks x m x n */
    char *workspace;
    size_t workspace_bytes; /* of one member */
    _Atomic int64_t next;   /* taken by fetch_add; the pool's start and end order the data */
} by_blocks;

static size_t sums_bytes(const weft_gemm_tile *tile, int64_t block)
{
    return (size_t)(weft_divide_up(tile->k, block) * tile->m * tile->n) * sizeof(float);
}

/* The k of such a block; 0 where columns are shared out: int8 has so few bytes that its lines do not matter.
 */
static int64_t block_to_share(const weft_gemm_tile *tile, int members)
{
    bool floats = members > 1 && tile->bind->kernel->type != WEFT_I8;
    int64_t block = floats ? weft_gemm_streamed_block(tile) : 0;
    bool short_lines = tile->n / members * (int64_t)weft_dtype_size(tile->b_dtype) < LINE_BYTES;

    return block > 0 && short_lines && weft_divide_up(tile->k, block) >= members ? block : 0;
}

/* All of B is packed by all members, then used. */
static bool packs_together(const weft_gemm_tile *tile, int members)
{
    return block_to_share(tile, members) == 0 && !tile->packed_b && members > 1 && tile->k > 0 &&
           tile->m > tile->bind->kernel->mr && !packs_own_columns(tile, members);
}

/* The most columns that a member has at a time: of blocks of k all. */
static int64_t columns_of_task(const weft_gemm_tile *tile, int members)
{
    grid g = {.tile = tile};

    if (block_to_share(tile, members) > 0 || !packs_own_columns(tile, members))
        return tile->n;
    cut_grid(&g, members);
    return min64(g.cols, tile->n);
}

size_t weft_product_member_bytes(const weft_gemm_tile *tile, int members)
{
    bool packed = tile->packed_b || packs_together(tile, members);
    size_t bytes =
        weft_gemm_workspace_bytes(tile->bind, tile->m, columns_of_task(tile, members), tile->k, packed);

    return weft_round_up_bytes(bytes, WEFT_GEMM_ALIGNMENT);
}

static void sum_blocks(void *argument, int member)
{
    by_blocks *s = argument;
    const weft_gemm_tile *tile = s->tile;
    int64_t tasks = s->whole + (s->blocks - s->whole) * s->members, task;

    while ((task = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < tasks) {
        bool whole = task < s->whole;
        int64_t b = whole ? task : s->whole + (task - s->whole) / s->members, k0 = b * s->block;
        int64_t j = whole ? 0 : (task - s->whole) % s->members * s->cols;

        if (j >= tile->n)
            continue;
        weft_gemm_tile part = tile_at(tile, 0, j, tile->m, whole ? tile->n : min64(s->cols, tile->n - j));

        part.a = (const char *)part.a + k0 * part.a_cs * (int64_t)weft_dtype_size(part.a_dtype);
        part.b = (const char *)part.b + k0 * part.b_rs * (int64_t)weft_dtype_size(part.b_dtype);
        part.k = min64(s->block, tile->k - k0);
        part.raw = true;
        part.d[0] = s->sums + b * tile->m * tile->n + j;
        part.d_ld[0] = tile->n;
        weft_gemm_run_tile(&part, s->workspace + (size_t)member * s->workspace_bytes);
    }
}

static void add_blocks(void *argument, int member)
{
    by_blocks *s = argument;
    const weft_gemm_tile *tile = s->tile;
    int64_t j = member * s->cols, cols = min64(s->cols, tile->n - j);

    if (cols <= 0)
        return;
    for (int64_t i = 0; i < tile->m; i++) {
        for (int64_t b = 1; b < s->blocks; b++) {
            int64_t to = i * tile->n + j, from = to + b * tile->m * tile->n;

            for (int64_t x = 0; x < cols; x++)
                s->sums[to + x] += s->sums[from + x];
        }
    }
    weft_gemm_tile part = tile_at(tile, 0, j, tile->m, cols);

    part.k = 0;
    part.acc = s->sums + j;
    part.acc_ld = tile->n;
    weft_gemm_run_tile(&part, s->workspace + (size_t)member * s->workspace_bytes);
}

static void run_by_blocks(const weft_gemm_tile *tile, int64_t block, weft_pool *pool, int members,
                          char *workspace, size_t workspace_bytes)
{
    int64_t blocks = weft_divide_up(tile->k, block);
    by_blocks s = {.tile = tile,
                   .members = members,
                   .block = block,
                   .blocks = blocks,
                   .whole = blocks / members * members,
                   .cols = weft_round_up(weft_divide_up(tile->n, members), tile->bind->kernel->nr),
                   .sums = (float *)(workspace + (size_t)members * workspace_bytes),
                   .workspace = workspace,
                   .workspace_bytes = workspace_bytes};

    atomic_init(&s.next, 0);
    weft_pool_run(pool, members, sum_blocks, &s);
    weft_pool_run(pool, members, add_blocks, &s);
}

static void pack_all(const weft_gemm_tile *tile, weft_packed *packed, weft_pool *pool, int members)
{
    int nr = tile->bind->kernel->nr;
    int64_t panels = weft_divide_up(tile->n, nr), tasks = min64(panels, (int64_t)members * TASKS_PER_MEMBER);
    grid g = {.tile = tile, .packing = packed, .rows = 1, .down = 1};

    if (tasks == 0)
        return;
    g.cols = weft_divide_up(panels, tasks) * nr;
    g.across = g.tasks = weft_divide_up(tile->n, g.cols);
    weft_pool_run(pool, members, work_grid, &g);
}

/* Columns of B that are packed at a time. */
static int64_t columns_at_once(const weft_gemm_tile *tile)
{
    int nr = tile->bind->kernel->nr;
    int64_t panel = (int64_t)(weft_packed_bytes(tile->bind, tile->k, nr));
    int64_t cols = PACKED_BYTES_MOST / panel * nr;

    return min64(cols > nr ? cols : nr, tile->n);
}

static void run_one(const weft_gemm_tile *tile, int members, const weft_loan *loan, size_t workspace_bytes)
{
    char *scratch = loan->scratch, *packed_memory = scratch + (size_t)members * workspace_bytes;
    int64_t step = columns_at_once(tile), block = block_to_share(tile, members);

    if (members == 1) {
        weft_gemm_run_tile(tile, scratch);
        return;
    }
    if (block > 0) {
        run_by_blocks(tile, block, loan->pool, members, scratch, workspace_bytes);
        return;
    }
    if (tile->packed_b || tile->k == 0 || tile->m <= tile->bind->kernel->mr ||
        packs_own_columns(tile, members)) {
        run_packed(tile, loan->pool, members, scratch, workspace_bytes);
        return;
    }
    for (int64_t j = 0; j < tile->n; j += step) {
        weft_gemm_tile part = tile_at(tile, 0, j, tile->m, min64(step, tile->n - j));
        weft_packed *packed = weft_packed_begin(tile->bind, part.k, part.n, packed_memory);

        pack_all(&part, packed, loan->pool, members);
        part.packed_b = packed;
        part.packed_k0 = part.packed_n0 = 0;
        run_packed(&part, loan->pool, members, scratch, workspace_bytes);
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
    int members = weft_pool_members(threads);
    double useful = flops / flops_per_member + 1;

    return useful < members ? (int)useful : members;
}

weft_status weft_product_run(const weft_product *given, weft_error_text *error)
{
    weft_product turned = *given, *product = &turned;

    turn_column(&turned);

    weft_gemm_tile tile = product->tile;
    double flops = 2.0 * (double)tile.m * (double)tile.n * (double)tile.k;
    int members = members_for(flops, product->threads);
    int64_t block = block_to_share(&tile, members);
    size_t workspace = weft_product_member_bytes(&tile, members);
    size_t a_size = weft_dtype_size(tile.a_dtype), b_size = weft_dtype_size(tile.b_dtype);
    size_t d_size = weft_dtype_size(tile.d_dtype), packed = 0;
    weft_loan loan;
    weft_status status;

    if (tile.m == 0 || tile.n == 0 || product->batch == 0)
        return WEFT_OK;
    if (packs_together(&tile, members))
        packed = weft_packed_bytes(tile.bind, tile.k, columns_at_once(&tile));
    else if (block > 0)
        packed = sums_bytes(&tile, block);
    status = weft_pool_borrow(members, (size_t)members * workspace + packed, &loan, error);
    if (status)
        return status;
    for (int64_t l = 0; l < product->batch; l++) {
        run_one(&tile, members, &loan, workspace);
        tile.a = (const char *)tile.a + product->a_stride * (int64_t)a_size;
        if (!tile.packed_b)
            tile.b = (const char *)tile.b + product->b_stride * (int64_t)b_size;
        if (tile.c)
            tile.c = (const char *)tile.c + product->c_stride * (int64_t)d_size;
        tile.d[0] = (char *)tile.d[0] + product->d_stride * (int64_t)d_size;
    }
    weft_pool_return(&loan);
    return WEFT_OK;
}

weft_status weft_product_pack(const weft_binding *bind, weft_packed *packed, const void *b,
                              weft_dtype b_dtype, int64_t b_rs, int64_t b_cs, int threads,
                              weft_error_text *error)
{
    weft_gemm_tile tile = weft_gemm_tile_init(bind, b_dtype);
    int members = members_for((double)packed->k * (double)packed->n, threads);
    weft_loan loan;
    weft_status status = weft_pool_borrow(members, 0, &loan, error);

    if (status)
        return status;
    tile.b = b;
    tile.b_rs = b_rs;
    tile.b_cs = b_cs;
    tile.k = packed->k;
    tile.n = packed->n;
    pack_all(&tile, packed, loan.pool, members);
    weft_pool_return(&loan);
    return WEFT_OK;
}
