/*
 * Looks after the groups on GPUs of this process: when a rank dies or a group is lost, the word is raised
 * that ends the waits of this rank's kernels, however the program waits for them (a framework's synchronize
 * knows nothing of peers). One thread for all groups, while there are some.
 */
#ifndef WEFT_RUN_CUDA_WATCH_H
#define WEFT_RUN_CUDA_WATCH_H

#include "run/cuda/group.h"

/* Between these two the group is looked after. Without a thread to be had it is not, and kernels' waits end
 * when weft waits for the stream, or at their deadline. */
void weft_cuda_watch(weft_group *group);
void weft_cuda_unwatch(weft_group *group);

#endif
