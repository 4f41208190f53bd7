/*
 * A lane of a mixture-of-experts layer on a GPU: where its memory lies, and its kernels on a stream. Knows no
 * group: benchmarks put all ranks of a layer into one process with it.
 */
#ifndef WEFT_RUN_CUDA_MOE_H
#define WEFT_RUN_CUDA_MOE_H

#include "run/cuda/driver.h"
#include "run/cuda/grouped_device.h"
#include "run/cuda/moe_device.h"
#include "run/experts.h"

/*
 * How many CTAs kernels may have. Those that wait for peers keep to the SMs of their rank's share, with one
 * CTA on each: what they wait for may be a kernel of another rank on the same GPU that needs SMs to itself.
 */
typedef struct weft_cuda_moe_room {
    int ctas, waiting;
    int movers; /* see moe_device.h; 0: none */
} weft_cuda_moe_room;

/* For a rank that has `sms` SMs, and shares its GPU or not. */
static inline weft_cuda_moe_room weft_cuda_moe_room_of(int sms, bool alone)
{
    return (weft_cuda_moe_room){2 * sms, alone ? 2 * sms : sms, 0};
}

/* Whether rows of such a layer can be moved for themselves, so that experts start on those that arrived. */
bool weft_cuda_moe_can_move(const weft_device_moe_shape *shape);

/* Whether that is faster: where experts have rows for a whole tile or more (docs/performance/moe.md). */
bool weft_cuda_moe_moves(const weft_device_moe_shape *shape, int world);

/* How many CTAs move them best on a GPU of so many SMs. */
int weft_cuda_moe_movers(int sms);

/* What the product waits for in a round of such a lane. */
weft_cuda_arriving_rows weft_cuda_moe_arriving(const weft_cuda_moe *lane);

/* Bytes of symmetric and of private memory of a lane. */
void weft_cuda_moe_measure(const weft_device_moe_shape *shape, int world, weft_cuda_moe_room room,
                           size_t *symmetric, size_t *private_bytes);

/* The lane of a rank whose symmetric memory, zero at first, is at `symmetric` and `stride` bytes further at
 * each next rank. `owner` and `local` are the shape's tables on the GPU. */
weft_cuda_moe weft_cuda_moe_lay_out(const weft_device_moe_shape *shape, int world, int rank,
                                    weft_cuda_moe_room room, char *symmetric, int64_t stride,
                                    char *private_memory, const int32_t *owner, const int32_t *local);

/* Zeroes the private memory and sets what does not begin with zero, before the stream goes on. */
weft_status weft_cuda_moe_clear(const weft_cuda_device *device, const weft_cuda_moe *lane,
                                char *private_memory, size_t bytes, CUstream stream, weft_error_text *error);

/* `early`: the kernel may come in while the one before it ends. */
weft_status weft_cuda_moe_launch(const weft_cuda_device *device, const weft_cuda_moe *lane,
                                 weft_device_moe_kernel kernel, const weft_device_moe_args *call, bool early,
                                 CUstream stream, weft_error_text *error);

/* run/experts.h: layers of groups */
void weft_cuda_moe_bytes(weft_group *group, const weft_device_moe_shape *shape, size_t *symmetric,
                         size_t *private_bytes);
weft_status weft_cuda_moe_create(weft_group *group, const weft_device_moe_shape *shape,
                                 weft_device_moe **moe);
weft_status weft_cuda_moe_destroy(weft_device_moe *moe);
weft_status weft_cuda_moe_run(weft_device_moe *moe, int lane, weft_device_moe_kernel kernel,
                              const weft_device_moe_args *call);
bool weft_cuda_moe_takes_arriving(const weft_device_moe *moe, const void *x);
weft_status weft_cuda_moe_multiply(weft_device_moe *moe, int lane, const weft_grouped_args *args);
weft_status weft_cuda_moe_wait(weft_device_moe *moe);
weft_status weft_cuda_moe_view(weft_device_moe *moe, int lane, bool counts, weft_device_moe_view *view);
weft_status weft_cuda_moe_memory(weft_group *group, size_t bytes, void **memory);
void weft_cuda_moe_discard(weft_group *group, void *memory);

/* What went wrong in the layers of a group, after its stream has passed. */
weft_status weft_cuda_moe_settle(weft_group *group);

#endif
