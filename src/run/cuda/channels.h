/*
 * Collectives with counts and messages of groups on GPUs, through channels between their ranks (channel.h).
 * A call puts one kernel on the stream of the group's calls: hosts exchange nothing, whatever the sizes.
 */
#ifndef WEFT_RUN_CUDA_CHANNELS_H
#define WEFT_RUN_CUDA_CHANNELS_H

#include "run/counted.h"
#include "run/cuda/group.h"

/* Collective, when the group is put on its GPUs: a message later needs only two ranks. */
weft_status weft_cuda_channels_open(weft_group *group);
/* Not collective: when the GPU is done with calls through them, or after the group's deadline. */
void weft_cuda_channels_close(weft_group *group);

/* The backend's calls. */
weft_status weft_cuda_counted(weft_group *group, const weft_counted_job *job);
weft_status weft_cuda_send(weft_group *group, const void *data, int64_t count, weft_dtype dtype, int to);
weft_status weft_cuda_recv(weft_group *group, void *data, int64_t count, weft_dtype dtype, int from);

/* After the stream has passed them: how those calls went. */
weft_status weft_cuda_channels_settle(weft_group *group);

#endif
