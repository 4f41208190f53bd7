/*
 * The threads that share one rank's product.
 *
 * One team per process, made at the first call that wants help and kept. It never has more threads than the
 * calling thread's affinity mask has CPUs, so ranks that are pinned apart do not oversubscribe the machine.
 * Idle workers sleep. One call uses the team at a time; a second caller waits its turn. A call that needs no
 * help needs no team: it has scratch memory of its thread, and waits for nobody.
 */
#ifndef WEFT_GEMM_TEAM_H
#define WEFT_GEMM_TEAM_H

#include "core/status.h"

/* Runs on every member, the caller being member 0. */
typedef void (*weft_gemm_team_work)(void *argument, int member, int members);

/* How many threads a call may use: `asked` (0 = all), but no more than the CPUs it may run on. */
int weft_gemm_team_members(int asked);

/*
 * Takes the team for one call and gives it scratch memory of at least this size (128-byte aligned, kept for
 * later calls). Every lock is followed by an unlock.
 */
weft_status weft_gemm_team_lock(size_t scratch_bytes, void **scratch, weft_error_text *error);
void weft_gemm_team_unlock(void);

/* Without the team: scratch memory of the calling thread, as above, kept until the thread ends. */
weft_status weft_gemm_own_scratch(size_t bytes, void **scratch, weft_error_text *error);

/* While locked: runs `work` on up to `members` threads and returns when all are done. Returns how many ran.
 */
int weft_gemm_team_run(int members, weft_gemm_team_work work, void *argument);

#endif
