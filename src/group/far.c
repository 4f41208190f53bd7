#include "group/far.h"

#include <stdio.h>
#include <string.h>

enum { NOTE_POISON = 1, NOTE_LEFT };

typedef struct note {
    int32_t kind, window;
    int32_t status;
    uint32_t left;
    char text[WEFT_ERROR_TEXT_BYTES];
} note;

static void take_poison(weft_world *world, const note *n)
{
    weft_control *own = weft_segment_control(&world->segment, world->rank, n->window);
    char text[WEFT_ERROR_TEXT_BYTES];

    memcpy(text, n->text, sizeof(text));
    text[sizeof(text) - 1] = 0;
    weft_poison_write(&own->poison, (weft_status)n->status, text);
}

/* Each process of the node hears it, in its own time: the count only grows. */
static void take_left(weft_world *world, int from, const note *n)
{
    _Atomic uint32_t *left = &world->segment.header->ranks[from].left[n->window];
    uint32_t before = atomic_load_explicit(left, memory_order_relaxed);

    /* Partner: weft_seat_empty. */
    while ((int32_t)(n->left - before) > 0 &&
           !atomic_compare_exchange_weak_explicit(left, &before, n->left, memory_order_release,
                                                  memory_order_relaxed))
        ;
}

static void on_note(void *context, int from, const void *data, size_t bytes)
{
    weft_world *world = context;
    note n;

    if (bytes != sizeof(n))
        return;
    memcpy(&n, data, sizeof(n));
    if (n.window < 0 || n.window >= world->segment.header->windows || !world->segment.windows[n.window])
        return;
    if (n.kind == NOTE_POISON)
        take_poison(world, &n);
    else if (n.kind == NOTE_LEFT)
        take_left(world, from, &n);
}

static void on_gone(void *context, int from)
{
    weft_world *world = context;

    weft_segment_set_left(&world->segment, from);
}

/* That this rank is at work, where it is: the deadline for progress looks at it. */
static void show_progress(weft_guest *guest)
{
    weft_group *group = (weft_group *)((char *)guest - offsetof(weft_group, guest));
    weft_control *own = group->seats[group->rank].control;
    uint64_t progress = atomic_load_explicit(&own->progress, memory_order_relaxed);

    if (!group->spread || group->freed || progress == group->progress_shown)
        return;
    group->progress_shown = progress;
    weft_far_show(group, (const void *)&own->progress, sizeof(own->progress), NULL);
}

static void on_beat(void *context)
{
    weft_world_each_guest(context, show_progress);
}

/* The name of a rank's memory counts through its windows: in each the control block, then the slot. */
static char *locate(void *context, int rank, uint64_t name, uint64_t bytes)
{
    const weft_segment *segment = &((const weft_world *)context)->segment;
    uint64_t stride = segment->header->stride, each = WEFT_HUGE_BYTES + stride;
    uint64_t window = name < each ? 0 : name / each; /* mostly 0, and a message asks six times */
    uint64_t at = name - window * each;

    if (window >= (uint64_t)segment->header->windows || !segment->windows[window])
        return NULL;
    if (at < WEFT_HUGE_BYTES)
        return bytes <= WEFT_HUGE_BYTES - at ? (char *)weft_segment_control(segment, rank, (int)window) + at
                                             : NULL;
    at -= WEFT_HUGE_BYTES;
    return bytes <= stride - at ? weft_segment_slot(segment, rank, (int)window) + at : NULL;
}

static bool name(void *context, int rank, const void *address, uint64_t *name)
{
    const weft_segment *segment = &((const weft_world *)context)->segment;
    uint64_t stride = segment->header->stride;

    for (int window = 0; window < segment->header->windows; window++) {
        uint64_t in_control, in_slot;

        if (!segment->windows[window])
            continue;
        in_control = (uint64_t)((const char *)address - (char *)weft_segment_control(segment, rank, window));
        in_slot = (uint64_t)((const char *)address - weft_segment_slot(segment, rank, window));
        *name = (uint64_t)window * (WEFT_HUGE_BYTES + stride);
        if (in_control < WEFT_HUGE_BYTES) {
            *name += in_control;
            return true;
        }
        if (in_slot < stride) {
            *name += WEFT_HUGE_BYTES + in_slot;
            return true;
        }
    }
    *name = UINT64_MAX;
    return false;
}

weft_net_hooks weft_far_hooks(weft_world *world)
{
    return (weft_net_hooks){
        .context = world, .note = on_note, .gone = on_gone, .beat = on_beat, .locate = locate, .name = name};
}

void weft_far_show_to(weft_group *group, int rank, const void *memory, size_t bytes, weft_signal *signal)
{
    weft_net_put put = {.into = (void *)(uintptr_t)memory,
                        .from = memory,
                        .rows = 1,
                        .row_bytes = bytes,
                        .effect = WEFT_NET_STORE,
                        .post_count = signal != NULL};

    if (signal)
        put.posts[0] = (weft_net_post){signal, weft_signal_load(signal)};
    weft_net_send(group->world->net, group->seats[rank].world_rank, &put, NULL);
}

void weft_far_show(weft_group *group, const void *memory, size_t bytes, weft_signal *signal)
{
    if (!group->spread)
        return;
    for (int step = 1; step < group->size; step++) {
        int rank = (group->rank + step) % group->size;

        if (group->seats[rank].far)
            weft_far_show_to(group, rank, memory, bytes, signal);
    }
}

void weft_far_poison(weft_group *group)
{
    note n = {.kind = NOTE_POISON, .window = group->window, .status = group->poison->status};

    if (!group->spread)
        return;
    memcpy(n.text, group->poison->text, sizeof(n.text));
    for (int rank = 0; rank < group->size; rank++) {
        if (group->seats[rank].far)
            weft_net_tell(group->world->net, group->seats[rank].world_rank, &n, sizeof(n));
        else if (rank != group->rank)
            weft_poison_write(&group->seats[rank].control->poison, (weft_status)n.status, n.text);
    }
}

void weft_far_leave(weft_group *group)
{
    note n = {.kind = NOTE_LEFT, .window = group->window, .left = group->seats[group->rank].left};

    for (int rank = 0; group->spread && rank < group->size; rank++)
        if (group->seats[rank].far)
            weft_net_tell(group->world->net, group->seats[rank].world_rank, &n, sizeof(n));
}
