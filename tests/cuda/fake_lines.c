#include "fake_lines.h"

#include "run/cpu/reduce.h"
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = WEFT_CUDA_LINE_BYTES / sizeof(uint64_t), THREADS = WEFT_CUDA_LINE_THREADS };

static int64_t payload_of(const weft_cuda_packets *p)
{
    return weft_cuda_line_payload(p->whole_lines);
}

/* Bytes of a line that a slice has; 0: it has no such line. */
static size_t bytes_in(const weft_cuda_packets *p, int owner, int64_t line)
{
    int64_t left = p->peer[owner].bytes - line * payload_of(p);

    return left <= 0 ? 0 : (size_t)(left < payload_of(p) ? left : payload_of(p));
}

static uint64_t *line_in(const weft_cuda_packets *p, const char *row, int64_t line, uint64_t epoch)
{
    return (uint64_t *)(void *)(uintptr_t)(row + (int64_t)(epoch & 1) * p->parity_bytes +
                                           line * WEFT_CUDA_LINE_BYTES);
}

/* Where word i of a line's payload lies in it. */
static int slot_of(int i)
{
    return i % THREADS * 2 + i / THREADS;
}

/* Numbers of runs: the last word's, or one in every 16 bytes. */
static void put_line(const weft_cuda_packets *p, char *row, int64_t line, uint64_t epoch, const char *from,
                     size_t bytes)
{
    uint64_t words[WORDS] = {0}, *to = line_in(p, row, line, epoch);

    memcpy(words, from, bytes);
    for (int i = 0; i < payload_of(p) / 8; i++)
        to[slot_of(i)] = words[i];
    for (int i = p->whole_lines ? WORDS - 1 : 1; i < WORDS; i += 2)
        __atomic_store_n(&to[i], epoch, __ATOMIC_RELEASE); /* partner: has_come */
}

static bool has_come(const weft_cuda_packets *p, const char *row, int64_t line, uint64_t epoch)
{
    const uint64_t *words = line_in(p, row, line, epoch);

    for (int i = p->whole_lines ? WORDS - 1 : 1; i < WORDS; i += 2)
        if (__atomic_load_n(&words[i], __ATOMIC_ACQUIRE) < epoch)
            return false;
    return true;
}

static void get_line(const weft_cuda_packets *p, const char *row, int64_t line, uint64_t epoch,
                     uint64_t words[WORDS])
{
    const uint64_t *from = line_in(p, row, line, epoch);

    for (int i = 0; i < payload_of(p) / 8; i++)
        words[i] = from[slot_of(i)];
}

void fake_lines_send(const weft_cuda_packets *p, fake_chunk chunk)
{
    for (int64_t line = chunk.first; line < chunk.end; line++)
        for (int r = 0; r < p->world; r++)
            if (r != p->rank && bytes_in(p, r, line))
                put_line(p, p->peer[r].to, line, chunk.epoch, p->peer[r].send + line * payload_of(p),
                         bytes_in(p, r, line));
}

int fake_lines_await(const weft_cuda_packets *p, fake_chunk chunk, int hop)
{
    for (int64_t line = chunk.first; line < chunk.end; line++)
        for (int r = 0; r < p->world; r++)
            if (r != p->rank && bytes_in(p, hop ? r : p->rank, line) &&
                !has_come(p, (hop ? p->results : p->inbox) + r * p->row_bytes, line, chunk.epoch))
                return r;
    return -1;
}

/* One line of what all ranks have, in their order. */
static void add_line(const weft_cuda_packets *p, int64_t line, uint64_t epoch)
{
    const weft_cuda_packet_peer *mine = &p->peer[p->rank];
    size_t bytes = bytes_in(p, p->rank, line), size = weft_dtype_size((weft_dtype)p->dtype);
    uint64_t words[WEFT_CUDA_PACKET_RANKS][WORDS], out[WORDS];
    weft_view views[WEFT_CUDA_PACKET_RANKS], into = {(char *)out, sizeof(out)};

    for (int r = 0; r < p->world; r++) {
        views[r] = (weft_view){(char *)words[r], sizeof(words[r])};
        if (r == p->rank)
            memcpy(words[r], mine->send + line * payload_of(p), bytes);
        else
            get_line(p, p->inbox + r * p->row_bytes, line, epoch, words[r]);
    }
    weft_reduce_rows((weft_dtype)p->dtype, (weft_reduction)p->reduction, 1, (int64_t)(bytes / size), views,
                     p->world, (weft_dtype)p->dtype, &into, 1);
    memcpy(mine->recv + line * payload_of(p), out, bytes);
    for (int r = 0; r < p->world && p->results; r++)
        if (r != p->rank)
            put_line(p, p->peer[r].back, line, epoch, (const char *)out, bytes);
}

/* A line of every peer, as it is. */
static void take_line(const weft_cuda_packets *p, const char *rows, int64_t line, uint64_t epoch)
{
    for (int r = 0; r < p->world; r++)
        if (r != p->rank && bytes_in(p, r, line)) {
            uint64_t words[WORDS];

            get_line(p, rows + r * p->row_bytes, line, epoch, words);
            memcpy(p->peer[r].recv + line * payload_of(p), words, bytes_in(p, r, line));
        }
}

void fake_lines_receive(const weft_cuda_packets *p, fake_chunk chunk, int hop)
{
    const weft_cuda_packet_peer *mine = &p->peer[p->rank];

    CHECK(p->reduces || !p->results); /* also of a rank whose slice is empty: it decides which kernel runs */
    for (int64_t line = chunk.first; line < chunk.end; line++) {
        int64_t at = line * payload_of(p);

        if (!hop && p->reduces && bytes_in(p, p->rank, line))
            add_line(p, line, chunk.epoch);
        if (!hop && !p->reduces)
            memmove(mine->recv + at, mine->send + at, bytes_in(p, p->rank, line));
        if (hop || !p->reduces)
            take_line(p, hop ? p->results : p->inbox, line, chunk.epoch);
    }
}
