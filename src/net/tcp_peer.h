/*
 * What the files of the TCP engine share: a peer, its connection and what travels over it.
 *   tcp_peer.c      the end of a connection, and what is watched
 *   tcp_messages.c  messages over connections: sending, lending, receiving
 *   tcp_meet.c      from addresses to connections
 *   tcp.c           the engine's table
 */
#ifndef WEFT_NET_TCP_PEER_H
#define WEFT_NET_TCP_PEER_H

#include "net/engine.h"

enum {
    /* More of a payload than this is worth a call that reads it in its place. Two small collectives fit, of
       which the second comes while the first is not read yet. */
    BUFFER_BYTES = 20 << 10,
    CANDIDATES = 16, /* addresses of a host */
    STRANGERS = 64,  /* who have connected and not yet said who they are */
};

typedef struct candidate {
    unsigned char family, prefix; /* AF_INET or AF_INET6; how many bits name the network */
    unsigned char at[16];
} candidate;

typedef struct tcp_address {
    uint64_t mark;
    unsigned char id[16], proof[16];
    uint16_t port, count;
    candidate candidates[CANDIDATES];
} tcp_address;

typedef enum frame_kind {
    FRAME_MESSAGE,
    FRAME_LENT, /* a message; the receiver tells when it has read it */
    FRAME_READ, /* the first lent message that it has not told of yet */
} frame_kind;

typedef struct frame {
    uint64_t bytes : 48, header_bytes : 14, kind : 2;
} frame;

/* A message that has not left whole, or has been lent and not been read. */
typedef struct outgoing {
    struct outgoing *next;
    frame head;
    const void *header, *data;
    size_t gone; /* bytes, from the frame on */
    weft_engine_sent sent;
    void *argument;
} outgoing;

typedef enum peer_state { NONE, AWAITED, CONNECTING, GREETED, WELL, LOST } peer_state;

typedef struct tcp_peer {
    struct tcp_engine *engine;
    int number, fd;
    peer_state state;
    bool watched; /* until it can be written to */

    tcp_address *address; /* until it is connected */
    int tried;            /* candidates */
    bool silent;          /* one of them has not answered: the peer may be slow */
    int64_t until;        /* for this attempt */

    outgoing *first, **last;
    outgoing *lent, **last_lent; /* have left */
    int pipe[2];                 /* made for the first; -1: there is none */
    size_t piped;                /* bytes of the first message that are in it */
    bool copies;                 /* the system lends nothing */

    char *buffer;
    size_t begin, end; /* what has been read and not been understood */
    size_t left;       /* of a payload that comes */
    bool wanted, borrowed;
    char *into; /* NULL: it is read and forgotten */
    void *token;
} tcp_peer;

typedef struct stranger {
    int fd;
    int64_t until;
} stranger;

typedef struct tcp_engine {
    weft_engine_events events;
    tcp_address own;
    int epoll, listener;
    int unmet;   /* peers that are not connected yet */
    int waiting; /* messages that have not left */
    bool closing;
    char paced[16]; /* the congestion control that connections would have had; "": what they have */
    int stranger_count;
    stranger strangers[STRANGERS];
    int live_count;
    tcp_peer **live; /* those that are connected */
    int peer_count;
    tcp_peer peers[];
} tcp_engine;

/* ---- tcp_peer.c ------------------------------------------------------------------------------------ */

void weft_tcp_watch(const tcp_engine *engine, int how, int fd, uint32_t events, void *what);

/* Until all that waits has left. */
void weft_tcp_watch_writes(tcp_peer *peer);

/* One more peer is connected, or never will be: after the last nobody listens. */
void weft_tcp_met(tcp_engine *engine);
void weft_tcp_lose(tcp_peer *peer, const char *why);

/* ---- tcp_messages.c -------------------------------------------------------------------------------- */

void weft_tcp_send(void *engine, int peer, const void *header, size_t header_bytes, const void *data,
                   size_t bytes, weft_engine_sent sent, void *argument);

bool weft_tcp_send_now(void *engine, int peer, const void *header, size_t header_bytes, const void *data,
                       size_t bytes);

/* One write of those that wait. Whether more would go. */
bool weft_tcp_flush(tcp_peer *peer);

/* What a buffer takes and, of a payload that has begun in it, the rest. Whether there may be more. */
bool weft_tcp_read(tcp_peer *peer);
bool weft_tcp_serve(tcp_peer *peer); /* both */

/* ---- tcp_meet.c ------------------------------------------------------------------------------------ */

/* Listens, and writes the engine's own address; false: errno says why not. */
bool weft_tcp_listen(tcp_engine *engine);
weft_status weft_tcp_connect(void *engine, int peer, const void *address, weft_error_text *error);

/* Goes on with connections that are not made yet. Whether there was something to do. */
bool weft_tcp_meet(tcp_engine *engine);

#endif
