/* See emulated.h. The images are made of the library's own sources, with WEFT_LINK, and of link.cu. */
#include "bench/cuda/emulated.h"

#include "run/cuda/embed.h"
#include "run/cuda/walker.h"

#ifdef WEFT_LINK_KERNELS
#define CONTENT(file) ".incbin \"" WEFT_LINK_KERNELS file ".fatbin\"\n"
#else
#define CONTENT(file) ""
#endif

#define EMBED(name)                                                                                          \
    WEFT_CUDA_EMBED(emulated_##name, CONTENT(#name));                                                        \
    extern const char __attribute__((visibility("hidden"))) emulated_##name[]

EMBED(link);
EMBED(collective_link);
EMBED(sums_link);
EMBED(exchange_link);
EMBED(bf16_link);
EMBED(bf16_224_link);
EMBED(bf16_128_link);

enum { PEERS, COLLECTIVE, SUMS, EXCHANGE, WALKERS };

static weft_status load_images(weft_cuda_device *device, weft_error_text *error)
{
    const void *images[WEFT_CUDA_LINK_IMAGES] = {
        emulated_link,      emulated_collective_link, emulated_sums_link,    emulated_exchange_link,
        emulated_bf16_link, emulated_bf16_224_link,   emulated_bf16_128_link};
    const weft_cuda_driver *cu = device->cu;

    for (int i = 0; i < (device->hopper ? WEFT_CUDA_LINK_IMAGES : WALKERS); i++)
        WEFT_CUDA_TRY(cuModuleLoadData(&device->link_modules[i], images[i]));
    return WEFT_OK;
}

static weft_status load_peers(weft_cuda_device *device, weft_error_text *error)
{
    static const char *const names[] = {"weft_link_signals", "weft_link_packets", "weft_link_lines"};
    CUmodule module = device->link_modules[PEERS];
    weft_status status =
        weft_cuda_load_kernel(device->cu, module, "weft_experts_link", 0, &device->moe_link, error);

    for (int i = 2; i >= 0 && status == WEFT_OK; i--)
        status = weft_cuda_load_beside(device->cu, module, names[i], &device->link[i], error);
    return status;
}

static weft_status load_walks(weft_cuda_device *device, weft_error_text *error)
{
    static const char *const names[] = {[WEFT_F32] = "weft_collective_link_f32",
                                        [WEFT_F16] = "weft_collective_link_f16",
                                        [WEFT_BF16] = "weft_collective_link_bf16"};
    const weft_cuda_driver *cu = device->cu;
    const CUmodule *modules = device->link_modules;
    weft_status status =
        weft_cuda_load_kernel(cu, modules[SUMS], "weft_sums_link", 0, &device->sums_link, error);

    if (status == WEFT_OK)
        status = weft_cuda_load_kernel(cu, modules[EXCHANGE], "weft_exchange_link", 0, &device->exchange_link,
                                       error);
    for (int i = 0; i <= WEFT_BF16 && status == WEFT_OK; i++)
        status =
            weft_cuda_load_kernel(cu, modules[COLLECTIVE], names[i], 0, &device->collective_link[i], error);
    for (int i = 0; i < WEFT_CUDA_LINK_WALKERS && status == WEFT_OK && device->hopper; i++)
        status = weft_cuda_load_kernel(cu, modules[WALKERS + i], "weft_walk_bf16_nn", WEFT_CUDA_SHARED_BYTES,
                                       &device->walkers_link[i], error);
    return status;
}

weft_status emulated_load(weft_cuda_device *device, weft_error_text *error)
{
    weft_status status;

    if (device->link[0])
        return WEFT_OK;
    status = load_images(device, error);
    if (status == WEFT_OK)
        status = load_walks(device, error);
    if (status == WEFT_OK)
        status = load_peers(device, error);
    for (int i = 0; i < WEFT_CUDA_LINK_IMAGES && status != WEFT_OK; i++) {
        if (device->link_modules[i])
            device->cu->cuModuleUnload(device->link_modules[i]);
        device->link_modules[i] = NULL;
    }
    return status;
}
