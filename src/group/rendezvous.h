/*
 * How ranks that inherit nothing from each other meet: rank 0 listens on a Unix socket in the abstract
 * namespace (which is nowhere in the file system and ends with its process) and hands the world's
 * memory to those who connect. Both sides check that the other is the same user.
 */
#ifndef WEFT_GROUP_RENDEZVOUS_H
#define WEFT_GROUP_RENDEZVOUS_H

#include <stdint.h>

#include "core/status.h"
#include "group/segment.h"

/* Rank 0: opens the meeting place of the job. */
weft_status weft_rendezvous_listen(uint64_t key, int *listener, weft_error_text *error);

/* Rank 0: answers those who come within `wait_ms`, with the memory or with why they do not get it. */
void weft_rendezvous_serve(int listener, const weft_segment *segment, int wait_ms);

/* Other ranks: gets the memory from rank 0, which may not be there yet, until the deadline. */
weft_status weft_rendezvous_join(uint64_t key, int rank, int size, int64_t deadline_ns, int *fd,
                                 uint64_t *nonce, weft_error_text *error);

#endif
