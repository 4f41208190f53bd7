/*
 * Ranks of one machine listen on no TCP port: not while they meet, whoever started them, and not while their
 * group lives. Ranks of two virtual nodes do, while they meet, by which the same looks are shown to see.
 */
#include <dirent.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "support/nodes.h"

static atomic_int ports; /* that this process has ever begun to listen on */

/* In the place of the C library's, for all that is linked or loaded here. */
int listen(int fd, int backlog)
{
    struct sockaddr_storage at = {0};
    socklen_t bytes = sizeof(at);

    if (getsockname(fd, (struct sockaddr *)&at, &bytes) == 0 && at.ss_family != AF_UNIX)
        atomic_fetch_add(&ports, 1);
    return (int)syscall(SYS_listen, fd, backlog);
}

static bool is_mine(unsigned long inode)
{
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    bool mine = false;

    CHECK(folder != NULL);
    while (folder && !mine && (entry = readdir(folder))) {
        char path[300], link[64] = "", socket[64];

        snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
        snprintf(socket, sizeof(socket), "socket:[%lu]", inode);
        if (readlink(path, link, sizeof(link) - 1) > 0)
            mine = strcmp(link, socket) == 0;
    }
    if (folder)
        closedir(folder);
    return mine;
}

static int listening_in(const char *table)
{
    enum { LISTEN = 0x0a };
    FILE *file = fopen(table, "r");
    char line[512];
    int count = 0;

    while (file && fgets(line, sizeof(line), file)) {
        unsigned state;
        unsigned long inode;

        if (sscanf(line, " %*d: %*s %*s %x %*s %*s %*s %*u %*u %lu", &state, &inode) == 2 && state == LISTEN)
            count += is_mine(inode);
    }
    if (file)
        fclose(file);
    return count;
}

/* TCP sockets of this process that listen now. */
static int listening(void)
{
    return listening_in("/proc/net/tcp") + listening_in("/proc/net/tcp6");
}

static void works(int rank)
{
    weft_group *group = NULL, *half = NULL;
    float *x = NULL;

    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK_INT(listening(), 0);
    CHECK_INT(weft_alloc(group, 4096, 0, (void **)&x), WEFT_OK);
    for (int i = 0; i < 1024; i++)
        x[i] = (float)rank;
    CHECK_INT(weft_all_reduce(group, x, x, 1024, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK_INT(weft_group_split(group, rank % 2, rank, &half), WEFT_OK);
    CHECK_INT(weft_barrier(half), WEFT_OK);
    CHECK_INT(listening(), 0);
    weft_group_free(half);
    CHECK_INT(weft_finalize(group), WEFT_OK);
    CHECK_INT(listening(), 0);
}

static void on_one_node(int rank, void *argument)
{
    (void)argument;
    works(rank);
    CHECK_INT(atomic_load(&ports), 0);
}

/* As torchrun starts ranks: with the address of a port on which others would meet. */
static void as_by_torchrun(int rank, void *argument)
{
    char number[16];

    for (const char **name = (const char *[]){"WEFT_RANK", "WEFT_SIZE", "WEFT_FD", "WEFT_NONCE", NULL}; *name;
         name++)
        unsetenv(*name);
    snprintf(number, sizeof(number), "%d", rank);
    setenv("RANK", number, 1);
    setenv("WORLD_SIZE", "3", 1);
    setenv("LOCAL_WORLD_SIZE", "3", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", argument, 1);
    on_one_node(rank, NULL);
}

static void on_two_nodes(int rank, void *argument)
{
    (void)argument;
    works(rank);
    CHECK(atomic_load(&ports) > 0);
}

static void looks_see(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    CHECK_INT(listening(), 0);
    CHECK_INT(listen(fd, 1), 0);
    CHECK_INT(listening(), 1);
    CHECK_INT(atomic_load(&ports), 1);
    close(fd);
    fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd >= 0 && listen(fd, 1) == 0)
        CHECK_INT(listening(), 1);
    close(fd);
    atomic_store(&ports, 0);
}

int main(void)
{
    char port[16];

    looks_see();
    procs_run(1, on_one_node, NULL);
    procs_run(3, on_one_node, NULL);
    snprintf(port, sizeof(port), "%d", nodes_port());
    procs_run(3, as_by_torchrun, port);
    if (nodes_possible("test_multi_listening"))
        nodes_run("aab", on_two_nodes, NULL);
    return check_report("test_multi_listening");
}
