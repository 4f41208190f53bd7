#include "run/cuda/watch.h"
#include "core/thread.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_NS = 10000000 };

static struct {
    pthread_mutex_t lock;
    weft_group *first;
    pid_t process; /* whose thread looks; 0: nobody's */
} watched = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Raises the word that kernels which wait look at; partner: the loads of it in their waits. */
static void look(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);
    char why[128];
    int dead = -1;

    if (__atomic_load_n(g->stop, __ATOMIC_RELAXED))
        return;
    if (!weft_group_failed(group))
        dead = weft_group_find_dead(group, -1);
    if (dead >= 0) {
        snprintf(why, sizeof(why), "rank %d (process %d) died while rank %d's GPU ran", dead,
                 weft_group_pid(group, dead), group->rank);
        weft_group_end(group, WEFT_ERR_PEER_DIED, why);
    }
    if (weft_group_failed(group))
        __atomic_store_n(g->stop, 1, __ATOMIC_RELEASE);
}

static void *watch(void *argument)
{
    for (bool some = true; some;) {
        pthread_mutex_lock(&watched.lock);
        for (weft_group *group = watched.first; group; group = weft_cuda_of(group)->watched_next)
            look(group);
        some = watched.first != NULL;
        if (!some)
            watched.process = 0;
        pthread_mutex_unlock(&watched.lock);
        nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    }
    return argument;
}

static bool start(void)
{
    pthread_t thread;

    if (weft_thread_start(&thread, NULL, watch, NULL) != 0)
        return false;
    pthread_detach(thread);
    return true;
}

void weft_cuda_watch(weft_group *group)
{
    if (watched.process != 0 && watched.process != getpid()) { /* of the parent of a fork: its thread is not
                                                                  here, and may have held the lock */
        pthread_mutex_init(&watched.lock, NULL);
        watched.first = NULL;
        watched.process = 0;
    }
    pthread_mutex_lock(&watched.lock);
    weft_cuda_of(group)->watched_next = watched.first;
    watched.first = group;
    if (watched.process == 0 && start())
        watched.process = getpid();
    pthread_mutex_unlock(&watched.lock);
}

void weft_cuda_unwatch(weft_group *group)
{
    pthread_mutex_lock(&watched.lock);
    for (weft_group **at = &watched.first; *at; at = &weft_cuda_of(*at)->watched_next)
        if (*at == group) {
            *at = weft_cuda_of(group)->watched_next;
            break;
        }
    pthread_mutex_unlock(&watched.lock);
}
