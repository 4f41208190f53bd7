/*
 * Timelines: what each lane of each rank did, and when.
 *
 * Recording and drawing are apart. A weft_trace is a fixed buffer over memory the caller gives, one per
 * thread that records; adding an event is a bounds check and a 32-byte store, so a run may be traced
 * without disturbing it: nothing is allocated, locked or written out. An event is plain data without
 * pointers: buffers of several threads or processes are joined by copying them one after another.
 *
 * A weft_timeline is a list of events with a title and names, real or simulated; the two writers draw it
 * as a Chrome trace (opens in Perfetto) and as a self-contained SVG picture.
 */
#ifndef WEFT_TRACE_TRACE_H
#define WEFT_TRACE_TRACE_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum weft_event_kind {
    WEFT_EVENT_COMPUTE = 0,
    WEFT_EVENT_COPY,
    WEFT_EVENT_PACK, /* a copy into the layout of the GEMM engine */
    WEFT_EVENT_REDUCE,
    WEFT_EVENT_WAIT,   /* blocked on a signal */
    WEFT_EVENT_ENTER,  /* publishing this rank's operands */
    WEFT_EVENT_EXIT,   /* waiting until the peers are done with this rank's memory */
    WEFT_EVENT_LAUNCH, /* from the call until the ranks run */
    WEFT_EVENT_KIND_COUNT
} weft_event_kind;

#define WEFT_EVENT_NO_TASK UINT32_MAX

typedef struct weft_event {
    int64_t start_ns, end_ns; /* of weft_clock_ns, or simulated */
    int32_t rank;
    uint16_t lane;
    uint8_t kind;  /* weft_event_kind */
    uint32_t task; /* index in the rank's part, or WEFT_EVENT_NO_TASK */
    uint8_t link;  /* it reaches a peer's memory: 0 while recording, known from the plan when drawn */
} weft_event;

/* ---- recording ------------------------------------------------------------------------------------ */

typedef struct weft_trace {
    weft_event *events;
    uint32_t capacity;
    uint32_t count;
    uint32_t dropped; /* events that found the buffer full */
} weft_trace;

static inline void weft_trace_init(weft_trace *trace, weft_event *memory, uint32_t capacity)
{
    trace->events = memory;
    trace->capacity = capacity;
    trace->count = 0;
    trace->dropped = 0;
}

static inline void weft_trace_reset(weft_trace *trace)
{
    trace->count = 0;
    trace->dropped = 0;
}

/* Only the thread that owns the buffer calls this; a NULL trace records nothing. */
static inline void weft_trace_add(weft_trace *trace, weft_event_kind kind, int rank, uint32_t lane,
                                  uint32_t task, int64_t start_ns, int64_t end_ns)
{
    weft_event *event;

    if (!trace)
        return;
    if (trace->count == trace->capacity) {
        trace->dropped++;
        return;
    }
    event = &trace->events[trace->count++];
    event->start_ns = start_ns;
    event->end_ns = end_ns;
    event->rank = rank;
    event->lane = (uint16_t)lane;
    event->kind = (uint8_t)kind;
    event->task = task;
}

/* ---- drawing -------------------------------------------------------------------------------------- */

typedef struct weft_timeline {
    const char *title;    /* "ag_gemm AllGather1D_TilingCD_RotatingA" */
    const char *subtitle; /* "m=4096 n=28672 k=8192 bfloat16, 8 ranks, h100x8 (simulated)"; NULL = none */
    const weft_event *events;
    size_t event_count;       /* in any order */
    int64_t begin_ns, end_ns; /* of the whole run, where the events are not all of it; both 0: theirs */
    void *arg;                /* for the two callbacks, either of which may be NULL */
    /* A short name for a lane ("compute 0", "copy"); default "lane N". */
    void (*lane_name)(void *arg, int rank, uint32_t lane, char *text, size_t bytes);
    /* What an event did ("GEMM D[0:128, 0:256]"); default the name of its kind. */
    void (*event_name)(void *arg, const weft_event *event, char *text, size_t bytes);
} weft_timeline;

const char *weft_event_kind_name(weft_event_kind kind);

/* Each writes the whole file or fails with a sentence; times are counted from the earliest event. */
weft_status weft_timeline_write_json(const weft_timeline *timeline, const char *path, weft_error_text *error);
weft_status weft_timeline_write_svg(const weft_timeline *timeline, const char *path, weft_error_text *error);

#endif
