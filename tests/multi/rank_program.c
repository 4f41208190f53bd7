/* A program for test_run.sh to start: enters the world and passes `count` barriers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

int main(int argc, char **argv)
{
    weft_group *group;
    long count = argc == 3 && strcmp(argv[1], "barriers") == 0 ? strtol(argv[2], NULL, 10) : -1;
    int *words, wrong = 0;

    if (count < 0 || weft_init(&group) != WEFT_OK ||
        weft_alloc(group, 1024 * sizeof(int), 0, (void **)&words) != 0) {
        fprintf(stderr, "rank_program: %s\n", weft_error(NULL));
        return 1;
    }
    for (long i = 1; i <= count; i++) {
        for (int peer = 0; peer < weft_size(group); peer++)
            ((int *)weft_peer(group, words, peer))[weft_rank(group)] = (int)i;
        wrong += weft_barrier(group) != WEFT_OK;
        for (int peer = 0; peer < weft_size(group); peer++)
            wrong += words[peer] != (int)i;
        wrong += weft_barrier(group) != WEFT_OK;
    }
    weft_finalize(group);
    return wrong ? 3 : 0;
}
