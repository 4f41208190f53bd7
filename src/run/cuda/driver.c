/* Loads libcuda.so.1 on first use, and opens GPUs. */
#include "run/cuda/driver.h"
#include "run/cuda/grouped_device.h"
#include "run/cuda/kernels.h"
#include "run/cuda/moe_device.h"
#include "run/experts.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_once_t once;
    weft_cuda_driver calls;
    char missing[64]; /* the function an old driver lacks */
    int ready;
} library = {.once = PTHREAD_ONCE_INIT};

#define WEFT_CUDA_TEXT_OF(name) #name
#define WEFT_CUDA_TEXT(name) WEFT_CUDA_TEXT_OF(name) /* cuda.h maps names to their current version */

static void load(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return;
#define WEFT_CUDA_FIND(name)                                                                                 \
    *(void **)&library.calls.name = dlsym(handle, WEFT_CUDA_TEXT(name));                                     \
    if (!library.calls.name) {                                                                               \
        snprintf(library.missing, sizeof(library.missing), "%s", WEFT_CUDA_TEXT(name));                      \
        return;                                                                                              \
    }
    WEFT_CUDA_CALLS(WEFT_CUDA_FIND)
#undef WEFT_CUDA_FIND
#define WEFT_CUDA_LOOK(name) *(void **)&library.calls.name = dlsym(handle, WEFT_CUDA_TEXT(name));
    WEFT_CUDA_LATER_CALLS(WEFT_CUDA_LOOK)
#undef WEFT_CUDA_LOOK
    library.ready = 1;
}

static void widen(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

void weft_cuda_driver_widen(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, widen);
}

const weft_cuda_driver *weft_cuda_driver_open(weft_error_text *error)
{
    pthread_once(&library.once, load);
    if (library.ready)
        return &library.calls;
    if (library.missing[0])
        weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                       "the CUDA driver on this machine is too old: it has no %s", library.missing);
    else
        weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "the cuda backend needs an NVIDIA driver, and libcuda.so.1 cannot be loaded on this machine");
    return NULL;
}

weft_status weft_cuda_check(const weft_cuda_driver *cu, CUresult result, const char *call,
                            weft_error_text *error)
{
    const char *text = NULL, *name = NULL;
    if (result == CUDA_SUCCESS)
        return WEFT_OK;
    cu->cuGetErrorName(result, &name);
    cu->cuGetErrorString(result, &text);
    return weft_error_set(error, result == CUDA_ERROR_OUT_OF_MEMORY ? WEFT_ERR_MEMORY : WEFT_ERR_SYSTEM,
                          "%.*s failed: %s (%s)", (int)strcspn(call, "("), call,
                          text ? text : "unknown CUDA error", name ? name : "no name");
}

/* How many clusters of two full-size CTAs the GPU holds at once: a crew that waits must be resident. */
static weft_status count_crews(weft_cuda_device *device, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                 .value.clusterDim = {WEFT_CUDA_PAIR, 1, 1}};
    CUlaunchConfig config = weft_cuda_config((unsigned)device->sm_count / WEFT_CUDA_PAIR * WEFT_CUDA_PAIR,
                                             WEFT_CUDA_THREADS, WEFT_CUDA_SHARED_BYTES, NULL);
    config.attrs = &cluster;
    config.numAttrs = 1;
    WEFT_CUDA_TRY(cuOccupancyMaxActiveClusters(&device->crews, device->walkers[0][0][0], &config));
    return WEFT_OK;
}

weft_status weft_cuda_rehearse(weft_cuda_device *device, CUstream stream, weft_cuda_rehearsal rehearsal,
                               weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    CUevent end;
    void *parameters[] = {&rehearsal};
    CUlaunchConfig config = weft_cuda_config(1, 32, 0, stream);
    weft_status status;
    WEFT_CUDA_TRY(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
    status = weft_cuda_check(cu, cu->cuLaunchKernelEx(&config, device->rehearse, parameters, NULL),
                             "cuLaunchKernelEx", error);
    if (status == WEFT_OK)
        status = weft_cuda_check(cu, cu->cuEventRecord(end, stream), "cuEventRecord", error);
    if (status == WEFT_OK)
        status = weft_cuda_check(cu, cu->cuStreamSynchronize(stream), "cuStreamSynchronize", error);
    cu->cuEventDestroy(end);
    return status;
}

weft_status weft_cuda_load_kernel(const weft_cuda_driver *cu, CUmodule module, const char *name,
                                  int shared_bytes, CUfunction *kernel, weft_error_text *error)
{
    int registers;
    WEFT_CUDA_TRY(cuModuleGetFunction(kernel, module, name));
    WEFT_CUDA_TRY(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, *kernel));
    if (shared_bytes)
        WEFT_CUDA_TRY(
            cuFuncSetAttribute(*kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes));
    return WEFT_OK;
}

weft_status weft_cuda_load_beside(const weft_cuda_driver *cu, CUmodule module, const char *name,
                                  CUfunction *kernel, weft_error_text *error)
{
    weft_status status = weft_cuda_load_kernel(cu, module, name, 0, kernel, error);

    if (status != WEFT_OK)
        return status;
    WEFT_CUDA_TRY(cuFuncSetAttribute(*kernel, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                     CU_SHAREDMEM_CARVEOUT_MAX_SHARED));
    return WEFT_OK;
}

/* Modules: for any GPU, the Hopper walkers, then these six, then products by themselves, those that send
 * their sums, grouped ones, those of stored weights, those of fp8, collectives by lines, through channels and
 * through the switch. */
enum { COLLECTIVES = 1 + 2 * WEFT_CUDA_WALKERS, SPLITK = COLLECTIVES + 6, GROUPED = SPLITK + 6 };
enum { ANY_FP8 = GROUPED + 2, FP8, LINES = FP8 + 2, CHANNELS, MULTIMEM, MOVE, ONESIDED };

static weft_status load_any(weft_cuda_device *device, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_status status;
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[0], weft_cuda_kernels_any));
    status = weft_cuda_load_kernel(cu, device->modules[0], "weft_walk_any_bf16", WEFT_CUDA_ANY_SHARED_BYTES,
                                   &device->any[0], error);
    if (status == WEFT_OK)
        status = weft_cuda_load_kernel(cu, device->modules[0], "weft_walk_any_f16",
                                       WEFT_CUDA_ANY_SHARED_BYTES, &device->any[1], error);
    if (status == WEFT_OK)
        status = weft_cuda_load_kernel(cu, device->modules[0], "weft_rehearse", 0, &device->rehearse, error);
    if (status == WEFT_OK)
        status = weft_cuda_load_kernel(cu, device->modules[0], "weft_repitch", 0, &device->repitch, error);
    if (status == WEFT_OK)
        status = weft_cuda_load_kernel(cu, device->modules[0], "weft_turn", 0, &device->turn, error);
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[ANY_FP8], weft_cuda_kernels_any_fp8));
    if (status == WEFT_OK)
        status = weft_cuda_load_kernel(cu, device->modules[ANY_FP8], "weft_walk_any_fp8",
                                       WEFT_CUDA_ANY_SHARED_BYTES, &device->any_fp8, error);
    return status == WEFT_OK ? weft_cuda_rehearse(device, device->uploads, (weft_cuda_rehearsal){0}, error)
                             : status;
}

static weft_status load_collectives(weft_cuda_device *device, weft_error_text *error)
{
    static const char *const types[WEFT_FP8_E5M2 + 1] = {
        [WEFT_F32] = "f32", [WEFT_F16] = "f16", [WEFT_BF16] = "bf16", [WEFT_I32] = "i32", [WEFT_I64] = "i64",
        [WEFT_F64] = "f64", [WEFT_I8] = "i8",   [WEFT_U8] = "u8",     [WEFT_BOOL] = "u8",
    };
    const weft_cuda_driver *cu = device->cu;
    weft_status status = WEFT_OK;
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[COLLECTIVES], weft_cuda_kernels_collective));
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[COLLECTIVES + 1], weft_cuda_kernels_packets));
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[LINES], weft_cuda_kernels_lines));
    for (int i = 0; i <= WEFT_FP8_E5M2 && status == WEFT_OK; i++) {
        const char *type = types[types[i] ? i : WEFT_F32];
        char walks[32], sends[32], lines[2][32];
        snprintf(walks, sizeof(walks), "weft_collective_%s", type);
        snprintf(sends, sizeof(sends), "weft_packets_%s", type);
        snprintf(lines[0], sizeof(lines[0]), "weft_lines_parted_%s", type);
        snprintf(lines[1], sizeof(lines[1]), "weft_lines_%s", type);
        status =
            weft_cuda_load_kernel(cu, device->modules[COLLECTIVES], walks, 0, &device->collective[i], error);
        if (status == WEFT_OK)
            status = weft_cuda_load_kernel(cu, device->modules[COLLECTIVES + 1], sends, 0,
                                           &device->packets[i], error);
        for (int whole = 0; whole < 2 && status == WEFT_OK; whole++)
            status = weft_cuda_load_kernel(cu, device->modules[LINES], lines[whole], 0,
                                           &device->lines[whole][i], error);
    }
    if (status == WEFT_OK)
        status = weft_cuda_load_kernel(cu, device->modules[LINES], "weft_lines_moved", 0,
                                       &device->lines_moved, error);
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[CHANNELS], weft_cuda_kernels_channels));
    if (status == WEFT_OK)
        status = weft_cuda_load_kernel(cu, device->modules[CHANNELS], "weft_channels", 0, &device->channels,
                                       error);
    if (status != WEFT_OK)
        return status;
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[ONESIDED], weft_cuda_kernels_onesided));
    status = weft_cuda_load_beside(cu, device->modules[ONESIDED], "weft_add", &device->add, error);
    if (status != WEFT_OK)
        return status;
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[COLLECTIVES + 3], weft_cuda_kernels_sums));
    status =
        weft_cuda_load_kernel(cu, device->modules[COLLECTIVES + 3], "weft_sums", 0, &device->sums, error);
    if (status == WEFT_OK)
        status =
            weft_cuda_load_kernel(cu, device->modules[COLLECTIVES + 3], "weft_gate", 0, &device->gate, error);
    if (status != WEFT_OK)
        return status;
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[COLLECTIVES + 4], weft_cuda_kernels_exchange));
    status = weft_cuda_load_beside(cu, device->modules[COLLECTIVES + 4], "weft_exchange", &device->exchange,
                                   error);
    for (int i = 0; i < 2 && status == WEFT_OK; i++)
        status = weft_cuda_load_beside(cu, device->modules[COLLECTIVES + 4],
                                       i ? "weft_exchange_f16" : "weft_exchange_bf16",
                                       &device->exchange_lines[i], error);
    if (status != WEFT_OK)
        return status;
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[COLLECTIVES + 5], weft_cuda_kernels_epilogue));
    return weft_cuda_load_kernel(cu, device->modules[COLLECTIVES + 5], "weft_epilogue", 0, &device->epilogue,
                                 error);
}

static weft_status load_multimem(weft_cuda_device *device, weft_error_text *error)
{
    static const char *const names[WEFT_F64 + 1] = {
        [WEFT_F32] = "weft_multimem_f32",   [WEFT_F16] = "weft_multimem_f16",
        [WEFT_BF16] = "weft_multimem_bf16", [WEFT_I32] = "weft_multimem_i32",
        [WEFT_I64] = "weft_multimem_i64",   [WEFT_F64] = "weft_multimem_f64",
    };
    const weft_cuda_driver *cu = device->cu;
    weft_status status = WEFT_OK;
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[MULTIMEM], weft_cuda_kernels_multimem));
    for (int i = 0; i <= WEFT_F64 && status == WEFT_OK; i++)
        if (names[i])
            status = weft_cuda_load_kernel(cu, device->modules[MULTIMEM], names[i], 0, &device->multimem[i],
                                           error);
    return status;
}

static weft_status load_moe(weft_cuda_device *device, weft_error_text *error)
{
    static const char *const names[WEFT_CUDA_MOE_KERNELS] = {"weft_experts_dispatch_send",
                                                             "weft_experts_dispatch_recv",
                                                             "weft_experts_combine_send",
                                                             "weft_experts_combine_recv",
                                                             NULL, /* of a module of its own */
                                                             "weft_experts_layout",
                                                             "weft_experts_gather"};
    const weft_cuda_driver *cu = device->cu;
    weft_status status = WEFT_OK;
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[COLLECTIVES + 2], weft_cuda_kernels_moe));
    for (int i = 0; i < WEFT_CUDA_MOE_KERNELS && status == WEFT_OK; i++)
        if (names[i])
            status = weft_cuda_load_kernel(cu, device->modules[COLLECTIVES + 2], names[i], 0, &device->moe[i],
                                           error);
    if (status != WEFT_OK || !device->hopper)
        return status;
    WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[MOVE], weft_cuda_kernels_moe_move));
    return weft_cuda_load_kernel(cu, device->modules[MOVE], "weft_experts_move", WEFT_CUDA_MOE_MOVE_SHARED,
                                 &device->moe[WEFT_DEVICE_MOE_MOVE], error);
}

static weft_status load_splitk(weft_cuda_device *device, weft_error_text *error)
{
    static const struct {
        const char *names[6]; /* of each kind as its B lies */
    } tiles[] = {
#define TILE(tokens, cols, ctas)                                                                             \
    {{"weft_splitk_" #tokens "x" #cols "_n", "weft_splitk_" #tokens "x" #cols "_t",                          \
      "weft_splitk_send_" #tokens "x" #cols "_n", "weft_splitk_send_" #tokens "x" #cols "_t",                \
      "weft_splitk_sent_" #tokens "x" #cols "_n", "weft_splitk_sent_" #tokens "x" #cols "_t"}},
        WEFT_CUDA_SPLITK_TILES(TILE)
#undef TILE
    };
    const void *images[6] = {weft_cuda_kernels_bf16_splitk,      weft_cuda_kernels_f16_splitk,
                             weft_cuda_kernels_bf16_splitk_send, weft_cuda_kernels_f16_splitk_send,
                             weft_cuda_kernels_bf16_splitk_sent, weft_cuda_kernels_f16_splitk_sent};
    CUfunction(*kinds[3])[WEFT_CUDA_SPLITK_TILE_COUNT][2] = {device->splitk, device->splitk_send,
                                                             device->splitk_sent};
    const weft_cuda_driver *cu = device->cu;
    for (int image = 0; image < 6; image++) {
        CUmodule *module = &device->modules[SPLITK + image];
        int kind = image / 2;
        weft_status status = WEFT_OK;
        WEFT_CUDA_TRY(cuModuleLoadData(module, images[image]));
        for (int i = 0; i < 2 * WEFT_CUDA_SPLITK_TILE_COUNT && status == WEFT_OK; i++)
            status = weft_cuda_load_kernel(cu, *module, tiles[i / 2].names[i % 2 + 2 * kind],
                                           WEFT_CUDA_SPLITK_SHARED_MOST,
                                           &kinds[kind][image % 2][i / 2][i % 2], error);
        if (status != WEFT_OK)
            return status;
    }
    return WEFT_OK;
}

static weft_status load_hopper(weft_cuda_device *device, weft_error_text *error)
{
    static const char *const names[2][4] = {
        {"weft_walk_bf16_nn", "weft_walk_bf16_nt", "weft_walk_bf16_tn", "weft_walk_bf16_tt"},
        {"weft_walk_f16_nn", "weft_walk_f16_nt", "weft_walk_f16_tn", "weft_walk_f16_tt"}};
    const void *images[2][WEFT_CUDA_WALKERS] = {
        {weft_cuda_kernels_bf16, weft_cuda_kernels_bf16_224, weft_cuda_kernels_bf16_128,
         weft_cuda_kernels_bf16_one256, weft_cuda_kernels_bf16_one128, weft_cuda_kernels_bf16_few},
        {weft_cuda_kernels_f16, weft_cuda_kernels_f16_224, weft_cuda_kernels_f16_128,
         weft_cuda_kernels_f16_one256, weft_cuda_kernels_f16_one128, weft_cuda_kernels_f16_few}};
    const weft_cuda_driver *cu = device->cu;
    for (int i = 0; i < 2 * WEFT_CUDA_WALKERS; i++) {
        int f16 = i / WEFT_CUDA_WALKERS, walker = i % WEFT_CUDA_WALKERS;
        CUmodule *module = &device->modules[1 + i];
        weft_status status = WEFT_OK;
        WEFT_CUDA_TRY(cuModuleLoadData(module, images[f16][walker]));
        for (int form = 0; form < 4 && status == WEFT_OK; form++)
            status = weft_cuda_load_kernel(cu, *module, names[f16][form], WEFT_CUDA_SHARED_BYTES,
                                           &device->walkers[f16][walker][form], error);
        if (status != WEFT_OK)
            return status;
    }
    return count_crews(device, error);
}

static weft_status load_fp8(weft_cuda_device *device, weft_error_text *error)
{
    const void *images[2] = {weft_cuda_kernels_fp8, weft_cuda_kernels_fp8_one};
    const weft_cuda_driver *cu = device->cu;
    weft_status status = WEFT_OK;
    for (int one = 0; one < 2 && status == WEFT_OK; one++) {
        CUmodule *module = &device->modules[FP8 + one];
        WEFT_CUDA_TRY(cuModuleLoadData(module, images[one]));
        status = weft_cuda_load_kernel(cu, *module, "weft_walk_e4m3", WEFT_CUDA_SHARED_BYTES,
                                       &device->fp8[0][one], error);
        if (status == WEFT_OK)
            status = weft_cuda_load_kernel(cu, *module, "weft_walk_e5m2", WEFT_CUDA_SHARED_BYTES,
                                           &device->fp8[1][one], error);
    }
    return status;
}

static weft_status load_grouped(weft_cuda_device *device, weft_error_text *error)
{
    static const char *const names[2][4] = {
        {"weft_grouped_bf16_n", "weft_grouped_bf16_t", "weft_grouped_f16_n", "weft_grouped_f16_t"},
        {"weft_grouped_bf16_e4m3", "weft_grouped_bf16_e5m2", "weft_grouped_f16_e4m3",
         "weft_grouped_f16_e5m2"}};
    const void *const images[2] = {weft_cuda_kernels_grouped, weft_cuda_kernels_grouped_stored};
    const weft_cuda_driver *cu = device->cu;
    weft_status status = WEFT_OK;

    for (int i = 0; i < 8 && status == WEFT_OK; i++) {
        int stored = i / 4, dtype = i / 2 % 2;
        CUfunction *kernel = stored ? &device->grouped_stored[dtype][i % 2] : &device->grouped[dtype][i % 2];

        if (i % 4 == 0)
            WEFT_CUDA_TRY(cuModuleLoadData(&device->modules[GROUPED + stored], images[stored]));
        status = weft_cuda_load_kernel(cu, device->modules[GROUPED + stored], names[stored][i % 4],
                                       WEFT_CUDA_GROUPED_SHARED, kernel, error);
    }
    return status;
}

static weft_status read_device(int index, weft_cuda_device *device, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    int l2 = 0, count = 0;
    WEFT_CUDA_TRY(cuInit(0));
    WEFT_CUDA_TRY(cuDeviceGetCount(&count));
    if (index < 0 || index >= count)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "there is no GPU %d: this machine has %d", index,
                              count);
    WEFT_CUDA_TRY(cuDriverGetVersion(&device->driver_version));
    WEFT_CUDA_TRY(cuDeviceGet(&device->device, index));
    WEFT_CUDA_TRY(cuDeviceGetName(device->name, sizeof(device->name), device->device));
    WEFT_CUDA_TRY(
        cuDeviceGetAttribute(&device->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device->device));
    WEFT_CUDA_TRY(
        cuDeviceGetAttribute(&device->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device->device));
    WEFT_CUDA_TRY(
        cuDeviceGetAttribute(&device->sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device->device));
    WEFT_CUDA_TRY(cuDeviceGetAttribute(&l2, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device->device));
    WEFT_CUDA_TRY(
        cuDeviceGetAttribute(&device->multicast, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device->device));
    WEFT_CUDA_TRY(cuDeviceGetAttribute(
        &device->vmm_fd, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device->device));
    device->multicast = device->multicast && cu->cuMulticastGetGranularity && cu->cuMulticastCreate &&
                        cu->cuMulticastAddDevice && cu->cuMulticastBindAddr;
    device->l2_bytes = (size_t)l2;
    return WEFT_OK;
}

weft_status weft_cuda_device_open(int index, weft_cuda_device *device, weft_error_text *error)
{
    weft_cuda_device opened = {.cu = weft_cuda_driver_open(error)};
    const weft_cuda_driver *cu = opened.cu;
    weft_status status;
    if (!cu)
        return WEFT_ERR_UNSUPPORTED;
    if (!weft_cuda_has_kernels)
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "this weft was built without its GPU kernels, where no NVIDIA driver was: build it "
            "again here (make), or with WEFT_CUDA_KERNELS=ON");
    status = read_device(index, &opened, error);
    if (status != WEFT_OK)
        return status;
    if (opened.major < 8)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "GPU %d (%s) has compute capability %d.%d; the kernels need 8.0 or later",
                              index, opened.name, opened.major, opened.minor);
    WEFT_CUDA_TRY(cuDevicePrimaryCtxRetain(&opened.context, opened.device));
    status = weft_cuda_check(cu, cu->cuCtxSetCurrent(opened.context), "cuCtxSetCurrent", error);
    opened.hopper = opened.major == 9 && opened.minor == 0;
    opened.crews = opened.sm_count;
    if (status == WEFT_OK)
        status = weft_cuda_check(cu, cu->cuStreamCreate(&opened.uploads, CU_STREAM_NON_BLOCKING),
                                 "cuStreamCreate", error);
    if (status == WEFT_OK)
        status = load_any(&opened, error);
    if (status == WEFT_OK)
        status = load_collectives(&opened, error);
    if (status == WEFT_OK && opened.multicast)
        status = load_multimem(&opened, error);
    if (status == WEFT_OK)
        status = load_moe(&opened, error);
    if (status == WEFT_OK && opened.hopper)
        status = load_hopper(&opened, error);
    if (status == WEFT_OK && opened.hopper)
        status = load_splitk(&opened, error);
    if (status == WEFT_OK && opened.hopper)
        status = load_grouped(&opened, error);
    if (status == WEFT_OK && opened.hopper)
        status = load_fp8(&opened, error);
    if (status != WEFT_OK) {
        weft_cuda_device_close(&opened);
        return status;
    }
    *device = opened;
    return WEFT_OK;
}

static weft_status count_gpus(int *count, weft_error_text *error)
{
    const weft_cuda_driver *cu = weft_cuda_driver_open(error);
    if (!cu)
        return WEFT_ERR_UNSUPPORTED;
    WEFT_CUDA_TRY(cuInit(0));
    WEFT_CUDA_TRY(cuDeviceGetCount(count));
    return WEFT_OK;
}

static weft_status open_aside(int index, weft_cuda_device *device, weft_error_text *error)
{
    const weft_cuda_driver *cu = weft_cuda_driver_open(error);
    CUcontext before = NULL;
    if (cu && cu->cuInit(0) == CUDA_SUCCESS)
        cu->cuCtxGetCurrent(&before);
    weft_status status = weft_cuda_device_open(index, device, error);
    if (cu)
        cu->cuCtxSetCurrent(before);
    return status;
}

weft_cuda_source weft_cuda_gpus = {count_gpus, open_aside};

void weft_cuda_device_close(weft_cuda_device *device)
{
    if (device->uploads)
        device->cu->cuStreamDestroy(device->uploads);
    for (size_t i = 0; i < sizeof(device->modules) / sizeof(device->modules[0]); i++)
        if (device->modules[i])
            device->cu->cuModuleUnload(device->modules[i]);
    device->cu->cuDevicePrimaryCtxRelease(device->device);
    *device = (weft_cuda_device){0};
}

bool weft_cuda_describe(char *text, size_t bytes)
{
    weft_error_text error = {0};
    weft_cuda_device device = {.cu = weft_cuda_driver_open(&error)};
    if (!weft_cuda_has_kernels) {
        snprintf(text, bytes, "built without its kernels, where no NVIDIA driver was: make compiles them");
        return false;
    }
    if (!device.cu || read_device(0, &device, &error) != WEFT_OK) {
        snprintf(text, bytes, "built in, but unusable here: %s", error.text);
        return false;
    }
    snprintf(text, bytes, "%s, compute capability %d.%d, %d SMs, %zu MiB L2, driver CUDA %d.%d, %s, %s",
             device.name, device.major, device.minor, device.sm_count, device.l2_bytes >> 20,
             device.driver_version / 1000, device.driver_version % 1000 / 10,
             device.vmm_fd ? "shares memory by descriptor" : "no shared memory",
             device.multicast ? "multicast" : "no multicast");
    return true;
}
