/* Groups that their members make by an id: processes, threads, both; several at once; who may come and who is
 * told what when somebody fails on the way. And what a fork, a closed descriptor or an abort does to a group.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "group/enter.h"
#include "group/rendezvous.h"
#include "support/check.h"
#include "support/leaks.h"
#include <weft/weft.h>

enum { MOST = 8 };

/* What the processes of a test share. */
typedef struct table {
    weft_id ids[4];
    _Atomic int flags[8];
    _Atomic int turns;
    char gathered[MOST][256];
} table;

static table *shared;

static void fresh_table(void)
{
    memset((void *)shared, 0, sizeof(*shared));
    for (int i = 0; i < 4; i++)
        CHECK_INT(weft_id_create(&shared->ids[i]), WEFT_OK);
}

typedef void (*body)(int rank);

static pid_t start(body run, int rank)
{
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        leaks_are_elsewhere = 1;
        check_failures = 0;
        run(rank);
        exit(check_failures ? 1 : 0);
    }
    return child;
}

static void join(pid_t child)
{
    int status = -1;

    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
}

static void processes(int count, body run)
{
    pid_t children[MOST];

    fresh_table();
    for (int rank = 0; rank < count; rank++)
        children[rank] = start(run, rank);
    for (int rank = 0; rank < count; rank++)
        join(children[rank]);
}

static weft_group *create(const weft_id *id, int rank, int size)
{
    weft_group *group = NULL;

    CHECK_INT(weft_group_create(id, rank, size, &group), WEFT_OK);
    if (!group) {
        fprintf(stderr, "rank %d of %d: %s\n", rank, size, weft_error(NULL));
        exit(1);
    }
    CHECK_INT(weft_rank(group), rank);
    CHECK_INT(weft_size(group), size);
    return group;
}

static void use(weft_group *group)
{
    int rank = weft_rank(group), size = weft_size(group);
    float one = (float)(rank + 1), sum = 0;
    int *words = NULL;

    CHECK_INT(weft_alloc(group, 100000, 0, (void **)&words), WEFT_OK);
    *(int *)weft_peer(group, words, (rank + 1) % size) = rank;
    CHECK_INT(weft_all_reduce(group, &one, &sum, 1, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK_INT((int)sum, size * (size + 1) / 2);
    CHECK_INT(*words, (rank + size - 1) % size);
    CHECK_INT(weft_free(group, words), WEFT_OK);
}

/* ---- members only ---------------------------------------------------------------------------------- */

static void by_id(int rank)
{
    weft_group *all = create(&shared->ids[0], rank, 4), *pair, *again;

    pair = create(&shared->ids[1 + rank % 2], rank / 2, 2);
    use(all);
    use(pair);
    use(all);
    weft_group_free(all);
    use(pair);
    weft_group_free(pair);
    again = create(&shared->ids[3], 3 - rank, 4);
    use(again);
    weft_group_free(again);
}

typedef struct thread_rank {
    pthread_t thread;
    int rank, size;
} thread_rank;

static void *be_thread(void *argument)
{
    thread_rank *self = argument;
    weft_group *group = create(&shared->ids[0], self->rank, self->size);

    for (int i = 0; i < 100; i++)
        use(group);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    weft_group_free(group);
    return NULL;
}

/* Two threads of this process and one of the other; and all three in one. */
static void mixed(int process)
{
    thread_rank ranks[] = {{.rank = process ? 1 : 0, .size = 3}, {.rank = 2, .size = 3}};
    int count = process ? 1 : 2;

    for (int i = 0; i < count; i++)
        CHECK_INT(pthread_create(&ranks[i].thread, NULL, be_thread, &ranks[i]), 0);
    for (int i = 0; i < count; i++)
        pthread_join(ranks[i].thread, NULL);
}

static void threads_only(int process)
{
    thread_rank ranks[3];

    (void)process;
    for (int i = 0; i < 3; i++) {
        ranks[i] = (thread_rank){.rank = i, .size = 3};
        CHECK_INT(pthread_create(&ranks[i].thread, NULL, be_thread, &ranks[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(ranks[i].thread, NULL);
}

static int gather_here(void *context, const void *mine, size_t bytes, void *all)
{
    int rank = *(int *)context;

    CHECK(bytes <= sizeof(shared->gathered[0]));
    memcpy(shared->gathered[rank], mine, bytes);
    atomic_fetch_add(&shared->turns, 1);
    while (atomic_load(&shared->turns) < 3)
        usleep(100);
    for (int i = 0; i < 3; i++)
        memcpy((char *)all + (size_t)i * bytes, shared->gathered[i], bytes);
    return 0;
}

static int gather_nothing(void *context, const void *mine, size_t bytes, void *all)
{
    (void)context, (void)mine, (void)bytes, (void)all;
    return 1;
}

static void by_gathering(int rank)
{
    weft_group *group = NULL;

    CHECK_INT(weft_group_create_from(gather_here, &rank, rank, 3, &group), WEFT_OK);
    use(group);
    weft_group_free(group);
}

static void refusals(void)
{
    weft_group *group = NULL;
    weft_id id = {{0}};

    CHECK_INT(weft_id_create(NULL), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_group_create(NULL, 0, 1, &group), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_group_create(&id, 0, 2, &group), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "no id");
    CHECK_INT(weft_id_create(&id), WEFT_OK);
    CHECK_INT(weft_group_create(&id, 2, 2, &group), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_group_create(&id, 0, 0, &group), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_group_create(&id, 0, 1, NULL), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "weft_group_create: group is NULL");
    CHECK_INT(weft_group_create_from(NULL, NULL, 0, 2, &group), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_group_create_from(gather_nothing, NULL, 0, 2, &group), WEFT_ERR_PEER);
    CHECK_HAS(weft_error(NULL), "the all-gather failed");
    CHECK_INT(weft_group_create(&id, 0, 1, &group), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    weft_group_free(group);
}

/* ---- what goes wrong on the way --------------------------------------------------------------------- */

static void of_two_sizes(int rank)
{
    weft_group *group = NULL;

    CHECK_INT(weft_group_create(&shared->ids[0], rank, rank ? 3 : 2, &group), WEFT_ERR_LAUNCH);
    CHECK_HAS(weft_error(NULL), "rank 1 was told of 3 ranks, rank 0 of 2");
}

/* A rank without a place for its handle: the others learn it at once, and not by its death. */
static void one_has_no_place(int rank, int which)
{
    weft_group *group = NULL;
    weft_status status = weft_group_create(&shared->ids[0], rank, 3, rank == which ? NULL : &group);

    CHECK_INT(status, rank == which ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(NULL), "weft_group_create: group is NULL");
    CHECK(!group);
}

static void first_has_no_place(int rank)
{
    one_has_no_place(rank, 0);
}

static void last_has_no_place(int rank)
{
    one_has_no_place(rank, 2);
}

/* Where the ranks gather, one that says wrongly which it is can be heard too. */
static void gathers_without_place(int rank)
{
    weft_group *group = NULL;

    CHECK_INT(weft_group_create_from(gather_here, &rank, rank, 3, rank == 1 ? NULL : &group),
              rank == 1 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(NULL), rank == 1 ? "group is NULL" : "rank 1 rejected its arguments");
}

static void gathers_as_nobody(int rank)
{
    weft_group *group = NULL;

    CHECK_INT(weft_group_create_from(gather_here, &rank, rank == 2 ? 3 : rank, 3, &group),
              rank == 2 ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(NULL), rank == 2 ? "rank 3 of 3" : "rank 2 rejected its arguments");
}

static int gathers_last = -1; /* the rank that lives no longer than the all-gather */

static int gather_and_die(void *context, const void *mine, size_t bytes, void *all)
{
    int failed = gather_here(context, mine, bytes, all);

    if (*(int *)context == gathers_last)
        _exit(check_failures ? 1 : 0);
    return failed;
}

/* What the others wait for will not come: they learn it at once, and not by the enter deadline. */
static void one_dies_gathered(int rank)
{
    weft_group *group = NULL;

    CHECK_INT(weft_group_create_from(gather_and_die, &rank, rank, 3, &group), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(NULL), gathers_last ? "rank 2 (process " : "rank 0 died or gave up before rank ");
}

static void first_fails(int rank)
{
    int64_t begun = weft_clock_ns();
    weft_group *group = NULL;

    if (rank == 0) {
        setenv("WEFT_HEAP", "lots", 1);
        usleep(50000);
    }
    CHECK_INT(weft_group_create(&shared->ids[0], rank, 3, &group), rank ? WEFT_ERR_PEER : WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "WEFT_HEAP is \"lots\"");
    CHECK(weft_clock_ns() - begun < 20000000000); /* not the ten minutes of the enter deadline */
}

/* The rendezvous of an id, as weft_enter_id makes it. */
static weft_rendezvous rendezvous_of(const weft_id *id)
{
    weft_rendezvous rendezvous = {0};
    int used = snprintf(rendezvous.name, sizeof(rendezvous.name), "weft-");

    for (int i = 0; i < 16; i++)
        used += snprintf(rendezvous.name + used, sizeof(rendezvous.name) - (size_t)used, "%02x",
                         id->bytes[8 + i]);
    memcpy(rendezvous.token, id->bytes + 24, WEFT_TOKEN_BYTES);
    return rendezvous;
}

/* Gets the memory and dies before it is in. */
static void one_dies_coming(int rank)
{
    weft_group *group = NULL;
    weft_error_text error;
    uint64_t nonce;
    int fd, connection;

    if (rank == 2) {
        weft_rendezvous rendezvous = rendezvous_of(&shared->ids[0]);

        usleep(50000);
        CHECK_INT(weft_rendezvous_join(&rendezvous, 2, 4, weft_clock_ns() + 10000000000, &fd, &nonce,
                                       &connection, &error),
                  WEFT_OK);
        _exit(check_failures ? 1 : 0);
    }
    if (rank == 3)
        usleep(400000); /* comes when the others have failed */
    CHECK_INT(weft_group_create(&shared->ids[0], rank, 4, &group), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(NULL), "rank 2 (process ");
    CHECK_HAS(weft_error(NULL), "died or gave up during weft_group_create");
}

/* A connection to rank 0, as soon as it listens. */
static int knock(const weft_rendezvous *rendezvous)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(rendezvous->name));

    memcpy(address.sun_path + 1, rendezvous->name, strlen(rendezvous->name));
    while (connect(fd, (struct sockaddr *)&address, bytes) != 0)
        usleep(1000);
    return fd;
}

/* A connection that says nothing, and one that does not know the token. */
static void beside_strangers(int rank)
{
    weft_rendezvous rendezvous = rendezvous_of(&shared->ids[0]);
    weft_group *group;
    int fd = -1;

    if (rank == 1) {
        weft_error_text error;
        uint64_t nonce;
        int got, connection;

        fd = knock(&rendezvous);
        rendezvous.token[3] ^= 1;
        CHECK_INT(weft_rendezvous_join(&rendezvous, 1, 2, weft_clock_ns() + 10000000000, &got, &nonce,
                                       &connection, &error),
                  WEFT_ERR_LAUNCH);
        usleep(100000);
    }
    group = create(&shared->ids[0], rank, 2);
    use(group);
    weft_group_free(group);
    if (fd >= 0)
        close(fd);
}

/* One that has another version of weft says so when it asks for the memory (struct request of rendezvous.c):
 * then the group will never be whole, and rank 0 does not wait for it. */
static void another_version(int rank)
{
    struct {
        uint64_t magic;
        char version[WEFT_VERSION_BYTES];
        unsigned char token[WEFT_TOKEN_BYTES];
        int32_t rank, size;
    } asked = {.magic = 0x7766742d6a6f696eu, .version = "0.0.1", .rank = 1, .size = 2};
    weft_rendezvous rendezvous = rendezvous_of(&shared->ids[0]);
    char answer[4096] = "";
    weft_group *group = NULL;
    int fd;

    if (rank == 0) {
        CHECK_INT(weft_group_create(&shared->ids[0], 0, 2, &group), WEFT_ERR_LAUNCH);
        CHECK_HAS(weft_error(NULL), "rank 1 has weft 0.0.1, and rank 0 has weft");
        return;
    }
    fd = knock(&rendezvous);
    memcpy(asked.token, rendezvous.token, sizeof(asked.token));
    CHECK_INT(send(fd, &asked, sizeof(asked), 0), sizeof(asked));
    CHECK(recv(fd, answer, sizeof(answer) - 1, 0) > 12);
    CHECK_HAS(answer + 12, "all ranks need the same");
    close(fd);
}

static void meets(int rank)
{
    weft_group *group = create(&shared->ids[0], rank, 2);

    use(group);
    weft_group_free(group);
}

static void gives_up(int rank)
{
    weft_group *group = NULL;

    if (rank == 1)
        setenv("WEFT_ENTER_TIMEOUT", "0.3", 1);
    CHECK_INT(weft_group_create(&shared->ids[0], rank, 2, &group),
              rank ? WEFT_ERR_LAUNCH : WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(NULL),
              rank ? "s for rank 0, which is there but has not answered" : "rank 1 (process ");
    if (rank)
        CHECK_HAS(weft_error(NULL), "rank 1 waited ");
}

/* Rank 0 is stopped while rank 1 asks: for as long as rank 1's deadline says, and no shorter, that is only
 * late. `run` ends as it should when it goes on after `stop_us`, or, with 0, when rank 1 has given up. */
static void first_is_stopped(body run, useconds_t stop_us)
{
    weft_rendezvous rendezvous;
    pid_t first, second;
    int fd, status = 0;

    fresh_table();
    rendezvous = rendezvous_of(&shared->ids[0]);
    first = start(run, 0);
    fd = knock(&rendezvous);
    CHECK_INT(kill(first, SIGSTOP), 0);
    CHECK_INT(waitpid(first, &status, WUNTRACED), first);
    CHECK(WIFSTOPPED(status));
    second = start(run, 1);
    if (stop_us)
        usleep(stop_us);
    else
        join(second);
    CHECK_INT(kill(first, SIGCONT), 0);
    if (stop_us)
        join(second);
    join(first);
    close(fd);
}

/* Nobody runs what lies in symmetric memory, and a system that demands such a promise gets it. */
static void no_programs(int rank)
{
    weft_group *group = create(&shared->ids[0], rank, 2);
    int fd = memfd_create("can", MFD_CLOEXEC | 8u /* MFD_NOEXEC_SEAL, since Linux 6.3 */);

    if (fd >= 0) {
        CHECK_INT(fcntl(group->world->segment.fd, F_GET_SEALS) & 0x20, 0x20); /* F_SEAL_EXEC */
        close(fd);
    }
    use(group);
    weft_group_free(group);
}

/* Another user, even with the id. */
static void another_user(int rank)
{
    weft_group *group = NULL;

    setenv("WEFT_ENTER_TIMEOUT", "0.5", 1);
    if (rank == 1 && seteuid(65534) != 0)
        exit(1);
    CHECK_INT(weft_group_create(&shared->ids[0], rank, 2, &group), WEFT_ERR_LAUNCH);
    if (rank == 1)
        CHECK_HAS(weft_error(NULL), "another user listens there");
}

static void on_alarm(int signal)
{
    (void)signal;
}

/* Signals arrive all the time while the ranks meet. */
static void under_signals(int rank)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    weft_group *group;

    sigaction(SIGALRM, &action, NULL);
    if (rank == 0)
        usleep(20000);
    setitimer(ITIMER_REAL, &often, NULL);
    group = create(&shared->ids[0], rank, 4);
    use(group);
    setitimer(ITIMER_REAL, &never, NULL);
    weft_group_free(group);
}

/* ---- what happens to a group ------------------------------------------------------------------------ */

/* A child of fork is no rank, whatever it calls; its parent goes on. */
static void forks(int rank)
{
    weft_group *group = create(&shared->ids[0], rank, 2), *own = NULL;
    weft_plan *plan = NULL;
    weft_problem problem;
    float *words = NULL, one = 1, sum = 0;
    pid_t child;

    weft_problem_init(&problem, WEFT_OP_ALL_REDUCE);
    problem.count = 100000;
    problem.tuning.workers = 2;
    CHECK_INT(weft_alloc(group, 4 * 100000, 0, (void **)&words), WEFT_OK);
    CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
    use(group);
    words[7] = 7;
    if (rank == 0) {
        fflush(NULL);
        child = fork();
        if (child == 0) {
            weft_operands operands = {.size = sizeof(operands), .send = words, .recv = words};

            leaks_are_elsewhere = 1;
            CHECK_INT(weft_barrier(group), WEFT_ERR_STATE);
            CHECK_HAS(weft_error(group), "is a child of");
            CHECK_INT(weft_all_reduce(group, &one, &sum, 1, WEFT_F32, WEFT_SUM), WEFT_ERR_STATE);
            CHECK_INT(weft_run(plan, &operands), WEFT_ERR_STATE);
            CHECK_INT(weft_group_abort(group, "not of a child"), WEFT_ERR_STATE);
            CHECK_INT((int)words[7], 7);
            CHECK_INT(weft_free(group, words), WEFT_OK);
            weft_plan_destroy(plan);
            CHECK_INT(weft_finalize(group), WEFT_OK);
            CHECK_INT(weft_group_threads(1, &own), WEFT_OK);
            use(own);
            weft_group_free(own);
            exit(check_failures ? 1 : 0);
        }
        join(child);
    }
    use(group);
    weft_plan_destroy(plan);
    CHECK_INT(weft_free(group, words), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    weft_group_free(group);
}

/* A rank that closes every descriptor is not dead. Nor is one whose child lives on when it is. */
static void closes_all(int rank)
{
    weft_group *group = create(&shared->ids[0], rank, 2), *sub = NULL;

    if (rank == 0) {
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
        usleep(200000);
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
    use(group);
    /* It cannot map more of the world's memory, and says so to all. */
    CHECK_INT(weft_group_split(group, 0, 0, &sub), WEFT_ERR_SYSTEM);
    CHECK_HAS(weft_error(group), "closed the descriptor");
    CHECK(sub == NULL);
    use(group);
    if (rank == 0) {
        if (fork() == 0) {
            sleep(5);
            _exit(0);
        }
        _exit(check_failures ? 1 : 0); /* without a word */
    }
    CHECK_INT(weft_barrier(group), WEFT_ERR_PEER_DIED);
    weft_group_free(group);
}

static void *abort_soon(void *argument)
{
    usleep(50000);
    CHECK_INT(weft_group_abort(argument, "the user pressed Ctrl-C"), WEFT_OK);
    return NULL;
}

static void aborts(int rank)
{
    weft_group *group = create(&shared->ids[0], rank, 3);
    pthread_t thread;

    if (rank == 0) {
        CHECK_INT(pthread_create(&thread, NULL, abort_soon, group), 0);
        CHECK_INT(weft_barrier(group), WEFT_ERR_ABORTED);
        pthread_join(thread, NULL);
    } else {
        if (rank == 2)
            usleep(100000);
        CHECK_INT(weft_barrier(group), WEFT_ERR_ABORTED);
    }
    CHECK_HAS(weft_error(group), "rank 0 aborted the group: the user pressed Ctrl-C");
    CHECK_INT(weft_barrier(group), WEFT_ERR_ABORTED);
    CHECK_INT(weft_group_abort(NULL, "x"), WEFT_ERR_ARGUMENT);
    weft_group_free(group);
}

/* What was made in a group may outlive it. */
static void outlives(int rank)
{
    weft_group *group = create(&shared->ids[0], rank, 2);
    weft_operands operands = {.size = sizeof(operands)};
    weft_moe_config config;
    weft_problem problem;
    weft_plan *plan = NULL;
    weft_moe *moe = NULL;

    weft_problem_init(&problem, WEFT_OP_ALL_REDUCE);
    problem.count = 1000;
    weft_moe_config_init(&config);
    config.experts = config.topk = 2;
    config.hidden = config.tokens = 8;
    CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    if (rank == 0)
        CHECK_INT(weft_moe_free(moe), WEFT_OK);
    weft_group_free(group);
    CHECK_INT(weft_run(plan, &operands), WEFT_ERR_STATE);
    weft_plan_destroy(plan);
    if (rank == 1)
        CHECK_INT(weft_moe_free(moe), WEFT_OK);
}

/* The memory cannot be executed, and no world can be made that a limit forbids. */
static void limits(int rank)
{
    struct rlimit small = {64 << 20, 64 << 20};
    weft_group *group = create(&shared->ids[0], rank, 2), *other = NULL;
    struct stat about;

    CHECK_INT(fstat(group->world->segment.fd, &about), 0);
    CHECK_INT(about.st_mode & 0111, 0);
    weft_group_free(group);
    setenv("WEFT_HEAP", "64M", 1);
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK_INT(weft_group_create(&shared->ids[1], rank, 2, &other), rank ? WEFT_ERR_PEER : WEFT_ERR_MEMORY);
    CHECK_HAS(weft_error(NULL), "ulimit -f");
}

int main(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    unsetenv("WEFT_HEAP");
    refusals();
    processes(4, by_id);
    processes(2, mixed);
    processes(1, threads_only);
    processes(3, by_gathering);
    processes(2, of_two_sizes);
    processes(3, first_has_no_place);
    processes(3, last_has_no_place);
    processes(3, gathers_without_place);
    processes(3, gathers_as_nobody);
    for (gathers_last = 0; gathers_last < 3; gathers_last += 2)
        processes(3, one_dies_gathered);
    processes(3, first_fails);
    for (int i = 0; i < 3; i++)
        processes(4, one_dies_coming);
    processes(2, beside_strangers);
    processes(2, another_version);
    first_is_stopped(gives_up, 0);
    first_is_stopped(meets, (useconds_t)check_repeat(1000000, 12000000));
    processes(2, no_programs);
    if (geteuid() == 0)
        processes(2, another_user);
    for (int i = 0; i < 3; i++)
        processes(4, under_signals);
    processes(2, forks);
    processes(2, closes_all);
    processes(3, aborts);
    processes(2, outlives);
    processes(2, limits);
    return check_report("test_multi_create");
}
