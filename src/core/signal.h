/*
 * Signals: 64-bit counters in shared memory that only grow. All memory order between ranks on the CPU
 * stands in this header.
 *
 * A producer writes its data, then posts (release). A consumer waits until the counter has reached a
 * value (acquire), then reads the data. Values are compared wrap-safe with >=; nothing is ever reset.
 * Each signal has a 128-byte line of its own: 64-byte lines are fetched in pairs on many CPUs.
 *
 * Sleeping. A waiter that has spun long enough announces itself in `sleepers` and sleeps on the low half of
 * the counter; a poster that sees a sleeper wakes it. The poster does not put a full fence between its add
 * and its look at `sleepers`, so it may look just before the sleeper's announcement becomes visible while
 * the sleeper checks just before the add does. That wake-up is lost, but not for long: sleeps have a limit
 * (weft_wait_sleep), after which the waiter looks again. The kernel compares the counter once more
 * before it sleeps, so the window is a few nanoseconds, and no poster ever pays for waiters that spin.
 */
#ifndef WEFT_CORE_SIGNAL_H
#define WEFT_CORE_SIGNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { WEFT_LINE_BYTES = 128 };

/* The litmus tests build variants with weaker orders, to show that these are needed. */
#ifndef WEFT_ORDER_RELEASE
#define WEFT_ORDER_RELEASE memory_order_release
#endif
#ifndef WEFT_ORDER_ACQUIRE
#define WEFT_ORDER_ACQUIRE memory_order_acquire
#endif

typedef struct weft_signal {
    _Alignas(WEFT_LINE_BYTES) _Atomic uint64_t value;
    _Atomic uint32_t sleepers; /* partner: the load in weft_signal_rouse */
} weft_signal;

_Static_assert(sizeof(weft_signal) == WEFT_LINE_BYTES, "a signal fills its line");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "sleepers watch the low half of the counter");

/* Wakes every thread, of any process, that sleeps on the signal. */
void weft_signal_wake(weft_signal *signal);

/* Sleeps until the counter differs from `seen`, somebody wakes, or `limit_ns` (less than a second) have
 * passed. */
void weft_signal_sleep(weft_signal *signal, uint64_t seen, int64_t limit_ns);

static inline void weft_signal_rouse(weft_signal *signal)
{
    /* Partner: the seq_cst add in weft_signal_sleep. */
    if (__builtin_expect(atomic_load_explicit(&signal->sleepers, memory_order_relaxed) != 0, 0))
        weft_signal_wake(signal);
}

/* Adds to a signal that several ranks or threads may post. */
static inline void weft_signal_post(weft_signal *signal, uint64_t add)
{
    /* Partner: the acquire in weft_signal_load. */
    atomic_fetch_add_explicit(&signal->value, add, WEFT_ORDER_RELEASE);
    weft_signal_rouse(signal);
}

/* Sets a signal that only the caller ever writes. */
static inline void weft_signal_store(weft_signal *signal, uint64_t value)
{
    /* Partner: the acquire in weft_signal_load. */
    atomic_store_explicit(&signal->value, value, WEFT_ORDER_RELEASE);
    weft_signal_rouse(signal);
}

static inline uint64_t weft_signal_load(const weft_signal *signal)
{
    /* Partner: the releases in weft_signal_post and weft_signal_store. */
    return atomic_load_explicit(&((weft_signal *)signal)->value, WEFT_ORDER_ACQUIRE);
}

static inline bool weft_signal_passed(uint64_t current, uint64_t value)
{
    return (int64_t)(current - value) >= 0;
}

static inline bool weft_signal_reached(const weft_signal *signal, uint64_t value)
{
    return weft_signal_passed(weft_signal_load(signal), value);
}

/* A short rest inside a spin loop. ISB on Arm: YIELD is a no-op on most cores, and WFE may sleep until the
 * event stream ticks. */
static inline void weft_pause(void)
{
#if defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Fetches a line that this rank will write soon, and peers have read since, so that the write need not wait.
 * The compiler's own prefetch does not ask for the right to write on x86-64 in general; CPUs that do not know
 * this one pass it over. Elsewhere it is left: a Neoverse V1 has many stores under way by itself. */
static inline void weft_fetch_to_write(const void *line)
{
#if defined(__x86_64__)
    __asm__ __volatile__("prefetchw %0" ::"m"(*(const char *)line));
#else
    (void)line;
#endif
}

/* The same of all lines that `bytes` bytes lie in. Asked for at once they come side by side: stores, which
 * leave in order, would fetch them one by one. */
static inline void weft_fetch_all_to_write(const void *from, int64_t bytes)
{
    enum { CACHE_LINE_BYTES = 64 };
    const char *end = (const char *)from + bytes;

    for (const char *at = (const char *)from - (uintptr_t)from % CACHE_LINE_BYTES; at < end;
         at += CACHE_LINE_BYTES)
        weft_fetch_to_write(at);
}

#endif
