/*
 * The data stage: follows the data of one run symbolically, in one order the order stage found. The race
 * stage has shown that conflicting accesses are ordered, so every execution moves the same values.
 *
 * A value says which global element a number is about and which contributions it holds: indices of k for a
 * GEMM op, ranks for a collective. Adding values of different elements, or the same contribution twice, is an
 * error; so is an epilogue on an incomplete sum, a read of something this run has not written, a second write
 * of a result. An average divides where a REDUCE writes the result: what it divides is a complete sum, and
 * what it has divided is only copied. At the end every element of the result must hold its own complete
 * value, and where all ranks get the same result, it was added up in the same order on all of them: they get
 * the same bits.
 */
#include "plan/check_memory.h"
#include "plan/check_sets.h"
#include "plan/check_stages.h"
#include "core/dtype.h"
#include "core/round.h"

#include <stdlib.h>

typedef struct data_state {
    weft_checker *checker;
    const weft_problem *problem;
    weft_memory memory;
    weft_sets *sets;
    weft_matrix *matrices; /* of all operands, ranks and batches */
    size_t *operand_base;  /* [operand] */
    weft_pieces *inputs;   /* what each region of the current task holds, relative to the region */
    uint32_t input_room;
    int64_t *row_cuts, *col_cuts;
    size_t row_count, col_count, row_room, col_room;
    uint32_t task; /* the current one */
} data_state;

static bool is_gemm(const data_state *s)
{
    return s->problem->op <= WEFT_OP_GEMM_AS;
}

static weft_matrix *matrix_of(data_state *s, const weft_region *r)
{
    const weft_operand *o = &s->checker->parts[0].operands[r->operand];

    return &s->matrices[s->operand_base[r->operand] + (size_t)(r->rank * o->batch + r->batch)];
}

static void complain(data_state *s, const weft_region *region, const char *what)
{
    weft_checker *c = s->checker;
    int rank = weft_check_rank(c, s->task);

    weft_check_find(c, rank, s->task - c->task_base[rank], "%s: %s: %s", weft_check_task_text(c, s->task),
                    what, weft_check_region_text(c, region));
}

/* ---- the order of sums --------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    uint64_t z = (hash ^ value) + 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/*
 * A product adds in an order that depends on its k alone, but for few rows, where it depends on those and on
 * how B lies.
 */
static uint64_t product_order(const data_state *s, const weft_region *a, const weft_region *b)
{
    enum { FEW_ROWS = 8 };
    bool few = a->rows <= FEW_ROWS;
    uint64_t order = mix((uint64_t)a->cols, few ? (uint64_t)a->rows + 1 : 0);

    return mix(order, few && s->checker->parts[0].operands[b->operand].packed);
}

/* ---- what regions hold --------------------------------------------------------------------------- */

/* A user's input: the elements of the global operand that lie on that rank. */
static weft_value input_value(const data_state *s, const weft_operand *o, const weft_region *r)
{
    weft_value value = {.batch = r->batch};

    value.row = weft_operand_row_span(o, s->checker->world, r->rank).begin;
    value.col = weft_operand_col_span(o, s->checker->world, r->rank).begin;
    switch (o->role) {
    case WEFT_ROLE_A:
        value.kind = WEFT_VALUE_A;
        break;
    case WEFT_ROLE_B:
        value.kind = WEFT_VALUE_B;
        break;
    case WEFT_ROLE_C:
        value.kind = WEFT_VALUE_C;
        break;
    case WEFT_ROLE_BIAS:
        value.kind = WEFT_VALUE_BIAS;
        break;
    default:
        value.kind = WEFT_VALUE_SUM;
        value.set = weft_sets_interval(s->sets, r->rank, r->rank + 1);
        value.order = mix(1, (uint64_t)r->rank);
        break;
    }
    return value;
}

static bool is_input(const weft_operand *o)
{
    return o->place == WEFT_PLACE_USER && !o->output;
}

static void add_cut(data_state *s, int64_t **cuts, size_t *count, size_t *room, int64_t at)
{
    if (*count == *room) {
        size_t wanted = *room ? 2 * *room : 64;
        int64_t *more = realloc(*cuts, wanted * sizeof(*more));

        if (!more) {
            s->memory.failed = true;
            return;
        }
        *cuts = more;
        *room = wanted;
    }
    (*cuts)[(*count)++] = at;
}

static void cut_rows(data_state *s, int64_t at)
{
    add_cut(s, &s->row_cuts, &s->row_count, &s->row_room, at);
}

static void cut_cols(data_state *s, int64_t at)
{
    add_cut(s, &s->col_cuts, &s->col_count, &s->col_room, at);
}

/*
 * Looks up what a region holds, as pieces counted from the region's start, values too. A place that holds
 * nothing of this run is reported. Cuts the task's cells at the pieces' edges where asked.
 */
static void load(data_state *s, const weft_region *r, weft_pieces *found, bool rows, bool cols)
{
    const weft_operand *o = &s->checker->parts[0].operands[r->operand];
    int64_t area = 0;

    found->count = 0;
    if (!r->rows || !r->cols)
        return;
    if (s->problem->op == WEFT_OP_BROADCAST && o->role == WEFT_ROLE_SEND && r->rank != s->problem->root)
        complain(s, r, "reads what only the root brings");
    if (is_input(o)) {
        weft_piece whole = {r->row0, r->row0 + r->rows, r->col0, r->col0 + r->cols, input_value(s, o, r), 0,
                            false};

        weft_pieces_add(&s->memory, found, &whole);
    } else {
        weft_memory_look(&s->memory, matrix_of(s, r), r, found);
    }
    for (uint32_t i = 0; i < found->count; i++) {
        weft_piece *p = &found->list[i];

        area += (p->row1 - p->row0) * (p->col1 - p->col0);
        p->row0 -= r->row0;
        p->row1 -= r->row0;
        p->col0 -= r->col0;
        p->col1 -= r->col0;
        p->value.row += r->row0;
        p->value.col += r->col0;
        if (rows && p->row0 > 0)
            cut_rows(s, p->row0);
        if (cols && p->col0 > 0)
            cut_cols(s, p->col0);
    }
    if (area != r->rows * r->cols && !s->memory.failed)
        complain(s, r, "reads what nothing in this run has written");
}

/* Carried sums may never reach memory: only the task they are carried to can have them. */
static void take_carried(data_state *s, const weft_region *r, weft_pieces *found, bool goes_on)
{
    for (uint32_t i = 0; i < found->count; i++) {
        weft_value *value = &found->list[i].value;

        if (value->carried && (!goes_on || value->carried != s->task)) {
            complain(s, r, "reads sums that are carried on to another task");
            return;
        }
        value->carried = 0;
    }
}

static const weft_piece *piece_at(const weft_pieces *pieces, int64_t row, int64_t col)
{
    for (uint32_t i = 0; i < pieces->count; i++) {
        const weft_piece *p = &pieces->list[i];

        if (p->row0 <= row && row < p->row1 && p->col0 <= col && col < p->col1)
            return p;
    }
    return NULL;
}

/* ---- arithmetic on values ------------------------------------------------------------------------ */

/* sum += value. An empty sum is zero, and about any element. */
static void add_value(data_state *s, const weft_region *region, weft_value *sum, weft_value value)
{
    int64_t joined;

    if (value.kind != WEFT_VALUE_SUM) {
        complain(s, region, "adds what is not a partial sum");
        return;
    }
    if (!value.set)
        return;
    if (!sum->set) {
        *sum = value;
        sum->carried = 0;
        return;
    }
    if (sum->row != value.row || sum->col != value.col || sum->batch != value.batch) {
        complain(s, region, "adds parts of different elements");
        return;
    }
    joined = weft_sets_join(s->sets, sum->set, value.set);
    if (joined == WEFT_SETS_OVERLAP)
        complain(s, region, "adds the same contribution twice");
    else if (joined == WEFT_SETS_NO_MEMORY)
        s->memory.failed = true;
    else
        sum->set = joined;
    sum->order = mix(sum->order, value.order);
}

/* sum += A * B for the cell at (row, col), piece by piece along k. */
static void add_product(data_state *s, const weft_region *regions, const weft_pieces *a, const weft_pieces *b,
                        int64_t row, int64_t col, weft_value *sum)
{
    weft_value product = {.kind = WEFT_VALUE_SUM};

    for (int64_t k = 0; k < regions[0].cols;) {
        const weft_piece *left = piece_at(a, row, k), *right = piece_at(b, k, col);
        int64_t end;
        weft_value value = {.kind = WEFT_VALUE_SUM};

        if (!left || !right)
            return; /* reported when it was loaded */
        end = weft_min(left->col1, right->row1);
        if (left->value.kind != WEFT_VALUE_A || right->value.kind != WEFT_VALUE_B) {
            complain(s, left->value.kind != WEFT_VALUE_A ? &regions[0] : &regions[1],
                     "multiplies what is not A or B");
            return;
        }
        if (left->value.col != right->value.row || left->value.batch != right->value.batch) {
            complain(s, &regions[0], "multiplies different ranges of k");
            return;
        }
        value.batch = left->value.batch;
        value.row = left->value.row;
        value.col = right->value.col;
        value.set = weft_sets_interval(s->sets, left->value.col + k, left->value.col + end);
        if (value.set < 0) {
            s->memory.failed = true;
            return;
        }
        add_value(s, &regions[0], &product, value);
        k = end;
    }
    product.order = mix(product_order(s, &regions[0], &regions[1]), (uint64_t)product.set);
    add_value(s, &regions[0], sum, product);
}

/* The epilogue: the sum must be complete, and C and bias those of its element. */
static void finish_value(data_state *s, const weft_task *task, const weft_region *to,
                         const weft_region *extra, const weft_pieces *held, int64_t row, int64_t col,
                         weft_value *sum)
{
    const weft_operand *o = &s->checker->parts[0].operands[to->operand];
    const weft_problem *p = s->problem;
    bool has_c = task->flags & WEFT_TASK_HAS_C, has_bias = task->flags & WEFT_TASK_HAS_BIAS;

    if (sum->set != weft_sets_interval(s->sets, 0, p->k)) {
        complain(s, to, "applies the epilogue to an incomplete sum");
        return;
    }
    if (!sum->set) { /* k is 0: the zero of the element that is written */
        sum->batch = to->batch;
        sum->row = to->row0 + weft_operand_row_span(o, s->checker->world, to->rank).begin;
        sum->col = to->col0 + weft_operand_col_span(o, s->checker->world, to->rank).begin;
    }
    sum->kind = WEFT_VALUE_FINAL;
    if (has_c != (p->beta != 0) || has_bias != (p->bias != 0)) {
        complain(s, to, "the epilogue lacks C or bias, or has what the problem has not");
        return;
    }
    if (has_c) {
        const weft_piece *c = piece_at(&held[0], row, col);

        if (!c || c->value.kind != WEFT_VALUE_C || c->value.row != sum->row || c->value.col != sum->col ||
            c->value.batch != sum->batch)
            complain(s, extra, "the epilogue takes C of another element");
    }
    if (has_bias) {
        const weft_piece *bias = piece_at(&held[has_c], 0, col);

        if (!bias || bias->value.kind != WEFT_VALUE_BIAS || bias->value.col != sum->col)
            complain(s, extra + has_c, "the epilogue takes the bias of another column");
    }
}

static bool averages(const data_state *s)
{
    return (s->problem->op == WEFT_OP_ALL_REDUCE || s->problem->op == WEFT_OP_REDUCE_SCATTER) &&
           s->problem->reduction == WEFT_AVERAGE && s->checker->world > 1;
}

/* The executors divide as the first destination says. */
static bool divides(const data_state *s, const weft_task *task, const weft_region *regions)
{
    return averages(s) && task->kind == WEFT_TASK_REDUCE &&
           s->checker->parts[0].operands[regions->operand].output;
}

static void divide_value(data_state *s, const weft_region *to, weft_value *sum)
{
    if (sum->set != weft_sets_interval(s->sets, 0, s->checker->world))
        complain(s, to, "divides an incomplete sum, where an average is written");
    sum->kind = WEFT_VALUE_FINAL;
}

/* ---- tasks --------------------------------------------------------------------------------------- */

/* Sums are added in a wider type than the one that keeps them: each store rounds. */
static bool rounds(const data_state *s, weft_dtype kept)
{
    return is_gemm(s) ? kept != weft_dtype_accumulator(s->problem->dtype)
                      : kept == WEFT_F16 || kept == WEFT_BF16;
}

static void store(data_state *s, const weft_region *to, int64_t row0, int64_t row1, int64_t col0,
                  int64_t col1, weft_value value, bool computed)
{
    const weft_operand *o = &s->checker->parts[0].operands[to->operand];
    weft_piece piece = {to->row0 + row0, to->row0 + row1, to->col0 + col0, to->col0 + col1, value, 0, false};
    bool met;

    piece.value.row -= to->row0;
    piece.value.col -= to->col0;
    if (computed && value.kind == WEFT_VALUE_SUM && rounds(s, o->dtype))
        piece.value.order = mix(value.order, 2 + (uint64_t)o->dtype);
    if (is_input(o)) {
        complain(s, to, "writes an input");
        return;
    }
    met = weft_memory_store(&s->memory, matrix_of(s, to), &piece);
    if (met && o->output)
        complain(s, to, "writes a part of the result that is already written");
}

static weft_value cell_value(data_state *s, const weft_task *task, const weft_region *regions, int64_t row,
                             int64_t col)
{
    int dests = task->destinations, inner = weft_task_roles_of(task).inputs;
    const weft_region *from = regions + dests;
    const weft_pieces *held = s->inputs + dests;
    weft_value sum = {.kind = WEFT_VALUE_SUM};

    if (task->kind == WEFT_TASK_COPY) {
        const weft_piece *piece = piece_at(&held[0], row, col);

        return piece ? piece->value : sum;
    }
    for (int i = task->kind == WEFT_TASK_GEMM ? 2 : 0; i < inner; i++) {
        const weft_piece *piece = piece_at(&held[i], row, col);

        if (piece)
            add_value(s, &from[i], &sum, piece->value);
    }
    if (task->kind == WEFT_TASK_GEMM)
        add_product(s, from, &held[0], &held[1], row, col, &sum);
    if (task->flags & WEFT_TASK_EPILOGUE)
        finish_value(s, task, regions, from + inner, held + inner, row, col, &sum);
    else if (divides(s, task, regions))
        divide_value(s, regions, &sum);
    return sum;
}

static int compare_cut(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;

    return a < b ? -1 : a > b;
}

static bool make_room(data_state *s, uint32_t regions)
{
    weft_pieces *more;

    if (regions <= s->input_room)
        return true;
    more = realloc(s->inputs, regions * sizeof(*more));
    if (!more)
        return false;
    for (uint32_t i = s->input_room; i < regions; i++)
        more[i] = (weft_pieces){0};
    s->inputs = more;
    s->input_room = regions;
    return true;
}

/* A task: what its sources hold, cut into cells in which every source is one piece; each cell is computed. */
static void follow(data_state *s, const weft_task *task, const weft_region *regions)
{
    weft_task_roles roles = weft_task_roles_of(task);
    int dests = task->destinations;
    int64_t found_before = s->checker->report->count;

    if (!dests || !regions->rows || !regions->cols)
        return;
    if (!make_room(s, task->region_count)) {
        s->memory.failed = true;
        return;
    }
    s->row_count = s->col_count = 0;
    cut_rows(s, 0);
    cut_cols(s, 0);
    for (int i = dests; i < task->region_count; i++) {
        load(s, &regions[i], &s->inputs[i], i != roles.b && i != roles.bias, i != roles.a);
        take_carried(s, &regions[i], &s->inputs[i], i == roles.acc);
    }
    cut_rows(s, regions->rows);
    cut_cols(s, regions->cols);
    if (s->memory.failed || s->checker->report->count != found_before)
        return;
    qsort(s->row_cuts, s->row_count, sizeof(int64_t), compare_cut);
    qsort(s->col_cuts, s->col_count, sizeof(int64_t), compare_cut);
    for (size_t i = 0; i + 1 < s->row_count; i++) {
        for (size_t j = 0; j + 1 < s->col_count; j++) {
            int64_t row = s->row_cuts[i], col = s->col_cuts[j];
            weft_value value;

            if (row == s->row_cuts[i + 1] || col == s->col_cuts[j + 1])
                continue;
            value = cell_value(s, task, regions, row, col);
            value.carried = task->flags & WEFT_TASK_CARRY ? s->task + 1 : 0;
            for (int to = 0; to < dests; to++)
                store(s, &regions[to], row, s->row_cuts[i + 1], col, s->col_cuts[j + 1], value,
                      task->kind != WEFT_TASK_COPY);
        }
    }
}

/* ---- the result ---------------------------------------------------------------------------------- */

/* What row `row` of a collective's result on `rank` must hold: which row of send, from which ranks. */
static weft_value collective_result(const data_state *s, int rank, int64_t row)
{
    weft_value value = {.kind = averages(s) ? WEFT_VALUE_FINAL : WEFT_VALUE_SUM};
    int world = s->checker->world;
    int64_t first = 0, end = world;

    switch (s->problem->op) {
    case WEFT_OP_ALL_GATHER:
        first = row;
        end = row + 1;
        break;
    case WEFT_OP_REDUCE_SCATTER:
        value.row = rank;
        break;
    case WEFT_OP_ALL_TO_ALL:
        value.row = rank;
        first = row;
        end = row + 1;
        break;
    case WEFT_OP_BROADCAST:
        first = s->problem->root;
        end = first + 1;
        break;
    default:
        break;
    }
    value.set = weft_sets_interval(s->sets, first, end);
    return value;
}

static bool piece_is_right(data_state *s, const weft_operand *o, int rank, int64_t batch,
                           const weft_piece *piece)
{
    const weft_value *v = &piece->value;

    if (is_gemm(s))
        return v->kind == WEFT_VALUE_FINAL && v->batch == batch &&
               v->row == weft_operand_row_span(o, s->checker->world, rank).begin &&
               v->col == weft_operand_col_span(o, s->checker->world, rank).begin;
    for (int64_t row = piece->row0; row < piece->row1; row++) {
        weft_value want = collective_result(s, rank, row);

        if (v->kind != want.kind || v->set != want.set || v->col != 0 || v->row + row != want.row)
            return false;
    }
    return true;
}

static void check_result(data_state *s, uint32_t operand, int rank, int64_t batch)
{
    weft_checker *c = s->checker;
    const weft_operand *o = &c->parts[0].operands[operand];
    weft_region whole = {.operand = operand, .rank = rank, .batch = batch};
    weft_pieces *found = &s->inputs[0];
    int64_t area = 0;

    whole.rows = weft_operand_rows(o, c->world, rank);
    whole.cols = weft_operand_cols(o, c->world, rank);
    found->count = 0;
    weft_memory_look(&s->memory, matrix_of(s, &whole), &whole, found);
    for (uint32_t i = 0; i < found->count; i++) {
        const weft_piece *p = &found->list[i];
        weft_region here = {operand, rank, batch, p->row0, p->row1 - p->row0, p->col0, p->col1 - p->col0};

        area += here.rows * here.cols;
        if (averages(s) && p->value.kind == WEFT_VALUE_SUM)
            weft_check_find(c, rank, -1, "the result in %s is a sum, which nothing has divided",
                            weft_check_region_text(c, &here));
        else if (!piece_is_right(s, o, rank, batch, p))
            weft_check_find(c, rank, -1,
                            "the result in %s is not what the problem asks for: it holds element (%lld, "
                            "%lld) of batch %lld "
                            "from %s",
                            weft_check_region_text(c, &here), (long long)(p->row0 + p->value.row),
                            (long long)(p->col0 + p->value.col), (long long)p->value.batch,
                            weft_sets_text(s->sets, p->value.set));
    }
    if (area != whole.rows * whole.cols)
        weft_check_find(c, rank, -1, "the result %s has %lld elements that nothing writes",
                        weft_check_region_text(c, &whole), (long long)(whole.rows * whole.cols - area));
}

/* Where every rank has the whole result, ranks that add floating-point numbers add them alike. */
static bool promises_equal_bits(const weft_problem *p)
{
    bool whole = p->op == WEFT_OP_GEMM_AR || p->op == WEFT_OP_GEMM_AS || p->op == WEFT_OP_ALL_REDUCE;

    return whole && (p->dtype == WEFT_F32 || p->dtype == WEFT_F16 || p->dtype == WEFT_BF16 ||
                     p->dtype == WEFT_F64 || weft_dtype_is_fp8(p->dtype));
}

static void compare_orders(data_state *s, uint32_t operand, int rank, int64_t batch)
{
    weft_checker *c = s->checker;
    const weft_operand *o = &c->parts[0].operands[operand];
    weft_region whole = {operand, rank, batch, 0, o->rows, 0, o->cols};
    weft_pieces *mine = &s->inputs[0], *theirs = &s->inputs[1];

    mine->count = 0;
    weft_memory_look(&s->memory, matrix_of(s, &whole), &whole, mine);
    for (uint32_t i = 0; i < mine->count && !c->report->count; i++) {
        const weft_piece *p = &mine->list[i];
        weft_region here = {operand, 0, batch, p->row0, p->row1 - p->row0, p->col0, p->col1 - p->col0};

        theirs->count = 0;
        weft_memory_look(&s->memory, matrix_of(s, &here), &here, theirs);
        for (uint32_t j = 0; j < theirs->count; j++) {
            if (theirs->list[j].value.order == p->value.order)
                continue;
            here.rank = rank;
            weft_check_find(c, rank, -1, "%s is added up in another order than on rank 0: the bits differ",
                            weft_check_region_text(c, &here));
            break;
        }
    }
}

static bool open_memory(data_state *s)
{
    const weft_checker *c = s->checker;
    const weft_plan_part *part = &c->parts[0];
    size_t total = 0;

    s->sets = weft_sets_new();
    s->operand_base = calloc(part->operand_count + 1, sizeof(*s->operand_base));
    if (!s->sets || !s->operand_base || !make_room(s, 2))
        return false;
    for (uint32_t i = 0; i < part->operand_count; i++) {
        s->operand_base[i] = total;
        total += (size_t)(part->operands[i].batch * c->world);
    }
    s->operand_base[part->operand_count] = total;
    s->matrices = calloc(total ? total : 1, sizeof(*s->matrices));
    if (!s->matrices)
        return false;
    for (uint32_t i = 0; i < part->operand_count; i++) {
        for (size_t j = s->operand_base[i]; j < s->operand_base[i + 1]; j++) {
            int rank = (int)((j - s->operand_base[i]) / (size_t)part->operands[i].batch);

            s->matrices[j].rows = weft_operand_rows(&part->operands[i], c->world, rank);
            s->matrices[j].cols = weft_operand_cols(&part->operands[i], c->world, rank);
        }
    }
    return true;
}

static void close_memory(data_state *s)
{
    const weft_plan_part *part = &s->checker->parts[0];

    for (size_t i = 0; s->matrices && i < s->operand_base[part->operand_count]; i++)
        free(s->matrices[i].heads);
    for (uint32_t i = 0; i < s->input_room; i++)
        free(s->inputs[i].list);
    free(s->inputs);
    free(s->matrices);
    free(s->operand_base);
    free(s->memory.all.list);
    free(s->memory.nodes);
    free(s->row_cuts);
    free(s->col_cuts);
    weft_sets_free(s->sets);
}

bool weft_check_data(weft_checker *checker)
{
    data_state s = {.checker = checker, .problem = &checker->parts[0].problem};
    const weft_plan_part *part = &checker->parts[0];
    bool ok = open_memory(&s);

    for (uint32_t i = 0; ok && i < checker->tasks && !s.memory.failed; i++) {
        const weft_task *task;
        int rank;

        s.task = checker->sequence[i];
        rank = weft_check_rank(checker, s.task);
        task = weft_check_task(checker, s.task);
        follow(&s, task, weft_task_regions(&checker->parts[rank], task));
        if (checker->report->count >= WEFT_FINDINGS_MAX)
            break;
    }
    for (uint32_t i = 0; ok && i < part->operand_count && !checker->report->count; i++) {
        for (int rank = 0; part->operands[i].output && rank < checker->world; rank++) {
            for (int64_t batch = 0; batch < part->operands[i].batch && !s.memory.failed; batch++)
                check_result(&s, i, rank, batch);
        }
        for (int rank = 1; part->operands[i].output && promises_equal_bits(s.problem) &&
                           rank < checker->world && !checker->report->count;
             rank++) {
            for (int64_t batch = 0; batch < part->operands[i].batch && !s.memory.failed; batch++)
                compare_orders(&s, i, rank, batch);
        }
    }
    ok = ok && !s.memory.failed;
    close_memory(&s);
    return ok;
}
