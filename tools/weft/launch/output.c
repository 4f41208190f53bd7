#include "launch/output.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Drops what was written from the parts; true when something is left. */
static bool advance(struct iovec *parts, int count, size_t written)
{
    size_t left = 0;

    for (int i = 0; i < count; i++) {
        size_t here = written < parts[i].iov_len ? written : parts[i].iov_len;

        parts[i].iov_base = (char *)parts[i].iov_base + here;
        parts[i].iov_len -= here;
        written -= here;
        left += parts[i].iov_len;
    }
    return left > 0;
}

static bool put_line(launch_stream *stream, const char *line, size_t bytes)
{
    char prefix[16];
    int length = snprintf(prefix, sizeof(prefix), "[%d] ", stream->rank);
    bool whole = bytes > 0 && line[bytes - 1] == '\n';
    struct iovec parts[] = {{prefix, (size_t)length}, {(void *)line, bytes}, {(void *)"\n", whole ? 0 : 1}};
    ssize_t written = 0;

    if (stream->to < 0)
        return true;
    /* One call where the other side takes it, so that lines of different ranks do not mix. */
    while (advance(parts, 3, (size_t)written)) {
        written = writev(stream->to, parts, 3);
        if (written >= 0)
            continue;
        if (errno == EAGAIN) /* whoever reads has made its end not wait */
            poll(&(struct pollfd){.fd = stream->to, .events = POLLOUT}, 1, -1);
        else if (errno != EINTR) {
            stream->to = -1;
            return false;
        }
        written = 0;
    }
    return true;
}

bool launch_stream_pump(launch_stream *stream)
{
    ssize_t got;
    char *line = stream->line, *end;
    bool written = true;

    do
        got = read(stream->from, stream->line + stream->used, sizeof(stream->line) - (size_t)stream->used);
    while (got < 0 && errno == EINTR);
    if (got <= 0) {
        if (stream->used > 0)
            written = put_line(stream, stream->line, (size_t)stream->used);
        close(stream->from);
        stream->from = -1;
        return written;
    }
    stream->used += (int)got;
    while ((end = memchr(line, '\n', (size_t)(stream->line + stream->used - line)))) {
        written = put_line(stream, line, (size_t)(end + 1 - line)) && written;
        line = end + 1;
    }
    stream->used -= (int)(line - stream->line);
    memmove(stream->line, line, (size_t)stream->used);
    if (stream->used == (int)sizeof(stream->line)) { /* a line longer than the buffer goes out in pieces */
        written = put_line(stream, stream->line, sizeof(stream->line)) && written;
        stream->used = 0;
    }
    return written;
}
