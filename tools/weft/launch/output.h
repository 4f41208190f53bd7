/* Puts the rank in front of every line that ranks write. */
#ifndef WEFT_TOOLS_LAUNCH_OUTPUT_H
#define WEFT_TOOLS_LAUNCH_OUTPUT_H

#include <stdbool.h>

enum { LAUNCH_LINE_BYTES = 8192 };

/* One stream of one rank: what came through the pipe `from` goes to `to` in whole lines. */
typedef struct launch_stream {
    int from, to; /* from is -1 when it has ended; to is -1 when nobody can be written to */
    int rank;
    int used;
    char line[LAUNCH_LINE_BYTES];
} launch_stream;

/* Reads once and writes the lines that are complete. At the end writes the rest and closes `from`. False when
 * they cannot be written, errno says why; from then on the rank's lines are read and dropped. */
bool launch_stream_pump(launch_stream *stream);

#endif
