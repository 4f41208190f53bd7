/* Fuzzers as ranks of a job that a launcher started: in its group, and in parts of it that differ each time.
 */
#ifndef WEFT_TESTS_FUZZ_JOB_H
#define WEFT_TESTS_FUZZ_JOB_H

#include "support/check.h"
#include "support/ranks.h"

/* So many seeds from one on. */
typedef struct seeds {
    uint64_t first;
    long count;
} seeds;

/* body(group, seeds) of `each` seeds at a time, in groups of `most` ranks at most. */
static inline void run_in_job(seeds all, long each, int most, ranks_body body)
{
    weft_group *group = NULL, *part = NULL;

    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK(!group || weft_size(group) <= most);
    for (long done = 0; group && done < all.count && !check_failures; done += 2 * each) {
        seeds next = {all.first + (uint64_t)done, each};
        uint64_t s = next.first * 131 + (uint64_t)weft_rank(group);
        int colour = (int)(check_random(&s) % 3);

        body(group, &next);
        CHECK_INT(weft_group_split(group, colour, (int)(check_random(&s) % 100), &part), WEFT_OK);
        next.first += (uint64_t)each;
        if (part)
            body(part, &next);
        weft_group_free(part);
        part = NULL;
    }
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

#endif
