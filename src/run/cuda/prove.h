/*
 * What a group on GPUs relies on is shown when it is made, not assumed: that its ranks reach each other's
 * memory, and that their kernels run at the same time. `at` is where in every slot there is room for it.
 */
#ifndef WEFT_RUN_CUDA_PROVE_H
#define WEFT_RUN_CUDA_PROVE_H

#include "run/cuda/group.h"

/* Collective. Each rank writes a word of its own into every peer's slot, and when all have, reads them in its
 * own, and each peer's word to itself in the peer's: a word for each rank. */
weft_status weft_cuda_prove_memory(weft_group *group, size_t at);

/*
 * Collective. A kernel of every rank waits for those of the others: one word, zero at first. Streams of one
 * process may have got the same queue of the driver, where a kernel waits for the end of the one before it:
 * then the ranks get other streams, a few times. WEFT_ERR_TIMEOUT when they do not meet.
 */
weft_status weft_cuda_prove_kernels(weft_group *group, size_t at);

/* Gives the rank a stream, or another one: the old one goes when there is a new one, so that the driver has
 * to choose another queue for it. The ranks of a process do so one at a time. */
weft_status weft_cuda_stream_renew(weft_cuda_group *g, weft_error_text *error);

#endif
