/*
 * How ranks that inherit nothing from each other meet: rank 0 listens on a Unix socket in the abstract
 * namespace (which is nowhere in the file system and ends with its process) and hands the world's memory to
 * those who connect.
 *
 * Who may join. Both ends must have the same effective user and the same version of weft, and the one who
 * asks must know the token. The rendezvous of an id is a name and a token of random bytes: nobody who
 * was not given the id can guess, occupy or join it. The rendezvous of a launcher's job is a name made of
 * what the launcher tells its processes, with no secret in it: there the user is the only credential, and
 * since another user could occupy a name, there are several, and those of other users are passed over.
 *
 * A connection is kept from the request until the rank is in: so whoever dies in between is noticed.
 */
#ifndef WEFT_GROUP_RENDEZVOUS_H
#define WEFT_GROUP_RENDEZVOUS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "group/segment.h"

enum { WEFT_TOKEN_BYTES = 16, WEFT_RENDEZVOUS_NAMES = 16 };

/* Where the ranks of one world meet. */
typedef struct weft_rendezvous {
    char name[64];
    unsigned char token[WEFT_TOKEN_BYTES];
    const unsigned char *presence; /* NULL, or that of the host who is to come (group/presence.h) */
    int host;                      /* the rank that listens: 0, or the first of its node */
    int names; /* that are tried, one after another, with a number behind; 0: the name alone, which is secret
                */
} weft_rendezvous;

typedef struct weft_host weft_host;

/* Rank 0: opens the rendezvous of a world of `size` ranks. */
weft_status weft_host_open(const weft_rendezvous *rendezvous, int size, weft_host **host,
                           weft_error_text *error);

/*
 * Rank 0: answers those who have come, with the memory, or, when `failure` is not NULL, with that. Waits at
 * most `wait_ms` for something to happen. Returns the rank of a connection that ended before its rank was
 * in, with its process in `*pid`, or -1.
 */
int weft_host_serve(weft_host *host, const weft_segment *segment, const weft_error_text *failure, int wait_ms,
                    int *pid);

/* Why one that came, of this world by its token, cannot be in it (another version, another size): then it
 * will never be whole. NULL: nobody did. */
const char *weft_host_misfit(const weft_host *host);

/* How many ranks have been answered. */
int weft_host_answered(const weft_host *host);

void weft_host_close(weft_host *host);

/* Other ranks: gets the memory from rank 0, which may not be there yet, until the deadline. The connection is
 * the caller's to close when it is in. */
weft_status weft_rendezvous_join(const weft_rendezvous *rendezvous, int rank, int size, int64_t deadline_ns,
                                 int *fd, uint64_t *nonce, int *connection, weft_error_text *error);

#endif
