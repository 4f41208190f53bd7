/*
 * The Chrome trace writer: ranks are processes, lanes are threads, events are complete ("X") slices in
 * microseconds with nanosecond fractions. ui.perfetto.dev and chrome://tracing open the file.
 */
#include "trace/timeline.h"

#include <errno.h>
#include <string.h>

static void put_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else
            fputc(c, file);
    }
    fputc('"', file);
}

static void put_row_names(FILE *file, const weft_timeline *timeline, const weft_timeline_layout *layout)
{
    char name[WEFT_TIMELINE_NAME_BYTES];

    for (size_t r = 0; r < layout->row_count; r++) {
        const weft_timeline_row *row = &layout->rows[r];

        if (r == 0 || row->rank != layout->rows[r - 1].rank)
            fprintf(file,
                    "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}},\n",
                    row->rank, row->rank);
        weft_timeline_lane_name(timeline, row->rank, row->lane, name, sizeof(name));
        fprintf(file,
                "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"args\":{\"name\":", row->rank,
                row->lane);
        put_string(file, name);
        fprintf(file, "}},\n");
    }
}

weft_status weft_timeline_write_json(const weft_timeline *timeline, const char *path, weft_error_text *error)
{
    char name[WEFT_TIMELINE_NAME_BYTES];
    weft_timeline_layout layout;
    weft_status status;
    FILE *file;

    status = weft_timeline_arrange(timeline, &layout, error);
    if (status)
        return status;
    file = fopen(path, "w");
    if (!file) {
        weft_timeline_layout_free(&layout);
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno));
    }
    fprintf(file, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"title\":");
    put_string(file, timeline->title ? timeline->title : "weft");
    fprintf(file, ",\"subtitle\":");
    put_string(file, timeline->subtitle ? timeline->subtitle : "");
    fprintf(file, "},\"traceEvents\":[\n");
    put_row_names(file, timeline, &layout);
    for (size_t i = 0; i < layout.event_count; i++) {
        const weft_event *event = &layout.events[i];

        weft_timeline_event_name(timeline, event, name, sizeof(name));
        fprintf(file, "{\"name\":");
        put_string(file, name);
        fprintf(file,
                ",\"cat\":\"%s%s\",\"ph\":\"X\",\"ts\":%lld.%03d,\"dur\":%lld.%03d,\"pid\":%d,\"tid\":%u",
                weft_event_kind_name(event->kind), event->link ? ",link" : "",
                (long long)(event->start_ns / 1000), (int)(event->start_ns % 1000),
                (long long)((event->end_ns - event->start_ns) / 1000),
                (int)((event->end_ns - event->start_ns) % 1000), event->rank, event->lane);
        if (event->task != WEFT_EVENT_NO_TASK)
            fprintf(file, ",\"args\":{\"task\":%u}", event->task);
        fprintf(file, "},\n");
    }
    /* A last metadata record ends the list without a trailing comma. */
    fprintf(file, "{\"name\":\"weft\",\"ph\":\"M\",\"pid\":0,\"args\":{}}\n]}\n");
    weft_timeline_layout_free(&layout);
    return weft_timeline_finish(file, path, error);
}
