/*
 * A message passes through the sender's outbox, a chunk at a time in two slots. The sender counts chunks in
 * the receiver's mailbox, the receiver counts those it has taken in the sender's; each waits on its own. A
 * send ends when all is taken, so between messages the two counts are equal. A receiver on another node sees
 * the outbox in its shadow, to which each chunk is shown.
 */
#include "symm/message.h"

#include <string.h>

#include "core/round.h"
#include "group/far.h"
#include "symm/room.h"

enum { CHUNK_BYTES = 256 << 10 };

typedef struct mailbox {
    weft_signal posted[WEFT_RANKS_MAX]; /* chunks that have come from a rank; only it stores */
    weft_signal taken[WEFT_RANKS_MAX];  /* chunks for a rank that it has read; only it stores */
    uint64_t received[WEFT_RANKS_MAX];  /* chunks that this rank has taken from a rank; only it reads */
    uint64_t sent[WEFT_RANKS_MAX];      /* what a rank sends (asked); written before its first chunk */
    _Alignas(WEFT_LINE_BYTES) char outbox[2][CHUNK_BYTES];
} mailbox;

_Static_assert(WEFT_MAILBOX_BEGIN + sizeof(mailbox) <= WEFT_HUGE_BYTES, "a mailbox fits before the heap");

static mailbox *mailbox_of(const weft_group *group, int rank)
{
    return (mailbox *)((char *)group->seats[rank].control + WEFT_MAILBOX_BEGIN);
}

static bool populate_words(const weft_group *group, int of, int with)
{
    const weft_segment *segment = &group->world->segment;
    mailbox *box = mailbox_of(group, of);

    return weft_segment_populate(segment, &box->posted[with], sizeof(box->posted[0])) &&
           weft_segment_populate(segment, &box->taken[with], sizeof(box->taken[0])) &&
           weft_segment_populate(segment, &box->received[with], sizeof(box->received[0])) &&
           weft_segment_populate(segment, &box->sent[with], sizeof(box->sent[0]));
}

/* Before the first message with a peer, and the first that this rank sends: the pages they pass through are
 * there. */
static weft_status prepare(weft_group *group, int peer, bool sends)
{
    unsigned char *met = weft_symm_met(group);
    bool there = met != NULL;

    if (there && sends && !met[group->rank]) {
        mailbox *mine = mailbox_of(group, group->rank);

        there = weft_segment_populate(&group->world->segment, mine->outbox, sizeof(mine->outbox));
        met[group->rank] = there;
    }
    if (there && !met[peer]) {
        there = populate_words(group, group->rank, peer) && populate_words(group, peer, group->rank);
        met[peer] = there;
    }
    return there ? WEFT_OK
                 : weft_group_poison(group, WEFT_ERR_MEMORY,
                                     "rank %d: the system has no memory for a message %s rank %d",
                                     group->rank, sends ? "to" : "from", peer);
}

/* Of a message, in one word: elements, and their type. */
static uint64_t asked(int64_t count, weft_dtype dtype)
{
    return (uint64_t)count << 8 | (uint64_t)dtype;
}

static weft_status fail_other(weft_group *group, int from, uint64_t sent, uint64_t wanted)
{
    return weft_group_poison(
        group, WEFT_ERR_MISMATCH,
        "rank %d sends %llu elements of %s to rank %d, which wants to receive %llu of %s", from,
        (unsigned long long)(sent >> 8), weft_dtype_name((weft_dtype)(sent & 0xff)), group->rank,
        (unsigned long long)(wanted >> 8), weft_dtype_name((weft_dtype)(wanted & 0xff)));
}

static size_t chunk_of(size_t bytes, uint64_t chunk)
{
    size_t left = bytes - (size_t)chunk * CHUNK_BYTES;

    return weft_min_bytes(left, CHUNK_BYTES);
}

static uint64_t chunks_of(size_t bytes)
{
    return bytes ? weft_divide_up(bytes, CHUNK_BYTES) : 1;
}

/* Sets a word, and then a signal, in the mailbox of another rank. */
static void set_there(weft_group *group, int rank, uint64_t *word, uint64_t value, weft_signal *signal,
                      uint64_t count)
{
    weft_net_put put = {.into = word,
                        .from = &value,
                        .rows = word != NULL,
                        .row_bytes = sizeof(value),
                        .effect = WEFT_NET_STORE,
                        .post_count = 1,
                        .posts = {{signal, count}}};

    if (weft_group_far(group, rank)) {
        weft_net_send(group->world->net, group->seats[rank].world_rank, &put, NULL);
        return;
    }
    if (word)
        *word = value;
    weft_signal_store(signal, count);
}

weft_status weft_message_send(weft_group *group, const void *data, int64_t count, weft_dtype dtype, int to)
{
    size_t bytes = (size_t)count * weft_dtype_size(dtype);
    mailbox *mine = mailbox_of(group, group->rank), *theirs = mailbox_of(group, to);
    uint64_t before, chunks = chunks_of(bytes);
    weft_wait_note note = {.op = "weft_send", .peer = to, .task = -1};
    weft_status status = weft_group_check(group);

    if (status == WEFT_OK)
        status = prepare(group, to, true);
    if (status != WEFT_OK)
        return status;
    note.epoch = before = weft_signal_load(&mine->taken[to]);
    for (uint64_t i = 0; status == WEFT_OK && i < chunks; i++) {
        if (i > 1) /* the slot's chunk before has been read */
            status = weft_signal_wait(group, &mine->taken[to], before + i - 1, &note);
        if (status != WEFT_OK)
            return status;
        if (bytes)
            memcpy(mine->outbox[i & 1], (const char *)data + i * CHUNK_BYTES, chunk_of(bytes, i));
        if (weft_group_far(group, to))
            weft_far_show_to(group, to, mine->outbox[i & 1], bytes ? chunk_of(bytes, i) : 0, NULL);
        /* Partner: the waits in weft_message_recv. */
        set_there(group, to, i == 0 ? &theirs->sent[group->rank] : NULL, asked(count, dtype),
                  &theirs->posted[group->rank], before + i + 1);
    }
    return status == WEFT_OK ? weft_signal_wait(group, &mine->taken[to], before + chunks, &note) : status;
}

weft_status weft_message_recv(weft_group *group, void *data, int64_t count, weft_dtype dtype, int from)
{
    size_t bytes = (size_t)count * weft_dtype_size(dtype);
    mailbox *mine = mailbox_of(group, group->rank), *theirs = mailbox_of(group, from);
    weft_wait_note note = {.op = "weft_recv", .peer = from, .task = -1};
    weft_status status = weft_group_check(group);
    uint64_t before;

    if (status == WEFT_OK)
        status = prepare(group, from, false);
    if (status != WEFT_OK)
        return status;
    note.epoch = before = mine->received[from];
    for (uint64_t i = 0; status == WEFT_OK && i < chunks_of(bytes); i++) {
        status = weft_signal_wait(group, &mine->posted[from], before + i + 1, &note);
        if (status != WEFT_OK)
            return status;
        if (mine->sent[from] != asked(count, dtype))
            return fail_other(group, from, mine->sent[from], asked(count, dtype));
        if (bytes)
            memcpy((char *)data + i * CHUNK_BYTES, theirs->outbox[i & 1], chunk_of(bytes, i));
        mine->received[from] = before + i + 1;
        /* Partner: the waits in weft_message_send. */
        set_there(group, from, NULL, 0, &theirs->taken[group->rank], before + i + 1);
    }
    return status;
}
