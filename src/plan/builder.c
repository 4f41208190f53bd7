/* Growing a part, and closing it: DONE posts, the join of several lanes, EXIT, tasks sorted by lane. */
#include "plan/builder.h"

#include "core/grow.h"
#include "core/round.h"

#include <stdlib.h>
#include <string.h>

/* Doubles an array; on failure the builder is marked and the old array stays. */
static bool grow(weft_builder *builder, void **array, uint32_t count, uint32_t *room, size_t bytes)
{
    if (count < *room)
        return !builder->failed;
    builder->failed = builder->failed || !weft_grow(array, count, room, bytes);
    return !builder->failed;
}

/* Declarations are few: these arrays grow one by one. */
static bool append(weft_builder *builder, void **array, size_t count, size_t bytes)
{
    void *bigger = realloc(*array, count * bytes);

    if (!bigger) {
        builder->failed = true;
        return false;
    }
    *array = bigger;
    return true;
}

weft_builder weft_builder_begin(const weft_problem *problem, const int32_t *domain, int world, int rank)
{
    weft_builder builder = {.problem = problem, .domain = domain, .world = world, .rank = rank};

    builder.part.problem = *problem;
    builder.part.world = world;
    builder.part.rank = rank;
    builder.part.hash = weft_plan_hash(problem, domain, world);
    weft_builder_signals(&builder, (domain ? 3 : 2) * (int64_t)world);
    for (int peer = 0; peer < world; peer++) {
        bool near = peer != rank && !weft_builder_crosses(&builder, peer);

        weft_builder_expect(&builder, WEFT_SIGNAL_ENTER(peer), near);
        weft_builder_expect(&builder, WEFT_SIGNAL_DONE(world, peer), near);
    }
    if (domain) {
        builder.part.domain = malloc((size_t)world * sizeof(*domain));
        builder.failed |= !builder.part.domain;
        if (builder.part.domain)
            memcpy(builder.part.domain, domain, (size_t)world * sizeof(*domain));
    }
    return builder;
}

int64_t weft_builder_lands(weft_builder *builder, int from)
{
    return weft_builder_expect_more(builder, WEFT_SIGNAL_LANDED(builder->world, from));
}

uint32_t weft_builder_operand(weft_builder *builder, weft_operand operand)
{
    weft_plan_part *part = &builder->part;

    if (append(builder, (void **)&part->operands, part->operand_count + 1, sizeof(*part->operands)))
        part->operands[part->operand_count++] = operand;
    return part->operand_count ? part->operand_count - 1 : 0;
}

int weft_builder_lanes(weft_builder *builder, weft_lane_kind kind, int count)
{
    weft_plan_part *part = &builder->part;
    uint32_t first = part->lane_count;

    if (count > 0 && append(builder, (void **)&part->lanes, first + (size_t)count, sizeof(*part->lanes))) {
        for (int i = 0; i < count; i++)
            part->lanes[part->lane_count++] = (weft_lane){.kind = kind};
    }
    return (int)first;
}

uint32_t weft_builder_signals(weft_builder *builder, int64_t count)
{
    weft_plan_part *part = &builder->part;
    uint32_t first = part->signal_count;

    if (count > 0 && append(builder, (void **)&part->signal_posts, first + (size_t)count, sizeof(uint32_t))) {
        memset(part->signal_posts + first, 0, (size_t)count * sizeof(uint32_t));
        part->signal_count += (uint32_t)count;
    }
    return first;
}

void weft_builder_expect(weft_builder *builder, uint32_t signal, int64_t posts)
{
    if (!builder->failed)
        builder->part.signal_posts[signal] = (uint32_t)posts;
}

int64_t weft_builder_expect_more(weft_builder *builder, uint32_t signal)
{
    return builder->failed ? 1 : ++builder->part.signal_posts[signal];
}

/* The first task makes the tables that need the number of lanes, and ENTER. */
static void open_lanes(weft_builder *builder)
{
    weft_plan_part *part = &builder->part;
    size_t pairs = (size_t)part->lane_count * (size_t)builder->world;

    builder->touched = calloc(pairs, sizeof(*builder->touched));
    builder->entered = calloc(pairs, sizeof(*builder->entered));
    builder->lane_waited = calloc(part->lane_count, sizeof(*builder->lane_waited));
    builder->gates_passed = calloc(part->lane_count, sizeof(*builder->gates_passed));
    if (!builder->touched || !builder->entered || !builder->lane_waited || !builder->gates_passed) {
        builder->failed = true;
        return;
    }
    weft_builder_task(builder, 0, WEFT_TASK_ENTER, 0);
    for (int i = 1; i < builder->world; i++) {
        int peer = (builder->rank + i) % builder->world;

        if (!weft_builder_crosses(builder, peer))
            weft_builder_post(builder, WEFT_SIGNAL_ENTER(builder->rank), peer);
    }
}

void weft_builder_task(weft_builder *builder, int lane, weft_task_kind kind, unsigned flags)
{
    weft_plan_part *part = &builder->part;

    if (builder->failed)
        return;
    if (kind != WEFT_TASK_ENTER && !part->task_count)
        open_lanes(builder);
    if (builder->failed ||
        !grow(builder, (void **)&part->tasks, part->task_count, &builder->task_room, sizeof(*part->tasks)))
        return;
    part->tasks[part->task_count++] = (weft_task){
        .kind = (uint8_t)kind,
        .flags = (uint8_t)flags,
        .lane = (uint16_t)lane,
        .region0 = part->region_count,
        .wait0 = part->wait_count,
        .post0 = part->post_count,
    };
}

static weft_task *open_task(weft_builder *builder)
{
    return &builder->part.tasks[builder->part.task_count - 1];
}

void weft_builder_carries(weft_builder *builder)
{
    if (!builder->failed)
        open_task(builder)->flags |= WEFT_TASK_CARRY;
}

int64_t weft_builder_staged_chunks(const weft_builder *builder, int rank)
{
    const weft_operand *operand = &builder->part.operands[builder->staged.operand];
    int64_t rows = weft_operand_rows(operand, builder->world, rank);
    int64_t cols = weft_operand_cols(operand, builder->world, rank);
    int64_t extent = builder->staged.by_rows ? rows : cols;

    return rows && cols ? weft_divide_up(extent, builder->staged.chunk) : 0;
}

int64_t weft_builder_staged_of(const weft_builder *builder, int rank, int place)
{
    const weft_staged *s = &builder->staged;
    int64_t chunks = builder->part.operands[s->operand].batch * weft_builder_staged_chunks(builder, rank);

    return (chunks + s->places - 1 - place) / s->places;
}

/* What a peer has, read where it has staged it. Of the chunks that one lane copies the last says it for all.
 */
void weft_builder_place_staged(weft_builder *builder, weft_region *region)
{
    const weft_staged *s = &builder->staged;
    int64_t begin = s->by_rows ? region->row0 : region->col0;
    int64_t count = s->by_rows ? region->rows : region->cols;
    int rank = region->rank;
    int64_t before, first, last;

    if (region->operand != s->operand || rank == builder->rank)
        return;
    region->operand = s->copy;
    if (!region->rows || !region->cols)
        return;
    before = region->batch * weft_builder_staged_chunks(builder, rank);
    first = before + begin / s->chunk;
    last = before + (begin + count - 1) / s->chunk;
    if (s->places < s->lanes) {
        weft_builder_wait(builder, s->signals + (uint32_t)rank, weft_builder_staged_of(builder, rank, 0));
        return;
    }
    for (int64_t chunk = last - first < s->lanes ? first : last - s->lanes + 1; chunk <= last; chunk++)
        weft_builder_wait(builder, s->signals + (uint32_t)(rank * s->lanes + chunk % s->lanes),
                          chunk / s->lanes + 1);
}

weft_region *weft_builder_place(weft_builder *builder, bool destination)
{
    weft_plan_part *part = &builder->part;
    weft_task *task;

    if (builder->failed || !grow(builder, (void **)&part->regions, part->region_count, &builder->region_room,
                                 sizeof(*part->regions)))
        return NULL;
    task = open_task(builder);
    task->region_count++;
    if (destination)
        task->destinations++;
    return &part->regions[part->region_count++];
}

static void add_wait(weft_builder *builder, weft_wait wait)
{
    weft_plan_part *part = &builder->part;

    if (builder->failed ||
        !grow(builder, (void **)&part->waits, part->wait_count, &builder->wait_room, sizeof(*part->waits)))
        return;
    part->waits[part->wait_count++] = wait;
    open_task(builder)->wait_count++;
}

void weft_builder_wait(weft_builder *builder, uint32_t signal, int64_t count)
{
    weft_wait *waited;

    if (builder->failed || count == 0)
        return;
    /* Consecutive tasks of a lane often need the same thing: once is enough. */
    waited = &builder->lane_waited[open_task(builder)->lane];
    if (waited->signal == signal && waited->count >= (uint32_t)count)
        return;
    *waited = (weft_wait){signal, (uint32_t)count};
    add_wait(builder, *waited);
}

void weft_builder_post(weft_builder *builder, uint32_t signal, int rank)
{
    weft_plan_part *part = &builder->part;

    if (builder->failed ||
        !grow(builder, (void **)&part->posts, part->post_count, &builder->post_room, sizeof(*part->posts)))
        return;
    part->posts[part->post_count++] = (weft_post){signal, rank};
    open_task(builder)->post_count++;
}

static void need_enter(weft_builder *builder, int lane, int peer)
{
    uint8_t *entered = &builder->entered[lane * builder->world + peer];

    if (peer == builder->rank || *entered)
        return;
    *entered = 1;
    if (weft_builder_crosses(builder, peer))
        weft_builder_expect(builder, WEFT_SIGNAL_ENTER(peer), 1);
    add_wait(builder, (weft_wait){WEFT_SIGNAL_ENTER(peer), 1});
}

/* A message to another domain: it says there that it has landed. */
static void send_across(weft_builder *builder, weft_task task)
{
    int peer = weft_task_regions(&builder->part, &task)->rank;

    need_enter(builder, task.lane, peer);
    weft_builder_post(builder, WEFT_SIGNAL_LANDED(builder->world, builder->rank), peer);
}

void weft_builder_end(weft_builder *builder)
{
    weft_plan_part *part = &builder->part;
    weft_task task;

    if (builder->failed)
        return;
    task = *open_task(builder);
    if (weft_task_crosses(part, &task))
        send_across(builder, task);
    for (uint32_t i = task.region0; i < part->region_count; i++) {
        int peer = part->regions[i].rank;

        if (peer == builder->rank || weft_builder_crosses(builder, peer))
            continue;
        need_enter(builder, task.lane, peer);
        builder->touched[task.lane * builder->world + peer] = part->task_count;
    }
    for (uint32_t i = task.post0; i < part->post_count; i++) {
        int peer = part->posts[i].rank;

        if (peer == builder->rank || weft_builder_crosses(builder, peer))
            continue;
        need_enter(builder, task.lane, peer);
        builder->touched[task.lane * builder->world + peer] = part->task_count;
    }
    if (part->lanes[task.lane].kind == WEFT_LANE_COMPUTE) {
        uint8_t *passed = &builder->gates_passed[task.lane];

        for (; *passed < builder->gate_count; (*passed)++)
            add_wait(builder, builder->gates[*passed]);
    }
}

void weft_builder_gate(weft_builder *builder, uint32_t signal, int64_t count)
{
    if (count > 0)
        builder->gates[builder->gate_count++] = (weft_wait){signal, (uint32_t)count};
}

void weft_builder_copy(weft_builder *builder, int lane, weft_region to, weft_region from)
{
    weft_builder_task(builder, lane, WEFT_TASK_COPY, 0);
    weft_builder_to(builder, to);
    weft_builder_from(builder, from);
    weft_builder_end(builder);
}

/* Lanes in which a peer is touched: none (-1), one (its number), several (-2). */
static int touching_lane(const weft_builder *builder, int peer)
{
    int found = -1;

    for (uint32_t lane = 0; lane < builder->part.lane_count; lane++) {
        if (!builder->touched[lane * (uint32_t)builder->world + (uint32_t)peer])
            continue;
        if (found >= 0)
            return -2;
        found = (int)lane;
    }
    return found;
}

/* The last task of a lane that touches any peer; 0 when it touches none, else the number plus one. */
static uint32_t last_touch(const weft_builder *builder, uint32_t lane)
{
    uint32_t last = 0;

    for (int peer = 0; peer < builder->world; peer++) {
        uint32_t task = builder->touched[lane * (uint32_t)builder->world + (uint32_t)peer];

        last = task > last ? task : last;
    }
    return last;
}

typedef struct extra_post {
    uint32_t task;
    weft_post post;
} extra_post;

static int compare_extra(const void *left, const void *right)
{
    const extra_post *a = left, *b = right;

    return a->task < b->task ? -1 : a->task > b->task;
}

/* Rewrites the pool of posts so that each task's own are followed by its extra ones. */
static void merge_posts(weft_builder *builder, extra_post *extra, uint32_t extra_count)
{
    weft_plan_part *part = &builder->part;
    uint32_t total = part->post_count + extra_count, at = 0, next = 0;
    weft_post *posts = malloc((total ? total : 1) * sizeof(*posts));

    if (!posts) {
        builder->failed = true;
        return;
    }
    qsort(extra, extra_count, sizeof(*extra), compare_extra);
    for (uint32_t i = 0; i < part->task_count; i++) {
        weft_task *task = &part->tasks[i];
        uint32_t first = at;

        for (uint32_t j = 0; j < task->post_count; j++)
            posts[at++] = part->posts[task->post0 + j];
        for (; next < extra_count && extra[next].task == i; next++)
            posts[at++] = extra[next].post;
        task->post0 = first;
        task->post_count = (uint16_t)(at - first);
    }
    free(part->posts);
    part->posts = posts;
    part->post_count = total;
}

/* The first task behind all touches, where sums of what others have sent may come that DONE need not wait
 * for. None beside copy lanes: a backend that has none puts what they do behind a lane's sums. */
static uint32_t first_late(const weft_plan_part *part, const uint32_t *last)
{
    uint32_t late = 0;

    for (uint32_t lane = 0; lane < part->lane_count; lane++) {
        if (part->lanes[lane].kind == WEFT_LANE_COPY)
            return part->task_count;
        late = last[lane] > late ? last[lane] : late;
    }
    return late;
}

static bool is_late_sum(const weft_plan_part *part, uint32_t task, uint32_t late)
{
    return task >= late && part->tasks[task].kind == WEFT_TASK_REDUCE;
}

/*
 * The lane that waits for the other lanes' last touches: of those like lane 0 that touch somebody, or of all
 * of these where none does, the one with the fewest tasks behind its last touch, which DONE would wait for,
 * and of these before all the fewest that wait themselves. `last` is last_touch of each lane.
 */
static uint32_t joining_lane(weft_builder *builder, const uint32_t *last, uint32_t late)
{
    const weft_plan_part *part = &builder->part;
    uint64_t *behind = calloc(part->lane_count, sizeof(*behind));
    uint32_t best = 0;

    if (!behind) {
        builder->failed = true;
        return 0;
    }
    for (uint32_t i = 0; i < part->task_count; i++)
        if (i >= last[part->tasks[i].lane] && part->tasks[i].kind != WEFT_TASK_ENTER &&
            !is_late_sum(part, i, late))
            behind[part->tasks[i].lane] += part->tasks[i].wait_count ? part->task_count : 1;
    for (uint32_t lane = 1; lane < part->lane_count; lane++)
        if (part->lanes[lane].kind == part->lanes[0].kind && !last[lane] <= !last[best] &&
            (!last[lane] < !last[best] || behind[lane] < behind[best]))
            best = lane;
    free(behind);
    return best;
}

/* An empty copy at the end of a lane, before sums that only wait for others, that waits for all lanes' last
 * touches; the join's number. `before` is where it belongs. */
static uint32_t add_join(weft_builder *builder, uint32_t signal, extra_post *extra, uint32_t *count,
                         uint32_t *before)
{
    weft_plan_part *part = &builder->part;
    uint32_t *last = malloc(part->lane_count * sizeof(*last)), lane, late;
    int64_t others = 0;

    if (!last) {
        builder->failed = true;
        return 0;
    }
    for (lane = 0; lane < part->lane_count; lane++)
        last[lane] = last_touch(builder, lane);
    late = first_late(part, last);
    lane = joining_lane(builder, last, late);
    *before = late;
    for (uint32_t i = late; i < part->task_count; i++)
        if (part->tasks[i].lane == lane && !is_late_sum(part, i, late))
            *before = i + 1;
    for (uint32_t other = 0; other < part->lane_count; other++)
        if (other != lane && last[other]) {
            extra[(*count)++] = (extra_post){last[other] - 1, {signal, builder->rank}};
            others++;
        }
    free(last);
    weft_builder_expect(builder, signal, others);
    weft_builder_task(builder, (int)lane, WEFT_TASK_COPY, 0);
    weft_builder_to(builder, (weft_region){.rank = builder->rank});
    weft_builder_from(builder, (weft_region){.rank = builder->rank});
    weft_builder_wait(builder, signal, others);
    return part->task_count - 1;
}

/* Puts the last task before another one; those between follow it. */
static void move_back(weft_plan_part *part, uint32_t task, uint32_t before)
{
    weft_task moved = part->tasks[task];

    memmove(&part->tasks[before + 1], &part->tasks[before], (task - before) * sizeof(moved));
    part->tasks[before] = moved;
}

/*
 * Says DONE to every peer of the domain: at the only touching lane's last touch, in ENTER where nothing
 * touches it, else after a join. Says ENTER to those elsewhere who push to this rank.
 */
static void post_done(weft_builder *builder, uint32_t join_signal)
{
    weft_plan_part *part = &builder->part;
    uint32_t me = (uint32_t)builder->rank, count = 0, join = UINT32_MAX, before = 0;
    extra_post *extra = malloc((2 * (size_t)builder->world + part->lane_count + 1) * sizeof(*extra));
    bool joined = false;

    if (!extra) {
        builder->failed = true;
        return;
    }
    for (int peer = 0; peer < builder->world; peer++)
        joined |= peer != builder->rank && touching_lane(builder, peer) == -2;
    if (joined)
        join = add_join(builder, join_signal, extra, &count, &before);
    for (int i = 1; i < builder->world && !builder->failed; i++) {
        int peer = (builder->rank + i) % builder->world;
        int lane = touching_lane(builder, peer);
        uint32_t task = lane == -1   ? 0
                        : lane == -2 ? join
                                     : builder->touched[lane * builder->world + peer] - 1;

        if (weft_builder_crosses(builder, peer)) {
            if (part->signal_posts[WEFT_SIGNAL_LANDED(builder->world, peer)])
                extra[count++] = (extra_post){0, {WEFT_SIGNAL_ENTER(me), peer}};
            continue;
        }
        extra[count++] = (extra_post){task, {WEFT_SIGNAL_DONE(builder->world, me), peer}};
    }
    if (!builder->failed)
        merge_posts(builder, extra, count);
    if (!builder->failed && joined)
        move_back(part, join, before);
    free(extra);
}

/* Tasks of each lane side by side, lanes in order (a counting sort, which keeps the order inside a lane). */
static void sort_by_lane(weft_builder *builder)
{
    weft_plan_part *part = &builder->part;
    weft_task *sorted = malloc(part->task_count * sizeof(*sorted));
    uint32_t at = 0;

    if (!sorted) {
        builder->failed = true;
        return;
    }
    for (uint32_t i = 0; i < part->task_count; i++)
        part->lanes[part->tasks[i].lane].task_count++;
    for (uint32_t lane = 0; lane < part->lane_count; lane++) {
        part->lanes[lane].task0 = at;
        at += part->lanes[lane].task_count;
        part->lanes[lane].task_count = 0;
    }
    for (uint32_t i = 0; i < part->task_count; i++) {
        weft_lane *lane = &part->lanes[part->tasks[i].lane];

        sorted[lane->task0 + lane->task_count++] = part->tasks[i];
    }
    free(part->tasks);
    part->tasks = sorted;
}

weft_status weft_builder_finish(weft_builder *builder, weft_plan_part *part, weft_error_text *error)
{
    uint32_t join_signal = weft_builder_signals(builder, 1);

    if (!builder->failed && !builder->part.task_count)
        open_lanes(builder);
    if (!builder->failed)
        post_done(builder, join_signal);
    weft_builder_task(builder, 0, WEFT_TASK_EXIT, 0);
    for (int i = 1; i < builder->world && !builder->failed; i++) {
        int peer = (builder->rank + i) % builder->world;
        uint32_t landed = WEFT_SIGNAL_LANDED(builder->world, peer);

        if (!weft_builder_crosses(builder, peer))
            add_wait(builder, (weft_wait){WEFT_SIGNAL_DONE(builder->world, peer), 1});
        else if (builder->part.signal_posts[landed])
            add_wait(builder, (weft_wait){landed, builder->part.signal_posts[landed]});
    }
    if (!builder->failed)
        sort_by_lane(builder);
    free(builder->touched);
    free(builder->entered);
    free(builder->lane_waited);
    free(builder->gates_passed);
    if (builder->failed) {
        weft_plan_part_free(&builder->part);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the plan of rank %d of %d",
                              builder->rank, builder->world);
    }
    *part = builder->part;
    return WEFT_OK;
}
