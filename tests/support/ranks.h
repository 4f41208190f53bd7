/* Runs a function once per rank, with ranks as threads of one group. */
#ifndef WEFT_TESTS_SUPPORT_RANKS_H
#define WEFT_TESTS_SUPPORT_RANKS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

typedef void (*ranks_body)(weft_group *group, void *argument);

typedef struct ranks_thread {
    pthread_t thread;
    weft_group *group;
    ranks_body body;
    void *argument;
} ranks_thread;

static inline void *ranks_main(void *opaque)
{
    ranks_thread *self = opaque;

    self->body(self->group, self->argument);
    weft_group_free(self->group);
    return NULL;
}

/* Each rank calls body(its handle, argument); the handle is freed when it returns. */
static inline void ranks_run(int size, ranks_body body, void *argument)
{
    ranks_thread *ranks = calloc((size_t)size, sizeof(*ranks));
    weft_group **groups = calloc((size_t)size, sizeof(*groups));

    if (!ranks || !groups || weft_group_threads(size, groups) != WEFT_OK) {
        fprintf(stderr, "cannot make a group of %d threads: %s\n", size, weft_error(NULL));
        exit(1);
    }
    for (int rank = 0; rank < size; rank++) {
        ranks[rank] = (ranks_thread){.group = groups[rank], .body = body, .argument = argument};
        if (pthread_create(&ranks[rank].thread, NULL, ranks_main, &ranks[rank]) != 0) {
            fprintf(stderr, "cannot start a thread\n");
            exit(1);
        }
    }
    for (int rank = 0; rank < size; rank++)
        pthread_join(ranks[rank].thread, NULL);
    free(groups);
    free(ranks);
}

#endif
