/*
 * Waiting that never hangs: every wait has a deadline, watches the group's poison and the liveness of its
 * members, and spins, yields and finally sleeps so that more ranks than cores still make progress.
 */
#ifndef WEFT_GROUP_WAIT_H
#define WEFT_GROUP_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/signal.h"
#include "core/status.h"

typedef enum weft_wait_kind {
    WEFT_WAIT_ENTER,    /* a peer may not have made its call yet */
    WEFT_WAIT_PROGRESS, /* every rank is inside the call */
} weft_wait_kind;

/* How often a condition is asked before it must have looked at all of its reasons to end: the dear ones need
 * not be looked at every time. */
enum { WEFT_WAIT_LOOKS = 64 };

/* What a wait is for. Only read to choose the deadline and to write the sentence of an error. */
typedef struct weft_wait_note {
    const char *op;
    int peer;       /* group rank that is to post, or -1 */
    int64_t task;   /* or -1 */
    uint64_t epoch; /* of the plan, or the number of the call */
    weft_wait_kind kind;
    bool by_kernels; /* the peer's kernels may yet do it, whatever its thread waits in meanwhile */
} weft_wait_note;

/* Waits until the signal has reached `value`. On failure (WEFT_ERR_TIMEOUT, WEFT_ERR_PEER_DIED or what
 * another rank decided) the group is poisoned and its sentence written. */
weft_status weft_signal_wait(weft_group *group, weft_signal *signal, uint64_t value,
                             const weft_wait_note *note);

/* The same for any condition, which is asked again and again. It must use acquire loads, and look at all of
 * its reasons to end within WEFT_WAIT_LOOKS times. */
weft_status weft_wait_until(weft_group *group, bool (*ready)(void *argument), void *argument,
                            const weft_wait_note *note);

/* The same; a long wait sleeps on `signal` (may be NULL), whose change is the likeliest reason to go on. */
weft_status weft_wait_beside(weft_group *group, weft_signal *signal, bool (*ready)(void *argument),
                             void *argument, const weft_wait_note *note);

/*
 * How long to spin before the first yield, after a wait that spun for `before_ns` yielded for `yield_ns`,
 * which brought what was waited for or did not. Not every rank that could have a core has one: when other
 * processes keep cores busy, the one that we wait for may stand behind us on ours. A yield that brings what
 * we wait for says that we were in the way; one that ends at once, that nobody else is here; and one that
 * costs a slice, that a stranger is, who gets the core no sooner than before.
 */
int64_t weft_wait_spin(int64_t before_ns, int64_t yield_ns, bool brought);

/*
 * Whether a rank has a core to itself, as its yields say that come back at once, and after some of them in a
 * row the number of times that it has left its core, which the system has to be asked for. Where there are
 * more ranks than cores it is then to sleep for a moment: ranks that only yield stay on the cores where they
 * are, and while one has its own, others take turns on theirs, which the call has to wait for. A core without
 * a rank that could run gets one of them.
 */
typedef struct weft_lonely {
    int yields;
    long switches;
} weft_lonely;

bool weft_wait_is_lonely(weft_lonely *lonely, int64_t yield_ns, long (*count_switches)(void));

/* How long to sleep between two looks, of a rank that may count on so much of a core: what all who wait take
 * of the cores to look around must not grow with their number. */
int64_t weft_wait_sleep(double core);

#endif
