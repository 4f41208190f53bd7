/*
 * How long ranks take to meet, and what one that waits for another costs meanwhile.
 *
 *     weft run -n RANKS -- waiting [SECONDS]
 *
 * Rank 0 comes late to a barrier by SECONDS (4). Prints rank 0's time in weft_init, and the CPU time of the
 * others in that barrier, for each of them.
 */
#include <weft/weft.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

int main(int argc, char **argv)
{
    double late = argc > 1 ? atof(argv[1]) : 4, begun = now(), met, spent[2], sum[2];
    struct rusage before, after;
    weft_group *group;
    int others;

    if (weft_init(&group) != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_error(NULL));
        return 1;
    }
    met = now() - begun;
    others = weft_size(group) > 1 ? weft_size(group) - 1 : 1;
    weft_barrier(group);
    getrusage(RUSAGE_SELF, &before);
    if (weft_rank(group) == 0)
        nanosleep(&(struct timespec){(time_t)late, (long)((late - (double)(time_t)late) * 1e9)}, NULL);
    weft_barrier(group);
    getrusage(RUSAGE_SELF, &after);
    spent[0] = seconds(after.ru_utime) - seconds(before.ru_utime);
    spent[1] = seconds(after.ru_stime) - seconds(before.ru_stime);
    if (weft_all_reduce(group, spent, sum, 2, WEFT_F64, WEFT_SUM) != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_error(group));
        return 1;
    }
    if (weft_rank(group) == 0)
        printf("%d ranks met in %.2f s; waiting for %.1f s took %.1f ms user and %.1f ms system of each\n",
               weft_size(group), met, late, sum[0] / others * 1e3, sum[1] / others * 1e3);
    weft_finalize(group);
    return 0;
}
