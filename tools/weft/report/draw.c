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
    const weft_problem *problem;
    int world;
    int rank; /* of `part`, or -1 */
    weft_plan_part part;
} naming;

static const weft_plan_part *part_of(naming *names, int rank)
{
    weft_error_text ignored;

    if (names->rank == rank)
        return &names->part;
    if (names->rank >= 0)
        weft_plan_part_free(&names->part);
    names->rank = -1;
    if (weft_plan_make(names->problem, names->world, rank, &names->part, &ignored) != WEFT_OK)
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

    if (!task || event->kind == WEFT_EVENT_WAIT) {
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

/* Keeps the first lanes of either kind; returns how many events are left. */
static size_t keep_shown(lane_counts lanes, const weft_event *events, size_t count, weft_event *kept)
{
    size_t used = 0;

    for (size_t i = 0; i < count; i++) {
        bool computes = events[i].lane < lanes.compute;

        if (computes ? events[i].lane < LANES_SHOWN : events[i].lane - lanes.compute < COPIES_SHOWN)
            kept[used++] = events[i];
    }
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

weft_status draw_run(const weft_problem *problem, int world, const char *where, const weft_event *events,
                     size_t event_count, const char *svg, const char *trace, weft_error_text *error)
{
    naming names = {.problem = problem, .world = world, .rank = -1};
    lane_counts lanes = count_lanes(problem, events, event_count);
    char title[128], what[128], subtitle[320];
    weft_timeline timeline = {.title = title,
                              .subtitle = subtitle,
                              .events = events,
                              .event_count = event_count,
                              .arg = &names,
                              .lane_name = name_lane,
                              .event_name = name_event};
    weft_status status = WEFT_OK;
    weft_event *kept = NULL;

    snprintf(title, sizeof(title), "%s · %s", weft_op_name(problem->op),
             weft_schedule_name(problem->op, problem->schedule));
    describe(problem, world, what, sizeof(what));
    snprintf(subtitle, sizeof(subtitle), "%s, on %s", what, where);
    if (trace)
        status = weft_timeline_write_json(&timeline, trace, error);
    if (svg && !status && (lanes.compute > LANES_SHOWN || lanes.copy > COPIES_SHOWN)) {
        char shown[128];

        kept = malloc((event_count + 1) * sizeof(*kept));
        if (!kept)
            status = weft_error_set(error, WEFT_ERR_MEMORY, "no memory to draw %zu events", event_count);
        else
            timeline.event_count = keep_shown(lanes, events, event_count, kept);
        timeline.events = kept;
        tell_shown(lanes, shown, sizeof(shown));
        snprintf(subtitle, sizeof(subtitle), "%s, on %s%s", what, where, shown);
    }
    if (svg && !status)
        status = weft_timeline_write_svg(&timeline, svg, error);
    free(kept);
    if (names.rank >= 0)
        weft_plan_part_free(&names.part);
    return status;
}
