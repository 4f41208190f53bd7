/* How a plan is moved: tasks, messages between domains and the random scheduler. See interpret.h. */
#include "interpret_world.h"

#include "plan/in_place.h"
#include "plan/user_operands.h"
#include "support/check.h"

#include <math.h>

/* ---- memory -------------------------------------------------------------------------------------- */

static int64_t instance_size(const weft_plan_part *part, uint32_t operand, int rank)
{
    const weft_operand *o = &part->operands[operand];

    return o->batch * weft_operand_rows(o, part->world, rank) * weft_operand_cols(o, part->world, rank);
}

/* A mutant may reach outside of a matrix: it reads poison there, and what it writes is lost. */
static double *element(world_state *w, const weft_region *r, int64_t row, int64_t col)
{
    static double outside;
    const weft_plan_part *part = &w->parts[0];
    const weft_operand *o = &part->operands[r->operand];
    int64_t rows = weft_operand_rows(o, w->world, r->rank), cols = weft_operand_cols(o, w->world, r->rank);

    row += r->row0;
    col += r->col0;
    if (row < 0 || row >= rows || col < 0 || col >= cols || r->batch >= o->batch ||
        weft_domains_differ(part, w->acting, r->rank)) {
        outside = NAN;
        return &outside;
    }
    return &w->ranks[r->rank].memory[r->operand][(r->batch * rows + row) * cols + col];
}

/* The operand of a role; as many as there are: none. */
static uint32_t operand_of(const weft_plan_part *part, weft_operand_role role)
{
    uint32_t i = 0;

    while (i < part->operand_count && part->operands[i].role != role)
        i++;
    return i;
}

/* One operand is given the memory of another, `at` elements from its beginning on. */
static void give_once(const weft_plan_part *part, rank_state *state, uint32_t inner, uint32_t outer,
                      int64_t at)
{
    if (inner == outer || inner >= part->operand_count || outer >= part->operand_count ||
        at + instance_size(part, inner, part->rank) > instance_size(part, outer, part->rank))
        return;
    free(state->owned[inner]);
    state->owned[inner] = NULL;
    state->memory[inner] = state->memory[outer] + at;
}

/* The caller has one matrix for C and D, and where the schedule allows it a collective is in place: SEND is
 * RECV, or the smaller of the two this rank's row of the larger. */
static void share_memory(const weft_plan_part *part, rank_state *state)
{
    uint32_t send = operand_of(part, WEFT_ROLE_SEND), recv = operand_of(part, WEFT_ROLE_RECV);
    int64_t row = part->rank * part->problem.count;

    give_once(part, state, operand_of(part, WEFT_ROLE_C), operand_of(part, WEFT_ROLE_D), 0);
    if (!weft_plan_in_place(&part->problem, part->domain, part->world))
        return;
    if (part->problem.op == WEFT_OP_REDUCE_SCATTER)
        give_once(part, state, recv, send, row);
    else
        give_once(part, state, send, recv, part->problem.op == WEFT_OP_ALL_GATHER ? row : 0);
}

/* ---- tasks --------------------------------------------------------------------------------------- */

static double epilogue(world_state *w, const weft_plan_part *part, const weft_task *task,
                       const weft_region *extra, double value, int64_t row, int64_t col)
{
    const weft_problem *p = &part->problem;

    if (!(task->flags & WEFT_TASK_EPILOGUE))
        return value;
    value *= p->alpha;
    if (task->flags & WEFT_TASK_HAS_C)
        value += p->beta * *element(w, extra++, row, col);
    if (task->flags & WEFT_TASK_HAS_BIAS)
        value += *element(w, extra, 0, col);
    return interpret_activate(p, value);
}

/* ---- what only the engine knows ------------------------------------------------------------------ */

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

static int64_t panel_columns(const weft_problem *p)
{
    return common_divisor(WEFT_PACK_COLUMNS, p->tuning.grain_n ? p->tuning.grain_n : p->tuning.tile_n);
}

/* Does a region of a packed operand begin and end between steps of k? */
static bool keeps_steps(const weft_plan_part *part, const weft_region *r)
{
    const weft_problem *p = &part->problem;
    int64_t step = common_divisor(p->tuning.tile_k, p->tuning.copiers ? p->tuning.chunk_k : 0),
            end = r->row0 + r->rows;
    int64_t rows = weft_operand_rows(&part->operands[r->operand], part->world, r->rank);

    return step ? r->row0 % step == 0 && (end % step == 0 || end == rows) : r->row0 == 0 && end == rows;
}

static uint64_t tile_of(const weft_region *r)
{
    uint64_t state = (uint64_t)r->row0 * 1000003u + (uint64_t)r->rows;

    state = check_random(&state) + (uint64_t)r->col0 * 1000003u + (uint64_t)r->cols;
    return check_random(&state) | 1;
}

static uint64_t *tile_at(world_state *w, const weft_region *r, int64_t row, int64_t col)
{
    double *at = element(w, r, row, col);
    ptrdiff_t index = at - w->ranks[r->rank].memory[r->operand];

    return isnan(*at) ? NULL : &w->ranks[r->rank].tile[r->operand][index];
}

/* What a task reads of an element; `sums` where it starts from them. */
static double take(world_state *w, const weft_plan_part *part, const weft_region *r, int64_t row, int64_t col,
                   bool sums)
{
    const weft_operand *o = &part->operands[r->operand];

    if (o->handed_on) {
        const uint64_t *tile = tile_at(w, r, row, col);

        if (!sums || !tile || *tile != tile_of(r))
            return NAN;
    }
    if (o->packed && !keeps_steps(part, r))
        return NAN;
    return *element(w, r, row, col);
}

/* Integers as the type has them; the others with as many bits. */
static double round_to(weft_dtype dtype, double value)
{
    int exponent, bits = dtype == WEFT_F16 ? 11 : dtype == WEFT_BF16 ? 8 : 53;

    if (!isfinite(value) || value == 0)
        return value;
    if (dtype == WEFT_I8 || dtype == WEFT_BYTE)
        return (double)(int8_t)(int64_t)value;
    frexp(value, &exponent);
    return ldexp(nearbyint(ldexp(value, bits - exponent)), exponent - bits);
}

static void put(world_state *w, const weft_plan_part *part, const weft_region *r, int64_t row, int64_t col,
                double value)
{
    const weft_operand *o = &part->operands[r->operand];
    double *at = element(w, r, row, col);

    *at = o->paired ? value : round_to(o->dtype, value);
    if (o->packed && (r->col0 % panel_columns(&part->problem) || !keeps_steps(part, r)))
        *at = NAN;
    if (o->handed_on && !isnan(*at)) {
        uint64_t *tile = tile_at(w, r, row, col);

        if (tile)
            *tile = tile_of(r);
    }
}

/* The columns of the last panel that a copy has nothing for. */
static void spoil_padding(world_state *w, const weft_plan_part *part, const weft_region *r)
{
    int64_t panel = panel_columns(&part->problem), end = r->col0 + r->cols;

    for (int64_t row = 0; part->operands[r->operand].packed && row < r->rows; row++) {
        for (int64_t col = end; r->cols && col % panel; col++)
            *element(w, r, row, col - r->col0) = NAN;
    }
}

/* ---- computing ----------------------------------------------------------------------------------- */

static double compute(world_state *w, const weft_plan_part *part, const weft_task *task, int64_t row,
                      int64_t col)
{
    const weft_region *regions = weft_task_regions(part, task), *from = weft_task_inputs(part, task);
    int extras = !!(task->flags & WEFT_TASK_HAS_C) + !!(task->flags & WEFT_TASK_HAS_BIAS);
    int sources = task->region_count - task->destinations - extras;
    double value = 0;

    if (task->kind == WEFT_TASK_COPY)
        return take(w, part, from, row, col, false);
    if (task->kind == WEFT_TASK_GEMM) {
        const lane_state *lane = w->lane;

        if (task->flags & WEFT_TASK_HAS_ACC && lane->carried)
            value = row < lane->carried_rows && col < lane->carried_cols
                        ? lane->carried[row * lane->carried_cols + col]
                        : NAN;
        else if (task->flags & WEFT_TASK_HAS_ACC)
            value = take(w, part, &from[2], row, col, true);
        for (int64_t k = 0; k < from[0].cols && k < from[1].rows; k++)
            value += take(w, part, &from[0], row, k, false) * take(w, part, &from[1], k, col, false);
    } else {
        for (int i = 0; i < sources; i++) {
            double next = take(w, part, &from[i], row, col, false);

            value = i == 0 ? next : interpret_combine(part->problem.reduction, value, next);
        }
        if (part->problem.reduction == WEFT_AVERAGE && part->operands[regions->operand].output)
            value /= w->world;
    }
    return epilogue(w, part, task, from + sources, value, row, col);
}

static void start(world_state *w, int rank, lane_state *lane, const weft_task *task)
{
    const weft_plan_part *part = &w->parts[rank];
    const weft_region *to = weft_task_regions(part, task);

    lane->started = true;
    w->ranks[rank].busy++;
    lane->result = NULL;
    if (!task->destinations || !to->rows || !to->cols)
        return;
    lane->rows = to->rows;
    lane->cols = to->cols;
    lane->result = malloc((size_t)(to->rows * to->cols) * sizeof(double));
    w->lane = lane;
    w->acting = rank;
    for (int64_t row = 0; row < to->rows; row++) {
        for (int64_t col = 0; col < to->cols; col++)
            lane->result[row * to->cols + col] = compute(w, part, task, row, col);
    }
}

/* ---- between domains ----------------------------------------------------------------------------- */

static void send(world_state *w, int rank, lane_state *lane, const weft_task *task)
{
    if (w->message_count == w->message_room) {
        w->message_room = w->message_room ? 2 * w->message_room : 64;
        w->messages = realloc(w->messages, w->message_room * sizeof(*w->messages));
    }
    w->messages[w->message_count++] = (message){rank, task, lane->result, false, false};
    w->on_their_way++;
    lane->result = NULL;
}

static int addressee(const world_state *w, const message *m)
{
    return w->parts[m->rank].regions[m->task->region0].rank;
}

/* Makes the posts of what has landed, as far as nothing sent before it by that lane to that rank is late. */
static void post_landed(world_state *w)
{
    size_t kept = 0;

    for (size_t i = 0; i < w->message_count; i++) {
        message *m = &w->messages[i];
        bool late = !m->landed || m->posted;

        for (size_t j = 0; j < i && !late; j++) {
            const message *before = &w->messages[j];

            late = !before->posted && before->rank == m->rank && before->task->lane == m->task->lane &&
                   addressee(w, before) == addressee(w, m);
        }
        if (late)
            continue;
        for (uint32_t j = 0; j < m->task->post_count; j++) {
            const weft_post *post = &w->parts[m->rank].posts[m->task->post0 + j];

            if (post->rank == addressee(w, m))
                w->ranks[post->rank].signals[post->signal]++;
        }
        m->posted = true;
        w->on_their_way--;
    }
    for (size_t i = 0; i < w->message_count; i++) {
        if (!w->messages[i].posted)
            w->messages[kept++] = w->messages[i];
    }
    w->message_count = kept;
}

/* One of those on their way arrives. */
static void land(world_state *w)
{
    size_t skip = check_random(&w->seed) % w->on_their_way;

    for (size_t i = 0; i < w->message_count; i++) {
        message *m = &w->messages[i];
        const weft_region *to = &w->parts[m->rank].regions[m->task->region0];

        if (m->posted || skip-- > 0)
            continue;
        w->acting = to->rank;
        for (int64_t row = 0; row < to->rows && !m->landed; row++) {
            for (int64_t col = 0; col < to->cols; col++)
                put(w, &w->parts[to->rank], to, row, col, m->data[row * to->cols + col]);
        }
        free(m->data);
        m->data = NULL;
        m->landed = true;
        post_landed(w);
        return;
    }
}

static void finish(world_state *w, int rank, lane_state *lane, const weft_task *task)
{
    const weft_plan_part *part = &w->parts[rank];

    bool carries = task->flags & WEFT_TASK_CARRY, crosses = weft_task_crosses(part, task);

    w->acting = rank;
    if (crosses)
        send(w, rank, lane, task);
    for (int i = 0; i < task->destinations && lane->result; i++) {
        const weft_region *to = &weft_task_regions(part, task)[i];

        if (task->kind == WEFT_TASK_COPY && element(w, to, 0, 0) == element(w, to + 1, 0, 0))
            break; /* onto itself: an engine does nothing */
        for (int64_t row = 0; row < to->rows; row++) {
            for (int64_t col = 0; col < to->cols; col++)
                put(w, part, to, row, col,
                    !carries && row < lane->rows && col < lane->cols ? lane->result[row * lane->cols + col]
                                                                     : NAN);
        }
        spoil_padding(w, part, to);
    }
    free(lane->carried);
    lane->carried = carries ? lane->result : NULL;
    lane->carried_rows = lane->rows;
    lane->carried_cols = lane->cols;
    if (!carries)
        free(lane->result);
    lane->result = NULL;
    for (uint32_t i = 0; i < task->post_count && !crosses; i++) {
        const weft_post *post = &part->posts[task->post0 + i];

        if (!weft_domains_differ(part, rank, post->rank) ||
            (task->kind == WEFT_TASK_ENTER && post->signal < (uint32_t)w->world))
            w->ranks[post->rank].signals[post->signal]++;
    }
    lane->started = false;
    lane->next++;
    w->ranks[rank].busy--;
}

static bool ready(const world_state *w, int rank, const weft_task *task)
{
    const weft_plan_part *part = &w->parts[rank];
    const rank_state *state = &w->ranks[rank];

    for (uint32_t i = 0; i < task->wait_count; i++) {
        const weft_wait *wait = &part->waits[task->wait0 + i];
        uint64_t needed = (uint64_t)(state->run - 1) * part->signal_posts[wait->signal] + wait->count;

        if (state->signals[wait->signal] < needed)
            return false;
    }
    return true;
}

/* ---- the scheduler ------------------------------------------------------------------------------- */

static bool lane_can_move(const world_state *w, int rank, uint32_t lane, bool one_thread)
{
    const weft_plan_part *part = &w->parts[rank];
    const lane_state *state = &w->ranks[rank].lanes[lane];

    if (w->ranks[rank].run > w->runs || state->next == part->lanes[lane].task_count)
        return false;
    if (state->started)
        return true;
    if (one_thread && w->ranks[rank].busy)
        return false;
    return ready(w, rank, &part->tasks[part->lanes[lane].task0 + state->next]);
}

static void end_run_if_done(world_state *w, int rank)
{
    const weft_plan_part *part = &w->parts[rank];
    rank_state *state = &w->ranks[rank];

    for (uint32_t lane = 0; lane < part->lane_count; lane++) {
        if (state->lanes[lane].next != part->lanes[lane].task_count)
            return;
    }
    interpret_verify(w, rank);
    state->run++;
    for (uint32_t lane = 0; lane < part->lane_count; lane++)
        state->lanes[lane].next = 0;
    if (state->run <= w->runs)
        interpret_prepare(w, rank);
}

/* Starts at a random place and takes the first lane that can move; ranks have random speeds. */
static bool step(world_state *w, bool one_thread, const unsigned *speed)
{
    int first = (int)(check_random(&w->seed) % (uint64_t)w->world);

    if (check_random(&w->seed) % (8 + w->on_their_way) < w->on_their_way) {
        land(w);
        return true;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < w->world; i++) {
            int rank = (first + i) % w->world;
            const weft_plan_part *part = &w->parts[rank];
            uint32_t from = (uint32_t)(check_random(&w->seed) % part->lane_count);

            if (pass == 0 && check_random(&w->seed) % 16 >= speed[rank])
                continue;
            for (uint32_t j = 0; j < part->lane_count; j++) {
                uint32_t lane = (from + j) % part->lane_count;
                lane_state *state = &w->ranks[rank].lanes[lane];
                const weft_task *task;

                if (!lane_can_move(w, rank, lane, one_thread))
                    continue;
                task = &part->tasks[part->lanes[lane].task0 + state->next];
                if (state->started) {
                    finish(w, rank, state, task);
                    end_run_if_done(w, rank);
                } else {
                    start(w, rank, state, task);
                }
                return true;
            }
        }
    }
    if (!w->on_their_way)
        return false;
    land(w);
    return true;
}

/* Does the plan take the operands that the caller of its problem has? */
static bool takes_what_is_given(const weft_plan_part *part)
{
    weft_operand given[WEFT_USER_OPERANDS_MAX];
    int count = weft_user_operands(&part->problem, part->world, given);

    for (int i = 0; i < count; i++) {
        bool taken = false;

        for (uint32_t j = 0; j < part->operand_count && !taken; j++) {
            const weft_operand *o = &part->operands[j];

            taken = o->place == WEFT_PLACE_USER && o->role == given[i].role && o->dtype == given[i].dtype &&
                    o->rows == given[i].rows && o->cols == given[i].cols && o->batch == given[i].batch &&
                    o->rows_parted == given[i].rows_parted && o->cols_parted == given[i].cols_parted &&
                    o->row_granule == given[i].row_granule && o->col_granule == given[i].col_granule &&
                    o->transposed == given[i].transposed && o->packed == given[i].packed &&
                    o->output == given[i].output && !o->handed_on;
        }
        if (!taken)
            return false;
    }
    return true;
}

/* Where every rank gets the whole result, it is the same to the last bit. */
static bool bits_agree(const world_state *w)
{
    const weft_plan_part *part = &w->parts[0];
    weft_op op = part->problem.op;

    for (uint32_t i = 0; i < part->operand_count; i++) {
        int64_t size = instance_size(part, i, 0);

        if (!part->operands[i].output ||
            (op != WEFT_OP_GEMM_AR && op != WEFT_OP_GEMM_AS && op != WEFT_OP_ALL_REDUCE))
            continue;
        for (int rank = 1; rank < w->world; rank++) {
            if (memcmp(w->ranks[rank].memory[i], w->ranks[0].memory[i], (size_t)size * sizeof(double)) != 0)
                return false;
        }
    }
    return true;
}

static interpret_result run_world(const weft_plan_part *parts, int world, int runs, bool one_thread,
                                  uint64_t seed, bool reals)
{
    world_state w = {.parts = parts, .world = world, .runs = runs, .seed = seed, .reals = reals};
    interpret_result result = INTERPRET_EXACT;
    unsigned *speed = malloc((size_t)world * sizeof(*speed));
    bool shares = check_random(&w.seed) % 2;

    w.data_seed = check_random(&w.seed);
    w.ranks = calloc((size_t)world, sizeof(*w.ranks));
    for (int rank = 0; rank < world; rank++) {
        rank_state *state = &w.ranks[rank];
        const weft_plan_part *part = &parts[rank];

        speed[rank] = (unsigned)(check_random(&w.seed) % 16) + 1;
        state->run = 1;
        state->signals = calloc(part->signal_count, sizeof(*state->signals));
        state->lanes = calloc(part->lane_count, sizeof(*state->lanes));
        state->memory = calloc(part->operand_count, sizeof(*state->memory));
        state->owned = calloc(part->operand_count, sizeof(*state->owned));
        state->tile = calloc(part->operand_count, sizeof(*state->tile));
        for (uint32_t i = 0; i < part->operand_count; i++) {
            int64_t size = instance_size(part, i, rank);

            state->memory[i] = state->owned[i] = malloc((size_t)(size ? size : 1) * sizeof(double));
            state->tile[i] = calloc((size_t)(size ? size : 1), sizeof(uint64_t));
            for (int64_t j = 0; j < size; j++)
                state->memory[i][j] = NAN;
        }
        if (shares)
            share_memory(part, state);
        interpret_prepare(&w, rank);
    }
    while (step(&w, one_thread, speed)) {
    }
    for (int rank = 0; rank < world; rank++) {
        if (w.ranks[rank].run <= runs)
            result = INTERPRET_STUCK;
    }
    if (result == INTERPRET_EXACT && (w.wrong || (reals && !bits_agree(&w))))
        result = INTERPRET_WRONG;
    for (int rank = 0; rank < world; rank++) {
        for (uint32_t i = 0; i < parts[rank].operand_count; i++) {
            free(w.ranks[rank].owned[i]);
            free(w.ranks[rank].tile[i]);
        }
        for (uint32_t i = 0; i < parts[rank].lane_count; i++) {
            free(w.ranks[rank].lanes[i].result);
            free(w.ranks[rank].lanes[i].carried);
        }
        free(w.ranks[rank].memory);
        free(w.ranks[rank].owned);
        free(w.ranks[rank].tile);
        free(w.ranks[rank].signals);
        free(w.ranks[rank].lanes);
    }
    for (size_t i = 0; i < w.message_count; i++)
        free(w.messages[i].data);
    free(w.messages);
    free(w.ranks);
    free(speed);
    return result;
}

interpret_result interpret(const weft_plan_part *parts, int world, int runs, bool one_thread, uint64_t seed)
{
    return takes_what_is_given(&parts[0]) ? run_world(parts, world, runs, one_thread, seed, false)
                                          : INTERPRET_WRONG;
}

interpret_result interpret_bits(const weft_plan_part *parts, int world, uint64_t seed)
{
    return run_world(parts, world, 1, false, seed, true);
}
