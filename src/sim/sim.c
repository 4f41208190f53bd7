/* The entry points of the simulator: load a model, run it, tune problems to a machine. */
#include "sim/model.h"

#include <stdlib.h>
#include <string.h>

const char *weft_bound_name(weft_bound bound)
{
    static const char *const names[WEFT_BOUND_COUNT] = {"compute", "link", "latency", "memory"};

    return (unsigned)bound < WEFT_BOUND_COUNT ? names[bound] : "invalid";
}

weft_status weft_sim_run(const weft_machine *machine, const weft_sim_source *source, weft_sim_mode mode,
                         bool want_events, weft_sim_result *result, weft_error_text *error)
{
    weft_status status;
    model m;

    status = model_load(&m, machine, source, mode, error);
    if (status)
        return status;
    status = model_run(&m, want_events, result, error);
    model_free(&m);
    return status;
}
