/*
 * The CUDA driver, loaded at run time: weft links against nothing of CUDA, so that the same binary starts on
 * machines without a driver and says so.
 */
#ifndef WEFT_RUN_CUDA_DRIVER_H
#define WEFT_RUN_CUDA_DRIVER_H

#include "core/status.h"
#include "run/cuda/splitk.h"
#include "run/cuda/task.h"
#include "choose/cuda/walker.h"

#include <cuda.h>
#include <stdbool.h>

#define WEFT_CUDA_CALLS(X)                                                                                   \
    X(cuInit)                                                                                                \
    X(cuDriverGetVersion)                                                                                    \
    X(cuGetErrorName)                                                                                        \
    X(cuGetErrorString)                                                                                      \
    X(cuDeviceGet)                                                                                           \
    X(cuDeviceGetCount)                                                                                      \
    X(cuDeviceGetName)                                                                                       \
    X(cuDeviceGetAttribute)                                                                                  \
    X(cuDeviceGetUuid)                                                                                       \
    X(cuDeviceGetP2PAttribute)                                                                               \
    X(cuDeviceCanAccessPeer)                                                                                 \
    X(cuDeviceTotalMem)                                                                                      \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxRelease)                                                                             \
    X(cuCtxGetCurrent)                                                                                       \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuCtxPushCurrent)                                                                                      \
    X(cuCtxPopCurrent)                                                                                       \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleUnload)                                                                                        \
    X(cuModuleGetFunction)                                                                                   \
    X(cuFuncGetAttribute)                                                                                    \
    X(cuFuncSetAttribute)                                                                                    \
    X(cuLaunchKernelEx)                                                                                      \
    X(cuOccupancyMaxActiveClusters)                                                                          \
    X(cuMemAlloc)                                                                                            \
    X(cuMemFree)                                                                                             \
    X(cuMemAllocAsync)                                                                                       \
    X(cuMemFreeAsync)                                                                                        \
    X(cuMemAllocHost)                                                                                        \
    X(cuMemFreeHost)                                                                                         \
    X(cuPointerGetAttribute)                                                                                 \
    X(cuMemGetAllocationGranularity)                                                                         \
    X(cuMemAddressReserve)                                                                                   \
    X(cuMemAddressFree)                                                                                      \
    X(cuMemCreate)                                                                                           \
    X(cuMemRelease)                                                                                          \
    X(cuMemMap)                                                                                              \
    X(cuMemUnmap)                                                                                            \
    X(cuMemSetAccess)                                                                                        \
    X(cuMemExportToShareableHandle)                                                                          \
    X(cuMemImportFromShareableHandle)                                                                        \
    X(cuMemcpyAsync)                                                                                         \
    X(cuMemcpy2DAsync)                                                                                       \
    X(cuMemcpyHtoDAsync)                                                                                     \
    X(cuMemcpyDtoHAsync)                                                                                     \
    X(cuMemsetD8Async)                                                                                       \
    X(cuMemsetD32Async)                                                                                      \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamDestroy)                                                                                       \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamQuery)                                                                                         \
    X(cuStreamIsCapturing)                                                                                   \
    X(cuThreadExchangeStreamCaptureMode)                                                                     \
    X(cuStreamBeginCapture)                                                                                  \
    X(cuStreamEndCapture)                                                                                    \
    X(cuGraphInstantiate)                                                                                    \
    X(cuGraphLaunch)                                                                                         \
    X(cuGraphExecDestroy)                                                                                    \
    X(cuGraphDestroy)                                                                                        \
    X(cuStreamWaitValue64)                                                                                   \
    X(cuStreamWriteValue64)                                                                                  \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuEventCreate)                                                                                         \
    X(cuEventDestroy)                                                                                        \
    X(cuEventRecord)                                                                                         \
    X(cuEventRecordWithFlags)                                                                                \
    X(cuEventQuery)                                                                                          \
    X(cuEventSynchronize)                                                                                    \
    X(cuEventElapsedTime)                                                                                    \
    X(cuTensorMapEncodeTiled)

/* Of drivers from CUDA 12.1 on, and the first of those as new as the header: NULL in others, which have no
 * multicast then, and where weft does not know what its kernels follow in a graph. */
#define WEFT_CUDA_LATER_CALLS(X)                                                                             \
    X(cuStreamGetCaptureInfo)                                                                                \
    X(cuMulticastGetGranularity)                                                                             \
    X(cuMulticastCreate)                                                                                     \
    X(cuMulticastAddDevice)                                                                                  \
    X(cuMulticastBindAddr)

typedef struct weft_cuda_driver {
#define WEFT_CUDA_MEMBER(name) __typeof__(&name) name;
    WEFT_CUDA_CALLS(WEFT_CUDA_MEMBER)
    WEFT_CUDA_LATER_CALLS(WEFT_CUDA_MEMBER)
#undef WEFT_CUDA_MEMBER
} weft_cuda_driver;

/*
 * Several ranks of this process will use one GPU. Streams that share one of the driver's queues run one after
 * another, and kernels that wait for each other then never meet; there are 8 queues unless the environment
 * says otherwise when the driver starts, so this must come before. Not for processes that share a GPU under
 * MPS: all their queues together are few.
 */
void weft_cuda_driver_widen(void);

/* The driver's functions; NULL with a sentence in `error` where there is no driver or it is too old. */
const weft_cuda_driver *weft_cuda_driver_open(weft_error_text *error);

/* WEFT_OK, or a status with a sentence that names the call: `call` up to its first parenthesis. */
weft_status weft_cuda_check(const weft_cuda_driver *cu, CUresult result, const char *call,
                            weft_error_text *error);

#define WEFT_CUDA_TRY(call)                                                                                  \
    do {                                                                                                     \
        weft_status status_ = weft_cuda_check(cu, cu->call, #call, error);                                   \
        if (status_ != WEFT_OK)                                                                              \
            return status_;                                                                                  \
    } while (0)

enum { WEFT_CUDA_MOE_KERNELS = 7 };

typedef struct weft_cuda_device {
    const weft_cuda_driver *cu;
    CUdevice device;
    CUcontext context; /* the primary one, which other libraries of the process share */
    CUstream uploads;  /* waits for no other stream, not even the default one: a rank's set-up must not wait
                          for a peer's kernel that waits for this rank */
    char name[128];
    int driver_version, major, minor, sm_count, multicast, vmm_fd;
    size_t l2_bytes;
    CUmodule modules[23 + 2 * WEFT_CUDA_WALKERS];
    CUfunction any[2], walkers[2][WEFT_CUDA_WALKERS][4]; /* by dtype (bf16, f16); the latter for Hopper, also
                                                            by shape and transposes (none, B, A, both) */
    CUfunction any_fp8, fp8[2][2]; /* fp8: any GPU; Hopper, by dtype (e4m3, e5m2) and crew (two CTAs, one) */
    CUfunction splitk[2][WEFT_CUDA_SPLITK_TILE_COUNT][2]; /* by dtype, tile and whether B is transposed */
    CUfunction rehearse, repitch, turn;
    CUfunction collective[WEFT_FP8_E5M2 + 1],
        packets[WEFT_FP8_E5M2 + 1];                            /* by what is reduced; movement takes any */
    CUfunction lines[2][WEFT_FP8_E5M2 + 1];                    /* as packets; whole or not */
    CUfunction multimem[WEFT_F64 + 1];                         /* what the switch reduces; else NULL */
    CUfunction lines_moved;                                    /* whole ones that nothing is made of */
    CUfunction channels;                                       /* counts and messages */
    CUfunction add;                                            /* to a word of any rank */
    CUfunction gate, sums;                                     /* of matrices, with the epilogue */
    CUfunction exchange;                                       /* of sums that go as marked words */
    CUfunction exchange_lines[2];                              /* the first, of bf16 or f16 alone */
    CUfunction epilogue;                                       /* behind a product: see epilogue.h */
    CUfunction splitk_send[2][WEFT_CUDA_SPLITK_TILE_COUNT][2]; /* as splitk: those that send their sums */
    CUfunction splitk_sent[2][WEFT_CUDA_SPLITK_TILE_COUNT][2]; /* and those whose slices send theirs */
    CUfunction moe[WEFT_CUDA_MOE_KERNELS];                     /* in the order of run/experts.h */
    CUfunction grouped[2][2];        /* Hopper: by dtype, and whether B is transposed */
    CUfunction grouped_stored[2][2]; /* the same of a B of e4m3 or e5m2 */
    bool hopper;
    int crews; /* that fit at once: clusters of WEFT_CUDA_PAIR CTAs on Hopper, else CTAs */
} weft_cuda_device;

/* Where groups get their GPUs from: the driver, unless a test puts a fake one there. `open` leaves the
 * calling thread's context as it was. */
typedef struct weft_cuda_source {
    weft_status (*count)(int *count, weft_error_text *error);
    weft_status (*open)(int index, weft_cuda_device *device, weft_error_text *error);
} weft_cuda_source;
extern weft_cuda_source weft_cuda_gpus;

/* SMs that `crews` crews fill. */
static inline int weft_cuda_ctas(const weft_cuda_device *device, int crews)
{
    return device->hopper ? 2 * crews : crews;
}

/* Opens GPU `index`, makes its context current for the calling thread and loads the kernels. */
weft_status weft_cuda_device_open(int index, weft_cuda_device *device, weft_error_text *error);
void weft_cuda_device_close(weft_cuda_device *device);

/* CTAs side by side, threads side by side. */
static inline CUlaunchConfig weft_cuda_config(unsigned ctas, unsigned threads, unsigned shared_bytes,
                                              CUstream stream)
{
    return (CUlaunchConfig){.gridDimX = ctas,
                            .gridDimY = 1,
                            .gridDimZ = 1,
                            .blockDimX = threads,
                            .blockDimY = 1,
                            .blockDimZ = 1,
                            .sharedMemBytes = shared_bytes,
                            .hStream = stream};
}

/* A kernel of a module. The driver loads one when it is first asked about or launched, and that may wait for
 * every kernel of the context (see weft_cuda_rehearse): so it is asked about here. */
weft_status weft_cuda_load_kernel(const weft_cuda_driver *cu, CUmodule module, const char *name,
                                  int shared_bytes, CUfunction *kernel, weft_error_text *error);
/* One without shared memory that leaves an SM's to kernels beside it: what a kernel prefers stays while it is
 * there. */
weft_status weft_cuda_load_beside(const weft_cuda_driver *cu, CUmodule module, const char *name,
                                  CUfunction *kernel, weft_error_text *error);

/*
 * Does on a stream what runs do: launches a kernel and records an event behind it, and waits for both. What
 * the driver puts off until then, such as memory for events or for a larger frame, may wait for every kernel
 * of the context: in a run also for one that waits for a peer's kernel, the very one that is being launched.
 * So this comes before the first run on a stream.
 */
weft_status weft_cuda_rehearse(weft_cuda_device *device, CUstream stream, weft_cuda_rehearsal rehearsal,
                               weft_error_text *error);

enum {
    WEFT_CUDA_PAIR = 2,
    WEFT_CUDA_SHARED_BYTES = 231936,
    WEFT_CUDA_THREADS = 384
}; /* of a CTA of the Hopper walker */

/* One line: the GPU that was found; false: why the backend cannot be used here. */
bool weft_cuda_describe(char *text, size_t bytes);

#endif
