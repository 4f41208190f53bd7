/* Recording keeps what fits and counts what does not; both writers draw every event where it belongs. */
#include "support/check.h"
#include "trace/trace.h"

#include <unistd.h>

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text;
    long bytes;

    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    bytes = ftell(file);
    rewind(file);
    text = calloc(1, (size_t)bytes + 1);
    if (text && fread(text, 1, (size_t)bytes, file) != (size_t)bytes)
        text[0] = 0;
    fclose(file);
    return text;
}

static int count_of(const char *text, const char *part)
{
    int count = 0;

    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

/* Braces and brackets outside strings must match, and strings must end: enough to catch a broken writer. */
static int json_is_balanced(const char *text)
{
    char stack[64];
    int depth = 0, in_string = 0;

    for (; *text; text++) {
        if (in_string) {
            if (*text == '\\' && text[1])
                text++;
            else if (*text == '"')
                in_string = 0;
        } else if (*text == '"') {
            in_string = 1;
        } else if (*text == '{' || *text == '[') {
            if (depth == 64)
                return 0;
            stack[depth++] = *text;
        } else if (*text == '}' || *text == ']') {
            if (!depth || stack[--depth] != (*text == '}' ? '{' : '['))
                return 0;
        } else if (*text == ',') {
            const char *next = text + 1;

            while (*next == '\n' || *next == ' ')
                next++;
            if (*next == '}' || *next == ']')
                return 0;
        }
    }
    return depth == 0 && !in_string;
}

static void name_event(void *arg, const weft_event *event, char *text, size_t bytes)
{
    (void)arg;
    snprintf(text, bytes, "tile \"%u\" <a&b>", event->task);
}

static void recording_keeps_what_fits(void)
{
    weft_event memory[3];
    weft_trace trace;

    weft_trace_init(&trace, memory, 3);
    for (int i = 0; i < 5; i++)
        weft_trace_add(&trace, WEFT_EVENT_COPY, 1, 2, (uint32_t)i, 10 * i, 10 * i + 5);
    CHECK_INT(trace.count, 3);
    CHECK_INT(trace.dropped, 2);
    CHECK_INT(memory[2].task, 2);
    CHECK_INT(memory[2].start_ns, 20);
    CHECK_INT(memory[2].end_ns, 25);
    weft_trace_reset(&trace);
    CHECK_INT(trace.count + trace.dropped, 0);
    weft_trace_add(NULL, WEFT_EVENT_COPY, 0, 0, 0, 0, 1);
}

static void writers_draw_every_event(int ranks, int lanes, const char *path)
{
    enum { PER_LANE = 12 };
    size_t count = (size_t)ranks * lanes * PER_LANE, at = 0;
    weft_event *events = calloc(count, sizeof(*events));
    weft_timeline timeline = {
        .title = "a & \"b\"", .subtitle = "x < y", .events = events, .event_count = count};
    weft_error_text error = {0};
    char *text, needle[64];

    for (int r = ranks - 1; r >= 0; r--)
        for (int l = 0; l < lanes; l++)
            for (int i = 0; i < PER_LANE; i++, at++)
                events[at] = (weft_event){
                    5000000000 + 1000 * i, 5000000000 + 1000 * i + 900, r, (uint16_t)l, (uint8_t)(i % 5),
                    (uint32_t)i,           i % 5 == WEFT_EVENT_COPY};
    timeline.event_name = name_event;

    CHECK_INT(weft_timeline_write_json(&timeline, path, &error), WEFT_OK);
    text = read_file(path);
    CHECK(text && json_is_balanced(text));
    CHECK_INT(count_of(text, "\"ph\":\"X\""), count);
    CHECK_INT(count_of(text, "process_name"), ranks);
    CHECK_INT(count_of(text, "thread_name"), ranks * lanes);
    CHECK_HAS(text, "\"ts\":0.000,\"dur\":0.900");
    CHECK_HAS(text, "\"ts\":11.000");
    CHECK_HAS(text, "tile \\\"3\\\"");
    free(text);

    CHECK_INT(weft_timeline_write_svg(&timeline, path, &error), WEFT_OK);
    text = read_file(path);
    CHECK(text && strncmp(text, "<svg ", 5) == 0);
    CHECK_HAS(text, "</svg>");
    CHECK_HAS(text, "a &amp; ");
    CHECK_HAS(text, "x &lt; y");
    for (int r = 0; r < ranks; r++) {
        snprintf(needle, sizeof(needle), ">rank %d<", r);
        CHECK_HAS(text, needle);
    }
    /* One drawn rectangle per event (here all are wide enough to see), each with its own tooltip. */
    CHECK_INT(count_of(text, "<title>"), count);
    CHECK_INT(count_of(text, ">time, µs<"), 1);
    CHECK_INT(count_of(text, "class='key'>compute"), 1);
    CHECK_INT(count_of(text, "class='key'>wait"), 1);
    CHECK_INT(count_of(text, "class='key'>of it over links"), 1);
    free(text);
    free(events);
}

static void narrow_events_are_joined(const char *path)
{
    enum { COUNT = 15000 };
    weft_event *events = calloc(COUNT, sizeof(*events));
    weft_timeline timeline = {.title = "many", .events = events, .event_count = COUNT};
    weft_error_text error = {0};
    char *text;

    for (int i = 0; i < COUNT; i++)
        events[i] = (weft_event){100 * i, 100 * i + 100, 0, 0, WEFT_EVENT_COMPUTE, (uint32_t)i, 0};
    CHECK_INT(weft_timeline_write_svg(&timeline, path, &error), WEFT_OK);
    text = read_file(path);
    CHECK(count_of(text, "<rect") < 4000);
    CHECK(count_of(text, "<rect") > 1000);
    CHECK_HAS(text, ">100 %<");
    free(text);
    /* Where they are not the whole run, its length is what the picture shows. */
    timeline.end_ns = 100 * COUNT * 4;
    CHECK_INT(weft_timeline_write_svg(&timeline, path, &error), WEFT_OK);
    text = read_file(path);
    CHECK_HAS(text, ">25 %<");
    CHECK_HAS(text, ">6 ms<");
    free(text);
    free(events);
}

int main(void)
{
    char path[] = "/tmp/weft_timeline_XXXXXX";
    weft_timeline empty = {.title = "empty"};
    weft_error_text error = {0};
    int fd = mkstemp(path);

    CHECK(fd >= 0);
    close(fd);
    recording_keeps_what_fits();
    writers_draw_every_event(2, 3, path);
    writers_draw_every_event(16, 3, path);
    narrow_events_are_joined(path);
    CHECK_INT(weft_timeline_write_svg(&empty, path, &error), WEFT_OK);
    CHECK_INT(weft_timeline_write_json(&empty, path, &error), WEFT_OK);
    CHECK_INT(weft_timeline_write_svg(&empty, "/nonexistent/dir/x.svg", &error), WEFT_ERR_SYSTEM);
    CHECK_HAS(error.text, "/nonexistent/dir/x.svg");
    unlink(path);
    return check_report("trace timeline");
}
