/*
 * Whether a core is slower than it can be, as beside a neighbour: the other thread of a core may be another
 * machine's, and no system call tells. A small product on the units that threads of a core share does: it
 * takes 1.3 times as long with vectors then and 2 to 3 times with AMX. What it takes at best in the process's
 * life is what the core takes by itself.
 */
#include "calibrate/calibrate.h"

#include "core/clock.h"
#include "gemm/gemm.h"

#include <math.h>
#include <stdlib.h>

enum { EXTENT = 64, TIMES = 8, TIMES_AT_FIRST = 100, ROOM_BYTES = EXTENT * EXTENT * 4 };

/* So much longer than at its best is still the core by itself. */
static const double slack = 1.25;

static double best_ns[CALIBRATE_MOST_CORES]; /* 0: not known yet */

struct calibrate_watch {
    const weft_binding *bind;
    void *a, *b, *d, *workspace;
};

calibrate_watch *calibrate_watch_new(void)
{
    calibrate_watch *w = calloc(1, sizeof(*w));
    weft_error_text ignored;
    const weft_core *core;

    if (!w || weft_core_current(&core, &ignored) != WEFT_OK)
        goto err_free;
    w->bind = weft_core_binding(core, WEFT_BF16, false);
    w->a = calibrate_room(ROOM_BYTES);
    w->b = calibrate_room(ROOM_BYTES);
    w->d = calibrate_room(ROOM_BYTES);
    w->workspace = calibrate_room(weft_gemm_workspace_bytes(w->bind, EXTENT, EXTENT, EXTENT, false));
    if (w->a && w->b && w->d && w->workspace)
        return w;
err_free:
    calibrate_watch_free(w);
    return NULL;
}

void calibrate_watch_free(calibrate_watch *w)
{
    if (!w)
        return;
    free(w->a);
    free(w->b);
    free(w->d);
    free(w->workspace);
    free(w);
}

calibrate_sight calibrate_watch_look(calibrate_watch *w, int core)
{
    weft_gemm_tile tile = weft_gemm_tile_init(w->bind, WEFT_BF16);
    double ns = INFINITY, before = best_ns[core];

    tile.m = tile.n = tile.k = EXTENT;
    tile.a = w->a;
    tile.b = w->b;
    tile.a_rs = tile.b_rs = EXTENT;
    tile.a_cs = tile.b_cs = 1;
    tile.d[0] = w->d;
    tile.d_ld[0] = EXTENT;
    for (int i = 0; i < (before > 0 ? TIMES : TIMES_AT_FIRST); i++) { /* the first may come to cold caches */
        int64_t start = weft_clock_ns();

        weft_gemm_run_tile(&tile, w->workspace);
        ns = fmin(ns, (double)(weft_clock_ns() - start));
    }
    if (before == 0 || ns < before)
        best_ns[core] = ns;
    return before > slack * ns          ? CALIBRATE_NEVER_SO_GOOD
           : ns > slack * best_ns[core] ? CALIBRATE_DISTURBED
                                        : CALIBRATE_ALONE;
}
