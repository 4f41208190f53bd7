/* Threads of the library take no signals: those are for the program's own. */
#ifndef WEFT_CORE_THREAD_H
#define WEFT_CORE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* pthread_create of a thread that has every signal blocked. */
static inline int weft_thread_start(pthread_t *thread, const pthread_attr_t *attributes,
                                    void *(*run)(void *argument), void *argument)
{
    sigset_t all, before;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(thread, attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

#endif
