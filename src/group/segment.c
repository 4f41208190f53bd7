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
#include "core/topo.h"

#define SEGMENT_MAGIC 0x32746665772d6773u

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
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

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* The heap with which a world takes half of the address space or of the file that the process is limited to
 * (ulimit -v, -f): a window is five quarters of it, see lay_out. */
static int64_t heap_within_limit(int size)
{
    static const __rlimit_resource_t limits[] = {RLIMIT_AS, RLIMIT_FSIZE};
    int64_t most = INT64_MAX;

    for (int i = 0; i < 2; i++) {
        struct rlimit limit;
        int64_t heap;

        if (getrlimit(limits[i], &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
            continue;
        heap = (int64_t)(limit.rlim_cur / 2 / WINDOWS / (rlim_t)size / 5 * 4);
        most = heap < most ? heap : most;
    }
    return most;
}

static weft_status heap_size(int size, uint64_t *heap_bytes, weft_error_text *error)
{
    int64_t bytes;
    weft_status status = weft_env_bytes(WEFT_ENV_HEAP, &bytes, error);

    if (status != WEFT_OK)
        return status;
    if (bytes == 0) {
        int64_t most = heap_within_limit(size);

        most = most < heap_most ? most : heap_most;
        bytes = weft_topo_memory_bytes() / 4 * 3 / size;
        bytes = bytes > most ? most : bytes;
        bytes = bytes < heap_least ? heap_least : bytes;
    }
    *heap_bytes = round_up((uint64_t)bytes, WEFT_HUGE_BYTES);
    return WEFT_OK;
}

/* Maps the whole segment at an address aligned to WEFT_HUGE_BYTES, so that offsets and addresses agree in
 * alignment and huge pages fit. */
static weft_status map_whole(weft_segment *segment, uint64_t bytes, weft_error_text *error)
{
    int flags = (segment->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_NORESERVE;
    char *reserved =
        mmap(NULL, bytes + WEFT_HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *base;

    if (reserved == MAP_FAILED)
        return weft_error_set(error, WEFT_ERR_MEMORY,
                              "cannot reserve %llu MiB of address space for symmetric memory (%s); "
                              "set WEFT_HEAP to a smaller size",
                              (unsigned long long)(bytes >> 20), strerror(errno));
    base = (char *)round_up((uint64_t)(uintptr_t)reserved, WEFT_HUGE_BYTES);
    if (base > reserved)
        munmap(reserved, (size_t)(base - reserved));
    munmap(base + bytes, (size_t)(reserved + WEFT_HUGE_BYTES - base));
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, segment->fd, 0) == MAP_FAILED) {
        munmap(base, bytes);
        return weft_error_set(error, WEFT_ERR_MEMORY, "cannot map %llu MiB of symmetric memory: %s",
                              (unsigned long long)(bytes >> 20), strerror(errno));
    }
    madvise(base, bytes, MADV_DONTDUMP);
    segment->header = (weft_segment_header *)base;
    return WEFT_OK;
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

static weft_status lay_out(int size, weft_segment_header *header, weft_error_text *error)
{
    weft_status status = weft_env_check(error);

    if (status == WEFT_OK)
        status = heap_size(size, &header->heap_bytes, error);
    if (status != WEFT_OK)
        return status;
    header->magic = SEGMENT_MAGIC;
    snprintf(header->version, sizeof(header->version), "%s", weft_version());
    header->size = size;
    header->windows = WINDOWS;
    header->header_bytes =
        round_up(sizeof(*header) + sizeof(weft_rank_entry) * (size_t)size, WEFT_HUGE_BYTES);
    /* A heap for all that the rank may have, and a staggered one (symm/symm.h) for a good part of it. */
    header->window_stride =
        WEFT_HUGE_BYTES + header->heap_bytes + round_up(header->heap_bytes / 4, WEFT_HUGE_BYTES);
    if (__builtin_mul_overflow(header->window_stride, (uint64_t)WINDOWS, &header->stride) ||
        __builtin_mul_overflow(header->stride, (uint64_t)size, &header->total_bytes) ||
        header->total_bytes > INT64_MAX / 2)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "WEFT_HEAP of %llu bytes is too large for %d ranks",
                              (unsigned long long)header->heap_bytes, size);
    header->total_bytes += header->header_bytes;
    if (getrandom(&header->nonce, sizeof(header->nonce), 0) != sizeof(header->nonce))
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot get random bytes: %s", strerror(errno));
    return WEFT_OK;
}

weft_status weft_segment_create(int size, bool threads, weft_segment *segment, weft_error_text *error)
{
    weft_segment_header header = {0};
    weft_status status = lay_out(size, &header, error);

    if (status != WEFT_OK)
        return status;
    segment->fd = -1;
    /* Where the system counts address space as memory, private memory of this size is refused; a file is not.
     */
    if (!threads || map_whole(segment, header.total_bytes, error) != WEFT_OK) {
        status = make_file(segment, header.total_bytes, error);
        if (status != WEFT_OK)
            return status;
        status = map_whole(segment, header.total_bytes, error);
        if (status != WEFT_OK) {
            close(segment->fd);
            return status;
        }
    }
    *segment->header = header;
    segment->slots = (char *)segment->header + header.header_bytes;
    return WEFT_OK;
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
    if (header.total_bytes != (uint64_t)about.st_size)
        return weft_error_set(error, WEFT_ERR_LAUNCH, "descriptor %d is not the memory of a weft world", fd);
    if ((fcntl(fd, F_GET_SEALS) & seals) != seals)
        return weft_error_set(error, WEFT_ERR_LAUNCH, "the memory of the world is not sealed");
    segment->fd = fd;
    status = map_whole(segment, header.total_bytes, error);
    if (status != WEFT_OK)
        return status;
    if (segment->header->nonce != nonce) {
        munmap(segment->header, header.total_bytes);
        return weft_error_set(
            error, WEFT_ERR_LAUNCH,
            "the memory this rank was given is not the one its launcher meant (nonces differ)");
    }
    segment->slots = (char *)segment->header + header.header_bytes;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    note_file(segment);
    return WEFT_OK;
}

/* A process that closed what it did not open may have another file under this number by now. */
static bool is_file(const weft_segment *segment)
{
    struct stat about;

    return segment->fd >= 0 && fstat(segment->fd, &about) == 0 &&
           (uint64_t)about.st_dev == segment->file[0] && (uint64_t)about.st_ino == segment->file[1];
}

void weft_segment_release(weft_segment *segment)
{
    munmap(segment->header, segment->header->total_bytes);
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

bool weft_segment_discard(const weft_segment *segment, void *memory, uint64_t bytes)
{
    off_t at = (off_t)((char *)memory - (char *)segment->header);

    /* Locked memory is refused by the first, not by the others. */
    if (madvise(memory, bytes, segment->fd < 0 ? MADV_DONTNEED : MADV_REMOVE) == 0)
        return true;
    if (segment->fd >= 0)
        return fallocate(segment->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, (off_t)bytes) == 0;
    return mmap(memory, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}
