/*
 * Between nodes: memory of a rank on another node is written by messages that say what to post when they have
 * landed (put-with-signal).
 *
 * Every rank of a world maps slots for all ranks (group/segment.h). The slots of ranks on other nodes are
 * shadows: memory of this process alone, in which it sees what their owners have shown it. A put goes into
 * the receiver's own slot, or into its shadow of the sender's slot; both are named by the address that they
 * have here. So a word that only its owner writes is waited for in the same place whether the owner is near
 * or far.
 *
 * What always holds
 * - Posts of one rank at another are made in the order of its calls, each after all bytes of its own put and
 *   of those before it have landed.
 * - An early message (below) is for a call that its receiver may not have begun. It waits there for the run
 * of that call to open, and takes effect then; those of one rank in their order.
 * - A message that does not carry the world's key is dropped. A peer whose message would write anywhere else
 * is lost.
 * - A peer is lost when the engine says so, or when nothing has come from it for `silence_ns`: every rank
 * sends a beat now and then. One that said good-bye is not lost but gone.
 *
 * A thread of the net makes progress; whoever waits may help (weft_net_poll).
 */
#ifndef WEFT_NET_NET_H
#define WEFT_NET_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/signal.h"
#include "core/status.h"

enum { WEFT_NET_POSTS = 4 };

typedef struct weft_net weft_net;

typedef enum weft_net_effect {
    WEFT_NET_ADD,   /* to a weft_signal */
    WEFT_NET_STORE, /* into a weft_signal that only the sender writes */
    WEFT_NET_COUNT, /* to an _Atomic uint32_t */
    WEFT_NET_MARK,  /* into an _Atomic uint64_t that only the sender writes */
} weft_net_effect;

typedef struct weft_net_post {
    void *at;
    uint64_t value;
} weft_net_post;

/* Addresses are those that the receiver's slot, or this rank's own, has in this process. */
typedef struct weft_net_put {
    void *into;
    const void *from; /* any memory of this process */
    size_t rows, row_bytes;
    ptrdiff_t into_pitch, from_pitch; /* bytes from row to row; of one row they do not matter */
    weft_net_effect effect;
    int post_count, mark_count; /* so many of the posts, the first, are marks whatever the effect */
    weft_net_post posts[WEFT_NET_POSTS];
} weft_net_put;

/* A call of a group, the same on both sides: which group, the number of the call, what it asks for. */
typedef struct weft_net_call {
    uint64_t channel, sequence, hash;
} weft_net_call;

enum { WEFT_NET_WORDS = 6 };

/* A message for a call: the receiver's run of it understands `what`. */
typedef struct weft_net_early {
    weft_net_call call;
    uint64_t what[WEFT_NET_WORDS];
    const void *from;
    size_t rows, row_bytes;
    ptrdiff_t from_pitch;
} weft_net_early;

/* A call that this rank is in. The functions are called by whoever makes progress, one at a time. */
typedef struct weft_net_run {
    weft_net_call call;
    void *context;
    /* Where the rows of a message go, and how many bytes apart; NULL: there is no such place. */
    char *(*place)(void *context, const uint64_t what[WEFT_NET_WORDS], uint64_t rows, uint64_t row_bytes,
                   ptrdiff_t *pitch);
    void (*landed)(void *context, const uint64_t what[WEFT_NET_WORDS]);
    struct weft_net_run *next; /* of the open ones */
    int arriving;              /* messages on their way to a place that is forgotten with this run */
} weft_net_run;

/* Called by whoever makes progress, one at a time; they may not put. */
typedef struct weft_net_hooks {
    void *context;
    void (*note)(void *context, int from, const void *data, size_t bytes);
    void (*gone)(void *context, int peer); /* it has said good-bye */
    void (*beat)(void *context);           /* now and then, by the net's thread; this one may put */
    /* Memory of a rank has a name that is the same in every process: from a name to the address that `bytes`
     * bytes have here (NULL: there is no such memory), and back (false: it is not that rank's). */
    char *(*locate)(void *context, int rank, uint64_t name, uint64_t bytes);
    bool (*name)(void *context, int rank, const void *address, uint64_t *name);
} weft_net_hooks;

typedef struct weft_net_world {
    int rank, size;
    uint64_t key; /* that only ranks of this world know */
    int64_t silence_ns;
    weft_net_hooks hooks;
} weft_net_world;

/* Opens the engine; `size` ranks at most. Nothing comes or goes before weft_net_begin. */
weft_status weft_net_open(int size, weft_net **net, weft_error_text *error);
const void *weft_net_address(const weft_net *net, size_t *bytes);

/* Connects to the ranks that have an address in `addresses`, by rank; NULL: this one, and those of its node.
 */
weft_status weft_net_begin(weft_net *net, const weft_net_world *world, const void *const *addresses,
                           weft_error_text *error);

/* Says good-bye and does no more: the process is about to end. */
void weft_net_goodbye(weft_net *net);

/* Says good-bye, lets what was sent leave (for at most a second) and closes. */
void weft_net_close(weft_net *net);

/*
 * Sends. With `finished` the bytes are read where they lie, and one is posted there when they may change;
 * without, they are copied and may change at once. A peer that is lost or gone gets nothing, which is no
 * error here.
 */
void weft_net_send(weft_net *net, int to, const weft_net_put *put, weft_signal *finished);

/* The same for an early message. `before` (or NULL) is a put of one row without `finished` that travels with
 * it and takes effect first. */
void weft_net_send_early(weft_net *net, int to, const weft_net_early *early, const weft_net_put *before,
                         weft_signal *finished);

/* Begins to take the early messages of a call, first those that have come already; older ones of the channel
 * are dropped. Until it is closed `run` stays where it is; then nothing is written any more where it placed
 * messages, unless that is memory of the ranks and the engine cannot forget. */
void weft_net_open_run(weft_net *net, weft_net_run *run);
void weft_net_close_run(weft_net *net, weft_net_run *run);

/* Drops what has come early for a channel. */
void weft_net_drop_early(weft_net *net, uint64_t channel);

/* Gives `bytes` to the receiver's note hook, in order with the puts. */
void weft_net_tell(weft_net *net, int to, const void *data, size_t bytes);

/* Makes progress if nobody else does. The net's thread may stand back then, for up to twice a millisecond
 * after the last poll. */
void weft_net_poll(weft_net *net);

/* Says that the caller, who has polled, is about to sleep: the net's thread takes over. */
void weft_net_rest(weft_net *net);

/* Whether the peer cannot be reached and has not said good-bye; why. */
bool weft_net_lost(const weft_net *net, int peer);
const char *weft_net_why(const weft_net *net, int peer);

#endif
