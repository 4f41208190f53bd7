#include "run/cpu/team.h"

#include "core/clock.h"
#include "core/signal.h"

#include <pthread.h>
#include <stdlib.h>

enum { SPIN_NS = 50000, POLLS = 64 };

typedef struct member {
    struct weft_team *team;
    int worker;
    pthread_t thread;
} member;

struct weft_team {
    weft_signal round;    /* grows by one for each run; only the caller stores it */
    weft_signal finished; /* one post per thread and run */
    int size;
    int count;
    bool ending;
    void (*work)(void *argument, int worker);
    void *argument;
    uint64_t rounds;
    member members[];
};

static void wait_for(weft_signal *signal, uint64_t value)
{
    int64_t start = weft_clock_ns();

    for (;;) {
        uint64_t seen;

        for (int poll = 0; poll < POLLS; poll++) {
            if (weft_signal_reached(signal, value))
                return;
            weft_pause();
        }
        seen = weft_signal_load(signal);
        if (weft_clock_ns() - start > SPIN_NS && !weft_signal_passed(seen, value))
            weft_signal_sleep(signal, seen, WEFT_SLEEP_MAX_NS);
    }
}

static void *serve(void *argument)
{
    member *me = argument;
    weft_team *team = me->team;

    for (uint64_t round = 1;; round++) {
        wait_for(&team->round, round);
        if (team->ending)
            return NULL;
        if (me->worker < team->count)
            team->work(team->argument, me->worker);
        weft_signal_post(&team->finished, 1);
    }
}

weft_status weft_team_create(int size, weft_team **out, weft_error_text *error)
{
    weft_team *team;
    size_t bytes = sizeof(weft_team) + (size_t)size * sizeof(member);

    bytes = (bytes + WEFT_LINE_BYTES - 1) / WEFT_LINE_BYTES * WEFT_LINE_BYTES;
    team = aligned_alloc(WEFT_LINE_BYTES, bytes);
    if (!team)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a team of %d workers", size);
    *team = (weft_team){.size = 1};
    while (team->size < size) {
        member *next = &team->members[team->size];

        next->team = team;
        next->worker = team->size;
        if (pthread_create(&next->thread, NULL, serve, next) != 0) {
            weft_error_set(error, WEFT_ERR_SYSTEM, "the system refused worker thread %d of %d", next->worker,
                           size - 1);
            weft_team_destroy(team);
            return WEFT_ERR_SYSTEM;
        }
        team->size++;
    }
    *out = team;
    return WEFT_OK;
}

void weft_team_destroy(weft_team *team)
{
    if (!team)
        return;
    team->ending = true;
    weft_signal_store(&team->round, ++team->rounds);
    for (int worker = 1; worker < team->size; worker++)
        pthread_join(team->members[worker].thread, NULL);
    free(team);
}

int weft_team_size(const weft_team *team)
{
    return team ? team->size : 1;
}

void weft_team_run(weft_team *team, int count, void (*work)(void *argument, int worker), void *argument)
{
    if (!team || count == 1) {
        work(argument, 0);
        return;
    }
    team->work = work;
    team->argument = argument;
    team->count = count;
    weft_signal_store(&team->round, ++team->rounds);
    work(argument, 0);
    wait_for(&team->finished, team->rounds * (uint64_t)(team->size - 1));
}
