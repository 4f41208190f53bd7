/*
 * How ranks of several nodes exchange their first words: rank 0 listens on a TCP port for as long as this
 * takes, the others connect, give it a block each, and get the blocks of all.
 *
 * Who may take part. Both ends prove that they know the secret (net/secret.h) over numbers that the other end
 * chose, so that what was overheard is of no use. A stranger, garbage or a connection that says nothing is
 * closed, and takes nobody's place. What fails is told to all who have come.
 */
#ifndef WEFT_NET_MEET_H
#define WEFT_NET_MEET_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct weft_meet {
    const char *host; /* of rank 0, as the others reach it */
    int port, ports;  /* the first that rank 0 may take, and how many from there */
    const char *secret;
    int rank, size;
    int64_t deadline_ns;
    int64_t silence_ns; /* after so long without a sign of its host a rank that was heard is lost; 0: never */
    int64_t tell_ns;    /* after so long without having reached rank 0, others say so on standard error */
} weft_meet;

/* `bytes` of every rank, in `all` by rank. */
weft_status weft_meet_gather(const weft_meet *meet, const void *mine, size_t bytes, void *all,
                             weft_error_text *error);

#endif
