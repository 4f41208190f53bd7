/*
 * A GPU for machines that have none: the driver calls that the backend makes, on host memory, and an
 * interpreter of the device arrays in place of the kernels. So the lowering, the loading and the protocol
 * are tested everywhere by the same cases that run on a real GPU. Memory that is exported is a memory file,
 * so ranks may be processes.
 *
 * Like the Hopper walker, a lane has a loader that runs ahead of its consumer: it reads A and B of the next
 * GEMM as soon as the waits that guard them allow. Lanes and ranks advance in random order, so that a wait
 * too few shows up as a wrong result.
 */
#ifndef WEFT_TESTS_CUDA_FAKE_GPU_H
#define WEFT_TESTS_CUDA_FAKE_GPU_H

#include "bench/cuda/ladder_device.h"
#include "fake_link.h"
#include "run/cuda/channel.h"
#include "run/cuda/collective.h"
#include "run/cuda/driver.h"
#include "run/cuda/exchange.h"
#include "run/cuda/moe.h"

/* A device with `crews` crews. `hopper` chooses which walker it stands for. */
weft_cuda_device fake_gpu(int crews, bool hopper, uint64_t seed);

/* From now on weft_group_use_gpu finds fake GPUs 0 .. count - 1, each with that many crews. */
void fake_gpu_install(int count, int crews, bool hopper);

/* Until the next install: each GPU has so many crews more than the one before. */
void fake_gpu_uneven(int more);

/* Makes the driver call of that name fail from its n-th use on with CUDA_ERROR_UNKNOWN; NULL ends it. "all
 * meetings": kernels that are to meet before the first run do not; "some meetings": the first n do not. "peer
 * access": from the n-th question on GPUs cannot address one another. */
void fake_gpu_break(const char *call, int uses);

/* Somebody captures a graph, or does no more: meanwhile allocating and waiting fail in threads that have not
 * said that they know what they do (cuThreadExchangeStreamCaptureMode). */
void fake_gpu_capture(bool capturing);

/* From now on a step of that rank's kernels takes so long; 0 ends it. Before the ranks begin. */
void fake_gpu_slow(int rank, int64_t step_ns);

/* Runs the walkers of GPUs that are not Hopper's from now on, in place of the interpreter; NULL ends it. */
typedef struct fake_walker {
    void *(*begin)(const weft_cuda_args *args, uint32_t lanes);
    bool (*step)(void *walk, bool *goes_on); /* whether anything happened */
    void (*end)(void *walk);
} fake_walker;
void fake_gpu_walk_by(const fake_walker *walker);

/* The streams that kernels went on since the last call, a bit each: 1 is CU_STREAM_LEGACY. */
uint64_t fake_gpu_take_streams(void);

/* Modules that are loaded: those of benches. */
int fake_gpu_modules(void);

/* From now on all memory is said to be on that GPU; -1 ends it. */
void fake_gpu_own(int device);

/* These bytes are one allocation of cudaMalloc; 0 of them end it. */
void fake_gpu_allocation(const void *begin, size_t bytes);

/* Whether GPUs can add in one another's memory: not at first, so that ranks on several pass sums on. */
void fake_gpu_atomics(bool native);

/* Whether there is a switch between GPUs that adds and spreads: not at first. */
void fake_gpu_multicast(bool there);

/* How many GEMM tasks went through tensor maps and how many with A and B exchanged, how many copies through
 * bulk lanes, and how many kernels may have begun before the one before them ended, since the last call. */
typedef struct fake_gpu_counts {
    long maps, bulk, gemms, early, exchanged;
    long repitched, collectives, packets, splitk, sums, exchanges, gates, moves; /* launches */
    long switched; /* tasks, through the switch */
} fake_gpu_counts;
fake_gpu_counts fake_gpu_take_counts(void);

/* ---- between the driver calls and the interpreter ------------------------------------------------- */

typedef struct fake_map { /* stands in for a CUtensorMap */
    char *base;
    uint64_t inner, outer, pitch;
    uint32_t box_inner, box_outer;
    weft_dtype dtype;
} fake_map;

int fake_gpu_current(void); /* the calling thread's; -1: of no group */
/* Whether a GPU was given access to an address of symmetric memory, and can add there. */
bool fake_gpu_reaches(int device, const void *at, bool adds);
/* The addresses of all GPUs that lie behind one of a multicast object, in no order; 0: not all do. */
int fake_gpu_switched(const void *at, void *addresses[]);
void fake_gpu_seed(uint64_t seed);
/* A product by itself, by the kernel of a tile; `form`: whether B is transposed. */
bool fake_gpu_exchange(const weft_cuda_exchange *exchange, CUstream stream);
bool fake_gpu_splitk(const weft_cuda_splitk *args, const weft_cuda_exchange *exchange, int tile, int form,
                     bool sent, uint32_t ctas, uint32_t cluster, bool early, CUstream stream);
bool fake_gpu_repitch(const weft_cuda_repitch *copy, CUstream stream);
bool fake_gpu_launch(const weft_cuda_args *args, uint32_t lanes, bool hopper, bool early, CUstream stream);
bool fake_gpu_sums(const weft_cuda_args *args, uint32_t lanes, CUstream stream);
bool fake_gpu_gate(const weft_cuda_args *args, uint64_t *runs, CUstream stream);
bool fake_gpu_collective(const weft_cuda_args *args, uint32_t lanes, int32_t reduction, CUstream stream);
bool fake_gpu_packets(const weft_cuda_packets *packets, uint32_t ctas, CUstream stream);
bool fake_gpu_channels(const weft_cuda_channels *channels, uint32_t ctas, CUstream stream);
bool fake_gpu_moe(const weft_cuda_moe *lane, const weft_cuda_moe_args *call, weft_device_moe_kernel kernel,
                  uint32_t ctas, CUstream stream);
bool fake_gpu_settle(int64_t limit_ns); /* until nothing runs in this process; false when time is up */
bool fake_gpu_call(void (*call)(void *argument), void *argument, CUstream stream); /* in the stream's order */
bool fake_gpu_moe_link(const weft_cuda_moe_link *link, CUstream stream);
bool fake_gpu_ladder(const ladder_args *args, ladder_kernel kernel, uint32_t ctas, CUstream stream);
bool fake_gpu_peers(const weft_cuda_link *link, fake_link_kind by, uint32_t ctas, CUstream stream);
bool fake_gpu_busy(CUstream stream);   /* lets everything advance a little */
void fake_gpu_finish(CUstream stream); /* until the stream is through */

#endif
