/*
 * Scanning a text line by line: blanks, characters, words, numbers. The first thing that is not as it should
 * be is an error that names the line; after it everything that is scanned is nothing.
 */
#ifndef WEFT_PLAN_SCAN_H
#define WEFT_PLAN_SCAN_H

#include "core/status.h"
#include "plan/fields.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_scanner {
    const char *at, *line_end, *end;
    const char *where; /* the name of the text */
    long line;
    weft_error_text *error;
    bool failed;
} weft_scanner;

void weft_scan_fail(weft_scanner *scanner, const char *format, ...) __attribute__((format(printf, 2, 3)));

void weft_scan_skip_blanks(weft_scanner *scanner);
bool weft_scan_at_end(weft_scanner *scanner); /* of the line */

/* The next character if it is this one, else nothing is taken; or a failure. */
bool weft_scan_take(weft_scanner *scanner, char c);
void weft_scan_expect(weft_scanner *scanner, char c);

/* What stands up to the next blank. */
void weft_scan_word(weft_scanner *scanner, char text[WEFT_WORD_BYTES]);

/* A word of letters if that is the next, else nothing is taken. */
bool weft_scan_take_word(weft_scanner *scanner, const char *wanted);

int64_t weft_scan_number(weft_scanner *scanner, int64_t least, int64_t most, const char *what);

#endif
