/* The fake GPU's memory: allocations, ranges that peers map, copies. See fake_gpu.h. */
#include "fake_driver.h"
#include "fake_gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GRAIN = 4096 };

/* The ranges of addresses that were reserved or allocated, pinned memory too: what lies outside them this
 * driver does not know. */
enum { RANGES_MAX = 1024 };
static struct {
    _Atomic(char *) begin;
    size_t bytes;
    CUmemorytype type;
} ranges[RANGES_MAX];

static int owner = -1; /* the GPU that all memory is said to be on; -1: each is where it was made */

void fake_gpu_own(int device)
{
    owner = device;
}

static void note_range(void *range, size_t bytes, CUmemorytype type)
{
    for (int i = 0; i < RANGES_MAX; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&ranges[i].begin, &none, range)) {
            ranges[i].bytes = bytes;
            ranges[i].type = type;
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
        note_range((void *)(uintptr_t)*at, bytes, CU_MEMORYTYPE_DEVICE);
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
    if (*at)
        note_range(*at, bytes, CU_MEMORYTYPE_HOST);
    return *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_free_host(void *at)
{
    forget_range(at);
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
        struct multicast *object; /* NULL: memory of the owner */
    } all[MAPPINGS_MAX];
    int count;
} mapped = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A multicast object, of the ranks of one process: the GPUs that joined, and what each has put behind it. */
enum { BOUND_MAX = 64 };
struct multicast {
    int devices, joined, bound_count;
    struct {
        size_t offset, bytes;
        char *at;
    } bound[BOUND_MAX];
};

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
    return m.access & 1u << device && (!adds || m.owner == device || fake_adds_abroad());
}

int fake_gpu_switched(const void *at, void *addresses[])
{
    struct mapping m = mapping_at(at);
    size_t offset = (size_t)((const char *)at - m.begin);
    int found = 0;
    if (!m.object)
        return 0;
    for (int i = 0; i < m.object->bound_count; i++)
        if (offset >= m.object->bound[i].offset &&
            offset - m.object->bound[i].offset < m.object->bound[i].bytes)
            addresses[found++] = m.object->bound[i].at + (offset - m.object->bound[i].offset);
    return found == m.object->devices ? found : 0;
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
                attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? (unsigned)owner : (unsigned)ranges[i].type;
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
    note_range(range, bytes, CU_MEMORYTYPE_DEVICE);
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

/* A handle of a multicast object is a memory file that says where it is; those of memory say nothing. */
static struct multicast *multicast_of(CUmemGenericAllocationHandle handle)
{
    char link[64], name[64] = {0};
    struct multicast *object = NULL;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", (int)handle);
    if (readlink(link, name, sizeof(name) - 1) > 0 && strncmp(name, "/memfd:fake_multicast", 21) == 0 &&
        pread((int)handle, &object, sizeof(object), 0) != sizeof(object))
        return NULL;
    return object;
}

static CUresult fake_multicast_grain(size_t *grain, const CUmulticastObjectProp *prop,
                                     CUmulticastGranularity_flags flags)
{
    (void)prop, (void)flags;
    *grain = GRAIN;
    return CUDA_SUCCESS;
}

static CUresult fake_multicast_create(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
    struct multicast *object = calloc(1, sizeof(*object)); /* for as long as the test runs */
    int fd = memfd_create("fake_multicast", MFD_CLOEXEC);
    BREAK(cuMulticastCreate);
    if (!object || fd < 0 || write(fd, &object, sizeof(object)) != sizeof(object))
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->devices = (int)prop->numDevices;
    *handle = (CUmemGenericAllocationHandle)fd;
    return CUDA_SUCCESS;
}

static CUresult fake_multicast_add(CUmemGenericAllocationHandle handle, CUdevice device)
{
    struct multicast *object = multicast_of(handle);
    (void)device;
    BREAK(cuMulticastAddDevice);
    if (!object)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mapped.lock);
    object->joined++;
    pthread_mutex_unlock(&mapped.lock);
    return CUDA_SUCCESS;
}

/* Refuses what the driver refuses: memory before all GPUs have joined. */
static CUresult fake_multicast_bind(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr at,
                                    size_t bytes, unsigned long long flags)
{
    struct multicast *object = multicast_of(handle);
    struct mapping m = mapping_at((void *)(uintptr_t)at);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    (void)flags;
    BREAK(cuMulticastBindAddr);
    pthread_mutex_lock(&mapped.lock);
    if (object && object->joined == object->devices && object->bound_count < BOUND_MAX && m.bytes == bytes &&
        m.owner == fake_gpu_current()) {
        int i = object->bound_count++;
        object->bound[i].offset = offset;
        object->bound[i].bytes = bytes;
        object->bound[i].at = (char *)(uintptr_t)at;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mapped.lock);
    return result;
}

static CUresult fake_map_memory(CUdeviceptr at, size_t bytes, size_t offset,
                                CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    char link[64], name[64] = {0};
    int device = -1;
    (void)flags;
    BREAK(cuMemMap);
    struct multicast *object = multicast_of(handle);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", (int)handle);
    if (mapped.count == MAPPINGS_MAX || readlink(link, name, sizeof(name) - 1) < 0 ||
        (!object && sscanf(name, "/memfd:fake_gpu_%d", &device) != 1))
        return CUDA_ERROR_INVALID_VALUE;
    if (object) { /* nothing is there: only the switch's own instructions may touch it */
        pthread_mutex_lock(&mapped.lock);
        mapped.all[mapped.count++] = (struct mapping){(char *)(uintptr_t)at, bytes, -1, 0, object};
        pthread_mutex_unlock(&mapped.lock);
        return CUDA_SUCCESS;
    }
    if (mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)handle,
             (off_t)offset) == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mapped.lock);
    mapped.all[mapped.count++] = (struct mapping){(char *)(uintptr_t)at, bytes, device, 0, NULL};
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

/* ---- copies: of the GPU's memory in the order of their stream; one from or to the host waits for it ---- */

static void copy_lines(void *argument)
{
    fake_copied *c = argument;

    for (size_t i = 0; i < c->lines; i++)
        if (c->from)
            memmove(c->to + i * c->to_pitch, c->from + i * c->from_pitch, c->bytes);
        else
            memset(c->to + i * c->to_pitch, c->value, c->bytes);
    free(c);
}

CUresult fake_copy_enqueue(const fake_copied *copied, CUstream stream)
{
    fake_copied *copy = malloc(sizeof(*copy));

    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *copied;
    return fake_gpu_call(copy_lines, copy, stream) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult enqueue(fake_copied copied, CUstream stream)
{
    return fake_is_capturing(stream) ? fake_captured_copy(&copied, stream)
                                     : fake_copy_enqueue(&copied, stream);
}

static CUresult fake_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    BREAK(cuMemcpyAsync);
    return enqueue((fake_copied){(char *)(uintptr_t)to, (const char *)(uintptr_t)from, bytes, 1, 0, 0, 0},
                   stream);
}

static CUresult fake_copy_lines(const CUDA_MEMCPY2D *c, CUstream stream)
{
    BREAK(cuMemcpy2DAsync);
    if (c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes)
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue((fake_copied){(char *)(uintptr_t)c->dstDevice, (const char *)(uintptr_t)c->srcDevice,
                                 c->WidthInBytes, c->Height, c->dstPitch, c->srcPitch, 0},
                   stream);
}

static CUresult fake_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    fake_gpu_finish(stream);
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    BREAK(cuMemcpyDtoHAsync);
    fake_gpu_finish(stream);
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

static CUresult fake_memset(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream)
{
    return enqueue((fake_copied){(char *)(uintptr_t)at, NULL, bytes, 1, 0, 0, value}, stream);
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

void fake_memory_calls(weft_cuda_driver *calls)
{
    calls->cuMemAlloc = fake_alloc;
    calls->cuMemAllocAsync = fake_alloc_async;
    calls->cuMemFreeAsync = fake_free_async;
    calls->cuMemAllocHost = fake_alloc_host;
    calls->cuMemFreeHost = fake_free_host;
    calls->cuPointerGetAttribute = fake_pointer;
    calls->cuMemGetAllocationGranularity = fake_granularity;
    calls->cuMemAddressReserve = fake_reserve;
    calls->cuMemAddressFree = fake_release_range;
    calls->cuMemCreate = fake_create;
    calls->cuMemRelease = fake_release;
    calls->cuMemMap = fake_map_memory;
    calls->cuMemUnmap = fake_unmap;
    calls->cuMemSetAccess = fake_access;
    calls->cuMemExportToShareableHandle = fake_export;
    calls->cuMemImportFromShareableHandle = fake_import;
    calls->cuMulticastGetGranularity = fake_multicast_grain;
    calls->cuMulticastCreate = fake_multicast_create;
    calls->cuMulticastAddDevice = fake_multicast_add;
    calls->cuMulticastBindAddr = fake_multicast_bind;
    calls->cuMemcpyAsync = fake_copy;
    calls->cuMemcpy2DAsync = fake_copy_lines;
    calls->cuMemcpyHtoDAsync = fake_to_device;
    calls->cuMemcpyDtoHAsync = fake_to_host;
    calls->cuMemsetD8Async = fake_memset;
    calls->cuMemFree = fake_free;
    calls->cuTensorMapEncodeTiled = fake_encode;
}
