/* Names for lanes and tasks from the plan, and which lanes a picture shows. See draw.h. */
#include "draw.h"

#include "core/dtype.h"
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES_SHOWN = 4 };

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
    regions = &part->regions[task->region0];
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

/* Keeps the copy lanes and the first compute lanes of each rank; returns how many events are left. */
static size_t keep_shown(naming *names, const weft_event *events, size_t count, weft_event *kept)
{
    uint32_t compute = names->problem->workers > 0 ? (uint32_t)names->problem->workers : 1;
    size_t used = 0;

    for (size_t i = 0; i < count; i++)
        if (events[i].lane < LANES_SHOWN || events[i].lane >= compute)
            kept[used++] = events[i];
    return used;
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
    if (svg && !status && problem->workers > LANES_SHOWN) {
        kept = malloc((event_count + 1) * sizeof(*kept));
        if (!kept)
            status = weft_error_set(error, WEFT_ERR_MEMORY, "no memory to draw %zu events", event_count);
        else
            timeline.event_count = keep_shown(&names, events, event_count, kept);
        timeline.events = kept;
        snprintf(subtitle, sizeof(subtitle), "%s, on %s; %d of %d compute lanes of each rank", what, where,
                 LANES_SHOWN, problem->workers);
    }
    if (svg && !status)
        status = weft_timeline_write_svg(&timeline, svg, error);
    free(kept);
    if (names.rank >= 0)
        weft_plan_part_free(&names.part);
    return status;
}
