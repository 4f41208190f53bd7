/*
 * The kernels of the ladder, in words that C and CUDA share: ladder.cu has them for GPUs, and tests run them
 * with one thread a CTA (tests/cuda/fake_ladder.c). Whoever includes this defines LADDER_KERNEL(name),
 * LADDER_DEVICE, LADDER_SHARED, LADDER_UNROLL     what stands before a function, a variable, a loop
 *   load_vector, add_vector, put_vector                                  16 bytes, past L1; elements of a
 * type in fp32 load_acquire, store_release, add_release, now_ns, latest, add_here   memory order, the clock,
 * shared counts and what CUDA has: threadIdx and its kin, __syncthreads, uint4.
 *
 * Plain code, but no straw men: rows are copied with four loads in flight a thread, places are found by
 * counting.
 */
#ifndef WEFT_TOOLS_BENCH_CUDA_LADDER_KERNELS_H
#define WEFT_TOOLS_BENCH_CUDA_LADDER_KERNELS_H

#define LADDER_AT(p, mine, rank_)                                                                            \
    ((void *)((char *)(mine) +                                                                               \
              ((int64_t)(rank_) - (p)->rank) * (p)->stride)) /* what another rank has there */

/* ---- clocks ------------------------------------------------------------------------------------------- */

LADDER_DEVICE void begin(const ladder_args *p)
{
    ladder_state *s = p->state;
    if (!p->begins || blockIdx.x != 0 || threadIdx.x != 0)
        return;
    if (p->begins == 1 && s->rounds++)
        for (int half = 0; half < 2; half++)
            s->total_ns[half] += s->ended_ns[half] - s->began_ns[half];
    s->began_ns[p->begins - 1] = now_ns();
}

LADDER_DEVICE void end(const ladder_args *p)
{
    if (!p->ends)
        return;
    __syncthreads();
    if (threadIdx.x == 0)
        latest(&p->state->ended_ns[p->ends - 1], now_ns());
}

/* ---- rows --------------------------------------------------------------------------------------------- */

/* Vector `i` of a row, of which only the last may be cut off; rows of other lengths begin anywhere. */
LADDER_DEVICE uint4 load_part(const char *row, int64_t i, int64_t bytes)
{
    if (bytes % 16 == 0)
        return load_vector((const uint4 *)row + i);
    uint4 v = {0, 0, 0, 0};
    for (int64_t at = 0; at < 16 && 16 * i + at < bytes; at += 2) {
        uint32_t half = *(const unsigned short *)(row + 16 * i + at), wide = half << 8 * (at % 4);
        v.x |= at / 4 == 0 ? wide : 0;
        v.y |= at / 4 == 1 ? wide : 0;
        v.z |= at / 4 == 2 ? wide : 0;
        v.w |= at / 4 == 3 ? wide : 0;
    }
    return v;
}

LADDER_DEVICE void store_part(char *row, int64_t i, int64_t bytes, uint4 v)
{
    if (bytes % 16 == 0) {
        ((uint4 *)row)[i] = v;
        return;
    }
    for (int64_t at = 0; at < 16 && 16 * i + at < bytes; at += 2) {
        uint32_t wide = at / 4 == 0 ? v.x : at / 4 == 1 ? v.y : at / 4 == 2 ? v.z : v.w;
        *(unsigned short *)(row + 16 * i + at) = (unsigned short)(wide >> 8 * (at % 4));
    }
}

LADDER_DEVICE void copy_row(char *to, const char *from, int64_t bytes)
{
    enum { DEPTH = 4 };
    int64_t vectors = (bytes + 15) / 16, step = blockDim.x;
    for (int64_t first = threadIdx.x; first < vectors; first += DEPTH * step) {
        uint4 v[DEPTH];
        LADDER_UNROLL
        for (int j = 0; j < DEPTH; j++)
            if (first + j * step < vectors)
                v[j] = load_part(from, first + j * step, bytes);
        LADDER_UNROLL
        for (int j = 0; j < DEPTH; j++)
            if (first + j * step < vectors)
                store_part(to, first + j * step, bytes, v[j]);
    }
}

LADDER_DEVICE const char *row_of(const ladder_args *p, int64_t pair)
{
    return (const char *)p->x + pair / p->topk * p->row_bytes;
}

LADDER_DEVICE char *packed_row(const ladder_args *p, int64_t place)
{
    return p->packed + place * p->row_bytes;
}

/* ---- waiting ------------------------------------------------------------------------------------------ */

/* Whether a wait that began at *since has to be given up. */
LADDER_DEVICE int expired(const ladder_args *p, uint64_t *since)
{
    uint64_t now = now_ns();
    if (!*since)
        *since = now;
    if (now - *since > p->deadline_ns)
        p->state->lost = 1;
    return *(volatile uint32_t *)&p->state->lost != 0;
}

LADDER_DEVICE void come(const ladder_args *p)
{
    for (int r = (int)threadIdx.x; r < p->world; r += (int)blockDim.x) /* partner: has_come there */
        add_release((uint64_t *)LADDER_AT(p, p->met + p->rank * LADDER_LINE_WORDS, r));
}

LADDER_DEVICE int has_come(const ladder_args *p, int rank)
{
    return load_acquire(p->met + rank * LADDER_LINE_WORDS) > p->state->meets; /* partner: come there */
}

LADDER_DEVICE uint64_t *word_of(const ladder_args *p, uint64_t round, int from, int64_t pair)
{
    return p->word + (int64_t)((round & 1) * (uint64_t)p->world + (uint64_t)from) * p->pairs + pair;
}

LADDER_DEVICE int word_is_there(const ladder_args *p, int64_t i)
{
    uint64_t round = p->state->round + 1; /* partner: the store_release of push there */
    return load_acquire(word_of(p, round, (int)(i / p->pairs), i % p->pairs)) >> 32 == round;
}

LADDER_DEVICE int answer_is_there(const ladder_args *p, int64_t pair)
{
    if (p->rung != LADDER_ROWS || p->expert[pair] < 0)
        return 1;
    return load_acquire(p->answered + pair) ==
           p->state->round; /* partner: the store_release of answer there */
}

/* All ranks: one CTA. */
LADDER_KERNEL(meet)
{
    uint64_t since = 0;
    come(&p);
    for (int r = (int)threadIdx.x; r < p.world; r += (int)blockDim.x)
        while (!has_come(&p, r) && !expired(&p, &since))
            ;
    __syncthreads();
    if (threadIdx.x == 0)
        p.state->meets++;
}

/* ---- reference: everybody shows everything; experts look for their rows, tokens for their results -------
 */

LADDER_KERNEL(stage)
{
    begin(&p);
    for (int64_t t = blockIdx.x; t < p.tokens; t += gridDim.x) {
        copy_row(p.staged + t * p.row_stride, (const char *)p.x + t * p.row_bytes, p.row_bytes);
        for (int k = (int)threadIdx.x; k < p.topk; k += (int)blockDim.x)
            p.shown[t * p.topk + k] = p.expert[t * p.topk + k];
    }
}

LADDER_KERNEL(collect)
{
    for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < p.world * p.pairs;
         i += gridDim.x * blockDim.x)
        p.key[i] = ((const int32_t *)LADDER_AT(&p, p.shown, i / p.pairs))[i % p.pairs];
}

LADDER_KERNEL(look)
{
    LADDER_SHARED int32_t mine[LADDER_CHUNK], less;
    int64_t keys = p.world * p.pairs;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        p.base[0] = 0;
    for (int e = (int)blockIdx.x; e < p.experts_here; e += (int)gridDim.x) {
        int32_t before = 0;
        if (threadIdx.x == 0)
            less = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < keys; i += blockDim.x)
            before += p.key[i] >= p.first && p.key[i] < p.first + e;
        add_here(&less, before);
        __syncthreads();
        int64_t place = less;
        for (int64_t i0 = 0; i0 < keys; i0 += LADDER_CHUNK) {
            int found = 0;
            for (int i = (int)threadIdx.x; i < LADDER_CHUNK; i += (int)blockDim.x)
                mine[i] = i0 + i < keys && p.key[i0 + i] == p.first + e;
            __syncthreads();
            for (int i = (int)threadIdx.x; i < LADDER_CHUNK; i += (int)blockDim.x) {
                int64_t at = place;
                for (int j = 0; j < i && mine[i]; j++)
                    at += mine[j];
                if (mine[i]) {
                    p.from[at] = (int32_t)((i0 + i) / p.pairs);
                    p.pair[at] = (int32_t)((i0 + i) % p.pairs);
                }
            }
            for (int j = 0; j < LADDER_CHUNK; j++)
                found += mine[j];
            place += found;
            __syncthreads(); /* all have read what the next ones overwrite */
        }
        if (threadIdx.x == 0)
            p.base[e + 1] = place;
    }
}

/* Rows in the order of experts, from where they lie: with reference at the ranks they come from. */
LADDER_KERNEL(fetch)
{
    for (int64_t place = blockIdx.x; place < p.base[p.experts_here]; place += gridDim.x) {
        int32_t from = p.from[place], pair = p.pair[place];
        const char *row = p.rung == LADDER_REFERENCE
                              ? (const char *)LADDER_AT(&p, p.staged, from) + pair / p.topk * p.row_stride
                              : p.staged + (from * p.pairs + pair) * p.row_stride;
        copy_row(packed_row(&p, place), row, p.row_bytes);
    }
    end(&p);
}

/* ---- counting and placing ------------------------------------------------------------------------------ */

LADDER_DEVICE int32_t bucket_of(const ladder_args *p, int64_t i)
{
    int32_t key = i < p->key_count ? p->keys[i] - p->first_key : -1;
    return key < p->buckets ? key : -1;
}

LADDER_KERNEL(count)
{
    LADDER_SHARED int32_t key[LADDER_CHUNK];
    begin(&p);
    for (int64_t c = blockIdx.x; c * LADDER_CHUNK < p.key_count; c += gridDim.x) {
        int32_t *counts = p.chunk + c * p.buckets;
        __syncthreads(); /* all have read what this overwrites */
        for (int i = (int)threadIdx.x; i < LADDER_CHUNK; i += (int)blockDim.x)
            key[i] = bucket_of(&p, c * LADDER_CHUNK + i);
        for (int b = (int)threadIdx.x; b < p.buckets; b += (int)blockDim.x)
            counts[b] = 0;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < LADDER_CHUNK; i += (int)blockDim.x) {
            int32_t before = 0, all = 0;
            if (key[i] < 0)
                continue;
            for (int j = 0; j < LADDER_CHUNK; j++) {
                before += key[j] == key[i] && j < i;
                all += key[j] == key[i];
            }
            p.earlier[c * LADDER_CHUNK + i] = before;
            if (before == 0)
                counts[key[i]] = all;
        }
    }
}

/* One CTA. With it a dispatch of rows is counted: before it kernels of the round add one. */
LADDER_KERNEL(scan)
{
    int64_t chunks = (p.key_count + LADDER_CHUNK - 1) / LADDER_CHUNK;
    for (int b = (int)threadIdx.x; b < p.buckets; b += (int)blockDim.x) {
        int32_t sum = 0;
        for (int64_t c = 0; c < chunks; c++) {
            int32_t here = p.chunk[c * p.buckets + b];
            p.chunk[c * p.buckets + b] = sum;
            sum += here;
        }
        p.bucket_rows[b] = sum;
    }
    __syncthreads();
    for (int b = (int)threadIdx.x; b <= p.buckets; b += (int)blockDim.x) {
        int64_t sum = 0;
        for (int j = 0; j < b; j++)
            sum += p.bucket_rows[j];
        p.bucket[b] = sum;
    }
    if (threadIdx.x == 0)
        p.state->round++;
}

LADDER_DEVICE int64_t place_of(const ladder_args *p, int64_t i)
{
    int32_t b = bucket_of(p, i);
    return b < 0 ? -1 : p->bucket[b] + p->chunk[i / LADDER_CHUNK * p->buckets + b] + p->earlier[i];
}

/* ---- sorted: rows in the order of experts, then an all-to-all -------------------------------------------
 */

LADDER_KERNEL(pack)
{
    for (int64_t pair = blockIdx.x; pair < p.pairs; pair += gridDim.x) {
        int64_t place = place_of(&p, pair);
        if (threadIdx.x == 0)
            p.place[pair] = (int32_t)place;
        if (place >= 0)
            copy_row(p.staged + place * p.row_stride, row_of(&p, pair), p.row_bytes);
    }
    for (int e = (int)threadIdx.x; e < p.experts && blockIdx.x == 0; e += (int)blockDim.x) {
        ladder_piece piece = {p.bucket[e], p.bucket_rows[e]};
        ((ladder_piece *)LADDER_AT(&p, p.piece, p.owner[e]))[p.rank * p.experts + e] = piece;
    }
}

LADDER_DEVICE ladder_piece piece_of(const ladder_args *p, int e, int from)
{
    return p->piece[from * p->experts + p->first + e];
}

/* One CTA. */
LADDER_KERNEL(pieces)
{
    for (int e = (int)threadIdx.x; e < p.experts_here; e += (int)blockDim.x) {
        p.base[e + 1] = 0;
        for (int s = 0; s < p.world; s++)
            p.base[e + 1] += piece_of(&p, e, s).count;
    }
    if (threadIdx.x == 0)
        p.base[0] = 0;
    __syncthreads();
    for (int e = (int)threadIdx.x; e < p.experts_here; e += (int)blockDim.x) {
        int64_t at = 0;
        for (int j = 0; j < e; j++)
            at += p.base[j + 1];
        for (int s = 0; s < p.world; s++) {
            p.arrive[e * p.world + s] = at;
            at += piece_of(&p, e, s).count;
        }
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < p.experts_here; e += (int)blockDim.x)
        p.base[e + 1] = p.arrive[(e + 1) * p.world - 1] + piece_of(&p, e, p.world - 1).count;
}

/* Every piece, by as many CTAs as there are for it: taken from where it was sorted, or given back. */
LADDER_DEVICE void move_pieces(const ladder_args *p, int gives)
{
    int64_t pieces = (int64_t)p->experts_here * p->world,
            share = pieces && pieces < gridDim.x ? gridDim.x / pieces : 1;
    for (int64_t unit = blockIdx.x; unit < pieces * share; unit += gridDim.x) {
        int64_t q = unit % pieces;
        int from = (int)(q % p->world);
        ladder_piece piece = piece_of(p, (int)(q / p->world), from);
        for (int64_t j = unit / pieces; j < piece.count; j += share) {
            char *here = packed_row(p, p->arrive[q] + j);
            int64_t there = (piece.begin + j) * p->row_stride;
            if (gives)
                copy_row((char *)LADDER_AT(p, p->slot, from) + there, here, p->row_bytes);
            else
                copy_row(here, (const char *)LADDER_AT(p, p->staged, from) + there, p->row_bytes);
        }
    }
}

LADDER_KERNEL(take)
{
    move_pieces(&p, 0);
    end(&p);
}

LADDER_KERNEL(give)
{
    begin(&p);
    move_pieces(&p, 1);
}

/* ---- rows: every pair for itself ------------------------------------------------------------------------
 */

LADDER_KERNEL(push)
{
    uint64_t round = p.state->round + 1;
    begin(&p);
    for (int64_t pair = blockIdx.x; pair < p.pairs; pair += gridDim.x) {
        int32_t e = p.expert[pair], to = e < 0 ? -1 : p.owner[e];
        if (to >= 0)
            copy_row((char *)LADDER_AT(&p, p.staged, to) + (p.rank * p.pairs + pair) * p.row_stride,
                     row_of(&p, pair), p.row_bytes);
        __syncthreads();
        for (int r = (int)threadIdx.x; r < p.world; r += (int)blockDim.x) /* partner: word_is_there there */
            store_release((uint64_t *)LADDER_AT(&p, word_of(&p, round, p.rank, pair), r),
                          round << 32 | (r == to ? (uint64_t)e + 1 : 0));
    }
}

LADDER_KERNEL(await)
{
    uint64_t round = p.state->round + 1, since = 0;
    for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < p.world * p.pairs;
         i += gridDim.x * blockDim.x) {
        while (!word_is_there(&p, i) && !expired(&p, &since))
            ;
        p.key[i] =
            (int32_t)(load_acquire(word_of(&p, round, (int)(i / p.pairs), i % p.pairs)) & 0xffffffff) - 1;
    }
}

LADDER_KERNEL(list)
{
    for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < p.key_count; i += gridDim.x * blockDim.x) {
        int64_t place = place_of(&p, i);
        if (place < 0)
            continue;
        p.from[place] = (int32_t)(i / p.pairs);
        p.pair[place] = (int32_t)(i % p.pairs);
    }
    for (int e = (int)threadIdx.x; e <= p.experts_here && blockIdx.x == 0; e += (int)blockDim.x)
        p.base[e] = p.bucket[e];
    end(&p);
}

/* ---- combine: reference and rows answer pair by pair; all sum in ascending order of experts -------------
 */

LADDER_KERNEL(answer)
{
    begin(&p);
    for (int64_t place = blockIdx.x; place < p.base[p.experts_here]; place += gridDim.x) {
        int32_t from = p.from[place], pair = p.pair[place];
        copy_row((char *)LADDER_AT(&p, p.slot, from) + pair * p.row_stride, packed_row(&p, place),
                 p.row_bytes);
        if (p.rung != LADDER_ROWS)
            continue;
        __syncthreads();
        if (threadIdx.x == 0) /* partner: answer_is_there there */
            store_release((uint64_t *)LADDER_AT(&p, p.answered + pair, from), p.state->round);
    }
}

LADDER_KERNEL(sum)
{
    LADDER_SHARED const char *term[LADDER_TOPK];
    LADDER_SHARED float weight[LADDER_TOPK];
    LADDER_SHARED int32_t terms;
    uint64_t since = 0;
    for (int64_t t = blockIdx.x; t < p.tokens; t += gridDim.x) {
        const int32_t *expert = p.expert + t * p.topk;
        __syncthreads(); /* the token before it is through */
        if (threadIdx.x == 0)
            terms = 0;
        __syncthreads();
        for (int k = (int)threadIdx.x; k < p.topk; k += (int)blockDim.x) {
            int64_t pair = t * p.topk + k;
            int before = 0;
            while (!answer_is_there(&p, pair) && !expired(&p, &since))
                ;
            if (expert[k] < 0)
                continue;
            for (int j = 0; j < p.topk; j++)
                before += expert[j] >= 0 && expert[j] < expert[k];
            term[before] = p.slot + (p.rung == LADDER_SORTED ? p.place[pair] : pair) * p.row_stride;
            weight[before] = p.weight[pair];
            add_here(&terms, 1);
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < (p.row_bytes + 15) / 16; i += blockDim.x) {
            float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            for (int k = 0; k < terms; k++)
                add_vector(p.dtype, sums, load_part(term[k], i, p.row_bytes), weight[k]);
            store_part((char *)p.y + t * p.row_bytes, i, p.row_bytes, put_vector(p.dtype, sums));
        }
    }
    end(&p);
}

/* ---- the check ----------------------------------------------------------------------------------------- */

/* Experts that can be told apart: rows of expert e become 1 + e % 3 times what they were. */
LADDER_KERNEL(scale)
{
    for (int e = 0; e < p.experts_here; e++)
        for (int64_t place = p.base[e] + blockIdx.x; place < p.base[e + 1]; place += gridDim.x)
            for (int64_t i = threadIdx.x; i < (p.row_bytes + 15) / 16; i += blockDim.x) {
                float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
                add_vector(p.dtype, sums, load_part(packed_row(&p, place), i, p.row_bytes),
                           (float)(1 + (p.first + e) % 3));
                store_part(packed_row(&p, place), i, p.row_bytes, put_vector(p.dtype, sums));
            }
}

#endif
