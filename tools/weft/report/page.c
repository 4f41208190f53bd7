/* Pages: sections written and merged. See page.h. */
#include "report/page.h"

#include "cli/options.h"
#include "core/cpu.h"
#include "report/page_text.h"
#include "report/report.h"

#include <weft/weft.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BYTES = 256 << 20 }; /* of a page that is merged; one that never ends would fill the memory */

static const char MARK[] = "<!-- sections -->\n", BEGIN[] = "<section>\n", END[] = "</section>\n";

bool report_page_open(report_page *page, const char *path, const char *command, int argc, char **argv)
{
    size_t used = (size_t)snprintf(page->command, sizeof page->command, "weft %s", command);

    for (int i = 0; i < argc && used < sizeof page->command; i++)
        if (strcmp(argv[i], "--html") == 0)
            i++; /* where this page goes is not what was run */
        else if (strncmp(argv[i], "--seed=", 7) != 0 && strncmp(argv[i], "--html=", 7) != 0)
            used += (size_t)snprintf(page->command + used, sizeof page->command - used, " %s", argv[i]);
    page->path = path;
    page->count = 0;
    page->rows = open_memstream(&page->rows_text, &page->rows_bytes);
    page->pictures = open_memstream(&page->pictures_text, &page->pictures_bytes);
    return page->rows && page->pictures;
}

int report_page_scratch(char path[REPORT_PAGE_PATH])
{
    int file = memfd_create("weft-picture", MFD_CLOEXEC);

    snprintf(path, REPORT_PAGE_PATH, "/proc/self/fd/%d", file);
    return file;
}

void report_page_picture(report_page *page, int row, const char *svg)
{
    FILE *file = fopen(svg, "re");
    char data[4096];
    size_t got;

    if (!file)
        return;
    fprintf(page->pictures, "<script type=\"image/svg+xml\" class=\"timeline-source\" data-row=\"%d\">", row);
    while ((got = fread(data, 1, sizeof data, file)) > 0)
        fwrite(data, 1, got, page->pictures);
    fputs("</script>\n", page->pictures);
    fclose(file);
}

/* JSON inside a page: a '<' can only be in a string, and could end the script. */
static void put_json(FILE *out, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] == '<')
            fputs("\\u003c", out);
        else
            fputc(text[i], out);
}

static void put_about(FILE *out, const report_page *page)
{
    char when[32] = "", *text = NULL;
    size_t bytes;
    time_t now = time(NULL);
    struct utsname system;
    report about;
    FILE *memory = open_memstream(&text, &bytes);

    if (!memory)
        return;
    uname(&system);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    fputs("{\"command\": ", memory); /* longer than a value of a row may be */
    report_json_string(memory, page->command);
    fputs(", \"ran\": ", memory);
    report_open(&about, memory, true, NULL);
    report_text(&about, "weft", "%s", weft_version());
    report_text(&about, "cpu", "%s", weft_cpu_name());
    report_int(&about, "cpus", sysconf(_SC_NPROCESSORS_ONLN));
    report_text(&about, "kernel", "%s", system.release);
    report_text(&about, "when", "%s", when);
    report_row(&about);
    report_close(&about);
    fputc('}', memory);
    fclose(memory);
    put_json(out, text, bytes);
    free(text);
}

static int finish(FILE *out, const char *path, const char *command)
{
    bool failed = ferror(out);

    if (fclose(out) != 0 || failed) {
        fprintf(stderr, "weft %s: cannot write %s: %s\n", command, path, strerror(errno));
        return 1;
    }
    return 0;
}

/* Opens the file and writes what comes before the sections; NULL after a line on standard error. */
static FILE *begin(const char *path, const char *command)
{
    FILE *out = fopen(path, "we");
    const char *mark = strstr(report_page_text, MARK);

    if (!out)
        fprintf(stderr, "weft %s: cannot write %s: %s\n", command, path, strerror(errno));
    else
        fwrite(report_page_text, 1, (size_t)(mark - report_page_text), out);
    return out;
}

static void end(FILE *out)
{
    fputs(strstr(report_page_text, MARK) + strlen(MARK), out);
}

int report_page_close(report_page *page, const char *command)
{
    FILE *out = begin(page->path, command);

    fclose(page->rows);
    fclose(page->pictures);
    if (out) {
        fprintf(out, "%s<script type=\"application/json\" class=\"about\">", BEGIN);
        put_about(out, page);
        fputs("</script>\n<script type=\"application/json\" class=\"rows\">[\n", out);
        put_json(out, page->rows_text, page->rows_bytes);
        fputs("]</script>\n", out);
        fwrite(page->pictures_text, 1, page->pictures_bytes, out);
        fputs(END, out);
        end(out);
    }
    free(page->rows_text);
    free(page->pictures_text);
    return out ? finish(out, page->path, command) : 1;
}

/* A file's text; of what is none, or larger than a page is, only the beginning, which is no page. */
static char *read_page(const char *path)
{
    FILE *in = fopen(path, "re");
    char *text = NULL, data[4096];
    size_t bytes, got, all = 0;
    FILE *memory = in ? open_memstream(&text, &bytes) : NULL;

    while (memory && all < MOST_BYTES && (got = fread(data, 1, sizeof data, in)) > 0 &&
           !memchr(data, 0, got)) {
        fwrite(data, 1, got, memory);
        all += got;
    }
    if (memory)
        fclose(memory);
    if (in)
        fclose(in);
    return text;
}

int report_page_merge(const char *path, char *const *parts, int count, const char *command)
{
    char *text, *sections = NULL;
    size_t bytes;
    FILE *memory = open_memstream(&sections, &bytes), *out;

    if (!memory)
        return 1;
    for (int i = 0; i < count; i++) {
        const char *first, *last;

        text = read_page(parts[i]);
        first = text ? strstr(text, BEGIN) : NULL;
        last = first ? strstr(first, "</main>") : NULL;
        if (!last) {
            fclose(memory);
            free(sections);
            if (!text)
                return options_error(command, "cannot read %s: %s", parts[i], strerror(errno));
            free(text);
            return options_error(command, "%s is not a page that --html wrote", parts[i]);
        }
        fwrite(first, 1, (size_t)(last - first), memory);
        free(text);
    }
    fclose(memory);
    out = begin(path, command);
    if (out) {
        fwrite(sections, 1, bytes, out);
        end(out);
    }
    free(sections);
    return out ? finish(out, path, command) : 1;
}
