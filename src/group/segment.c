#include "group/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/env.h"
#include "core/round.h"
#include "core/topo.h"

#define SEGMENT_MAGIC 0x32746665772d6773u

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#if defined(__SANITIZE_THREAD__)
#define WEFT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEFT_TSAN 1
#endif
#endif

/* ThreadSanitizer leaves a program little address space, so worlds are small under it. */
#ifdef WEFT_TSAN
enum { WINDOWS = 8 };
static const int64_t heap_most = 32 << 20;
#else
enum { WINDOWS = WEFT_WINDOWS_MAX };
static const int64_t heap_most = INT64_MAX;
#endif
static const int64_t heap_least = 16 << 20;

/* A heap for all that the rank may have, a staggered one for a good part of it, and room for all of it beside
 * them (symm/symm.h). */
static uint64_t stride_of(uint64_t heap_bytes)
{
    return heap_bytes + weft_round_up_bytes(heap_bytes / 4, WEFT_HUGE_BYTES) + heap_bytes;
}

/* The heap with which a window takes a quarter of the address space that the process is limited to (ulimit
 * -v), and all windows half of the file (ulimit -f). */
static int64_t heap_within_limit(int size)
{
    static const struct {
        __rlimit_resource_t which;
        int parts;
    } limits[] = {{RLIMIT_AS, 4}, {RLIMIT_FSIZE, 2 * WINDOWS}};
    int64_t most = INT64_MAX;

    for (int i = 0; i < 2; i++) {
        struct rlimit limit;
        int64_t heap;

        if (getrlimit(limits[i].which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
            continue;
        heap = (int64_t)(limit.rlim_cur / (rlim_t)limits[i].parts / (rlim_t)size / 9 * 4);
        most = weft_min(heap, most);
    }
    return most;
}

weft_status weft_segment_heap(int size, uint64_t *heap_bytes, weft_error_text *error)
{
    int64_t bytes;
    weft_status status = weft_env_bytes(WEFT_ENV_HEAP, &bytes, error);

    if (status != WEFT_OK)
        return status;
    if (bytes == 0) {
        int64_t most = heap_within_limit(size);

        most = weft_min(most, heap_most);
        bytes = weft_topo_memory_bytes() / 4 * 3 / size;
        bytes = weft_max(heap_least, weft_min(bytes, most));
    }
    *heap_bytes = weft_round_up_bytes((uint64_t)bytes, WEFT_HUGE_BYTES);
    return WEFT_OK;
}

/* A process that closed what it did not open may have another file under this number by now. */
static bool is_file(const weft_segment *segment)
{
    struct stat about;

    return segment->fd >= 0 && fstat(segment->fd, &about) == 0 &&
           (uint64_t)about.st_dev == segment->file[0] && (uint64_t)about.st_ino == segment->file[1];
}

/* Reserves addresses for `bytes` of the segment from `at` on, without access. They are aligned to
 * WEFT_HUGE_BYTES, as offsets are, so that huge pages fit. */
static weft_status reserve(const weft_segment *segment, uint64_t at, uint64_t bytes, char **begin,
                           weft_error_text *error)
{
    char *reserved =
        mmap(NULL, bytes + WEFT_HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *base;

    if (segment->fd >= 0 && !is_file(segment)) {
        if (reserved != MAP_FAILED)
            munmap(reserved, bytes + WEFT_HUGE_BYTES);
        return weft_error_set(
            error, WEFT_ERR_SYSTEM,
            "the process has closed the descriptor of its world's memory, of which it needs "
            "more now");
    }
    if (reserved == MAP_FAILED)
        return weft_error_set(error, WEFT_ERR_MEMORY,
                              "cannot reserve %llu MiB of address space for symmetric memory (%s); "
                              "set WEFT_HEAP to a smaller size",
                              (unsigned long long)(bytes >> 20), strerror(errno));
    base = (char *)weft_round_up_bytes((uint64_t)(uintptr_t)reserved, WEFT_HUGE_BYTES);
    if (base > reserved)
        munmap(reserved, (size_t)(base - reserved));
    munmap(base + bytes, (size_t)(reserved + WEFT_HUGE_BYTES - base));
    if (segment->fd >= 0 && mmap(base, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, segment->fd,
                                 (off_t)at) == MAP_FAILED) {
        munmap(base, bytes);
        return weft_error_set(error, WEFT_ERR_MEMORY, "cannot map %llu MiB of symmetric memory: %s",
                              (unsigned long long)(bytes >> 20), strerror(errno));
    }
    madvise(base, bytes, MADV_DONTDUMP);
    *begin = base;
    return WEFT_OK;
}

static uint64_t window_begin(const weft_segment_header *header, int window)
{
    return header->header_bytes + (uint64_t)window * header->window_bytes;
}

static weft_status map_header(weft_segment *segment, uint64_t bytes, weft_error_text *error)
{
    char *begin;
    weft_status status = reserve(segment, 0, bytes, &begin, error);

    if (status != WEFT_OK)
        return status;
    if (!weft_segment_grant(begin, bytes)) {
        munmap(begin, bytes);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a world: %s", strerror(errno));
    }
    segment->header = (weft_segment_header *)begin;
    memset((void *)segment->windows, 0, sizeof(segment->windows));
    return WEFT_OK;
}

weft_status weft_segment_map(weft_segment *segment, int window, weft_error_text *error)
{
    const weft_segment_header *header = segment->header;
    char *begin;
    weft_status status;

    if (segment->windows[window])
        return WEFT_OK;
    status = reserve(segment, window_begin(header, window), header->window_bytes, &begin, error);
    if (status != WEFT_OK)
        return status;
    if (!weft_segment_grant(begin, (uint64_t)header->size * WEFT_HUGE_BYTES)) {
        munmap(begin, header->window_bytes);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a group: %s", strerror(errno));
    }
    segment->windows[window] = begin;
    return WEFT_OK;
}

static bool cast(void *memory, uint64_t bytes, int access)
{
    return mmap(memory, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
               MAP_FAILED &&
           madvise(memory, bytes, MADV_DONTDUMP) == 0;
}

bool weft_segment_cast(const weft_segment *segment, int rank, int window)
{
    return cast(weft_segment_control(segment, rank, window), WEFT_HUGE_BYTES, PROT_READ | PROT_WRITE) &&
           cast(weft_segment_slot(segment, rank, window), segment->header->stride, PROT_NONE);
}

/* The pages that memory lies on. */
static uint64_t whole_pages(char **memory, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)*memory / page * page;
    uint64_t covered = weft_round_up_bytes((uintptr_t)*memory + bytes, page) - begin;

    *memory = (char *)begin;
    return covered;
}

bool weft_segment_grant(void *memory, uint64_t bytes)
{
    char *begin = memory;

    bytes = whole_pages(&begin, bytes);
    return mprotect(begin, bytes, PROT_READ | PROT_WRITE) == 0;
}

static void note_file(weft_segment *segment)
{
    struct stat about;

    if (fstat(segment->fd, &about) == 0) {
        segment->file[0] = (uint64_t)about.st_dev;
        segment->file[1] = (uint64_t)about.st_ino;
    }
}

static weft_status make_file(weft_segment *segment, uint64_t bytes, weft_error_text *error)
{
    struct rlimit file;

    /* Asked for before: a file that is too large is a signal, which would end the process. */
    if (getrlimit(RLIMIT_FSIZE, &file) == 0 && file.rlim_cur != RLIM_INFINITY && bytes > file.rlim_cur)
        return weft_error_set(error, WEFT_ERR_MEMORY,
                              "symmetric memory takes %llu MiB of address space, and files may have %llu MiB "
                              "here (ulimit -f); set WEFT_HEAP to a smaller size",
                              (unsigned long long)(bytes >> 20), (unsigned long long)(file.rlim_cur >> 20));
    segment->fd = memfd_create("weft", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (segment->fd < 0 && errno == EINVAL) /* a kernel before 6.3 */
        segment->fd = memfd_create("weft", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (segment->fd < 0)
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot create symmetric memory: %s", strerror(errno));
    note_file(segment);
    if (ftruncate(segment->fd, (off_t)bytes) != 0 ||
        fcntl(segment->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        weft_error_set(error, WEFT_ERR_SYSTEM, "cannot size symmetric memory to %llu MiB: %s",
                       (unsigned long long)(bytes >> 20), strerror(errno));
        close(segment->fd);
        return WEFT_ERR_SYSTEM;
    }
    return WEFT_OK;
}

/* With the heap size that stands in the header, or the one that fits here. */
static weft_status lay_out(int size, weft_segment_header *header, weft_error_text *error)
{
    weft_status status = weft_env_check(error);

    if (status == WEFT_OK && header->heap_bytes == 0)
        status = weft_segment_heap(size, &header->heap_bytes, error);
    if (status != WEFT_OK)
        return status;
    header->magic = SEGMENT_MAGIC;
    snprintf(header->version, sizeof(header->version), "%s", weft_version());
    header->size = size;
    header->windows = WINDOWS;
    header->header_bytes =
        weft_round_up_bytes(sizeof(*header) + sizeof(weft_rank_entry) * (size_t)size, WEFT_HUGE_BYTES);
    header->stride = stride_of(header->heap_bytes);
    if (header->heap_bytes > INT64_MAX / 8 ||
        __builtin_mul_overflow(header->stride + WEFT_HUGE_BYTES, (uint64_t)size, &header->window_bytes) ||
        __builtin_mul_overflow(header->window_bytes, (uint64_t)WINDOWS, &header->total_bytes) ||
        header->total_bytes > INT64_MAX / 2)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "WEFT_HEAP of %llu bytes is too large for %d ranks",
                              (unsigned long long)header->heap_bytes, size);
    header->total_bytes += header->header_bytes;
    if (getrandom(&header->nonce, sizeof(header->nonce), 0) != sizeof(header->nonce))
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot get random bytes: %s", strerror(errno));
    return WEFT_OK;
}

static weft_status create(int size, uint64_t heap_bytes, bool threads, weft_segment *segment,
                          weft_error_text *error)
{
    weft_segment_header header = {.heap_bytes = heap_bytes};
    weft_status status = lay_out(size, &header, error);

    if (status != WEFT_OK)
        return status;
    segment->fd = -1;
    if (!threads) {
        status = make_file(segment, header.total_bytes, error);
        if (status != WEFT_OK)
            return status;
    }
    status = map_header(segment, header.header_bytes, error);
    if (status == WEFT_OK &&
        !weft_segment_populate(segment, segment->header,
                               sizeof(header) + sizeof(weft_rank_entry) * (size_t)size)) {
        munmap(segment->header, header.header_bytes);
        status =
            weft_error_set(error, WEFT_ERR_MEMORY, "the system has no memory for a world of %d ranks", size);
    }
    if (status != WEFT_OK) {
        if (segment->fd >= 0)
            close(segment->fd);
        return status;
    }
    *segment->header = header;
    return WEFT_OK;
}

weft_status weft_segment_create(int size, bool threads, weft_segment *segment, weft_error_text *error)
{
    return create(size, 0, threads, segment, error);
}

weft_status weft_segment_create_sized(int size, uint64_t heap_bytes, weft_segment *segment,
                                      weft_error_text *error)
{
    return create(size, heap_bytes, false, segment, error);
}

/* Whether the parts that a header speaks of lie within its file. */
static bool is_sound(const weft_segment_header *header)
{
    return header->size >= 1 && header->size <= WEFT_RANKS_MAX && header->windows >= 1 &&
           header->windows <= WEFT_WINDOWS_MAX && header->heap_bytes <= INT64_MAX / 8 &&
           header->stride == stride_of(header->heap_bytes) &&
           header->window_bytes / (uint64_t)header->size == header->stride + WEFT_HUGE_BYTES &&
           header->header_bytes >= sizeof(*header) + sizeof(weft_rank_entry) * (size_t)header->size &&
           header->header_bytes <= header->total_bytes &&
           (header->total_bytes - header->header_bytes) / (uint64_t)header->windows == header->window_bytes;
}

weft_status weft_segment_attach(int fd, uint64_t nonce, weft_segment *segment, weft_error_text *error)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    weft_segment_header header;
    struct stat about;
    weft_status status;

    if (fstat(fd, &about) != 0 || pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header) ||
        header.magic != SEGMENT_MAGIC)
        return weft_error_set(error, WEFT_ERR_LAUNCH, "descriptor %d is not the memory of a weft world", fd);
    if (strncmp(header.version, weft_version(), sizeof(header.version)) != 0)
        return weft_error_set(
            error, WEFT_ERR_LAUNCH,
            "the world was made by weft %.23s, and this rank has weft %s; all ranks need the "
            "same",
            header.version, weft_version());
    if (header.total_bytes != (uint64_t)about.st_size || !is_sound(&header))
        return weft_error_set(error, WEFT_ERR_LAUNCH, "descriptor %d is not the memory of a weft world", fd);
    if ((fcntl(fd, F_GET_SEALS) & seals) != seals)
        return weft_error_set(error, WEFT_ERR_LAUNCH, "the memory of the world is not sealed");
    segment->fd = fd;
    note_file(segment);
    status = map_header(segment, header.header_bytes, error);
    if (status != WEFT_OK)
        return status;
    if (segment->header->nonce != nonce) {
        munmap(segment->header, header.header_bytes);
        return weft_error_set(
            error, WEFT_ERR_LAUNCH,
            "the memory this rank was given is not the one its launcher meant (nonces differ)");
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return WEFT_OK;
}

void weft_segment_release(weft_segment *segment)
{
    for (int window = 0; window < WEFT_WINDOWS_MAX; window++)
        if (segment->windows[window])
            munmap(segment->windows[window], segment->header->window_bytes);
    munmap(segment->header, segment->header->header_bytes);
    if (is_file(segment))
        close(segment->fd);
}

bool weft_segment_lock(const weft_segment *segment, int rank, weft_life *life)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    char path[32];
    void *page;
    int fd;

    life->page = NULL;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", segment->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) /* without /proc: this lock is lost when the process closes a descriptor of the file */
        return fcntl(segment->fd, F_SETLK, &lock) == 0;
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        close(fd);
        return false;
    }
    page = mmap(NULL, page_bytes, PROT_NONE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED)
        return false;
    madvise(page, page_bytes, MADV_DONTFORK);
    life->page = page;
    return true;
}

void weft_segment_unlock(weft_life *life)
{
    if (life->page)
        munmap(life->page, (size_t)sysconf(_SC_PAGESIZE));
    life->page = NULL;
}

bool weft_segment_locked(const weft_segment *segment, int rank)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};

    return fcntl(segment->fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK || !is_file(segment);
}

/* Where of the file an address lies. */
static off_t file_offset(const weft_segment *segment, const char *memory)
{
    const weft_segment_header *header = segment->header;

    for (int window = 0; window < WEFT_WINDOWS_MAX; window++) {
        const char *begin = segment->windows[window];

        if (begin && memory >= begin && memory < begin + header->window_bytes)
            return (off_t)(window_begin(header, window) + (uint64_t)(memory - begin));
    }
    return (off_t)(memory - (const char *)header);
}

static bool punch(const weft_segment *segment, const void *memory, uint64_t bytes)
{
    int done;

    if (!is_file(segment))
        return false;
    do
        done = fallocate(segment->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         file_offset(segment, memory), (off_t)bytes);
    while (done != 0 && errno == EINTR);
    return done == 0;
}

bool weft_segment_populate(const weft_segment *segment, void *memory, uint64_t bytes)
{
    char *begin = memory;
    int done;

    bytes = whole_pages(&begin, bytes);
    do
        done = madvise(begin, bytes, MADV_POPULATE_WRITE);
    while (done != 0 && errno == EINTR);
    if (done == 0 || errno != EINVAL)
        return done == 0;
    /* A kernel before 5.14. */
    do
        done = !is_file(segment) ? 0 : fallocate(segment->fd, 0, file_offset(segment, begin), (off_t)bytes);
    while (done != 0 && errno == EINTR);
    for (uint64_t at = 0, page = (uint64_t)sysconf(_SC_PAGESIZE); done == 0 && at < bytes; at += page)
        /* A peer may write here already. */
        atomic_fetch_add_explicit((_Atomic char *)(begin + at), 0, memory_order_relaxed);
    return done == 0;
}

bool weft_segment_discard(const weft_segment *segment, void *memory, uint64_t bytes)
{
    /* Locked memory is refused by the first, not by the others. */
    if (madvise(memory, bytes, segment->fd < 0 ? MADV_DONTNEED : MADV_REMOVE) == 0)
        return true;
    if (segment->fd >= 0)
        return punch(segment, memory, bytes);
    return mmap(memory, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void weft_segment_clear(const weft_segment *segment, int rank, int window)
{
    char *slot = weft_segment_slot(segment, rank, window);
    uint64_t bytes = segment->header->stride;

    if (segment->fd >= 0)
        (void)punch(segment, slot, bytes);
    else
        (void)mmap(slot, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
