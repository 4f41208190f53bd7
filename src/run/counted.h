/*
 * Collectives in which ranks move different amounts: what each sends is one stream of bytes, of which every
 * rank takes its piece.
 */
#ifndef WEFT_RUN_COUNTED_H
#define WEFT_RUN_COUNTED_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/weft.h>

#include "group/sync_kind.h"

/* A job whose `send_count` is NULL was rejected: the sentence is in group->error, and the others hear it. */
typedef struct weft_counted_job {
    weft_entry entry;
    const void *send;
    void *recv;
    weft_dtype dtype;
    bool reduces; /* the pieces that come are combined, else they lie one after another */
    weft_reduction reduction;
    bool shared;               /* every rank takes the same, all of the stream */
    const int64_t *send_count; /* elements for each rank, one after another; shared: for this rank's number */
    const int64_t *recv_count; /* from each */
} weft_counted_job;

#endif
