/* What the two writers share: the events in drawing order, the rows they fall into, and names. */
#ifndef WEFT_TRACE_TIMELINE_H
#define WEFT_TRACE_TIMELINE_H

#include "trace/trace.h"

#include <stdio.h>

enum { WEFT_TIMELINE_NAME_BYTES = 96 };

/* One row: a lane of a rank, and its run of events in the sorted list. */
typedef struct weft_timeline_row {
    int rank;
    uint32_t lane;
    size_t event0, event_count;
} weft_timeline_row;

typedef struct weft_timeline_layout {
    weft_event *events; /* sorted by rank, lane, start; times from 0 */
    size_t event_count;
    weft_timeline_row *rows;
    size_t row_count;
    int rank_count; /* ranks that have a row */
    int64_t end_ns;
} weft_timeline_layout;

weft_status weft_timeline_arrange(const weft_timeline *timeline, weft_timeline_layout *layout,
                                  weft_error_text *error);
void weft_timeline_layout_free(weft_timeline_layout *layout);

void weft_timeline_lane_name(const weft_timeline *timeline, int rank, uint32_t lane, char *text,
                             size_t bytes);
void weft_timeline_event_name(const weft_timeline *timeline, const weft_event *event, char *text,
                              size_t bytes);

/* Closes the file and turns any write failure into an error. */
weft_status weft_timeline_finish(FILE *file, const char *path, weft_error_text *error);

#endif
