#include "core/signal.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Not FUTEX_PRIVATE: the word may lie in memory shared between processes. */
static long futex(weft_signal *signal, int op, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, (uint32_t *)(void *)&signal->value, op, value, timeout, NULL, 0);
}

void weft_signal_wake(weft_signal *signal)
{
    futex(signal, FUTEX_WAKE, INT_MAX, NULL);
}

void weft_signal_sleep(weft_signal *signal, uint64_t seen, int64_t limit_ns)
{
    struct timespec timeout = {0, (long)limit_ns};

    /* Partner: the load in weft_signal_rouse. */
    atomic_fetch_add_explicit(&signal->sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&signal->value, memory_order_seq_cst) == seen)
        futex(signal, FUTEX_WAIT, (uint32_t)seen, &timeout);
    atomic_fetch_sub_explicit(&signal->sleepers, 1, memory_order_relaxed);
}
