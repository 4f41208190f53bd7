/* Puts the rank in front of every line that ranks write. */
#ifndef WEFT_TOOLS_LAUNCH_OUTPUT_H
#define WEFT_TOOLS_LAUNCH_OUTPUT_H

#include <stdbool.h>

enum { LAUNCH_LINE_BYTES = 8192 };

/* One stream of one rank: what came through the pipe `from` goes to `to` in whole lines. */
typedef struct launch_stream {
    int from, to; /* from is -1 when it has ended */
    int rank;
    int used;
    char line[LAUNCH_LINE_BYTES];
} launch_stream;

/* Reads once and writes the lines that are complete. At the end writes the rest and closes `from`. */
void launch_stream_pump(launch_stream *stream);

#endif
