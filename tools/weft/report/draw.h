/*
 * Pictures of runs: events of all ranks, recorded or simulated, drawn with the names their plan gives them.
 */
#ifndef WEFT_TOOLS_REPORT_DRAW_H
#define WEFT_TOOLS_REPORT_DRAW_H

#include "core/status.h"
#include "sim/sim.h"
#include "trace/trace.h"

/*
 * Writes the picture and the Chrome trace (either path may be NULL) of one run of a plan, whose problem is
 * resolved, no AUTO. `where` says on what it ran ("h100x8, simulated"). Where ranks have many compute lanes
 * the picture shows the first few; the trace has all.
 */
weft_status draw_run(const weft_sim_source *source, const char *where, const weft_event *events,
                     size_t event_count, const char *svg, const char *trace, weft_error_text *error);

#endif
