/*
 * Status codes and the sentences that go with them.
 *
 * The first function that decides an error writes the sentence with weft_error_set and returns the code;
 * callers propagate the code and write nothing. A weft_error_text belongs to one group handle (or, for
 * errors before a group exists, to the thread: weft_error_thread).
 */
#ifndef WEFT_CORE_STATUS_H
#define WEFT_CORE_STATUS_H

#include <weft/weft.h>

enum { WEFT_ERROR_TEXT_BYTES = 512 };

typedef struct weft_error_text {
    weft_status status;
    char text[WEFT_ERROR_TEXT_BYTES];
} weft_error_text;

/* Writes the sentence and returns `status`, so that a caller can `return weft_error_set(...)`. */
weft_status weft_error_set(weft_error_text *error, weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The calling thread's own text, for failures that have no group. */
weft_error_text *weft_error_thread(void);

#endif
