/*
 * What moves messages between nodes: one small table, so that all of weft but two files is free of what is
 * behind it: UCX (ucx.c) or connections of weft's own (tcp.c).
 *
 * A message is a short header and, often, a payload. Nobody posts receives: when a message has come, `place`
 * reads its header and says where the payload goes, and `landed` is told when it is there. A payload that
 * is large travels straight from the sender's memory to that place. Messages to one peer may overtake one
 * another; whoever needs an order puts numbers into the headers (send.c does).
 *
 * One thread at a time calls an engine (net.c holds a lock), and events come only from within `send` and
 * `progress`.
 */
#ifndef WEFT_NET_ENGINE_H
#define WEFT_NET_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct weft_engine_events {
    void *context;
    /* Where the payload of `bytes` bytes goes; NULL: the message is not one of ours, and is dropped. `token`
     * comes back when it is there; `at_once`: before anything else is asked or told. */
    void *(*place)(void *context, const void *header, size_t header_bytes, size_t bytes, bool at_once,
                   void **token);
    void (*landed)(void *token, bool whole);
    /* The peer cannot be reached any more. */
    void (*lost)(void *context, int peer, const char *why);
} weft_engine_events;

/* Tells the sender that header and payload are its own again. */
typedef void (*weft_engine_sent)(void *argument, bool whole);

typedef struct weft_engine {
    const char *name;
    /* Opens the engine for messages to and from `peers` peers, numbered from 0. */
    weft_status (*open)(int peers, const weft_engine_events *events, void **engine, weft_error_text *error);
    /* What peers need to connect to this one: lives as long as the engine. */
    const void *(*address)(const void *engine, size_t *bytes);
    weft_status (*connect)(void *engine, int peer, const void *address, weft_error_text *error);
    /* Header and payload stay as they are until `sent`, which may come before this returns. */
    void (*send)(void *engine, int peer, const void *header, size_t header_bytes, const void *data,
                 size_t bytes, weft_engine_sent sent, void *argument);
    /* The same for a header and a payload that may change when this returns, without `sent`; what changes
     * before may leave as a mixture of both. False: nothing of it has left, and only `send` can. NULL: the
     * engine cannot at all. */
    bool (*send_now)(void *engine, int peer, const void *header, size_t header_bytes, const void *data,
                     size_t bytes);
    /* The most bytes that travel well as one message: whoever has more sends several. */
    size_t (*piece)(const void *engine);
    /* From now on the place of a payload that has begun to come is not written any more, though `landed` may
     * still come. NULL: the engine cannot, and what does not come at once is written as long as the sender
     * pleases. */
    void (*forget)(void *engine, const void *token);
    /* Whether there may be more to do at once. */
    bool (*progress)(void *engine);
    /* A descriptor that becomes readable when there is progress to be made after `arm` said true; false:
     * there is some already. */
    int (*descriptor)(const void *engine);
    bool (*arm)(void *engine);
    /* Lets what was sent leave, for at most `linger_ns`, and closes. What has not left or landed
     * by then is told so from within. */
    void (*close)(void *engine, int64_t linger_ns);
} weft_engine;

#endif
