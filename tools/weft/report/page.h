/*
 * Rows as a page for people: one HTML file that draws them by itself, with no network (--html, `weft
 * report`).
 *
 * The page is page.html, compiled in, with a section for every command: what ran where, its rows as the JSON
 * that
 * --json prints, and the pictures of its runs. Pages are merged by their sections.
 */
#ifndef WEFT_TOOLS_REPORT_PAGE_H
#define WEFT_TOOLS_REPORT_PAGE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct report_page {
    const char *path;
    char command[1024];
    FILE *rows, *pictures; /* in memory */
    char *rows_text, *pictures_text;
    size_t rows_bytes, pictures_bytes;
    int count; /* of rows */
} report_page;

/* A page for the rows of `weft COMMAND arguments…`. False without memory. */
bool report_page_open(report_page *page, const char *path, const char *command, int argc, char **argv);

/* Adds the picture of a run, an SVG file, to a row. */
void report_page_picture(report_page *page, int row, const char *svg);

/* A file in memory for such a picture, which is gone when it is closed, however the process ends: its name in
 * this process goes to `path`, its descriptor is returned; negative when there can be none. */
enum { REPORT_PAGE_PATH = 32 };
int report_page_scratch(char path[REPORT_PAGE_PATH]);

/* Writes the file; 0, or the exit status after a line on standard error. */
int report_page_close(report_page *page, const char *command);

/* Writes one page of the sections of others; the same. */
int report_page_merge(const char *path, char *const *parts, int count, const char *command);

#endif
