/* Sorting events into rows; see timeline.h. */
#include "trace/timeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *weft_event_kind_name(weft_event_kind kind)
{
    static const char *const names[WEFT_EVENT_KIND_COUNT] = {"compute", "copy",  "pack", "reduce",
                                                             "wait",    "enter", "exit", "launch"};

    return (unsigned)kind < WEFT_EVENT_KIND_COUNT ? names[kind] : "invalid";
}

void weft_timeline_lane_name(const weft_timeline *timeline, int rank, uint32_t lane, char *text, size_t bytes)
{
    if (timeline->lane_name)
        timeline->lane_name(timeline->arg, rank, lane, text, bytes);
    else
        snprintf(text, bytes, "lane %u", lane);
}

void weft_timeline_event_name(const weft_timeline *timeline, const weft_event *event, char *text,
                              size_t bytes)
{
    if (timeline->event_name)
        timeline->event_name(timeline->arg, event, text, bytes);
    else
        snprintf(text, bytes, "%s", weft_event_kind_name(event->kind));
}

static int compare_events(const void *left, const void *right)
{
    const weft_event *a = left, *b = right;

    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->lane != b->lane)
        return a->lane < b->lane ? -1 : 1;
    if (a->start_ns != b->start_ns)
        return a->start_ns < b->start_ns ? -1 : 1;
    return (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
}

static size_t count_rows(const weft_event *events, size_t count)
{
    size_t rows = 0;

    for (size_t i = 0; i < count; i++)
        rows += i == 0 || events[i].rank != events[i - 1].rank || events[i].lane != events[i - 1].lane;
    return rows;
}

weft_status weft_timeline_arrange(const weft_timeline *timeline, weft_timeline_layout *layout,
                                  weft_error_text *error)
{
    size_t count = timeline->event_count, rows = 0;
    int64_t origin = INT64_MAX;
    weft_event *events = malloc((count + 1) * sizeof(*events));

    memset(layout, 0, sizeof(*layout));
    if (!events)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory to draw %zu events", count);
    for (size_t i = 0; i < count; i++) {
        events[i] = timeline->events[i];
        if (events[i].start_ns < origin)
            origin = events[i].start_ns;
    }
    if (timeline->end_ns > timeline->begin_ns) {
        origin = timeline->begin_ns;
        layout->end_ns = timeline->end_ns - origin;
    }
    for (size_t i = 0; i < count; i++) {
        events[i].start_ns -= origin;
        events[i].end_ns -= origin;
        if (events[i].end_ns > layout->end_ns)
            layout->end_ns = events[i].end_ns;
    }
    qsort(events, count, sizeof(*events), compare_events);
    layout->rows = malloc((count_rows(events, count) + 1) * sizeof(*layout->rows));
    if (!layout->rows) {
        free(events);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory to draw %zu events", count);
    }
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || events[i].rank != events[i - 1].rank)
            layout->rank_count++;
        if (i == 0 || events[i].rank != events[i - 1].rank || events[i].lane != events[i - 1].lane)
            layout->rows[rows++] = (weft_timeline_row){events[i].rank, events[i].lane, i, 0};
        layout->rows[rows - 1].event_count++;
    }
    layout->events = events;
    layout->event_count = count;
    layout->row_count = rows;
    return WEFT_OK;
}

void weft_timeline_layout_free(weft_timeline_layout *layout)
{
    free(layout->events);
    free(layout->rows);
    memset(layout, 0, sizeof(*layout));
}

weft_status weft_timeline_finish(FILE *file, const char *path, weft_error_text *error)
{
    int failed = ferror(file);

    if (fclose(file) != 0 || failed)
        return weft_error_set(error, WEFT_ERR_SYSTEM, "writing %s failed: %s", path, strerror(errno));
    return WEFT_OK;
}
