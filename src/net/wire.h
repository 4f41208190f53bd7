/* What the files behind net.h share: a message on the wire, a peer, the net itself. */
#ifndef WEFT_NET_WIRE_H
#define WEFT_NET_WIRE_H

#include <pthread.h>
#include <stddef.h>

#include "net/engine.h"
#include "net/net.h"

enum { KIND_PUT = 1, KIND_NOTE, KIND_BEAT, KIND_GOODBYE, KIND_EARLY };

enum { PEER_NONE, PEER_WELL, PEER_GONE, PEER_LOST };

typedef struct wire_post {
    uint64_t offset, value;
} wire_post;

typedef struct wire_early {
    weft_net_call call;
    uint64_t what[WEFT_NET_WORDS];
} wire_early;

/* Few bytes, of which only those that it needs travel (weft_message_bytes): what still fits one packet with
 * its payload is not acknowledged by a packet of its own, which costs as much as half a message. Behind its
 * last byte there may be another message and its payload, which takes effect before it. */
typedef struct message {
    uint64_t key;
    uint32_t number; /* of the messages from this rank to that, from 0, and again */
    uint16_t from;
    uint8_t kind, effect;
    uint64_t rows : 48;  /* of the payload, all alike */
    uint64_t marked : 4; /* posts that are marks whatever the effect, by bit */
    uint64_t own : 5;    /* by bit: the payload's place, then the posts' are in the sender's slot, not the
                            receiver's */
    uint64_t post_count : 7;
    uint64_t offset; /* the payload's name in the slot */
    int64_t pitch;
    union {
        wire_post posts[WEFT_NET_POSTS];
        wire_early early;
    };
} message;

_Static_assert(offsetof(message, posts) == 40, "messages have holes");

static inline size_t weft_message_bytes(const message *m)
{
    return offsetof(message, posts) +
           (m->kind == KIND_EARLY ? sizeof(m->early) : sizeof(m->posts[0]) * m->post_count);
}

/* A message that has come, until its turn. */
typedef struct inbound {
    struct inbound *next;
    struct weft_net *net;
    message head;
    size_t row_bytes;
    bool landed;
    bool placed;       /* the payload is where it belongs */
    weft_net_run *run; /* with whose end its place is forgotten, until it has landed; or NULL */
    size_t room;       /* for a payload here */
    char payload[];    /* else: of notes, of rows that are not one piece, of what has come too early or could
                          not be forgotten */
} inbound;

typedef struct peer {
    _Atomic int state;
    uint32_t sent, next;         /* numbers; under the lock, as `waiting` */
    inbound *waiting;            /* by number */
    bool heard, spoken;          /* since the last look; under the lock too */
    int64_t heard_at, spoken_at; /* at which look that was so; the thread's own */
    char why[96];                /* it is lost; written before the state says so */
} peer;

struct weft_net {
    const weft_engine *engine;
    void *handle;
    char *address; /* the name of the engine, then what it says of itself */
    size_t address_bytes;
    weft_net_world world;
    pthread_mutex_t lock; /* around the engine */
    pthread_t thread;
    bool running;
    int wake; /* an eventfd that ends the thread's sleep */
    _Atomic bool stop;
    _Atomic bool helped;      /* a waiter has made progress since the thread looked */
    _Atomic bool stands_back; /* the thread, for that */
    int helps;   /* of waiters, while the thread sleeps until the engine has something; under the lock */
    bool silent; /* good-bye has been said */
    int size;
    weft_net_run *runs;        /* open; under the lock, as those below */
    inbound *held, **held_end; /* early messages, in the order in which they came */
    inbound *spare;            /* memory of large messages, for the next ones */
    peer *peers;
};

/* ---- receive.c ------------------------------------------------------------------------------------ */

/* The peer cannot be reached; under the lock, as all of these. */
void weft_net_lose(weft_net *net, int peer, const char *why);

/* Events of the engine. */
void *weft_net_place(void *net, const void *header, size_t header_bytes, size_t bytes, bool at_once,
                     void **token);
void weft_net_landed(void *token, bool whole);

void weft_net_free_inbound(inbound *list);

/* ---- send.c --------------------------------------------------------------------------------------- */

/* A message without a payload. */
void weft_net_send_plain(weft_net *net, int to, uint16_t kind);

#endif
