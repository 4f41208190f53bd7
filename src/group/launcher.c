#include "group/launcher.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/hash.h"

enum { PORTS = 8 }; /* that rank 0 tries */

/* One way of being started. A launcher is present when `rank` and `size` are both set. */
typedef struct dialect {
    const char *name;
    const char *rank, *size;
    const char *local_size; /* ranks on this machine */
    const char *nodes;      /* machines */
    const char *keys[5];    /* variables that together identify the job on this machine */
} dialect;

static const dialect dialects[] = {
    {"weft run", "WEFT_RANK", "WEFT_SIZE", NULL, NULL, {NULL}},
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_WORLD_SIZE",
     NULL,
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     NULL,
     {"PMIX_NAMESPACE", "PMIX_SERVER_URI2", "OMPI_MCA_ess_base_jobid"}},
    {"PMI",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALNRANKS",
     "SLURM_STEP_NUM_NODES",
     {"SLURM_JOB_ID", "SLURM_STEP_ID", "PMI_PORT", "PMI_JOBID"}},
    {"SLURM step",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     NULL,
     "SLURM_STEP_NUM_NODES",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {"SLURM", "SLURM_PROCID", "SLURM_NTASKS", NULL, "SLURM_NNODES", {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

static const char *value_of(const char *name)
{
    const char *value = name ? getenv(name) : NULL;

    return value && *value ? value : NULL;
}

static weft_status read_whole(const dialect *how, const char *name, long least, long most, long *number,
                              weft_error_text *error)
{
    const char *text = value_of(name);
    char *end;

    *number = strtol(text, &end, 10);
    if (end == text || *end || *number < least || *number > most)
        return weft_error_set(error, WEFT_ERR_LAUNCH, "%s (from %s) is \"%s\"; it should be %ld to %ld", name,
                              how->name, text, least, most);
    return WEFT_OK;
}

/* Name, parent and start time of a process; false when the kernel does not tell. */
static int process_about(long pid, char *name, long *parent, unsigned long long *started)
{
    char path[48], line[1024];
    const char *open, *close;
    FILE *file;
    int read = 0;

    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    if (fgets(line, sizeof(line), file) && (open = strchr(line, '(')) && (close = strrchr(line, ')'))) {
        snprintf(name, 32, "%.*s", (int)(close - open - 1), open + 1);
        read = sscanf(close + 1,
                      " %*c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                      parent, started) == 2;
    }
    fclose(file);
    return read;
}

/* MPICH tells its processes no job id. The ranks of one machine have the same process manager above
 * them, perhaps behind a shell: that one is the key. */
static uint64_t manager_key(uint64_t key)
{
    long pid = getppid(), parent = 0;
    unsigned long long started = 0;
    char name[32];
    long found = pid;

    for (long at = pid; at > 1 && process_about(at, name, &parent, &started); at = parent)
        if (strncmp(name, "hydra", 5) == 0 || strncmp(name, "pmi", 3) == 0 ||
            strncmp(name, "mpiexec", 7) == 0 || strncmp(name, "mpirun", 6) == 0) {
            found = at;
            break;
        }
    process_about(found, name, &parent, &started);
    key = weft_hash(key, &found, sizeof(found));
    return weft_hash(key, &started, sizeof(started));
}

static uint64_t job_key(const dialect *how)
{
    uint64_t key = weft_hash(WEFT_HASH_START, how->name, strlen(how->name));
    int known = 0;

    for (int i = 0; i < 5 && how->keys[i]; i++) {
        const char *value = value_of(how->keys[i]);

        known += value != NULL;
        value = value ? value : "";
        key = weft_hash(key, value, strlen(value) + 1);
    }
    return known || strcmp(how->name, "torchrun") == 0 ? key : manager_key(key);
}

/* Whether the launcher has put ranks on other machines, or says so of this rank's node. */
static weft_status on_nodes(const dialect *how, int size, bool *nodes, weft_error_text *error)
{
    weft_status status;
    long number;

    *nodes = value_of("WEFT_NODE") != NULL;
    if (value_of(how->local_size)) {
        status = read_whole(how, how->local_size, 1, WEFT_RANKS_MAX, &number, error);
        if (status != WEFT_OK)
            return status;
        *nodes = *nodes || number < size;
    }
    if (value_of(how->nodes)) {
        status = read_whole(how, how->nodes, 1, 1 << 20, &number, error);
        if (status != WEFT_OK)
            return status;
        *nodes = *nodes || number > 1;
    }
    return WEFT_OK;
}

/* Where ranks of several nodes meet. Of torchrun's own port the first behind it is taken. */
static weft_status find_master(const dialect *how, weft_launch *launch, weft_error_text *error)
{
    bool torch = strcmp(how->name, "torchrun") == 0;
    weft_status status;
    long port;

    launch->master = value_of("MASTER_ADDR");
    launch->secret = value_of("WEFT_SECRET");
    if (!launch->master || !value_of("MASTER_PORT") || !launch->secret)
        return weft_error_set(
            error, WEFT_ERR_LAUNCH,
            "%s announces %d ranks on several nodes; set MASTER_ADDR and MASTER_PORT to the "
            "host of rank 0 and a free port there, and WEFT_SECRET to any secret, on all of "
            "them (missing:%s%s%s)",
            how->name, launch->size, launch->master ? "" : " MASTER_ADDR",
            value_of("MASTER_PORT") ? "" : " MASTER_PORT", launch->secret ? "" : " WEFT_SECRET");
    status = read_whole(how, "MASTER_PORT", 1, 65535 - PORTS, &port, error);
    if (status != WEFT_OK)
        return status;
    launch->port = (int)port + torch;
    launch->ports = PORTS;
    launch->nodes = true;
    return WEFT_OK;
}

static weft_status inherited(weft_launch *launch, weft_error_text *error)
{
    const char *fd = value_of("WEFT_FD"), *nonce = value_of("WEFT_NONCE");
    char *end;

    if (!fd || !nonce)
        return weft_error_set(
            error, WEFT_ERR_LAUNCH,
            "WEFT_RANK and WEFT_SIZE are set without WEFT_FD and WEFT_NONCE; only weft run sets them, "
            "all four");
    launch->fd = (int)strtol(fd, &end, 10);
    if (*end || launch->fd < 0)
        return weft_error_set(error, WEFT_ERR_LAUNCH, "WEFT_FD is \"%s\"; it should be a descriptor", fd);
    launch->nonce = strtoull(nonce, &end, 16);
    if (*end)
        return weft_error_set(error, WEFT_ERR_LAUNCH, "WEFT_NONCE is \"%s\"; it should be hexadecimal",
                              nonce);
    launch->key = weft_hash(WEFT_HASH_START, &launch->nonce, sizeof(launch->nonce));
    return WEFT_OK;
}

weft_status weft_launcher_find(weft_launch *launch, weft_error_text *error)
{
    const dialect *how = NULL;
    long rank, size;
    weft_status status;
    bool nodes;

    for (size_t i = 0; i < sizeof(dialects) / sizeof(dialects[0]) && !how; i++)
        if (value_of(dialects[i].rank) && value_of(dialects[i].size))
            how = &dialects[i];
    *launch = (weft_launch){.size = 1, .fd = -1};
    if (!how)
        return WEFT_OK;

    status = read_whole(how, how->size, 1, WEFT_RANKS_MAX, &size, error);
    if (status == WEFT_OK)
        status = read_whole(how, how->rank, 0, size - 1, &rank, error);
    if (status == WEFT_OK)
        status = on_nodes(how, (int)size, &nodes, error);
    if (status != WEFT_OK)
        return status;
    launch->launcher = how->name;
    launch->rank = (int)rank;
    launch->size = (int)size;
    launch->key = job_key(how);
    if (nodes && size > 1)
        return find_master(how, launch, error);
    return how == &dialects[0] ? inherited(launch, error) : WEFT_OK;
}

weft_rendezvous weft_launcher_rendezvous(const weft_launch *launch, int world)
{
    uint64_t key = weft_hash(launch->key, &world, sizeof(world));
    weft_rendezvous rendezvous = {.names = WEFT_RENDEZVOUS_NAMES};

    snprintf(rendezvous.name, sizeof(rendezvous.name), "weft-%u-%016llx", (unsigned)geteuid(),
             (unsigned long long)key);
    /* The launcher's nonce is a secret of its ranks; other launchers share none. */
    memcpy(rendezvous.token, &launch->nonce, sizeof(launch->nonce));
    return rendezvous;
}

static bool set_number(const char *name, const char *format, unsigned long long number)
{
    char text[32];

    snprintf(text, sizeof(text), format, number);
    return setenv(name, text, 1) == 0;
}

bool weft_launcher_announce(const weft_segment *segment, int rank)
{
    return fcntl(segment->fd, F_SETFD, 0) == 0 && set_number("WEFT_RANK", "%llu", (unsigned long long)rank) &&
           set_number("WEFT_SIZE", "%llu", (unsigned long long)segment->header->size) &&
           set_number("WEFT_FD", "%llu", (unsigned long long)segment->fd) &&
           set_number("WEFT_NONCE", "%llx", segment->header->nonce);
}

bool weft_launcher_announce_node(int rank, int size, const char *node, const char *master, int port,
                                 const char *secret)
{
    return set_number("WEFT_RANK", "%llu", (unsigned long long)rank) &&
           set_number("WEFT_SIZE", "%llu", (unsigned long long)size) && setenv("WEFT_NODE", node, 1) == 0 &&
           setenv("MASTER_ADDR", master, 1) == 0 &&
           set_number("MASTER_PORT", "%llu", (unsigned long long)port) &&
           setenv("WEFT_SECRET", secret, 1) == 0;
}
