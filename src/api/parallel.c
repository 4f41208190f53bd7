/* Whose threads do the work. */
#include "core/pool.h"
#include "core/status.h"

enum { THREADS_MOST = 4096 };

weft_status weft_set_parallel(weft_parallel run, void *context, int threads)
{
    if (run && (threads < 1 || threads > THREADS_MOST))
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT,
                              "weft_set_parallel: %d threads: there must be 1 to %d", threads, THREADS_MOST);
    weft_pool_use(run, context, threads);
    return WEFT_OK;
}
