/*
 * Work that the threads of a layer share: rows that are copied or summed, each by itself. Waits, words to
 * other ranks and callbacks stay with the caller's thread.
 */
#include "core/pool.h"
#include "core/round.h"
#include "moe/moe.h"

enum { MEMBER_BYTES = 64 << 10 }; /* below this a thread costs more than it gives */

typedef struct shared {
    weft_moe_piece piece;
    void *context;
    int64_t begin, end;
    int members;
} shared;

static void work(void *argument, int member)
{
    const shared *s = argument;
    int64_t count = s->end - s->begin;

    s->piece(s->context, s->begin + count * member / s->members,
             s->begin + count * (member + 1) / s->members);
}

int weft_moe_members(const weft_moe *moe)
{
    return moe->config.threads == 1 ? 1 : weft_pool_members(moe->config.threads);
}

void weft_moe_share(const weft_moe *moe, int64_t begin, int64_t end, int64_t item_bytes, weft_moe_piece piece,
                    void *context)
{
    int64_t useful = (end - begin) * item_bytes / MEMBER_BYTES;
    shared s = {.piece = piece, .context = context, .begin = begin, .end = end};
    weft_error_text ignored;
    weft_loan loan;

    s.members = useful > 1 ? weft_moe_members(moe) : 1;
    s.members = (int)weft_min(useful, s.members);
    if (s.members < 2 || weft_pool_borrow(s.members, 0, &loan, &ignored) != WEFT_OK) {
        if (end > begin)
            piece(context, begin, end);
        return;
    }
    weft_pool_run(loan.pool, s.members, work, &s);
    weft_pool_return(&loan);
}
