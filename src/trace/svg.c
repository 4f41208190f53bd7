/*
 * The SVG writer: a picture that stands on its own (no script, no font file, no style sheet).
 *
 * One row per lane, rows of a rank together on a tinted block, a time axis below, a legend with each
 * kind's share of all lane time and that of what reaches peers, and beside each row how much of the time it
 * worked. Rows get thinner as there are more of them, and labels go where they no longer fit. Events too
 * narrow to see are drawn together with their neighbours of the same kind, so that the size of the file
 * follows the picture and not the number of events.
 */
#include "trace/timeline.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { WIDTH = 1280, LEFT = 150, RIGHT = 62, HEAD = 92, FOOT = 46, TOOLTIPS_UP_TO = 20000 };

static const double narrow_px = 0.35; /* below this an event joins its neighbour */

typedef struct kind_style {
    const char *fill;
    const char *ink; /* of text on it */
    double height;   /* as a part of the row's */
} kind_style;

/* Colours that stay apart for colour-blind readers; waits are thin, so that work stands out. */
static const kind_style styles[WEFT_EVENT_KIND_COUNT] = {
    [WEFT_EVENT_COMPUTE] = {"#2a6fb0", "#ffffff", 1.0}, [WEFT_EVENT_COPY] = {"#e8a020", "#3a2800", 1.0},
    [WEFT_EVENT_PACK] = {"#b98a5e", "#ffffff", 1.0},    [WEFT_EVENT_REDUCE] = {"#1f9e78", "#ffffff", 1.0},
    [WEFT_EVENT_WAIT] = {"#d3a6b4", "#5a2036", 0.34},   [WEFT_EVENT_ENTER] = {"#6b5fa8", "#ffffff", 1.0},
    [WEFT_EVENT_EXIT] = {"#9a92c4", "#ffffff", 0.6},    [WEFT_EVENT_LAUNCH] = {"#7d8590", "#ffffff", 0.6},
};

/* What reaches a peer's memory, whatever kind it is, has this along its foot. */
static const char *const link_fill = "#d1242f";
static const double link_height = 0.22;

typedef struct picture {
    FILE *file;
    const weft_timeline *timeline;
    const weft_timeline_layout *layout;
    double row_height, row_gap, rank_gap;
    double px_per_ns;
    double height;
    int tooltips;
} picture;

static void put_text(FILE *file, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", file);
            break;
        case '<':
            fputs("&lt;", file);
            break;
        case '>':
            fputs("&gt;", file);
            break;
        default:
            if ((unsigned char)*text >= 0x20)
                fputc(*text, file);
        }
    }
}

static void choose_row_height(picture *pic)
{
    size_t rows = pic->layout->row_count;

    if (rows <= 12)
        pic->row_height = 24, pic->row_gap = 3, pic->rank_gap = 12;
    else if (rows <= 40)
        pic->row_height = 16, pic->row_gap = 2, pic->rank_gap = 9;
    else if (rows <= 100)
        pic->row_height = 11, pic->row_gap = 1.5, pic->rank_gap = 7;
    else if (rows <= 400)
        pic->row_height = 6, pic->row_gap = 1, pic->rank_gap = 4;
    else
        pic->row_height = 2, pic->row_gap = 0.5, pic->rank_gap = 1;
}

static double row_pitch(const picture *pic)
{
    return pic->row_height + pic->row_gap;
}

/* Nanoseconds of a unit that keeps tick labels short. */
static double time_unit(double end_ns, const char **name)
{
    if (end_ns < 2e3)
        return *name = "ns", 1.0;
    if (end_ns < 2e6)
        return *name = "µs", 1e3;
    if (end_ns < 2e9)
        return *name = "ms", 1e6;
    return *name = "s", 1e9;
}

static double tick_step(double end)
{
    double raw = end / 10, power = pow(10, floor(log10(raw))), lead = raw / power;

    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static void put_axis(const picture *pic)
{
    const char *unit_name;
    double end_ns = pic->layout->end_ns > 0 ? (double)pic->layout->end_ns : 1;
    double unit = time_unit(end_ns, &unit_name), step = tick_step(end_ns / unit);
    double bottom = pic->height - FOOT;
    FILE *file = pic->file;

    for (long i = 0; i * step <= end_ns / unit * 1.0001; i++) {
        double x = LEFT + i * step * unit * pic->px_per_ns;

        fprintf(file, "<line x1='%.1f' y1='%d' x2='%.1f' y2='%.1f' stroke='#c4c9d1' stroke-width='%s'/>\n", x,
                HEAD - 4, x, bottom + 5, i ? "0.5" : "1");
        fprintf(file, "<text x='%.1f' y='%.1f' text-anchor='middle' class='tick'>%g</text>\n", x, bottom + 18,
                i * step);
    }
    fprintf(file, "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' stroke='#8a919c'/>\n", LEFT, bottom,
            WIDTH - RIGHT, bottom);
    fprintf(file, "<text x='%d' y='%.1f' text-anchor='end' class='tick'>time, %s</text>\n", WIDTH - RIGHT,
            bottom + 36, unit_name);
}

/* An entry of the legend; returns how wide it is. */
static double put_key(FILE *file, double x, double height, const char *fill, const char *name, double share)
{
    double tall = 11 * height;

    fprintf(file, "<rect x='%.1f' y='%.1f' width='18' height='%.1f' rx='1.5' fill='%s'/>\n", x,
            63 + (11 - tall) / 2, tall, fill);
    fprintf(file, "<text x='%.1f' y='73' class='key'>%s ", x + 24, name);
    if (share >= 0.001)
        fprintf(file, "%.3g %%</text>\n", 100 * share);
    else
        fprintf(file, "&lt; 0.1 %%</text>\n");
    return 86 + 7 * (double)strlen(name);
}

static void put_header(const picture *pic)
{
    double spent[WEFT_EVENT_KIND_COUNT] = {0}, linked = 0,
           all = (double)pic->layout->end_ns * (double)pic->layout->row_count;
    const char *unit_name;
    double unit = time_unit((double)pic->layout->end_ns, &unit_name), x = LEFT;
    FILE *file = pic->file;

    for (size_t i = 0; i < pic->layout->event_count; i++) {
        const weft_event *event = &pic->layout->events[i];

        if (event->kind < WEFT_EVENT_KIND_COUNT)
            spent[event->kind] += (double)(event->end_ns - event->start_ns);
        if (event->link)
            linked += (double)(event->end_ns - event->start_ns);
    }
    fprintf(file, "<text x='%d' y='30' class='title'>", LEFT);
    put_text(file, pic->timeline->title ? pic->timeline->title : "weft");
    fprintf(file, "</text>\n<text x='%d' y='30' text-anchor='end' class='total'>%.4g %s</text>\n",
            WIDTH - RIGHT, (double)pic->layout->end_ns / unit, unit_name);
    if (pic->timeline->subtitle) {
        fprintf(file, "<text x='%d' y='49' class='subtitle'>", LEFT);
        put_text(file, pic->timeline->subtitle);
        fprintf(file, "</text>\n");
    }
    for (int kind = 0; kind < WEFT_EVENT_KIND_COUNT; kind++)
        if (spent[kind] > 0)
            x += put_key(file, x, styles[kind].height, styles[kind].fill, weft_event_kind_name(kind),
                         spent[kind] / all);
    if (linked > 0)
        put_key(file, x, link_height, link_fill, "of it over links", linked / all);
    fprintf(file, "<text x='%d' y='73' text-anchor='end' class='tick'>busy</text>\n", WIDTH - 12);
}

static void put_link(const picture *pic, const weft_event *event, double x, double width, double y)
{
    double tall = pic->row_height * link_height;

    if (event->link)
        fprintf(pic->file, "<rect x='%.2f' y='%.1f' width='%.2f' height='%.1f' fill='%s'/>\n", x,
                y + pic->row_height - tall, width, tall, link_fill);
}

static void put_event(const picture *pic, const weft_event *event, double x, double width, double y)
{
    const kind_style *style = &styles[event->kind];
    double tall = pic->row_height * style->height, seam = width > 3 ? 0.6 : 0;
    char name[WEFT_TIMELINE_NAME_BYTES];
    FILE *file = pic->file;

    fprintf(file, "<rect x='%.2f' y='%.1f' width='%.2f' height='%.1f' fill='%s'", x,
            y + (pic->row_height - tall) / 2, width - seam, tall, style->fill);
    if (!pic->tooltips) {
        fprintf(file, "/>\n");
        put_link(pic, event, x, width - seam, y);
        return;
    }
    weft_timeline_event_name(pic->timeline, event, name, sizeof(name));
    fprintf(file, "><title>");
    put_text(file, name);
    fprintf(file, "&#10;%.3f µs + %.3f µs</title></rect>\n", (double)event->start_ns / 1e3,
            (double)(event->end_ns - event->start_ns) / 1e3);
    put_link(pic, event, x, width - seam, y);
    if (pic->row_height >= 16 && style->height == 1.0 && width > 5.4 * (double)strlen(name) + 8) {
        fprintf(file, "<text x='%.1f' y='%.1f' class='in' style='fill:%s'>", x + 4,
                y + pic->row_height / 2 + 3.2, style->ink);
        put_text(file, name);
        fprintf(file, "</text>\n");
    }
}

/* Draws a row's events, joining those of one kind that are too narrow to be told apart. */
static void put_row(const picture *pic, const weft_timeline_row *row, double y)
{
    const weft_event *events = pic->layout->events + row->event0;
    double busy_ns = 0;
    size_t i = 0;

    while (i < row->event_count) {
        weft_event joined = events[i];
        size_t next = i + 1;

        while (next < row->event_count && events[next].kind == joined.kind &&
               events[next].link == joined.link &&
               (double)(joined.end_ns - joined.start_ns) * pic->px_per_ns < narrow_px &&
               (double)(events[next].end_ns - events[next].start_ns) * pic->px_per_ns < narrow_px &&
               (double)(events[next].start_ns - joined.end_ns) * pic->px_per_ns < narrow_px)
            joined.end_ns = events[next++].end_ns;
        for (size_t j = i; j < next; j++)
            if (events[j].kind <= WEFT_EVENT_REDUCE)
                busy_ns += (double)(events[j].end_ns - events[j].start_ns);
        if (joined.kind < WEFT_EVENT_KIND_COUNT) {
            double width = (double)(joined.end_ns - joined.start_ns) * pic->px_per_ns;

            put_event(pic, &joined, LEFT + (double)joined.start_ns * pic->px_per_ns,
                      width < 0.2 ? 0.2 : width, y);
        }
        i = next;
    }
    if (pic->row_height >= 9 && pic->layout->end_ns > 0)
        fprintf(pic->file, "<text x='%d' y='%.1f' text-anchor='end' class='lane'>%.0f %%</text>\n",
                WIDTH - 12, y + pic->row_height / 2 + 3.5, 100 * busy_ns / (double)pic->layout->end_ns);
}

/* The tinted block behind a rank's rows, and its name. */
static void put_block(const picture *pic, size_t row0, size_t rows, double y)
{
    double tall = (double)rows * row_pitch(pic) - pic->row_gap, pad = pic->rank_gap * 0.3;

    fprintf(pic->file, "<rect x='%d' y='%.1f' width='%d' height='%.1f' fill='#f0f2f5'/>\n", LEFT, y - pad,
            WIDTH - RIGHT - LEFT, tall + 2 * pad);
    if (tall >= 9)
        fprintf(pic->file, "<text x='14' y='%.1f' class='rank'>rank %d</text>\n", y + tall / 2 + 4,
                pic->layout->rows[row0].rank);
}

static void put_rank(const picture *pic, size_t row0, size_t rows, double y)
{
    char name[WEFT_TIMELINE_NAME_BYTES];

    for (size_t r = 0; r < rows; r++) {
        const weft_timeline_row *row = &pic->layout->rows[row0 + r];
        double top = y + (double)r * row_pitch(pic);

        if (pic->row_height >= 9) {
            weft_timeline_lane_name(pic->timeline, row->rank, row->lane, name, sizeof(name));
            fprintf(pic->file, "<text x='%d' y='%.1f' text-anchor='end' class='lane'>", LEFT - 8,
                    top + pic->row_height / 2 + 3.5);
            put_text(pic->file, name);
            fprintf(pic->file, "</text>\n");
        }
        put_row(pic, row, top);
    }
}

static void put_ranks(const picture *pic, void (*put)(const picture *, size_t, size_t, double))
{
    const weft_timeline_layout *layout = pic->layout;
    double y = HEAD + 4;

    for (size_t row = 0; row < layout->row_count;) {
        size_t rows = 1;

        while (row + rows < layout->row_count && layout->rows[row + rows].rank == layout->rows[row].rank)
            rows++;
        put(pic, row, rows, y);
        y += (double)rows * row_pitch(pic) - pic->row_gap + pic->rank_gap;
        row += rows;
    }
}

static void put_picture(const picture *pic)
{
    fprintf(
        pic->file,
        "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%.0f' viewBox='0 0 %d %.0f'>\n"
        "<style>text{font-family:'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#252a33}\n"
        ".title{font-size:17px;font-weight:600}.total{font-size:17px;font-weight:600}\n"
        ".subtitle{font-size:12px;fill:#5d6673}.key{font-size:11.5px}.rank{font-size:12px;font-weight:600}\n"
        ".lane{font-size:10px;fill:#5d6673}.tick{font-size:11px;fill:#5d6673}.in{font-size:9.5px}</style>\n"
        "<rect width='100%%' height='100%%' fill='#ffffff'/>\n",
        WIDTH, pic->height, WIDTH, pic->height);
    put_header(pic);
    put_ranks(pic, put_block);
    put_axis(pic); /* its grid lies on the blocks and under the events */
    put_ranks(pic, put_rank);
    fprintf(pic->file, "</svg>\n");
}

weft_status weft_timeline_write_svg(const weft_timeline *timeline, const char *path, weft_error_text *error)
{
    weft_timeline_layout layout;
    picture pic = {.timeline = timeline, .layout = &layout};
    weft_status status;

    status = weft_timeline_arrange(timeline, &layout, error);
    if (status)
        return status;
    choose_row_height(&pic);
    pic.px_per_ns = (double)(WIDTH - LEFT - RIGHT) / (layout.end_ns > 0 ? (double)layout.end_ns : 1);
    pic.tooltips = layout.event_count <= TOOLTIPS_UP_TO;
    pic.height = HEAD + FOOT + 4 + (double)layout.row_count * row_pitch(&pic) +
                 layout.rank_count * (pic.rank_gap - pic.row_gap);
    pic.file = fopen(path, "w");
    if (!pic.file) {
        weft_timeline_layout_free(&layout);
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno));
    }
    put_picture(&pic);
    weft_timeline_layout_free(&layout);
    return weft_timeline_finish(pic.file, path, error);
}
