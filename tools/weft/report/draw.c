/* Names for lanes and tasks from the plan, and which lanes a picture shows. See draw.h. */
#include "report/draw.h"

#include "core/dtype.h"
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES_SHOWN = 4, COPIES_SHOWN = 8 };

/* The part of the rank last asked about: the writers go rank by rank. */
typedef struct naming {
    const weft_sim_source *source;
    int rank; /* of `part`, or -1 */
    weft_plan_part part;
} naming;

static const weft_plan_part *part_of(naming *names, int rank)
{
    const weft_sim_source *source = names->source;
    weft_error_text ignored;
    weft_status status;

    if (names->rank == rank)
        return &names->part;
    if (names->rank >= 0)
        weft_plan_part_free(&names->part);
    names->rank = -1;
    status = source->make ? source->make(source->arg, rank, &names->part, &ignored)
                          : weft_plan_make(source->problem, source->world, rank, &names->part, &ignored);
    if (status != WEFT_OK)
        return NULL;
    names->rank = rank;
    return &names->part;
}

static void name_lane(void *arg, int rank, uint32_t lane, char *text, size_t bytes)
{
    const weft_plan_part *part = part_of(arg, rank);
    uint32_t first = lane;

    if (!part || lane >= part->lane_count) {
        snprintf(text, bytes, "lane %u", lane);
        return;
    }
    while (first > 0 && part->lanes[first - 1].kind == part->lanes[lane].kind)
        first--;
    snprintf(text, bytes, "%s %u", part->lanes[lane].kind == WEFT_LANE_COPY ? "copy" : "compute",
             lane - first);
}

static int name_region(const weft_plan_part *part, const weft_region *region, char *text, size_t bytes)
{
    char from[24] = "";

    if (region->rank != part->rank)
        snprintf(from, sizeof(from), "@%d", region->rank);
    return snprintf(text, bytes, "%s%s[%lld:%lld, %lld:%lld]", part->operands[region->operand].name, from,
                    (long long)region->row0, (long long)(region->row0 + region->rows),
                    (long long)region->col0, (long long)(region->col0 + region->cols));
}

static void name_event(void *arg, const weft_event *event, char *text, size_t bytes)
{
    static const char *const kinds[] = {"ENTER", "COPY", "GEMM", "REDUCE", "EXIT"};
    const weft_plan_part *part = part_of(arg, event->rank);
    const weft_task *task = part && event->task < part->task_count ? &part->tasks[event->task] : NULL;
    const weft_region *regions;
    int used;

    if (!task || event->kind == WEFT_EVENT_WAIT || event->kind == WEFT_EVENT_LAUNCH) {
        snprintf(text, bytes, "%s", weft_event_kind_name(event->kind));
        return;
    }
    regions = weft_task_regions(part, task);
    used = snprintf(text, bytes, "%s ", kinds[task->kind]);
    if (!task->region_count)
        return;
    used += name_region(part, regions, text + used, bytes - (size_t)used);
    if (task->kind == WEFT_TASK_COPY && (size_t)used < bytes) {
        used += snprintf(text + used, bytes - (size_t)used, " from ");
        if ((size_t)used < bytes)
            name_region(part, regions + 1, text + used, bytes - (size_t)used);
    }
}

/* What the plan knows of an event and a recorder does not: whether it reaches a peer, whether a copy packs.
 */
static weft_event refine(naming *names, weft_event event)
{
    const weft_plan_part *part = part_of(names, event.rank);
    const weft_task *task = part && event.task < part->task_count ? &part->tasks[event.task] : NULL;

    if (!task || event.kind > WEFT_EVENT_REDUCE)
        return event;
    const weft_region *regions = weft_task_regions(part, task);
    if (event.kind == WEFT_EVENT_COPY && part->operands[regions->operand].packed)
        event.kind = WEFT_EVENT_PACK;
    for (uint32_t i = 0; i < task->region_count; i++)
        event.link |= regions[i].rank != part->rank;
    return event;
}

/* Compute lanes come first, then those that copy. */
typedef struct lane_counts {
    uint32_t compute, copy;
} lane_counts;

static lane_counts count_lanes(const weft_problem *problem, const weft_event *events, size_t count)
{
    lane_counts lanes = {problem->tuning.workers > 0 ? (uint32_t)problem->tuning.workers : 1, 0};

    for (size_t i = 0; i < count; i++)
        if (events[i].lane >= lanes.compute + lanes.copy)
            lanes.copy = events[i].lane - lanes.compute + 1;
    return lanes;
}

static bool is_shown(lane_counts lanes, const weft_event *event)
{
    return event->lane < lanes.compute ? event->lane < LANES_SHOWN
                                       : event->lane - lanes.compute < COPIES_SHOWN;
}

/* Keeps the first lanes of either kind; returns how many events are left. */
static size_t keep_shown(lane_counts lanes, weft_event *events, size_t count)
{
    size_t used = 0;

    for (size_t i = 0; i < count; i++)
        if (is_shown(lanes, &events[i]))
            events[used++] = events[i];
    return used;
}

/* "; 4 of 16 compute lanes and 8 of 64 copy lanes of each rank" */
static void tell_shown(lane_counts lanes, char *text, size_t bytes)
{
    char compute[48] = "", copy[48] = "";
    bool fewer = lanes.compute > LANES_SHOWN, fewer_copies = lanes.copy > COPIES_SHOWN;

    if (fewer)
        snprintf(compute, sizeof(compute), "%d of %u compute lanes", LANES_SHOWN, lanes.compute);
    if (fewer_copies)
        snprintf(copy, sizeof(copy), "%d of %u copy lanes", COPIES_SHOWN, lanes.copy);
    snprintf(text, bytes, "; %s%s%s of each rank", compute, fewer && fewer_copies ? " and " : "", copy);
}

static void describe(const weft_problem *p, int world, char *text, size_t bytes)
{
    if (p->op >= WEFT_OP_ALL_REDUCE)
        snprintf(text, bytes, "%lld elements of %s, %d ranks", (long long)p->count, weft_dtype_name(p->dtype),
                 world);
    else
        snprintf(text, bytes, "m=%lld n=%lld k=%lld %s, %d ranks", (long long)p->m, (long long)p->n,
                 (long long)p->k, weft_dtype_name(p->dtype), world);
}

weft_status draw_run(const weft_sim_source *source, const char *where, const weft_event *events,
                     size_t event_count, const char *svg, const char *trace, weft_error_text *error)
{
    const weft_problem *problem = source->problem;
    naming names = {.source = source, .rank = -1};
    lane_counts lanes = count_lanes(problem, events, event_count);
    char title[128], what[128], subtitle[320];
    int64_t begin_ns = event_count ? INT64_MAX : 0, end_ns = 0;
    weft_status status = WEFT_OK;

    for (size_t i = 0; i < event_count; i++) {
        begin_ns = events[i].start_ns < begin_ns ? events[i].start_ns : begin_ns;
        end_ns = events[i].end_ns > end_ns ? events[i].end_ns : end_ns;
    }
    weft_event *all = malloc((event_count + 1) * sizeof(*all));
    weft_timeline timeline = {.title = title,
                              .subtitle = subtitle,
                              .events = all,
                              .event_count = event_count,
                              .begin_ns = begin_ns,
                              .end_ns = end_ns,
                              .arg = &names,
                              .lane_name = name_lane,
                              .event_name = name_event};

    if (!all)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory to draw %zu events", event_count);
    for (size_t i = 0; i < event_count; i++)
        all[i] = refine(&names, events[i]);
    snprintf(title, sizeof(title), "%s · %s", weft_op_name(problem->op),
             weft_schedule_name(problem->op, problem->schedule));
    describe(problem, source->world, what, sizeof(what));
    snprintf(subtitle, sizeof(subtitle), "%s, on %s", what, where);
    if (trace)
        status = weft_timeline_write_json(&timeline, trace, error);
    if (svg && !status && (lanes.compute > LANES_SHOWN || lanes.copy > COPIES_SHOWN)) {
        char shown[128];

        timeline.event_count = keep_shown(lanes, all, event_count);
        tell_shown(lanes, shown, sizeof(shown));
        snprintf(subtitle, sizeof(subtitle), "%s, on %s%s", what, where, shown);
    }
    if (svg && !status)
        status = weft_timeline_write_svg(&timeline, svg, error);
    free(all);
    if (names.rank >= 0)
        weft_plan_part_free(&names.part);
    return status;
}
