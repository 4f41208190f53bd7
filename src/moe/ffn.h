/* The feed-forward expert; see weft_moe_ffn_create in weft.h. */
#ifndef WEFT_MOE_FFN_H
#define WEFT_MOE_FFN_H

#include "core/status.h"

/* Every list that is not NULL has an entry for each local expert of the layer. */
weft_status weft_moe_ffn_open(weft_moe *moe, const weft_moe_weights *weights, weft_moe_ffn **ffn);
void weft_moe_ffn_close(weft_moe_ffn *ffn);
weft_moe_expert weft_moe_ffn_callbacks(weft_moe_ffn *ffn);

/* One whose work is done elsewhere, by who made `other`, which `release` frees with it. */
weft_status weft_moe_ffn_wrap(void *other, void (*release)(void *other), weft_moe_ffn **ffn);
/* What is wrong with an expert for a layer on CPUs, where it is a feed-forward one; NULL: nothing. */
const char *weft_moe_ffn_fault(const weft_moe *moe, const weft_moe_expert *expert);

/* The `other` of an expert; NULL where there is none, and where it is somebody's own. */
void *weft_moe_ffn_wrapped(const weft_moe_expert *expert);

#endif
