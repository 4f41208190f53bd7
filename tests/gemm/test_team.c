/* A team of changing size: every member that is asked for works once on each job, and nobody else does. */
#include "gemm/team.h"
#include "support/check.h"

#include <stdatomic.h>

enum { MOST = 6, JOBS = 600 };

typedef struct job {
    _Atomic int
        turns[MOST];   /* counted by members (relaxed); the end of the job orders them before the check */
    _Atomic int wrong; /* likewise */
    int members;
} job;

static void work(void *argument, int member, int members)
{
    job *it = argument;

    atomic_fetch_add_explicit(&it->turns[member], 1, memory_order_relaxed);
    if (members != it->members)
        atomic_fetch_add_explicit(&it->wrong, 1, memory_order_relaxed);
}

int main(void)
{
    static job jobs[JOBS]; /* each its own: a late worker is seen, and harms nothing */
    uint64_t seed = 1;
    void *scratch;
    int late = 0;

    CHECK_INT(weft_gemm_team_lock(0, &scratch, &(weft_error_text){0}), WEFT_OK);
    CHECK_INT(weft_gemm_team_run(MOST, work, &(job){.members = MOST}), MOST);
    for (int i = 0; i < JOBS; i++) {
        jobs[i].members = 2 + (int)(check_random(&seed) % (MOST - 1));
        CHECK_INT(weft_gemm_team_run(jobs[i].members, work, &jobs[i]), jobs[i].members);
    }
    CHECK_INT(weft_gemm_team_run(MOST, work, &(job){.members = MOST}), MOST);
    weft_gemm_team_unlock();
    for (int i = 0; i < JOBS; i++) {
        late += atomic_load_explicit(&jobs[i].wrong, memory_order_relaxed);
        for (int member = 0; member < MOST; member++)
            late += atomic_load_explicit(&jobs[i].turns[member], memory_order_relaxed) !=
                    (member < jobs[i].members);
    }
    CHECK_INT(late, 0);
    return check_report("gemm team");
}
