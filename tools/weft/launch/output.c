#include "launch/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void put_line(const launch_stream *stream, const char *line, size_t bytes)
{
    char prefix[16];
    int length = snprintf(prefix, sizeof(prefix), "[%d] ", stream->rank);
    bool whole = bytes > 0 && line[bytes - 1] == '\n';
    struct iovec parts[] = {{prefix, (size_t)length}, {(void *)line, bytes}, {(void *)"\n", whole ? 0 : 1}};

    /* One call, so that lines of different ranks do not mix. Nobody is left to tell when this fails. */
    while (writev(stream->to, parts, 3) < 0 && errno == EINTR)
        ;
}

void launch_stream_pump(launch_stream *stream)
{
    ssize_t got;
    char *line = stream->line, *end;

    do
        got = read(stream->from, stream->line + stream->used, sizeof(stream->line) - (size_t)stream->used);
    while (got < 0 && errno == EINTR);
    if (got <= 0) {
        if (stream->used > 0)
            put_line(stream, stream->line, (size_t)stream->used);
        close(stream->from);
        stream->from = -1;
        return;
    }
    stream->used += (int)got;
    while ((end = memchr(line, '\n', (size_t)(stream->line + stream->used - line)))) {
        put_line(stream, line, (size_t)(end + 1 - line));
        line = end + 1;
    }
    stream->used -= (int)(line - stream->line);
    memmove(stream->line, line, (size_t)stream->used);
    if (stream->used == (int)sizeof(stream->line)) { /* a line longer than the buffer goes out in pieces */
        put_line(stream, stream->line, sizeof(stream->line));
        stream->used = 0;
    }
}
