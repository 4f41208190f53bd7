/* Collectives: what measured fastest. See choose.h. */
#include "choose/cuda/decide.h"
#include "choose/cuda/kernels.h"
#include "choose/cuda/wire.h"
#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"
#include "plan/crews.h"

/* Measured on ranks that share a GPU, 2, 4 and 8 of them. */
enum {
    PACKETS_BYTES_2 = 128 << 10, /* of a rank: beyond, packets take longer than ENTER and DONE */
    PACKETS_BYTES_4 = 128 << 10,
    PACKETS_BYTES = 8 << 10,    /* and of a broadcast, which only its root sends */
    ONE_SHOT_BYTES = 896 << 10, /* that a rank reads of its peers: beyond, slices take less */
    CTA_PACKETS = 256,          /* while there are CTAs */
    CTA_BYTES = 16 << 10,       /* less is not worth another CTA */
    MOST_BYTES = 48 << 10,      /* of a CTA while half of them do: then the next kernel can come in early */
    CHUNK_BYTES = 1 << 30,      /* a task counts its bytes in 31 bits */
    STAGED_BYTES = 32 << 10,    /* of a chunk that is staged: what a CTA has in flight at once */
};

/* Measured on one rank of eight over an emulated link of 450 GB/s and 2 us. */
enum {
    LINK_PACKETS_BYTES = 2 << 20, /* that a rank sends as packets: beyond, two more hops take less */
    LINK_CTA_BYTES = 2 << 10,
    LINK_CTAS = 64,             /* have more bytes under way than a link carries in its latency */
    LINK_LINES_CTAS = 144,      /* have 2 MiB of eight ranks under way at once, a line each of 16 warps, */
    LINK_CTA_LINES = 8,         /* or of 8: less is not worth another CTA */
    LINK_HOP_BYTES = 1000000,   /* a link carries while another hop of an all_reduce waits */
    LINK_LINES_BYTES = 16 << 20 /* of all ranks: inboxes have twice as many, of an all_reduce four times */
};

static weft_schedule schedule_over_links(const weft_problem *p, const weft_cuda_basis *b, int64_t bytes)
{
    int64_t world = b->world;
    bool few = world > 1 && world <= WEFT_CUDA_PACKET_RANKS;

    if (few && b->adds && p->op == WEFT_OP_ALL_REDUCE && bytes <= LINK_LINES_BYTES)
        return weft_cuda_spared_by_a_hop(bytes, world) <= LINK_HOP_BYTES ? WEFT_SCHEDULE_PACKETS
                                                                         : WEFT_SCHEDULE_TWO_SHOT_PACKETS;
    if (few && bytes * (world - 1) <= LINK_PACKETS_BYTES)
        return WEFT_SCHEDULE_PACKETS;
    if (few && weft_cuda_by_lines(p->op, WEFT_SCHEDULE_PACKETS, (weft_cuda_wire){b->adds, b->whole}) &&
        p->op != WEFT_OP_ALL_REDUCE && bytes * world <= LINK_LINES_BYTES)
        return WEFT_SCHEDULE_PACKETS;
    return p->op == WEFT_OP_BROADCAST || p->op == WEFT_OP_ALL_REDUCE ? WEFT_SCHEDULE_PUSH
                                                                     : WEFT_SCHEDULE_PULL;
}

static weft_schedule collective_schedule(const weft_problem *p, int world, int64_t bytes)
{
    int64_t packets = world > 4 || p->op == WEFT_OP_BROADCAST ? PACKETS_BYTES
                      : world > 2                             ? PACKETS_BYTES_4
                                                              : PACKETS_BYTES_2;
    if (world > 1 && world <= WEFT_CUDA_PACKET_RANKS && bytes <= packets)
        return WEFT_SCHEDULE_PACKETS;
    if (p->op == WEFT_OP_BROADCAST)
        return WEFT_SCHEDULE_PUSH;
    if (p->op != WEFT_OP_ALL_REDUCE)
        return WEFT_SCHEDULE_PULL;
    return bytes * (world - 1) <= ONE_SHOT_BYTES ? WEFT_SCHEDULE_ONE_SHOT : WEFT_SCHEDULE_PUSH;
}

/* A warp has a line at a time: eight of them, or sixteen, as often as need be. */
static weft_tuning tune_lines(const weft_problem *p, const weft_cuda_basis *b, weft_schedule schedule,
                              int room)
{
    int64_t elems = weft_cuda_line_payload(b->adds) / (int64_t)weft_dtype_size(p->dtype),
            cut = schedule == WEFT_SCHEDULE_PACKETS ? p->count : weft_lines_slice(p, b->world, 0).count,
            lines = weft_divide_up(cut, elems), ctas = b->whole ? weft_min(LINK_LINES_CTAS, 2 * room) : room;
    weft_tuning t = p->tuning;

    t.tile_n = elems * (lines <= LINK_CTA_LINES * ctas
                            ? LINK_CTA_LINES
                            : weft_round_up(weft_divide_up(lines, ctas), 2 * LINK_CTA_LINES));
    t.workers = cut ? (int)weft_divide_up(cut, t.tile_n) : 1;
    return t;
}

/* A chunk is a CTA, so that both are decided together. They wait for peers that may have much to do first:
 * where they share a GPU the others' must leave room for that, and half of a rank's SMs let its next kernel
 * come in early. */
static weft_tuning tune_packets(const weft_problem *p, const weft_cuda_basis *b, weft_schedule schedule,
                                int ctas)
{
    int room = b->whole || b->world == 1
                   ? ctas
                   : (int)weft_min(weft_cuda_waiting_most(ctas, b->world) / (b->world - 1), ctas / 2);
    int64_t size = (int64_t)weft_dtype_size(p->dtype);
    int64_t chunks = weft_min(weft_divide_up(p->count * size, CTA_PACKETS * WEFT_CUDA_PACKET_PAYLOAD),
                              room > 0 ? room : 1);
    weft_tuning t = p->tuning;

    if (weft_cuda_by_lines(p->op, schedule, (weft_cuda_wire){b->adds, b->whole}))
        return tune_lines(p, b, schedule, room > 0 ? room : 1);
    t.tile_n =
        chunks ? weft_round_up(weft_divide_up(p->count, chunks), 2 * WEFT_CUDA_PACKET_PAYLOAD / size) : 0;
    t.workers = t.tile_n ? (int)weft_divide_up(p->count, t.tile_n) : 1;
    return t;
}

static weft_tuning tune_lanes(const weft_problem *p, const weft_cuda_basis *b, weft_schedule schedule,
                              int ctas)
{
    int64_t size = (int64_t)weft_dtype_size(p->dtype), granule = 16 / size;
    bool staged = p->tuning.staged && b->world > 1;
    bool slices = p->op == WEFT_OP_ALL_REDUCE && (schedule != WEFT_SCHEDULE_ONE_SHOT || staged);
    /* what a rank's lanes cut, and what they have in all: so many rows of it */
    int64_t cut = slices ? weft_divide_up(p->count, b->world) : p->count;
    int64_t rows = p->op == WEFT_OP_ALL_REDUCE && !staged ? 1 : b->world, work = rows * cut * size;
    int64_t most = b->whole                                              ? weft_min(LINK_CTAS, 2 * ctas)
                   : work > (int64_t)MOST_BYTES * (ctas / 2) || ctas < 2 ? 2 * ctas
                                                                         : ctas / 2;
    weft_tuning t = p->tuning;

    if (!t.workers)
        t.workers = (int)weft_min(weft_divide_up(work, b->whole ? LINK_CTA_BYTES : CTA_BYTES), most);
    if (!t.workers)
        t.workers = 1;
    if (!t.tile_n && cut) {
        /* lanes are dealt chunks of every row; staged, a chunk of all rows */
        int64_t pieces = staged ? t.workers : weft_divide_up(t.workers, rows);

        t.tile_n = weft_round_up(weft_divide_up(cut, pieces), granule);
        if (staged)
            t.tile_n = weft_min(t.tile_n, STAGED_BYTES / size);
    } else if (!t.tile_n) {
        t.tile_n = granule;
    }
    t.tile_n = weft_min(t.tile_n, CHUNK_BYTES / size);
    return t;
}

weft_problem weft_cuda_choose_collective(const weft_problem *asked, const weft_cuda_basis *b)
{
    int64_t bytes = asked->count * (int64_t)weft_dtype_size(asked->dtype);
    /* SMs; a rank can have two CTAs on each */
    int ctas = (int)weft_min(b->hopper ? WEFT_CREW_SMS * b->crews : b->crews, WEFT_CUDA_CREWS_MAX / 2);
    weft_problem decided = *asked;

    if (asked->schedule == WEFT_SCHEDULE_AUTO)
        decided.schedule =
            b->whole ? schedule_over_links(asked, b, bytes) : collective_schedule(asked, b->world, bytes);
    decided.tuning = weft_schedule_is_packets(decided.schedule)
                         ? tune_packets(asked, b, decided.schedule, ctas)
                         : tune_lanes(asked, b, decided.schedule, ctas);
    return decided;
}
