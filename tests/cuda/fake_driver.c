/* The fake GPU's driver calls. See fake_gpu.h. */
#include "fake_cublaslt.h"
#include "fake_gpu.h"
#include "fake_ladder.h"
#include "fake_grouped.h"

#include "core/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STREAMS_MAX = 64, GRAIN = 4096 };

static struct {
    _Atomic int streams;
    const char *broken;
    _Atomic int uses;
    int devices, crews;
    bool hopper, atomics;
    _Atomic bool capturing;
} fake;

/* What the driver forbids while anybody captures, unless the calling thread has said that it knows. */
static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

#define NOT_IN_CAPTURE()                                                                                     \
    if (fake.capturing && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED)                                    \
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

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

static bool breaks(const char *call)
{
    return fake.broken && strcmp(fake.broken, call) == 0 && --fake.uses < 0;
}

#define BREAK(call)                                                                                          \
    if (breaks(#call))                                                                                       \
    return CUDA_ERROR_UNKNOWN

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

static CUresult fake_can_access(int *can, CUdevice from, CUdevice to)
{
    (void)from, (void)to;
    *can = !breaks("peer access");
    return CUDA_SUCCESS;
}

static CUresult fake_total(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

/* ---- graphs: kernels of collectives, of mixture of experts and grouped products, each again on its stream
 */

enum { NODES_MAX = 1024 };
enum {
    SUMS_KERNEL = 910,
    EXCHANGE_KERNEL,
    GATE_KERNEL,
    SPLITK_KERNELS = 1000,
    SPLITK_SEND_KERNELS = 2000,
    LADDER_FUNCTIONS = 3000
}; /* the first of them, as functions */

typedef struct fake_node {
    CUfunction function;
    unsigned grid;
    CUstream stream;
    weft_cuda_moe lane;
    weft_cuda_moe_args call;
    weft_cuda_moe_link link;
    weft_cuda_grouped_launch grouped;
    weft_cuda_args collective;
    int32_t reduction;
    uint64_t *runs;
    weft_cuda_packets packets;
    ladder_args ladder;
} fake_node;

typedef struct fake_graph {
    int count;
    fake_node nodes[NODES_MAX];
} fake_graph;

static fake_graph *capturing[STREAMS_MAX]; /* by stream; those of one thread */

static size_t number_of(CUstream stream)
{
    return (size_t)(uintptr_t)stream;
}

enum { COLLECTIVE_KERNEL = 3, PACKETS_KERNEL = 4, PEERS_KERNEL = 900 };

static CUresult fake_node_run(const fake_node *node)
{
    uintptr_t kernel = (uintptr_t)node->function - 6;
    bool room =
        (uintptr_t)node->function >= LADDER_FUNCTIONS
            ? fake_gpu_ladder(&node->ladder, (ladder_kernel)((uintptr_t)node->function - LADDER_FUNCTIONS),
                              node->grid, node->stream)
        : (uintptr_t)node->function == COLLECTIVE_KERNEL
            ? fake_gpu_collective(&node->collective, node->grid, node->reduction, node->stream)
        : (uintptr_t)node->function == GATE_KERNEL
            ? fake_gpu_gate(&node->collective, node->runs, node->stream)
        : (uintptr_t)node->function == PACKETS_KERNEL
            ? fake_gpu_packets(&node->packets, node->grid, node->stream)
        : kernel > WEFT_CUDA_MOE_KERNELS ? fake_grouped(&node->grouped, node->stream)
        : kernel == WEFT_CUDA_MOE_KERNELS
            ? fake_gpu_moe_link(&node->link, node->stream)
            : fake_gpu_moe(&node->lane, &node->call, (weft_gpu_moe_kernel)kernel, node->grid, node->stream);
    return room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_captured_launch(const CUlaunchConfig *config, CUfunction function, void **parameters)
{
    fake_graph *graph = capturing[number_of(config->hStream)];
    fake_node node = {.function = function, .grid = config->gridDimX, .stream = config->hStream};
    if ((uintptr_t)function >= LADDER_FUNCTIONS) {
        node.ladder = *(ladder_args *)parameters[0];
    } else if ((uintptr_t)function == COLLECTIVE_KERNEL) {
        node.collective = *(weft_cuda_args *)parameters[0];
        node.reduction = *(int32_t *)parameters[1];
    } else if ((uintptr_t)function == GATE_KERNEL) {
        node.collective = *(weft_cuda_args *)parameters[0];
        node.runs = *(uint64_t **)parameters[1];
    } else if ((uintptr_t)function == PACKETS_KERNEL) {
        node.packets = *(weft_cuda_packets *)parameters[0];
    } else if ((uintptr_t)function - 6 > WEFT_CUDA_MOE_KERNELS) {
        node.grouped = (weft_cuda_grouped_launch){.grouped = *(weft_cuda_grouped *)parameters[0],
                                                  .b_map = *(CUtensorMap *)parameters[1],
                                                  .few_map = *(CUtensorMap *)parameters[2],
                                                  .many_map = *(CUtensorMap *)parameters[3],
                                                  .clusters = (int)config->gridDimX / WEFT_CUDA_PAIR};
    } else if ((uintptr_t)function - 6 == WEFT_CUDA_MOE_KERNELS) {
        node.link = *(weft_cuda_moe_link *)parameters[0];
    } else {
        node.lane = *(weft_cuda_moe *)parameters[0];
        node.call = *(weft_cuda_moe_args *)parameters[1];
    }
    if (!graph)
        return fake_node_run(&node);
    if (graph->count == NODES_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->nodes[graph->count++] = node;
    return CUDA_SUCCESS;
}

static CUresult fake_begin_capture(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    capturing[number_of(stream)] = calloc(1, sizeof(fake_graph));
    return CUDA_SUCCESS;
}

static CUresult fake_end_capture(CUstream stream, CUgraph *graph)
{
    fake_graph *made = capturing[number_of(stream)];
    for (int i = 0; i < STREAMS_MAX; i++)
        if (capturing[i] == made)
            capturing[i] = NULL;
    *graph = (CUgraph)made;
    return CUDA_SUCCESS;
}

static CUresult fake_instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    *exec = (CUgraphExec)graph;
    return CUDA_SUCCESS;
}

static CUresult fake_graph_launch(CUgraphExec exec, CUstream stream)
{
    const fake_graph *graph = (const fake_graph *)exec;
    CUresult result = CUDA_SUCCESS;
    (void)stream;
    for (int i = 0; i < graph->count && result == CUDA_SUCCESS; i++)
        result = fake_node_run(&graph->nodes[i]);
    return result;
}

static CUresult fake_exec_destroy(CUgraphExec exec)
{
    (void)exec;
    return CUDA_SUCCESS;
}

static CUresult fake_graph_destroy(CUgraph graph)
{
    free(graph);
    return CUDA_SUCCESS;
}

/* At once, in the calling thread. Broken, it comes and does not wait: always, or the first times. */
static void fake_rehearse(const weft_cuda_rehearsal *r)
{
    if (!r->arrived)
        return;
    int64_t began = weft_clock_ns();
    bool once = fake.broken && strcmp(fake.broken, "some meetings") == 0 && --fake.uses >= 0, met = false;
    __atomic_fetch_add(r->arrived, 1, __ATOMIC_ACQ_REL); /* partner: the load below */
    for (bool waits = !once && !breaks("all meetings"); waits && !met;
         waits = weft_clock_ns() - began < (int64_t)r->deadline_ns)
        met = __atomic_load_n(r->arrived, __ATOMIC_ACQUIRE) >= r->want;
    *r->met = met;
}

static _Atomic uint64_t streams_used;

uint64_t fake_gpu_take_streams(void)
{
    return atomic_exchange(&streams_used, 0);
}

static CUresult fake_launch_kernel(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                   void **extra)
{
    bool hopper = function != NULL; /* as fake_gpu() set it */
    const weft_cuda_args *args = parameters[0];
    (void)extra;
    BREAK(cuLaunchKernelEx);
    streams_used |= (uint64_t)1 << ((uintptr_t)config->hStream % STREAMS_MAX);
    if (function == (CUfunction)(uintptr_t)2) {
        fake_rehearse(parameters[0]);
        return CUDA_SUCCESS;
    }
    if ((uintptr_t)function == COLLECTIVE_KERNEL || (uintptr_t)function == PACKETS_KERNEL ||
        (uintptr_t)function == GATE_KERNEL || (uintptr_t)function >= LADDER_FUNCTIONS)
        return fake_captured_launch(config, function, parameters);
    if ((uintptr_t)function >= PEERS_KERNEL && (uintptr_t)function <= PEERS_KERNEL + FAKE_LINK_LINES)
        return fake_gpu_peers(parameters[0], (fake_link_kind)((uintptr_t)function - PEERS_KERNEL),
                              config->gridDimX, config->hStream)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_OUT_OF_MEMORY;
    if (function == (CUfunction)(uintptr_t)SUMS_KERNEL)
        return fake_gpu_sums(args, config->gridDimX, config->hStream) ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_OUT_OF_MEMORY;
    if (function == (CUfunction)(uintptr_t)5) {
        fake_gpu_repitch(parameters[0]);
        return CUDA_SUCCESS;
    }
    if (function == (CUfunction)(uintptr_t)EXCHANGE_KERNEL)
        return fake_gpu_exchange(parameters[0], config->hStream) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if ((uintptr_t)function >= SPLITK_KERNELS) {
        bool sends = (uintptr_t)function >= SPLITK_SEND_KERNELS;
        int kernel = (int)((uintptr_t)function - (sends ? SPLITK_SEND_KERNELS : SPLITK_KERNELS));
        return fake_gpu_splitk(parameters[0], sends ? parameters[1] : NULL, kernel / 2, kernel % 2,
                               config->gridDimX, config->attrs[0].value.clusterDim.x, config->numAttrs > 1,
                               config->hStream)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if ((uintptr_t)function >= 6)
        return fake_captured_launch(config, function, parameters);
    return fake_gpu_launch(args, config->gridDimX / (hopper && args->tile_m > 128 ? 2 : 1), hopper,
                           config->numAttrs > 0, config->hStream)
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Modules: of the benches alone, whose kernels go by name; those of the library are there with the device. */
static CUresult fake_load(CUmodule *module, const void *image)
{
    *module = (CUmodule)(uintptr_t)image;
    return CUDA_SUCCESS;
}

static CUresult fake_unload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS;
}

static CUresult fake_function(CUfunction *function, CUmodule module, const char *name)
{
    int kernel = fake_ladder_find(name);
    (void)module;
    *function = (CUfunction)(uintptr_t)(LADDER_FUNCTIONS + kernel);
    return kernel >= 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

/* The ranges of addresses that were reserved or allocated: what lies outside them is host memory to this
 * driver. */
enum { RANGES_MAX = 1024 };
static struct {
    _Atomic(char *) begin;
    size_t bytes;
} ranges[RANGES_MAX];

static int owner = -1; /* the GPU that all memory is said to be on; -1: each is where it was made */

void fake_gpu_own(int device)
{
    owner = device;
}

static void note_range(void *range, size_t bytes)
{
    for (int i = 0; i < RANGES_MAX; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&ranges[i].begin, &none, range)) {
            ranges[i].bytes = bytes;
            return;
        }
    }
}

static void forget_range(void *range)
{
    for (int i = 0; i < RANGES_MAX; i++) {
        char *begin = range;
        atomic_compare_exchange_strong(&ranges[i].begin, &begin, NULL);
    }
}

static CUresult fake_alloc_async(CUdeviceptr *at, size_t bytes, CUstream stream)
{
    (void)stream;
    BREAK(cuMemAllocAsync);
    NOT_IN_CAPTURE();
    *at = (CUdeviceptr)(uintptr_t)aligned_alloc(1024, (bytes + 1023) / 1024 * 1024);
    if (*at)
        note_range((void *)(uintptr_t)*at, bytes);
    return *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_alloc(CUdeviceptr *at, size_t bytes)
{
    return fake_alloc_async(at, bytes, NULL);
}

static CUresult fake_free_async(CUdeviceptr at, CUstream stream)
{
    (void)stream;
    forget_range((void *)(uintptr_t)at);
    free((void *)(uintptr_t)at);
    return CUDA_SUCCESS;
}

static CUresult fake_free(CUdeviceptr at)
{
    return fake_free_async(at, NULL);
}

static CUresult fake_alloc_host(void **at, size_t bytes)
{
    *at = calloc(1, bytes);
    return *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_free_host(void *at)
{
    free(at);
    return CUDA_SUCCESS;
}

/* What is mapped where: the GPU that has the memory, and those that were given access. */
enum { MAPPINGS_MAX = 4096 };
static struct {
    pthread_mutex_t lock;
    struct mapping {
        char *begin;
        size_t bytes;
        int owner;
        uint32_t access;
    } all[MAPPINGS_MAX];
    int count;
} mapped = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The mapping that an address is in: a copy, of 0 bytes when there is none. */
static struct mapping mapping_at(const void *at)
{
    struct mapping found = {0};
    pthread_mutex_lock(&mapped.lock);
    for (int i = 0; i < mapped.count && !found.bytes; i++)
        if ((const char *)at >= mapped.all[i].begin &&
            (const char *)at < mapped.all[i].begin + mapped.all[i].bytes)
            found = mapped.all[i];
    pthread_mutex_unlock(&mapped.lock);
    return found;
}

bool fake_gpu_reaches(int device, const void *at, bool adds)
{
    struct mapping m = mapping_at(at);
    if (!m.bytes || device < 0)
        return true;
    return m.access & 1u << device && (!adds || m.owner == device || fake.atomics);
}

static struct {
    CUdeviceptr begin;
    size_t bytes;
} allocation;

void fake_gpu_allocation(const void *begin, size_t bytes)
{
    allocation.begin = (CUdeviceptr)(uintptr_t)begin;
    allocation.bytes = bytes;
}

static CUresult fake_pointer(void *value, CUpointer_attribute attribute, CUdeviceptr at)
{
    bool inside = at >= allocation.begin && at - allocation.begin < allocation.bytes;
    if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
        *(unsigned *)value = inside;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
        *(CUdeviceptr *)value = allocation.begin;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
        *(size_t *)value = allocation.bytes;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID) { /* asked of what is never freed */
        *(unsigned long long *)value = 1;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL && owner < 0) {
        struct mapping m = mapping_at((void *)(uintptr_t)at);
        *(int *)value = m.owner;
        return m.bytes ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    }
    for (int i = 0; i < RANGES_MAX; i++) {
        char *begin = ranges[i].begin;
        if (begin && (char *)(uintptr_t)at >= begin && (char *)(uintptr_t)at < begin + ranges[i].bytes) {
            *(unsigned *)value =
                attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? (unsigned)owner : CU_MEMORYTYPE_DEVICE;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_granularity(size_t *grain, const CUmemAllocationProp *prop,
                                 CUmemAllocationGranularity_flags flags)
{
    (void)prop, (void)flags;
    *grain = GRAIN;
    return CUDA_SUCCESS;
}

static CUresult fake_reserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr where,
                             unsigned long long flags)
{
    void *range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    (void)alignment, (void)where, (void)flags;
    BREAK(cuMemAddressReserve);
    if (range == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    note_range(range, bytes);
    *at = (CUdeviceptr)(uintptr_t)range;
    return CUDA_SUCCESS;
}

static CUresult fake_release_range(CUdeviceptr at, size_t bytes)
{
    forget_range((void *)(uintptr_t)at);
    munmap((void *)(uintptr_t)at, bytes);
    return CUDA_SUCCESS;
}

/* A handle is a memory file; its name says on which GPU, in any process. */
static CUresult fake_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    char name[32];
    int fd;
    (void)flags;
    BREAK(cuMemCreate);
    snprintf(name, sizeof(name), "fake_gpu_%d", prop->location.id);
    fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUmemGenericAllocationHandle)fd;
    return CUDA_SUCCESS;
}

static CUresult fake_export(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                            unsigned long long flags)
{
    (void)type, (void)flags;
    BREAK(cuMemExportToShareableHandle);
    *(int *)out = dup((int)handle);
    return *(int *)out < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult fake_import(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
    int copy = dup((int)(uintptr_t)fd);
    (void)type;
    BREAK(cuMemImportFromShareableHandle);
    *handle = (CUmemGenericAllocationHandle)copy;
    return copy < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult fake_release(CUmemGenericAllocationHandle handle)
{
    close((int)handle);
    return CUDA_SUCCESS;
}

static CUresult fake_map_memory(CUdeviceptr at, size_t bytes, size_t offset,
                                CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    char link[64], name[64] = {0};
    int device = -1;
    (void)flags;
    BREAK(cuMemMap);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", (int)handle);
    if (readlink(link, name, sizeof(name) - 1) < 0 || sscanf(name, "/memfd:fake_gpu_%d", &device) != 1 ||
        mapped.count == MAPPINGS_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)handle,
             (off_t)offset) == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mapped.lock);
    mapped.all[mapped.count++] = (struct mapping){(char *)(uintptr_t)at, bytes, device, 0};
    pthread_mutex_unlock(&mapped.lock);
    return CUDA_SUCCESS;
}

static CUresult fake_unmap(CUdeviceptr at, size_t bytes)
{
    pthread_mutex_lock(&mapped.lock);
    for (int i = 0; i < mapped.count; i++)
        if (mapped.all[i].begin == (char *)(uintptr_t)at)
            mapped.all[i--] = mapped.all[--mapped.count];
    pthread_mutex_unlock(&mapped.lock);
    mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
    return CUDA_SUCCESS;
}

static CUresult fake_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    pthread_mutex_lock(&mapped.lock);
    for (int i = 0; i < mapped.count; i++)
        for (size_t j = 0; j < count && mapped.all[i].begin == (char *)(uintptr_t)at; j++)
            mapped.all[i].access |= 1u << access[j].location.id;
    pthread_mutex_unlock(&mapped.lock);
    (void)bytes;
    return CUDA_SUCCESS;
}

/* ---- copies and streams: a copy from or to a stream waits for what was launched there ---------------- */

static CUresult fake_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    BREAK(cuMemcpyAsync);
    fake_gpu_finish(stream);
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_copy_lines(const CUDA_MEMCPY2D *c, CUstream stream)
{
    BREAK(cuMemcpy2DAsync);
    fake_gpu_finish(stream);
    if (c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < c->Height; i++)
        memcpy((char *)(uintptr_t)c->dstDevice + i * c->dstPitch,
               (const char *)(uintptr_t)c->srcDevice + i * c->srcPitch, c->WidthInBytes);
    return CUDA_SUCCESS;
}

static CUresult fake_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    fake_gpu_finish(stream);
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    fake_gpu_finish(stream);
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_memset(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream)
{
    fake_gpu_finish(stream);
    memset((void *)(uintptr_t)at, value, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
    (void)flags;
    *stream = (CUstream)(uintptr_t)(2 + fake.streams++ % (STREAMS_MAX - 2)); /* 1: CU_STREAM_LEGACY */
    return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_synchronize(CUstream stream)
{
    NOT_IN_CAPTURE();
    fake_gpu_finish(stream);
    return CUDA_SUCCESS;
}

static CUresult fake_stream_query(CUstream stream)
{
    return fake_gpu_busy(stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult fake_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    *status = capturing[number_of(stream)] ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* An event remembers its stream: it has happened when the stream is through. */
typedef struct fake_event {
    CUstream stream;
    int64_t ns;
} fake_event;

static CUresult fake_event_create(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(fake_event));
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_event_destroy(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

static CUresult fake_event_record(CUevent event, CUstream stream)
{
    *(fake_event *)event = (fake_event){stream, weft_clock_ns()};
    return CUDA_SUCCESS;
}

static CUresult fake_event_query(CUevent event)
{
    return fake_stream_query(((fake_event *)event)->stream);
}

/* What a stream waits for is finished at once: nothing that is launched later may be needed for it. */
static CUresult fake_stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    CUstream other = ((fake_event *)event)->stream;
    (void)flags;
    if (capturing[number_of(other)])
        capturing[number_of(stream)] = capturing[number_of(other)];
    else
        fake_gpu_finish(other);
    return CUDA_SUCCESS;
}

static CUresult fake_elapsed(float *ms, CUevent begin, CUevent end)
{
    *ms = (float)(((fake_event *)end)->ns - ((fake_event *)begin)->ns) * 1e-6f;
    return CUDA_SUCCESS;
}

static CUresult fake_encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                            const cuuint64_t *extents, const cuuint64_t *pitch, const cuuint32_t *box,
                            const cuuint32_t *steps, CUtensorMapInterleave interleave,
                            CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                            CUtensorMapFloatOOBfill fill)
{
    (void)rank, (void)steps, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    fake_map made = {base,
                     extents[0],
                     extents[1],
                     pitch[0],
                     box[0],
                     box[1],
                     type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 ? WEFT_F16
                     : type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? WEFT_FP8_E4M3
                                                             : WEFT_BF16};
    if ((uintptr_t)base % 16 || pitch[0] % 16 || box[0] > 256 || box[1] > 256)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(map, &made, sizeof(made));
    return CUDA_SUCCESS;
}

weft_cuda_device fake_gpu(int crews, bool hopper, uint64_t seed)
{
    static const weft_cuda_driver calls = {
        .cuGetErrorName = fake_error_name,
        .cuGetErrorString = fake_error_string,
        .cuCtxSetCurrent = fake_set_context,
        .cuCtxPushCurrent = fake_push,
        .cuCtxPopCurrent = fake_pop,
        .cuDevicePrimaryCtxRelease = fake_release_context,
        .cuDeviceGet = fake_device,
        .cuDeviceGetCount = fake_device_count,
        .cuDeviceGetUuid = fake_uuid,
        .cuDeviceGetP2PAttribute = fake_p2p,
        .cuDeviceCanAccessPeer = fake_can_access,
        .cuDeviceTotalMem = fake_total,
        .cuLaunchKernelEx = fake_launch_kernel,
        .cuMemAlloc = fake_alloc,
        .cuMemAllocAsync = fake_alloc_async,
        .cuMemFreeAsync = fake_free_async,
        .cuMemAllocHost = fake_alloc_host,
        .cuMemFreeHost = fake_free_host,
        .cuPointerGetAttribute = fake_pointer,
        .cuMemGetAllocationGranularity = fake_granularity,
        .cuMemAddressReserve = fake_reserve,
        .cuMemAddressFree = fake_release_range,
        .cuMemCreate = fake_create,
        .cuMemRelease = fake_release,
        .cuMemMap = fake_map_memory,
        .cuMemUnmap = fake_unmap,
        .cuMemSetAccess = fake_access,
        .cuMemExportToShareableHandle = fake_export,
        .cuMemImportFromShareableHandle = fake_import,
        .cuMemcpyAsync = fake_copy,
        .cuMemcpy2DAsync = fake_copy_lines,
        .cuMemcpyHtoDAsync = fake_to_device,
        .cuMemcpyDtoHAsync = fake_to_host,
        .cuMemsetD8Async = fake_memset,
        .cuStreamCreate = fake_stream_create,
        .cuStreamDestroy = fake_stream_destroy,
        .cuStreamSynchronize = fake_stream_synchronize,
        .cuStreamQuery = fake_stream_query,
        .cuStreamIsCapturing = fake_capturing,
        .cuThreadExchangeStreamCaptureMode = fake_exchange_mode,
        .cuStreamBeginCapture = fake_begin_capture,
        .cuStreamEndCapture = fake_end_capture,
        .cuGraphInstantiate = fake_instantiate,
        .cuGraphLaunch = fake_graph_launch,
        .cuGraphExecDestroy = fake_exec_destroy,
        .cuGraphDestroy = fake_graph_destroy,
        .cuEventElapsedTime = fake_elapsed,
        .cuMemFree = fake_free,
        .cuModuleLoadData = fake_load,
        .cuModuleUnload = fake_unload,
        .cuModuleGetFunction = fake_function,
        .cuStreamWaitEvent = fake_stream_wait,
        .cuEventCreate = fake_event_create,
        .cuEventDestroy = fake_event_destroy,
        .cuEventRecord = fake_event_record,
        .cuEventQuery = fake_event_query,
        .cuTensorMapEncodeTiled = fake_encode,
    };
    weft_cuda_device device = {.cu = &calls,
                               .name = "a fake GPU",
                               .hopper = hopper,
                               .crews = crews,
                               .vmm_fd = 1,
                               .sm_count = hopper ? 2 * crews : crews};
    CUfunction *walkers = &device.walkers[0][0][0];
    for (size_t i = 0; i < sizeof(device.walkers) / sizeof(*walkers); i++)
        walkers[i] = (CUfunction)(uintptr_t)1;
    for (int i = 0; i < 4; i++)
        device.fp8[i / 2][i % 2] = (CUfunction)(uintptr_t)1;
    device.rehearse = (CUfunction)(uintptr_t)2;
    for (int i = 0; i <= WEFT_FP8_E5M2; i++) {
        device.collective[i] = (CUfunction)(uintptr_t)3;
        device.packets[i] = (CUfunction)(uintptr_t)4;
        device.lines[0][i] = device.lines[1][i] = device.packets[i];
    }
    for (int i = 0; i < 2 * 2 * WEFT_CUDA_SPLITK_TILE_COUNT; i++)
        device.splitk[i / 2 / WEFT_CUDA_SPLITK_TILE_COUNT][i / 2 % WEFT_CUDA_SPLITK_TILE_COUNT][i % 2] =
            (CUfunction)(uintptr_t)(SPLITK_KERNELS + i % (2 * WEFT_CUDA_SPLITK_TILE_COUNT));
    for (int i = 0; i < 2 * 2 * WEFT_CUDA_SPLITK_TILE_COUNT; i++)
        device.splitk_send[i / 2 / WEFT_CUDA_SPLITK_TILE_COUNT][i / 2 % WEFT_CUDA_SPLITK_TILE_COUNT][i % 2] =
            (CUfunction)(uintptr_t)(SPLITK_SEND_KERNELS + i % (2 * WEFT_CUDA_SPLITK_TILE_COUNT));
    device.exchange = device.exchange_link = (CUfunction)(uintptr_t)EXCHANGE_KERNEL;
    device.repitch = (CUfunction)(uintptr_t)5;
    device.gate = (CUfunction)(uintptr_t)GATE_KERNEL;
    device.sums = device.sums_link = (CUfunction)(uintptr_t)SUMS_KERNEL;
    for (int i = 0; i <= WEFT_BF16; i++)
        device.collective_link[i] = device.collective[i];
    for (int i = 0; i < WEFT_CUDA_MOE_KERNELS; i++)
        device.moe[i] = (CUfunction)(uintptr_t)(6 + i);
    weft_cublaslt_source = fake_cublaslt;
    device.moe_link = (CUfunction)(uintptr_t)(6 + WEFT_CUDA_MOE_KERNELS);
    for (int i = 0; i < 4; i++)
        device.grouped[i / 2][i % 2] = (CUfunction)(uintptr_t)(7 + WEFT_CUDA_MOE_KERNELS + i);
    for (int i = 0; i < 3; i++)
        device.link[i] = (CUfunction)(uintptr_t)(PEERS_KERNEL + i);
    for (int i = 0; i < WEFT_CUDA_LINK_WALKERS; i++)
        device.walkers_link[i] = device.walkers[0][i][0];
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
    *device = fake_gpu(fake.crews, fake.hopper, 11);
    device->device = index;
    device->context = (CUcontext)(uintptr_t)(index + 1);
    device->cu->cuStreamCreate(&device->uploads, 0);
    return WEFT_OK;
}

void fake_gpu_install(int count, int crews, bool hopper)
{
    fake.devices = count;
    fake.crews = crews;
    fake.hopper = hopper;
    weft_cuda_gpus = (weft_cuda_source){fake_count, fake_open};
}
