/* Writing why a group is lost, whoever learnt it: a rank of it, or word from another node. */
#include "group/group.h"

#include <stdio.h>

bool weft_poison_write(weft_poison *poison, weft_status status, const char *text)
{
    uint32_t none = 0;

    /* Partner: weft_group_failed. */
    if (!atomic_compare_exchange_strong_explicit(&poison->state, &none, 1, memory_order_relaxed,
                                                 memory_order_relaxed))
        return false;
    poison->status = (int32_t)status;
    snprintf(poison->text, sizeof(poison->text), "%s", text);
    /* Partner: the acquire in read_poison. */
    atomic_store_explicit(&poison->state, 2, memory_order_release);
    return true;
}
