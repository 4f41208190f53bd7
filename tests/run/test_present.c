/*
 * Whatever weft touches of symmetric memory was made present before: a page that the system cannot give is an
 * error then, where touching it would be a signal (vm.overcommit_memory = 2). A madvise of this program notes
 * what was asked for; in the end every page that the world's file has must be among it.
 *
 * Ranks are threads with worlds of their own, which share a file as processes do.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "group/group.h"
#include "support/check.h"
#include <weft/weft.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { RANKS = 3, NOTES = 1 << 16, LARGE = 300000 };

/* Of the file, by offset. */
static struct note {
    uint64_t begin, end;
} notes[NOTES];
static int note_count;
static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;

/* Where of a file that is called weft an address lies. */
static bool offset_of(const void *memory, uint64_t *offset)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    bool found = false;

    while (maps && !found && fgets(line, sizeof(line), maps)) {
        unsigned long long begin, end, at;

        if (strstr(line, "memfd:weft") && sscanf(line, "%llx-%llx %*s %llx", &begin, &end, &at) == 3 &&
            (uintptr_t)memory >= begin && (uintptr_t)memory < end) {
            *offset = at + ((uintptr_t)memory - begin);
            found = true;
        }
    }
    if (maps)
        fclose(maps);
    return found;
}

int madvise(void *memory, size_t bytes, int advice)
{
    uint64_t begin;

    if (advice == MADV_POPULATE_WRITE && offset_of(memory, &begin)) {
        pthread_mutex_lock(&noting);
        if (note_count < NOTES)
            notes[note_count++] = (struct note){begin, begin + bytes};
        pthread_mutex_unlock(&noting);
    }
    return (int)syscall(SYS_madvise, memory, bytes, advice);
}

static bool asked_for(uint64_t begin, uint64_t end)
{
    for (int i = 0; i < note_count && begin < end; i++)
        if (notes[i].begin <= begin && begin < notes[i].end) {
            begin = notes[i].end;
            i = -1;
        }
    return begin >= end;
}

/* ---- what there is to do --------------------------------------------------------------------------- */

static void collectives(weft_group *group)
{
    int rank = weft_rank(group), size = weft_size(group);
    float *memory = calloc(LARGE * RANKS, sizeof(float)), *other = calloc(LARGE * RANKS, sizeof(float));
    int64_t counts[RANKS] = {100000, 0, 70000};

    for (int64_t count = 1; count <= LARGE; count *= 30) {
        CHECK_INT(weft_all_reduce(group, memory, other, count, WEFT_F32, WEFT_SUM), WEFT_OK);
        CHECK_INT(weft_all_gather(group, memory, other, count, WEFT_F32), WEFT_OK);
        CHECK_INT(weft_reduce_scatter(group, memory, other, count, WEFT_F32, WEFT_MAX), WEFT_OK);
        CHECK_INT(weft_all_to_all(group, memory, other, count, WEFT_F32), WEFT_OK);
        CHECK_INT(weft_broadcast(group, memory, count, WEFT_F32, size - 1), WEFT_OK);
        CHECK_INT(weft_gather(group, memory, other, count, WEFT_F32, 0), WEFT_OK);
        if (rank == 0)
            CHECK_INT(weft_send(group, memory, count, WEFT_F32, 1), WEFT_OK);
        if (rank == 1)
            CHECK_INT(weft_recv(group, other, count, WEFT_F32, 0), WEFT_OK);
    }
    CHECK_INT(weft_all_gather_v(group, memory, other, counts, WEFT_F32), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    free(memory);
    free(other);
}

static void products(weft_group *group)
{
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR, WEFT_OP_GEMM_AS};
    enum { EXTENT = 260 };
    float *a = calloc(EXTENT * EXTENT, sizeof(float)), *b = calloc(EXTENT * EXTENT, sizeof(float)),
          *d = calloc(EXTENT * EXTENT, sizeof(float));
    weft_operands operands = {.size = sizeof(operands), .a = a, .b = b, .d = d};

    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        const weft_schedule *schedules;
        int count;

        schedules = weft_schedule_list(ops[i], WEFT_LAYOUT_DEFAULT, &count);
        for (int s = 0; s < count; s++) {
            weft_problem problem;
            weft_plan *plan = NULL;

            weft_problem_init(&problem, ops[i]);
            problem.m = problem.n = problem.k = EXTENT;
            problem.schedule = schedules[s];
            CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
            CHECK_INT(weft_run(plan, &operands), WEFT_OK);
            weft_plan_destroy(plan);
        }
    }
    free(a);
    free(b);
    free(d);
}

static void experts(weft_group *group)
{
    weft_moe_config config;
    weft_moe_view view = {.size = sizeof(view)};
    weft_moe_input input = {.size = sizeof(input), .tokens = 8};
    float x[8 * 64] = {0}, y[8 * 64], *results;
    int32_t expert[8 * 2];
    weft_moe *moe = NULL;

    weft_moe_config_init(&config);
    config.experts = 6;
    config.topk = 2;
    config.hidden = 64;
    config.tokens = 8;
    for (int i = 0; i < 16; i++)
        expert[i] = i % 6;
    input.x = x;
    input.expert = expert;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    for (int round = 0; round < 3; round++) {
        CHECK_INT(weft_moe_dispatch(moe, 0, &input, &view), WEFT_OK);
        results = calloc((size_t)view.offset[view.experts] * 64 + 1, sizeof(float));
        CHECK_INT(weft_moe_combine(moe, 0, results, NULL, y), WEFT_OK);
        free(results);
    }
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
}

static void objects(weft_group *group)
{
    static const size_t sizes[] = {1, 5000, 70000, 300000, 9 << 20};
    char *held[1500];

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char *memory = NULL;

        CHECK_INT(weft_alloc(group, sizes[i], 0, (void **)&memory), WEFT_OK);
        memset(weft_peer(group, memory, (weft_rank(group) + 1) % weft_size(group)), 1, sizes[i]);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        CHECK_INT(weft_free(group, memory), WEFT_OK);
    }
    for (int i = 0; i < 1500; i++) /* more leases than a page has */
        CHECK_INT(weft_alloc(group, 8, 0, (void **)&held[i]), WEFT_OK);
    for (int i = 0; i < 1500; i++)
        CHECK_INT(weft_free(group, held[i]), WEFT_OK);
}

typedef struct member {
    pthread_t thread;
    const weft_id *id;
    int rank;
} member;

static void count_unasked(const weft_group *group)
{
    int fd = group->world->segment.fd;
    long long unasked = 0, present = 0;

    for (off_t begin = lseek(fd, 0, SEEK_DATA), end; begin >= 0; begin = lseek(fd, end, SEEK_DATA)) {
        end = lseek(fd, begin, SEEK_HOLE);
        if (end <= begin)
            break;
        present += end - begin;
        if (!asked_for((uint64_t)begin, (uint64_t)end)) {
            unasked++;
            fprintf(stderr, "pages %llx to %llx of the file were touched without being asked for\n",
                    (unsigned long long)begin, (unsigned long long)end);
        }
    }
    CHECK(present > 0);
    CHECK_INT(unasked, 0);
}

static void *be_member(void *argument)
{
    const member *self = argument;
    weft_group *group = NULL, *sub = NULL;

    CHECK_INT(weft_group_create(self->id, self->rank, RANKS, &group), WEFT_OK);
    if (!group)
        return NULL;
    collectives(group);
    products(group);
    experts(group);
    objects(group);
    CHECK_INT(weft_group_split(group, 0, -self->rank, &sub), WEFT_OK);
    collectives(sub);
    objects(sub);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (self->rank == 0)
        count_unasked(group);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    weft_group_free(sub);
    weft_group_free(group);
    return NULL;
}

int main(void)
{
    member members[RANKS];
    weft_id id;

    setenv("WEFT_HUGE", "off", 1); /* a huge page is more than what was asked for */
    setenv("WEFT_HEAP", "64M", 1);
    CHECK_INT(weft_id_create(&id), WEFT_OK);
    for (int rank = 0; rank < RANKS; rank++) {
        members[rank] = (member){.id = &id, .rank = rank};
        CHECK_INT(pthread_create(&members[rank].thread, NULL, be_member, &members[rank]), 0);
    }
    for (int rank = 0; rank < RANKS; rank++)
        pthread_join(members[rank].thread, NULL);
    return check_report("test_run_present");
}
