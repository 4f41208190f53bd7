/* The fake GPU's driver: devices, contexts, errors. See fake_gpu.h. */
#include "fake_driver.h"
#include "fake_cublaslt.h"
#include "fake_gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static struct {
    const char *broken;
    _Atomic int uses;
    int devices, crews, more_crews;
    bool hopper, atomics, multicast;
    _Atomic bool capturing;
} fake;

/* What the driver forbids while anybody captures, unless the calling thread has said that it knows. */
static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool fake_forbidden(void)
{
    return fake.capturing && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

void fake_gpu_capture(bool capturing)
{
    fake.capturing = capturing;
}

static CUresult fake_exchange_mode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = capture_mode;

    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

void fake_gpu_break(const char *call, int uses)
{
    fake.broken = call;
    fake.uses = uses;
}

bool fake_breaks(const char *call)
{
    return fake.broken && strcmp(fake.broken, call) == 0 && --fake.uses < 0;
}

bool fake_breaks_yet(const char *call)
{
    return fake.broken && strcmp(fake.broken, call) == 0 && --fake.uses >= 0;
}

static CUresult fake_error_name(CUresult code, const char **text)
{
    *text = code == CUDA_ERROR_UNKNOWN ? "CUDA_ERROR_UNKNOWN" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

static CUresult fake_error_string(CUresult code, const char **text)
{
    (void)code;
    *text = "fake";
    return CUDA_SUCCESS;
}

/* The context of GPU i is i + 1; that of a device outside any group NULL. */
enum { CONTEXTS_MAX = 16 };
static _Thread_local struct {
    CUcontext stack[CONTEXTS_MAX];
    int depth;
} contexts;

static CUresult fake_push(CUcontext context)
{
    if (contexts.depth == CONTEXTS_MAX)
        return CUDA_ERROR_INVALID_CONTEXT;
    contexts.stack[contexts.depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult fake_pop(CUcontext *context)
{
    if (contexts.depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = contexts.stack[--contexts.depth];
    return CUDA_SUCCESS;
}

static CUresult fake_set_context(CUcontext context)
{
    if (contexts.depth > 0)
        contexts.depth--;
    return fake_push(context);
}

int fake_gpu_current(void)
{
    return contexts.depth > 0 ? (int)(uintptr_t)contexts.stack[contexts.depth - 1] - 1 : -1;
}

static CUresult fake_release_context(CUdevice device)
{
    (void)device;
    return CUDA_SUCCESS;
}

static CUresult fake_uuid(CUuuid *uuid, CUdevice device)
{
    BREAK(cuDeviceGetUuid);
    memset(uuid, 0, sizeof(*uuid));
    uuid->bytes[0] = (char)(1 + device);
    return CUDA_SUCCESS;
}

static CUresult fake_device_count(int *count)
{
    *count = fake.devices;
    return CUDA_SUCCESS;
}

static CUresult fake_device(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult fake_p2p(int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to)
{
    (void)attribute, (void)from, (void)to;
    *value = fake.atomics;
    return CUDA_SUCCESS;
}

void fake_gpu_atomics(bool native)
{
    fake.atomics = native;
}

void fake_gpu_multicast(bool there)
{
    fake.multicast = there;
}

bool fake_adds_abroad(void)
{
    return fake.atomics;
}

static CUresult fake_can_access(int *can, CUdevice from, CUdevice to)
{
    (void)from, (void)to;
    *can = !fake_breaks("peer access");
    return CUDA_SUCCESS;
}

static CUresult fake_total(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

static weft_cuda_driver calls;

static void fill_calls(void)
{
    calls.cuGetErrorName = fake_error_name;
    calls.cuGetErrorString = fake_error_string;
    calls.cuCtxSetCurrent = fake_set_context;
    calls.cuCtxPushCurrent = fake_push;
    calls.cuCtxPopCurrent = fake_pop;
    calls.cuDevicePrimaryCtxRelease = fake_release_context;
    calls.cuDeviceGet = fake_device;
    calls.cuDeviceGetCount = fake_device_count;
    calls.cuDeviceGetUuid = fake_uuid;
    calls.cuDeviceGetP2PAttribute = fake_p2p;
    calls.cuDeviceCanAccessPeer = fake_can_access;
    calls.cuDeviceTotalMem = fake_total;
    calls.cuThreadExchangeStreamCaptureMode = fake_exchange_mode;
    fake_memory_calls(&calls);
    fake_launch_calls(&calls);
}

weft_cuda_device fake_gpu(int crews, bool hopper, uint64_t seed)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_calls);
    weft_cublaslt_source = fake_cublaslt;
    weft_cuda_device device = {.cu = &calls,
                               .name = "a fake GPU",
                               .hopper = hopper,
                               .crews = crews,
                               .vmm_fd = 1,
                               .multicast = fake.multicast,
                               .sm_count = hopper ? 2 * crews : crews};
    fake_kernels(&device);
    fake_gpu_seed(seed);
    return device;
}

static weft_status fake_count(int *count, weft_error_text *error)
{
    (void)error;
    *count = fake.devices;
    return WEFT_OK;
}

static weft_status fake_open(int index, weft_cuda_device *device, weft_error_text *error)
{
    (void)error;
    *device = fake_gpu(fake.crews + index * fake.more_crews, fake.hopper, 11);
    device->device = index;
    device->context = (CUcontext)(uintptr_t)(index + 1);
    device->cu->cuStreamCreate(&device->uploads, 0);
    return WEFT_OK;
}

void fake_gpu_install(int count, int crews, bool hopper)
{
    fake.devices = count;
    fake.crews = crews;
    fake.more_crews = 0;
    fake.hopper = hopper;
    weft_cuda_gpus = (weft_cuda_source){fake_count, fake_open};
}

void fake_gpu_uneven(int more)
{
    fake.more_crews = more;
}
