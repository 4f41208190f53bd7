/* Ranks started by others: found by their variables, met over a private socket, refused when they cannot all
 * be here. */
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group/launcher.h"
#include "support/check.h"
#include "support/leaks.h"
#include <weft/weft.h>

static const char *const known[] = {"WEFT_RANK",
                                    "WEFT_SIZE",
                                    "WEFT_FD",
                                    "WEFT_NONCE",
                                    "RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_WORLD_SIZE",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "TORCHELASTIC_RUN_ID",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMIX_NAMESPACE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "MPI_LOCALNRANKS",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_NTASKS",
                                    "SLURM_NNODES",
                                    "SLURM_STEP_NUM_NODES",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID"};

typedef struct launcher {
    const char *rank, *size, *other[3][2];
} launcher;

static const launcher launchers[] = {
    {"RANK", "WORLD_SIZE", {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", NULL}, {"LOCAL_WORLD_SIZE", "3"}}},
    {"RANK", "WORLD_SIZE", {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", NULL}}},
    {"OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     {{"PMIX_NAMESPACE", NULL}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}},
    {"PMI_RANK", "PMI_SIZE", {{"MPI_LOCALNRANKS", "3"}}},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", {{"SLURM_JOB_ID", NULL}, {"SLURM_STEP_ID", "0"}}},
    {"SLURM_PROCID", "SLURM_NTASKS", {{"SLURM_JOB_ID", NULL}, {"SLURM_NNODES", "1"}}},
};

static void clear(void)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        unsetenv(known[i]);
}

/* A value that no other test on this machine uses at the same time. */
static void set_job(const launcher *how, int job)
{
    char unique[32];

    snprintf(unique, sizeof(unique), "%d", (int)getpid() * 8 + job);
    for (int i = 0; i < 3 && how->other[i][0]; i++)
        setenv(how->other[i][0], how->other[i][1] ? how->other[i][1] : unique, 1);
}

static void set_rank(const launcher *how, int rank, int size)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", rank);
    setenv(how->rank, text, 1);
    snprintf(text, sizeof(text), "%d", size);
    setenv(how->size, text, 1);
}

static void be_rank(int rank, int size)
{
    weft_group *group = NULL;
    int *word = NULL;

    CHECK_INT(weft_init(&group), WEFT_OK);
    if (!group) {
        fprintf(stderr, "rank %d: %s\n", rank, weft_error(NULL));
        exit(1);
    }
    CHECK_INT(weft_rank(group), rank);
    CHECK_INT(weft_size(group), size);
    CHECK_INT(weft_alloc(group, sizeof(*word), 0, (void **)&word), WEFT_OK);
    *(int *)weft_peer(group, word, (rank + 1) % size) = rank + 1;
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(*word, (rank + size - 1) % size + 1);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    weft_finalize(group);
}

/* A world again after the first was left, by the same environment. */
static void be_rank_twice(int rank, int size)
{
    be_rank(rank, size);
    be_rank(rank, size);
}

static pid_t start(void (*body)(int, int), int rank, int size)
{
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        leaks_are_elsewhere = 1;
        check_failures = 0;
        body(rank, size);
        exit(check_failures ? 1 : 0);
    }
    return child;
}

static void join(const pid_t *children, int count)
{
    for (int i = 0; i < count; i++) {
        int status = -1;

        CHECK_INT(waitpid(children[i], &status, 0), children[i]);
        CHECK_INT(status, 0);
    }
}

/* Rank 0 may come last or first. */
static void all_meet(void)
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++)
        for (int first = 0; first < 2; first++) {
            pid_t children[3];

            clear();
            set_job(&launchers[i], first);
            for (int rank = 0; rank < 3; rank++) {
                int which = first ? rank : 2 - rank;

                set_rank(&launchers[i], which, 3);
                children[rank] = start(first ? be_rank_twice : be_rank, which, 3);
                if (rank == 0)
                    usleep(20000);
            }
            join(children, 3);
        }
}

/* Listens under the first `count` names that the job's ranks would meet at, as another user, until it is
 * ended. */
static pid_t occupy(int count)
{
    weft_launch launch = {0};
    weft_error_text error;
    weft_rendezvous rendezvous;
    int ready[2];
    pid_t child;
    char byte;

    CHECK_INT(weft_launcher_find(&launch, &error), WEFT_OK);
    rendezvous = weft_launcher_rendezvous(&launch, 0);
    CHECK_INT(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        int failed = seteuid(65534) != 0;

        leaks_are_elsewhere = 1;
        for (int number = 0; number < count; number++) {
            struct sockaddr_un address = {.sun_family = AF_UNIX};
            int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), length;

            length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, number ? "%s.%d" : "%s",
                              rendezvous.name, number);
            failed |= bind(fd, (struct sockaddr *)&address,
                           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) != 0;
            failed |= listen(fd, 8) != 0;
        }
        if (failed || write(ready[1], "", 1) != 1)
            _exit(1);
        pause();
    }
    close(ready[1]);
    CHECK_INT(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void find_no_name(int rank, int size)
{
    (void)size;
    setenv("WEFT_ENTER_TIMEOUT", "0.3", 1);
    CHECK_INT(weft_init(&(weft_group *){NULL}), WEFT_ERR_LAUNCH);
    CHECK_HAS(weft_error(NULL),
              rank ? "another user listens there" : "other users occupy all names of this job");
}

/* A job's names can be guessed. Another user who takes one is passed over; one who takes all of them is
 * named. */
static void names_are_taken(void)
{
    static const int taken[] = {1, 3, WEFT_RENDEZVOUS_NAMES};

    for (int i = 0; i < 3 && geteuid() == 0; i++) {
        pid_t children[2], other;
        int status;

        clear();
        set_job(&launchers[1], 6);
        set_rank(&launchers[1], 0, 2);
        other = occupy(taken[i]);
        for (int rank = 0; rank < 2; rank++) {
            set_rank(&launchers[1], rank, 2);
            children[rank] = start(i < 2 ? be_rank : find_no_name, rank, 2);
        }
        join(children, 2);
        CHECK_INT(kill(other, SIGKILL), 0);
        CHECK_INT(waitpid(other, &status, 0), other);
    }
}

static void expect_refusal(const char *part)
{
    weft_group *group = NULL;

    CHECK_INT(weft_init(&group), WEFT_ERR_LAUNCH);
    CHECK(group == NULL);
    CHECK_HAS(weft_error(NULL), part);
}

static void refusals(void)
{
    static const char *const elsewhere[][3] = {
        {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"}};

    for (int i = 0; i < 3; i++) {
        clear();
        setenv(elsewhere[i][0], "1", 1);
        setenv(elsewhere[i][1], "8", 1);
        setenv(elsewhere[i][2], "4", 1);
        expect_refusal("announces 8 ranks on several nodes; set MASTER_ADDR and MASTER_PORT");
    }
    clear();
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "8", 1);
    setenv("SLURM_NNODES", "2", 1);
    expect_refusal("8 ranks on several nodes");
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
    expect_refusal("(missing: WEFT_SECRET)");
    clear();
    setenv("RANK", "4", 1);
    setenv("WORLD_SIZE", "4", 1);
    expect_refusal("RANK (from torchrun) is \"4\"; it should be 0 to 3");
    clear();
    setenv("WEFT_RANK", "0", 1);
    setenv("WEFT_SIZE", "2", 1);
    expect_refusal("WEFT_FD");
    setenv("WEFT_FD", "0", 1);
    setenv("WEFT_NONCE", "1234", 1);
    expect_refusal("is not the memory of a weft world");
}

static void be_lonely(int rank, int size)
{
    weft_group *group = NULL;

    (void)size;
    if (rank == 3) { /* rank 0 never comes for it */
        setenv("MASTER_PORT", "another", 1);
        expect_refusal("for rank 0, which has not come");
        return;
    }
    CHECK_INT(weft_init(&group), WEFT_ERR_LAUNCH);
    CHECK_HAS(weft_error(NULL), "announced 4 ranks");
    CHECK_HAS(weft_error(NULL), "0, 2; missing: 1, 3");
}

/* Two of four come: they are told who did and who did not. */
static void missing_are_listed(void)
{
    pid_t children[3];
    static const int who[] = {0, 2, 3};

    clear();
    set_job(&launchers[1], 5);
    setenv("WEFT_ENTER_TIMEOUT", "0.3", 1);
    for (int i = 0; i < 3; i++) {
        set_rank(&launchers[1], who[i], 4);
        children[i] = start(be_lonely, who[i], 4);
    }
    join(children, 3);
    unsetenv("WEFT_ENTER_TIMEOUT");
}

static void nobody(void)
{
    weft_group *group = NULL;

    clear();
    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK_INT(weft_size(group), 1);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_finalize(group), WEFT_OK);
    CHECK_INT(weft_finalize(NULL), WEFT_ERR_ARGUMENT);
    setenv("WEFT_HEAP", "lots", 1);
    CHECK_INT(weft_init(&group), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "WEFT_HEAP is \"lots\"");
    unsetenv("WEFT_HEAP");
}

int main(void)
{
    names_are_taken(); /* while this process has entered no world, as its children number theirs */
    nobody();
    refusals();
    all_meet();
    missing_are_listed();
    return check_report("test_multi_launchers");
}
