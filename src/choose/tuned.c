#include "choose/tuned.h"

#include "core/cpu.h"
#include "core/env.h"
#include "core/hash.h"
#include "core/place.h"
#include "gemm/gemm.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, LINE_BYTES = 512, MOST_LINES = 65536 };

typedef struct entry {
    uint64_t machine, problem;
    char version[32];
    int line;
    weft_tuned tuned;
} entry;

struct weft_tuned_file {
    _Atomic int holders; /* counted up with the lock, down without: a child of fork may never get it */
    int count;
    entry *entries; /* of one problem together; of those the first in the file come first */
    uint64_t hash;
};

/* The file as last read, and which it was; NULL: there is none. Read again when it is another one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static weft_tuned_file *last;
static char read_path[PATH_BYTES];
static struct stat read_as;

uint64_t weft_tuned_this(int cores, uint64_t nodes)
{
    uint32_t features = weft_cpu_features();
    uint64_t hash = weft_hash(WEFT_HASH_START, weft_cpu_name(), strlen(weft_cpu_name()));

    hash = weft_hash(hash, &features, sizeof(features));
    if (nodes)
        hash = weft_hash(hash, &nodes, sizeof(nodes));
    return weft_hash(hash, &cores, sizeof(cores));
}

bool weft_tuned_asks(const weft_problem *problem)
{
    weft_tuning rest = problem->tuning;

    rest.workers = 0;
    return problem->schedule == WEFT_SCHEDULE_AUTO && memcmp(&rest, &(weft_tuning){0}, sizeof(rest)) == 0;
}

weft_status weft_tuned_path(char *path, size_t bytes, weft_error_text *error)
{
    const char *chosen = weft_env_word(WEFT_ENV_TUNE), *base = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int length = 0;

    path[0] = 0;
    if (strcmp(chosen, "off") == 0)
        return WEFT_OK;
    if (*chosen)
        length = snprintf(path, bytes, "%s", chosen);
    else if (base && *base)
        length = snprintf(path, bytes, "%s/weft/tuned", base);
    else if (home && *home)
        length = snprintf(path, bytes, "%s/.cache/weft/tuned", home);
    if (length < 0 || (size_t)length >= bytes)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "the path of the file of weft tune is too long");
    return WEFT_OK;
}

bool weft_tuned_there(void)
{
    weft_error_text ignored;
    char path[PATH_BYTES];

    return weft_tuned_path(path, sizeof(path), &ignored) != WEFT_OK || (*path && access(path, F_OK) == 0);
}

/* Its schedule and tiles are open in the key, whatever they are in the problem; and where B is not packed
 * before, what of it is packed in a run, which only some kernels do, makes no other problem. */
static uint64_t key_of(const weft_problem *problem, int world)
{
    weft_problem open = *problem;

    open.schedule = WEFT_SCHEDULE_AUTO;
    memset(&open.tuning, 0, sizeof(open.tuning));
    if (open.b_form == WEFT_B_PACK_IN_RUN)
        open.b_form = WEFT_B_PLAIN;
    return weft_problem_hash(&open, world);
}

static bool read_entry(const char *line, entry *e)
{
    weft_tuning *t = &e->tuned.tuning;
    char schedule[64];
    int end = 0, more = 0;

    memset(e, 0, sizeof(*e));
    if (sscanf(line, "%" SCNx64 " %31s %" SCNx64 " %63s %" SCNd64 " %" SCNd64 " %" SCNd64 " %d %lf %n",
               &e->machine, e->version, &e->problem, schedule, &t->tile_m, &t->tile_n, &t->tile_k,
               &t->workers, &e->tuned.us, &end) != 9)
        return false;
    /* Of GPUs. */
    if (sscanf(line + end, "%d %" SCNd64 " %" SCNd64 " %d %d %d %n", &t->copiers, &t->chunk_k, &t->raster,
               &t->crew, &t->library, &t->exchange, &more) == 6)
        end += more;
    /* What it is about follows: without that, the line was cut, perhaps within a number. */
    return line[end] == '#' && weft_schedule_parse(schedule, &e->tuned.schedule) == 0 &&
           e->tuned.schedule != WEFT_SCHEDULE_AUTO && e->tuned.us >= 0 && t->tile_m >= 0 && t->tile_n >= 0 &&
           t->tile_k >= 0 && t->workers >= 0 && t->workers <= WEFT_MACHINE_MOST && t->copiers >= 0 &&
           t->chunk_k >= 0 && t->raster >= 0 && t->crew >= 0 && t->library >= 0 && t->exchange >= 0;
}

static int compare_entries(const void *left, const void *right)
{
    const entry *a = left, *b = right;

    if (a->problem != b->problem)
        return a->problem < b->problem ? -1 : 1;
    return (a->line > b->line) - (a->line < b->line);
}

static bool is_of_this_version(const entry *e)
{
    return strcmp(e->version, weft_version()) == 0;
}

static bool is_for(const entry *e, uint64_t machine)
{
    return e->machine == machine && is_of_this_version(e);
}

static uint64_t hash_entry(uint64_t hash, const entry *e)
{
    const weft_tuning *t = &e->tuned.tuning;
    const uint64_t says[] = {e->machine,           e->problem,           (uint64_t)e->tuned.schedule,
                             (uint64_t)t->tile_m,  (uint64_t)t->tile_n,  (uint64_t)t->tile_k,
                             (uint64_t)t->workers, (uint64_t)t->copiers, (uint64_t)t->chunk_k,
                             (uint64_t)t->raster,  (uint64_t)t->crew,    (uint64_t)t->library,
                             (uint64_t)t->exchange};

    return weft_hash(hash, says, sizeof(says));
}

/* In the order in which they are found, whatever order the file has them in. */
static void put_in_order(weft_tuned_file *read)
{
    if (read->count > 0)
        qsort(read->entries, (size_t)read->count, sizeof(*read->entries), compare_entries);
    for (int i = 0; i < read->count; i++)
        if (is_of_this_version(&read->entries[i]))
            read->hash = hash_entry(read->hash ? read->hash : WEFT_HASH_START, &read->entries[i]);
}

/* The lines of a file that is open. */
static weft_status read_lines(FILE *file, const char *path, weft_tuned_file *read, weft_error_text *error)
{
    char line[LINE_BYTES];

    for (int at = 1; fgets(line, sizeof(line), file); at++) {
        entry *grown;

        if (line[0] == '#' || line[0] == '\n')
            continue;
        if (read->count % 64 == 0) {
            grown = read->count < MOST_LINES
                        ? realloc(read->entries, (size_t)(read->count + 64) * sizeof(*read->entries))
                        : NULL;
            if (!grown)
                return weft_error_set(error, WEFT_ERR_MEMORY, "no memory to read %.300s", path);
            read->entries = grown;
        }
        if (!read_entry(line, &read->entries[read->count]))
            return weft_error_set(
                error, WEFT_ERR_ARGUMENT,
                "%.300s:%d: not a line that weft tune wrote, or not all of it; delete it, or "
                "the file",
                path, at);
        read->entries[read->count++].line = at;
    }
    if (ferror(file)) /* a directory opens, too */
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot read %.300s, the file of `weft tune`: %s",
                              path, strerror(errno));
    put_in_order(read);
    return WEFT_OK;
}

void weft_tuned_close(weft_tuned_file *file)
{
    /* Releases what this holder has read, acquires what the others have. */
    if (!file || atomic_fetch_sub_explicit(&file->holders, 1, memory_order_acq_rel) > 1)
        return;
    free(file->entries);
    free(file);
}

/* With the lock: what was read last is no longer of use. */
static void forget_last(void)
{
    weft_tuned_close(last);
    last = NULL;
    read_path[0] = 0;
}

static bool is_read(const char *path, const struct stat *now)
{
    return strcmp(path, read_path) == 0 && now->st_mtim.tv_sec == read_as.st_mtim.tv_sec &&
           now->st_mtim.tv_nsec == read_as.st_mtim.tv_nsec && now->st_size == read_as.st_size &&
           now->st_ino == read_as.st_ino;
}

/* With the lock. A file that is not there has no entries. */
static weft_status read_file(const char *path, weft_error_text *error)
{
    weft_status status;
    struct stat now;
    FILE *file;

    if (!*path || stat(path, &now) != 0) {
        forget_last();
        return WEFT_OK;
    }
    if (is_read(path, &now))
        return WEFT_OK;
    forget_last();
    file = fopen(path, "r");
    if (!file)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot read %.300s, the file of `weft tune`: %s",
                              path, strerror(errno));
    last = calloc(1, sizeof(*last));
    if (last) {
        atomic_init(&last->holders, 1);
        status = read_lines(file, path, last, error);
    } else {
        status = weft_error_set(error, WEFT_ERR_MEMORY, "no memory to read %.300s", path);
    }
    fclose(file);
    if (status != WEFT_OK) {
        forget_last();
        return status;
    }
    snprintf(read_path, sizeof(read_path), "%s", path);
    read_as = now;
    return WEFT_OK;
}

weft_status weft_tuned_open(weft_tuned_file **file, weft_error_text *error)
{
    char path[PATH_BYTES];
    weft_status status = weft_tuned_path(path, sizeof(path), error);

    *file = NULL;
    if (status != WEFT_OK)
        return status;
    pthread_mutex_lock(&lock);
    status = read_file(path, error);
    if (status == WEFT_OK && last) {
        atomic_fetch_add_explicit(&last->holders, 1, memory_order_relaxed);
        *file = last;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

uint64_t weft_tuned_hash(const weft_tuned_file *file)
{
    return file ? file->hash : 0;
}

/* The first entry of a problem, or where it would be. */
static int first_of(const weft_tuned_file *file, uint64_t problem)
{
    int low = 0, high = file ? file->count : 0;

    while (low < high) {
        int middle = (low + high) / 2;

        if (file->entries[middle].problem < problem)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool weft_tuned_find_in(const weft_tuned_file *file, uint64_t machine, const weft_problem *problem, int world,
                        weft_tuned *tuned)
{
    uint64_t key = key_of(problem, world);

    for (int i = first_of(file, key); file && i < file->count && file->entries[i].problem == key; i++)
        if (is_for(&file->entries[i], machine)) {
            *tuned = file->entries[i].tuned;
            return true;
        }
    return false;
}

weft_status weft_tuned_find(uint64_t machine, const weft_problem *problem, int world, weft_tuned *tuned,
                            bool *found, weft_error_text *error)
{
    weft_tuned_file *file;
    weft_status status = weft_tuned_open(&file, error);

    *found = status == WEFT_OK && weft_tuned_find_in(file, machine, problem, world, tuned);
    weft_tuned_close(file);
    return status;
}

bool weft_tuned_elsewhere(uint64_t machine, const weft_problem *problem, int world)
{
    uint64_t key = key_of(problem, world);
    bool here = false, elsewhere = false;
    weft_error_text ignored;
    weft_tuned_file *file;

    weft_tuned_open(&file, &ignored);
    for (int i = first_of(file, key); file && i < file->count && file->entries[i].problem == key; i++) {
        here |= is_for(&file->entries[i], machine);
        elsewhere |= !is_for(&file->entries[i], machine);
    }
    weft_tuned_close(file);
    return elsewhere && !here;
}

weft_status weft_tuned_count(int cores, int *lines, int *here, weft_error_text *error)
{
    weft_tuned_file *file;
    weft_status status = weft_tuned_open(&file, error);

    *lines = *here = 0;
    for (int i = 0; file && i < file->count; i++) {
        bool found = false;

        for (int c = 1; c <= cores && !found; c++)
            found = is_for(&file->entries[i], weft_tuned_this(c, 0));
        *here += found;
        ++*lines;
    }
    weft_tuned_close(file);
    return status;
}

weft_status weft_tuned_readable(weft_error_text *error)
{
    weft_tuned_file *file;
    weft_status status = weft_tuned_open(&file, error);

    weft_tuned_close(file);
    return status;
}

/* The new file, beside the one it replaces. */
static void name_next(const char *path, char next[PATH_BYTES + 32])
{
    snprintf(next, PATH_BYTES + 32, "%s.%d", path, (int)getpid());
}

weft_status weft_tuned_prepare(weft_error_text *error)
{
    char path[PATH_BYTES], next[PATH_BYTES + 32];
    weft_status status = weft_tuned_path(path, sizeof(path), error);

    if (status == WEFT_OK && !*path)
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "there is no place for what weft tune finds: WEFT_TUNE is off, or HOME is not set");
    if (status == WEFT_OK)
        status = weft_tuned_readable(error); /* nobody would read what was added to it */
    if (status != WEFT_OK)
        return status;
    name_next(path, next);
    return weft_place_prepare(next, error);
}

/* What else the file had, comments included, goes over into the new one. */
static void copy_others(const char *path, uint64_t machine, uint64_t key, FILE *to)
{
    FILE *from = fopen(path, "r");
    char line[LINE_BYTES];
    entry e;

    if (!from) {
        fputs("# Written by weft tune: machine, version, problem; schedule, tile_m, tile_n, tile_k, workers, "
              "us, copiers, chunk_k, raster, crew, library, exchange.\n",
              to);
        return;
    }
    while (fgets(line, sizeof(line), from))
        if (!read_entry(line, &e) || e.machine != machine || e.problem != key ||
            strcmp(e.version, weft_version()) != 0)
            fprintf(to, "%s%s", line, strchr(line, '\n') ? "" : "\n"); /* an editor may have left it out */
    fclose(from);
}

weft_status weft_tuned_keep(uint64_t machine, const weft_problem *problem, int world, const weft_tuned *tuned,
                            const char *what, weft_error_text *error)
{
    char path[PATH_BYTES], next[PATH_BYTES + 32];
    weft_status status = weft_tuned_prepare(error);
    const weft_tuning *t = &tuned->tuning;
    bool failed;
    FILE *file;

    if (status == WEFT_OK)
        status = weft_tuned_path(path, sizeof(path), error);
    if (status != WEFT_OK)
        return status;
    name_next(path, next);
    file = fopen(next, "w");
    if (!file)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot write %.300s: %s", next, strerror(errno));
    copy_others(path, machine, key_of(problem, world), file);
    fprintf(file,
            "%016" PRIx64 " %s %016" PRIx64 " %s %" PRId64 " %" PRId64 " %" PRId64 " %d %.6g %d %" PRId64
            " %" PRId64 " %d %d %d # %s\n",
            machine, weft_version(), key_of(problem, world), weft_schedule_name(problem->op, tuned->schedule),
            t->tile_m, t->tile_n, t->tile_k, t->workers, tuned->us, t->copiers, t->chunk_k, t->raster,
            t->crew, t->library, t->exchange, what);
    failed = fflush(file) != 0 || ferror(file);
    failed |= fclose(file) != 0;
    /* Others read either the old file or the new one. */
    if (failed || rename(next, path) != 0) {
        status = weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot write %.300s: %s", path, strerror(errno));
        unlink(next);
    }
    return status;
}
