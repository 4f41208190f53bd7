/* The interpreter: runs what was launched. fake_driver.c has the driver calls. */
#include "fake_gpu.h"

#include "core/clock.h"
#include "core/dtype.h"
#include "core/part.h"
#include "fake_link.h"
#include "fake_moe.h"
#include "run/cpu/reduce.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct fake_lane {
    uint32_t loaded, done; /* tasks the loader and the consumer have finished */
    float *product;        /* of task `loaded - 1`, when it is a GEMM */
} fake_lane;

typedef enum fake_kind { PRODUCT, COLLECTIVE, PACKETS, EXCHANGE, EXPERTS, CALL, LINK, PEERS, GATE } fake_kind;

typedef struct fake_launch {
    weft_cuda_args args; /* PACKETS, EXPERTS: only what waiting needs */
    weft_cuda_packets packets;
    weft_cuda_exchange exchange;
    weft_cuda_moe moe;
    weft_cuda_moe_call call;
    weft_gpu_moe_kernel kernel;
    weft_cuda_moe_link link;
    weft_cuda_link peers;
    bool by_packets;   /* PEERS */
    uint64_t answered; /* by each of its CTAs in the end */
    fake_kind kind;
    weft_reduction reduction;
    uint32_t lane_count;
    bool hopper;
    void (*host)(void *argument); /* CALL: all there is */
    void *argument;
    uint64_t *runs; /* GATE */
    CUstream stream;
    int device;
    fake_lane *lanes;
    bool started, entered, active;
    int64_t moved_ns; /* when it last made progress */
    uint32_t seen;    /* as Patience of order.cuh has it */
} fake_launch;

enum { LAUNCHES_MAX = 4096, STREAMS_MAX = 64 };

/* One GPU per process; its ranks may be threads, so a lock guards all of it. */
static struct {
    pthread_mutex_t lock;
    fake_launch launches[LAUNCHES_MAX];
    int count;
    uint64_t random;
    fake_gpu_counts counts;
    int slow_rank;
    int64_t slow_ns; /* a step of it; 0: nobody is slow */
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER, .random = 1};

void fake_gpu_seed(uint64_t seed)
{
    gpu.random = seed * 2 + 1;
}

void fake_gpu_slow(int rank, int64_t step_ns)
{
    gpu.slow_rank = rank;
    gpu.slow_ns = step_ns;
}

static uint64_t draw(uint64_t below)
{
    gpu.random ^= gpu.random << 13;
    gpu.random ^= gpu.random >> 7;
    gpu.random ^= gpu.random << 17;
    return gpu.random % below;
}

/* ---- tasks ------------------------------------------------------------------------------------------- */

static bool reached(const fake_launch *launch, uint32_t wait0, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const weft_cuda_wait *w = &launch->args.waits[wait0 + i];
        /* acquire: the partner may be a post in another process */
        if ((int64_t)(__atomic_load_n(w->signal, __ATOMIC_ACQUIRE) -
                      (launch->args.control->run * w->total + w->count)) < 0)
            return false;
    }
    return true;
}

/* A GPU that touches what it was not given access to stops, and so does the test. */
static void must_reach(const fake_launch *launch, const void *at, bool adds)
{
    if (fake_gpu_reaches(launch->device, at, adds))
        return;
    fprintf(stderr, "fake GPU %d %s %p, which it cannot\n", launch->device, adds ? "adds at" : "touches", at);
    abort();
}

static void post(const fake_launch *launch, uint32_t post0, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        must_reach(launch, launch->args.posts[post0 + i], false);
        __atomic_fetch_add(launch->args.posts[post0 + i], 1, __ATOMIC_RELEASE);
    }
}

static void must_reach_views(const fake_launch *launch, const weft_cuda_task *t)
{
    const weft_cuda_view *v = &launch->args.views[t->view0];
    int count = t->destinations + (t->kind == WEFT_CUDA_REDUCE ? t->sources
                                   : t->kind == WEFT_CUDA_GEMM ? 2
                                                               : 1);
    for (int i = 0; i < count; i++)
        must_reach(launch, v[i].ptr, i < t->destinations && t->flags & WEFT_CUDA_ADD);
    if (t->acc >= 0)
        must_reach(launch, v[t->acc].ptr, false);
}

static double get(const weft_cuda_view *v, int64_t row, int64_t col)
{
    return weft_element_get((weft_dtype)v->dtype, v->ptr, (size_t)(row * v->rs + col * v->cs));
}

static void set(const weft_cuda_view *v, int64_t row, int64_t col, double value)
{
    weft_element_set((weft_dtype)v->dtype, v->ptr, (size_t)(row * v->rs + col * v->cs), value);
}

/* The copy engine stops the kernel unless the innermost coordinate falls on 16 bytes. */
static bool may_start(const weft_cuda_view *v, int row, int col)
{
    return (v->cs == 1 ? col : row) * (int)weft_dtype_size((weft_dtype)v->dtype) % 16 == 0;
}

/* Along x it knows only whole 16 bytes. */
static double through_map(const fake_map *map, weft_dtype dtype, uint64_t x, uint64_t y)
{
    uint64_t granule = 16 / weft_dtype_size(dtype);
    return x < map->inner / granule * granule && y < map->outer
               ? weft_element_get(dtype, map->base + y * map->pitch, x)
               : 0;
}

/* The factor of the block that element (i, j) of a tile and its k are in. */
static float block_scale(const weft_cuda_args *g, const weft_cuda_view *a, int i, int j, int k)
{
    const weft_cuda_view *b = a + 1;
    int64_t block = (a->col + k) / WEFT_CUDA_SCALE_BLOCK;

    return (g->a_scale ? g->a_scale[(a->row + i) * g->a_scale_row + block * g->a_scale_k] : 1) *
           (g->b_scale
                ? g->b_scale[block * g->b_scale_k + (b->col + j) / WEFT_CUDA_SCALE_BLOCK * g->b_scale_col]
                : 1);
}

/* The product as the loader sees A and B now. */
static float *multiply(const fake_launch *launch, const weft_cuda_task *task)
{
    weft_cuda_task own = *task;
    const weft_cuda_task *t = &own;
    const weft_cuda_view *a = &launch->args.views[t->view0 + t->destinations], *b = a + 1;
    const fake_map *maps = launch->args.maps;
    float *product = calloc((size_t)t->rows * (size_t)t->cols + 1, sizeof(*product));
    float *line = malloc((size_t)t->cols * sizeof(*line) + 4);
    gpu.counts.gemms++;
    if (launch->args.exchanged) {
        gpu.counts.exchanged++;
        own.a_map = task->b_map, own.a_m = task->b_n, own.a_k = task->b_k;
        own.b_map = task->a_map, own.b_n = task->a_m, own.b_k = task->a_k;
    }
    if (launch->hopper && (!may_start(a, t->a_m, t->a_k) || !may_start(b, t->b_k, t->b_n)))
        product[0] = NAN;
    for (int k = 0; k < t->k; k++) {
        for (int j = 0; j < t->cols; j++) {
            uint64_t n = (uint64_t)(t->b_n + j), kb = (uint64_t)(t->b_k + k);
            line[j] =
                (float)(!launch->hopper ? get(b, k, j)
                        : b->cs == 1    ? through_map((const fake_map *)((const char *)maps + 128 * t->b_map),
                                                      (weft_dtype)b->dtype, n, kb)
                                        : through_map((const fake_map *)((const char *)maps + 128 * t->b_map),
                                                      (weft_dtype)b->dtype, kb, n));
        }
        for (int i = 0; i < t->rows; i++) {
            uint64_t m = (uint64_t)(t->a_m + i), ka = (uint64_t)(t->a_k + k);
            const fake_map *map = (const fake_map *)((const char *)maps + 128 * t->a_map);
            float x = (float)(!launch->hopper ? get(a, i, k)
                              : a->cs == 1    ? through_map(map, (weft_dtype)a->dtype, ka, m)
                                              : through_map(map, (weft_dtype)a->dtype, m, ka));
            for (int j = 0; j < t->cols; j++)
                product[(int64_t)i * t->cols + j] += x * line[j] * block_scale(&launch->args, a, i, j, k);
        }
    }
    free(line);
    return product;
}

static double activate(int32_t act, double x)
{
    switch (act) {
    case WEFT_ACT_RELU:
        return x < 0 ? 0 : x;
    case WEFT_ACT_GELU:
        return 0.5 * x * (1 + erf(x * 0.70710678118654752));
    case WEFT_ACT_SILU:
        return x / (1 + exp(-x));
    default:
        return x;
    }
}

static double finish(const fake_launch *launch, const weft_cuda_task *t, const weft_cuda_view *v, double x,
                     int i, int j)
{
    if (!(t->flags & WEFT_CUDA_EPILOGUE))
        return x;
    x *= launch->args.alpha_at ? *launch->args.alpha_at : launch->args.alpha;
    if (launch->args.row_scale)
        x *= launch->args.row_scale[v->row + i];
    if (launch->args.col_scale)
        x *= launch->args.col_scale[v->col + j];
    if (t->c >= 0)
        x += launch->args.beta * get(&v[t->c], i, j);
    if (t->bias >= 0)
        x += get(&v[t->bias], 0, j);
    return activate(launch->args.act, x);
}

static void store(const fake_launch *launch, const weft_cuda_task *t, const weft_cuda_view *v, double x,
                  int i, int j)
{
    for (int n = 0; n < t->destinations; n++) {
        if (launch->hopper && t->flags & WEFT_CUDA_BULK) {
            const fake_map *map = (const fake_map *)((const char *)launch->args.maps + 128 * v[n].map);
            uint64_t col = (uint64_t)(v[n].col + j), row = (uint64_t)(v[n].row + i);
            weft_dtype dtype = t->flags & WEFT_CUDA_WIDE_D ? WEFT_F32 : (weft_dtype)v[n].dtype;
            if (!may_start(&v[n], v[n].row, v[n].col))
                x = NAN;
            if (col < map->inner && row < map->outer)
                weft_element_set(dtype, map->base + row * map->pitch, col, x);
        } else if (i < t->rows && j < t->cols) {
            set(&v[n], i, j, x);
        }
    }
}

/* What a sum is added to: through the boxes where there is a map. */
static double sum_before(const fake_launch *launch, const weft_cuda_view *acc, bool bulk, int i, int j)
{
    if (!bulk || acc->map < 0)
        return get(acc, i, j);
    if (!may_start(acc, acc->row, acc->col))
        return NAN;
    return through_map((const fake_map *)((const char *)launch->args.maps + 128 * acc->map),
                       (weft_dtype)acc->dtype, (uint64_t)(acc->col + j), (uint64_t)(acc->row + i));
}

/* A task of a collective: rows of bytes and of elements, by the CPU's own arithmetic. */
static void move(const fake_launch *launch, const weft_cuda_task *t, const weft_cuda_view *v)
{
    weft_view views[2 * WEFT_CUDA_PACKET_RANKS];
    if (t->kind == WEFT_CUDA_COPY) {
        if (t->rows > 0)
            memmove(t->copy_to, t->copy_from, (size_t)t->copy_bytes);
        return;
    }
    for (int i = 0; i < t->destinations + t->sources; i++)
        views[i] = (weft_view){v[i].ptr, t->cols};
    weft_reduce_rows((weft_dtype)v->dtype, launch->reduction, 1, t->cols, views + t->destinations, t->sources,
                     (weft_dtype)v->dtype, views, t->destinations);
}

static void consume(const fake_launch *launch, const weft_cuda_task *t, const float *product)
{
    const weft_cuda_view *v = &launch->args.views[t->view0];
    if (launch->kind == COLLECTIVE) {
        move(launch, t, v);
        return;
    }
    bool bulk = launch->hopper && t->kind == WEFT_CUDA_GEMM && t->flags & WEFT_CUDA_BULK;
    /* the walker stores whole tiles and relies on the maps to cut them off */
    int rows = bulk ? launch->args.tile_m : t->rows, cols = !bulk ? t->cols
                                                            : t->flags & WEFT_CUDA_WIDE_D
                                                                ? launch->args.tile_n
                                                                : (launch->args.tile_n + 63) / 64 * 64;
    gpu.counts.maps += bulk;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            bool inside = i < t->rows && j < t->cols;
            double x = NAN;
            if (t->kind == WEFT_CUDA_COPY) {
                x = get(&v[1], i, j);
            } else if (t->kind == WEFT_CUDA_GEMM && inside) {
                x = product ? product[(int64_t)i * t->cols + j] : 0;
                if (t->acc >= 0)
                    x += sum_before(launch, &v[t->acc], bulk, i, j);
                x = finish(launch, t, v, x, i, j);
            } else if (t->kind == WEFT_CUDA_REDUCE) {
                x = 0;
                for (int s = 0; s < t->sources; s++)
                    x += get(&v[t->destinations + s], i, j);
                x = finish(launch, t, v, x, i, j);
            }
            store(launch, t, v, x, i, j);
        }
}

void fake_gpu_repitch(const weft_cuda_repitch *copy)
{
    gpu.counts.repitched++;
    for (int64_t i = 0; i < copy->batch * copy->lines; i++) {
        uint16_t *to = (uint16_t *)copy->to + i * copy->to_ld;
        memset(to, 0, (size_t)copy->to_ld * 2);
        memcpy(to,
               (const uint16_t *)copy->from + i / copy->lines * copy->from_stride +
                   i % copy->lines * copy->from_ld,
               (size_t)copy->length * 2);
    }
}

/* ---- lanes ------------------------------------------------------------------------------------------- */

/* The crews' lanes, then those that their storers run. */
static const weft_cuda_lane *lane_at(const fake_launch *launch, uint32_t index)
{
    uint32_t crews = launch->lane_count - launch->args.copy_count;
    return index < crews ? &launch->args.lanes[index] : &launch->args.copies[index - crews];
}

static bool load_ahead(fake_launch *launch, fake_lane *lane, const weft_cuda_lane *list)
{
    if (lane->loaded == list->task_count || lane->loaded > lane->done)
        return false;
    const weft_cuda_task *t = &launch->args.tasks[list->task0 + lane->loaded];
    bool gemm = t->kind == WEFT_CUDA_GEMM && t->k > 0;
    if (gemm && !(t->flags & WEFT_CUDA_LATE && launch->hopper) && !reached(launch, t->wait0, t->wait_count))
        return false;
    lane->product = gemm ? multiply(launch, t) : NULL;
    lane->loaded++;
    return true;
}

static void stamp(const fake_launch *launch, uint32_t task, int which)
{
    if (launch->args.trace)
        launch->args.trace[2 * task + (uint32_t)which] = (uint64_t)weft_clock_ns();
}

static bool step_lane(fake_launch *launch, uint32_t index)
{
    fake_lane *lane = &launch->lanes[index];
    const weft_cuda_lane *list = lane_at(launch, index);
    if (draw(2) && load_ahead(launch, lane, list))
        return true;
    if (lane->done == lane->loaded)
        return load_ahead(launch, lane, list);
    const weft_cuda_task *t = &launch->args.tasks[list->task0 + lane->done];
    if (!reached(launch, t->wait0, t->wait_count))
        return false;
    gpu.counts.bulk += index >= launch->lane_count - launch->args.copy_count;
    float *product = lane->product;
    lane->product = NULL;
    stamp(launch, t->plan_task, 0);
    must_reach_views(launch, t);
    consume(launch, t, product);
    stamp(launch, t->plan_task, 1);
    free(product);
    __atomic_fetch_add(&launch->args.control->steps, 1, __ATOMIC_RELAXED);
    post(launch, t->post0, t->post_count);
    lane->done++;
    return true;
}

static void launch_end(fake_launch *launch)
{
    for (uint32_t l = 0; launch->started && l < launch->lane_count; l++)
        free(launch->lanes[l].product);
    if (launch->started)
        free(launch->lanes);
    launch->active = false;
}

/* Whether every peer entered with the operands that this launch has; if not, it is given up. */
static bool same_meeting(fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;
    for (int r = 0; r < g->world; r++) {
        const uint64_t *enter = g->signals + r * WEFT_CUDA_LINE_WORDS;
        if (r == g->rank || enter[1 + g->control->run % 2] == g->meeting)
            continue;
        g->control->record = (weft_cuda_record){
            .set = 2, .signal = (uint32_t)r, .plan_task = WEFT_CUDA_OTHER_MEETING, .run = g->control->run};
        for (int p = 0; p < g->world; p++)
            __atomic_store_n(&g->peers[p]->abort, 1, __ATOMIC_RELEASE);
        return false;
    }
    return true;
}

static bool step_launch(fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;
    bool moved = false, over = true, slow = gpu.slow_ns && g->rank == gpu.slow_rank;
    if (slow && weft_clock_ns() - launch->moved_ns < gpu.slow_ns)
        return false;
    if (!launch->started) {
        launch->lanes = calloc(launch->lane_count, sizeof(*launch->lanes));
        launch->started = true;
    }
    if (!launch->entered && reached(launch, g->enter_wait0, g->enter_waits)) {
        stamp(launch, g->trace_tasks, 0);
        for (uint32_t i = 0; i < g->enter_posts; i++)
            g->posts[g->enter_post0 + i][1 + g->control->run % 2] = g->meeting;
        post(launch, g->enter_post0, g->enter_posts);
        for (int r = 0; r < g->world && g->link; r++) /* no time passes on this link */
            __atomic_fetch_add((uint64_t *)g->signals + r * WEFT_CUDA_LINE_WORDS, r != g->rank,
                               __ATOMIC_RELEASE);
        launch->entered = moved = true;
    }
    for (uint32_t i = 0; i < launch->lane_count && !(slow && moved); i++)
        moved |= step_lane(launch, (uint32_t)draw(launch->lane_count));
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= launch->lanes[i].done == lane_at(launch, i)->task_count;
    if (over && launch->entered && reached(launch, g->exit_wait0, g->exit_waits)) {
        stamp(launch, g->trace_tasks, 1);
        if (same_meeting(launch))
            g->control->run++;
        launch_end(launch);
        moved = true;
    }
    return moved;
}

/* ---- packets ----------------------------------------------------------------------------------------- */

static int64_t packets_in(const weft_cuda_packets *p)
{
    return (p->bytes + WEFT_CUDA_PACKET_PAYLOAD - 1) / WEFT_CUDA_PACKET_PAYLOAD;
}

static size_t payload(const weft_cuda_packets *p, int64_t at)
{
    int64_t left = p->bytes - at * WEFT_CUDA_PACKET_PAYLOAD;
    return (size_t)(left < WEFT_CUDA_PACKET_PAYLOAD ? left : WEFT_CUDA_PACKET_PAYLOAD);
}

static void send_packets(const weft_cuda_packets *p, int64_t first, int64_t end, uint64_t epoch)
{
    for (int r = 0; r < p->world; r++)
        for (int64_t at = first; at < (p->peer[r].send ? end : first + 1) && p->peer[r].to; at++) {
            char *packet =
                p->peer[r].to + (int64_t)(epoch & 1) * p->parity_bytes + at * WEFT_CUDA_PACKET_BYTES;
            if (p->peer[r].send)
                memcpy(packet, p->peer[r].send + at * WEFT_CUDA_PACKET_PAYLOAD, payload(p, at));
            __atomic_store_n((uint64_t *)packet + 1, epoch, __ATOMIC_RELEASE); /* partner: the load below */
        }
}

static const char *packet_of(const weft_cuda_packets *p, int from, int64_t at, uint64_t epoch)
{
    return p->inbox + (int64_t)(epoch & 1) * p->parity_bytes + from * p->row_bytes +
           at * WEFT_CUDA_PACKET_BYTES;
}

/* The first rank whose packets are not there; -1 when all are. */
static int missing_from(const weft_cuda_packets *p, int64_t first, int64_t end, uint64_t epoch)
{
    for (int r = 0; r < p->world; r++) {
        bool rows = p->reduces || p->peer[r].recv, word = p->peer[r].to && p->peer[r].send;
        for (int64_t at = first; at < (rows ? end : word ? first + 1 : first) && r != p->rank; at++)
            if (__atomic_load_n((const uint64_t *)packet_of(p, r, at, epoch) + 1, __ATOMIC_ACQUIRE) < epoch)
                return r;
    }
    return -1;
}

static void receive_packets(const fake_launch *launch, int64_t first, int64_t end, uint64_t epoch)
{
    const weft_cuda_packets *p = &launch->packets;
    size_t size = weft_dtype_size((weft_dtype)p->dtype);
    for (int64_t at = first; at < end; at++) {
        uint64_t words[WEFT_CUDA_PACKET_RANKS], out;
        weft_view views[WEFT_CUDA_PACKET_RANKS], into = {(char *)&out, 8};
        for (int r = 0; r < p->world; r++) {
            views[r] = (weft_view){(char *)&words[r], 8};
            words[r] = 0;
            if (r != p->rank)
                memcpy(&words[r], packet_of(p, r, at, epoch), sizeof(words[r]));
            else if (p->peer[r].send)
                memcpy(&words[r], p->peer[r].send + at * WEFT_CUDA_PACKET_PAYLOAD, payload(p, at));
        }
        for (int r = 0; r < p->world && !p->reduces; r++)
            if (p->peer[r].recv)
                memcpy(p->peer[r].recv + at * WEFT_CUDA_PACKET_PAYLOAD, &words[r], payload(p, at));
        if (!p->reduces)
            continue;
        weft_reduce_rows((weft_dtype)p->dtype, launch->reduction, 1, (int64_t)(payload(p, at) / size), views,
                         p->world, (weft_dtype)p->dtype, &into, 1);
        memcpy(p->peer[0].recv + at * WEFT_CUDA_PACKET_PAYLOAD, &out, payload(p, at));
    }
}

static bool step_cta(fake_launch *launch, uint32_t cta)
{
    const weft_cuda_packets *p = &launch->packets;
    fake_lane *lane = &launch->lanes[cta];
    int64_t first = cta * p->chunk_packets, end = first + p->chunk_packets, total = packets_in(p);
    uint64_t epoch = p->epochs[cta * WEFT_CUDA_LINE_WORDS] + 1;
    end = end < total ? end : total;
    if (!lane->loaded) {
        send_packets(p, first, end, epoch);
        lane->loaded = 1;
        return true;
    }
    if (lane->done || missing_from(p, first, end, epoch) >= 0)
        return false;
    receive_packets(launch, first, end, epoch);
    lane->done = 1;
    return true;
}

static bool step_packets(fake_launch *launch)
{
    bool moved = false, over = true;
    if (!launch->started) {
        launch->lanes = calloc(launch->lane_count, sizeof(*launch->lanes));
        launch->started = true;
    }
    for (uint32_t i = 0; i < launch->lane_count; i++)
        moved |= step_cta(launch, (uint32_t)draw(launch->lane_count));
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= launch->lanes[i].done;
    if (over) {
        for (uint32_t i = 0; i < launch->lane_count; i++)
            launch->packets.epochs[i * WEFT_CUDA_LINE_WORDS]++;
        launch_end(launch);
        moved = true;
    }
    return moved;
}

/* ---- sums of products as packets --------------------------------------------------------------------- */

static char *exchange_packet(const weft_cuda_exchange *x, char *inbox, int64_t parity_bytes, int dtype,
                             int64_t row, int64_t col, uint64_t epoch)
{
    int64_t each = 8 / (int64_t)weft_dtype_size((weft_dtype)dtype);

    return inbox + (int64_t)(epoch & 1) * parity_bytes + (row * x->n + col) / each * 16;
}

/* `width` columns, which are whole packets. */
static void exchange_put(const weft_cuda_exchange *x, char *inbox, int64_t parity_bytes, int dtype,
                         int64_t row, int64_t col, const double *values, uint64_t epoch)
{
    int each = 8 / (int)weft_dtype_size((weft_dtype)dtype);

    for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i += each) {
        char *packet = exchange_packet(x, inbox, parity_bytes, dtype, row, col + i, epoch);

        for (int j = 0; j < each; j++)
            weft_element_set((weft_dtype)dtype, packet, (size_t)j, values[i + j]);
        __atomic_store_n((uint64_t *)packet + 1, epoch, __ATOMIC_RELEASE); /* partner: exchange_get */
    }
}

/* False when they are not there. */
static bool exchange_get(const weft_cuda_exchange *x, const char *inbox, int64_t parity_bytes, int dtype,
                         int64_t row, int64_t col, double *values, uint64_t epoch)
{
    int each = 8 / (int)weft_dtype_size((weft_dtype)dtype);

    for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++) {
        const char *packet =
            exchange_packet(x, (char *)(uintptr_t)inbox, parity_bytes, dtype, row, col + i, epoch);

        if (__atomic_load_n((const uint64_t *)packet + 1, __ATOMIC_ACQUIRE) != epoch)
            return false;
        values[i] = weft_element_get((weft_dtype)dtype, packet, (size_t)(i % each));
    }
    return true;
}

static void exchange_send(const weft_cuda_exchange *x, int64_t row, int64_t col, const double *values)
{
    uint64_t epoch = x->control->run + 1;

    for (int r = 0; r < x->world; r++) {
        weft_span rows = x->scattered ? weft_part(x->m, x->world, r) : (weft_span){0, x->m};

        if (row >= rows.begin && row < rows.begin + rows.count)
            exchange_put(x, x->to[r], x->inbox_bytes, x->wire, row - rows.begin, col, values, epoch);
    }
}

static void exchange_send_all(const weft_cuda_exchange *x)
{
    for (int64_t row = 0; row < x->m; row++)
        for (int64_t col = 0; col < x->n; col += WEFT_CUDA_EXCHANGE_WIDTH) {
            double values[WEFT_CUDA_EXCHANGE_WIDTH];

            for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++)
                values[i] =
                    weft_element_get((weft_dtype)x->wire, x->sums, (size_t)(row * x->sums_ld + col + i));
            exchange_send(x, row, col, values);
        }
}

static void exchange_store(const weft_cuda_exchange *x, int64_t row, int64_t col, const double *values)
{
    for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++)
        weft_element_set((weft_dtype)x->dtype, x->d, (size_t)(row * x->d_ld + col + i), values[i]);
}

static double exchange_finish(const weft_cuda_exchange *x, double sum, int64_t row, int64_t col)
{
    double value = (double)x->alpha * sum;

    if (x->c)
        value +=
            (double)x->beta * weft_element_get((weft_dtype)x->dtype, x->c, (size_t)(row * x->c_ld + col));
    if (x->bias)
        value += weft_element_get((weft_dtype)x->dtype, x->bias, (size_t)col);
    return x->changes ? activate(x->act, value) : sum;
}

/* The rank that has not sent all its sums of this rank's rows, or -1. */
static int exchange_awaits(const weft_cuda_exchange *x)
{
    double values[WEFT_CUDA_EXCHANGE_WIDTH];

    for (int r = 0; r < x->world; r++)
        for (int64_t row = 0; row < x->rows; row++)
            for (int64_t col = 0; col < x->n; col += WEFT_CUDA_EXCHANGE_WIDTH)
                if (!exchange_get(x, x->inbox + r * x->row_bytes, x->inbox_bytes, x->wire, row, col, values,
                                  x->control->run + 1))
                    return r;
    return -1;
}

static void exchange_add_up(const weft_cuda_exchange *x)
{
    uint64_t epoch = x->control->run + 1;

    for (int64_t row = x->row0; row < x->row0 + x->rows; row++)
        for (int64_t col = 0; col < x->n; col += WEFT_CUDA_EXCHANGE_WIDTH) {
            double sum[WEFT_CUDA_EXCHANGE_WIDTH] = {0}, values[WEFT_CUDA_EXCHANGE_WIDTH];

            for (int r = 0; r < x->world; r++) {
                exchange_get(x, x->inbox + r * x->row_bytes, x->inbox_bytes, x->wire, row - x->row0, col,
                             values, epoch);
                for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++)
                    sum[i] = (float)(sum[i] + values[i]);
            }
            for (int i = 0; i < WEFT_CUDA_EXCHANGE_WIDTH; i++)
                sum[i] = exchange_finish(x, sum[i], row - x->d_from_row, col + i);
            for (int r = 0; r < x->world && x->returns; r++)
                if (r != x->rank)
                    exchange_put(x, x->results[r], x->results_bytes, x->dtype, row, col, sum, epoch);
            exchange_store(x, row - x->d_from_row, col, sum);
        }
}

/* Takes the rows that others finish. The rank that has not sent all of its own, or -1. */
static int exchange_take(const weft_cuda_exchange *x)
{
    uint64_t epoch = x->control->run + 1;

    for (int64_t row = 0; row < x->m && x->returns; row++)
        for (int64_t col = 0; col < x->n && (row < x->row0 || row >= x->row0 + x->rows);
             col += WEFT_CUDA_EXCHANGE_WIDTH) {
            double values[WEFT_CUDA_EXCHANGE_WIDTH];

            if (!exchange_get(x, x->results[x->rank], x->results_bytes, x->dtype, row, col, values, epoch))
                return (int)weft_part_of(x->m, x->world, row);
            exchange_store(x, row, col, values);
        }
    return -1;
}

static bool step_exchange(fake_launch *launch)
{
    const weft_cuda_exchange *x = &launch->exchange;

    if (!launch->started) {
        launch->started = true;
        if (x->sums)
            exchange_send_all(x);
        return true;
    }
    if (!launch->entered && exchange_awaits(x) < 0) {
        exchange_add_up(x);
        launch->entered = true;
        return true;
    }
    if (!launch->entered || exchange_take(x) >= 0)
        return false;
    x->control->run++;
    launch_end(launch);
    return true;
}

/* ---- mixture of experts -------------------------------------------------------------------------------- */

/* CTAs in any order. */
static bool step_experts(fake_launch *launch)
{
    bool moved = false, over = true;
    if (!launch->started) {
        launch->lanes = calloc(launch->lane_count, sizeof(*launch->lanes));
        launch->started = true;
    }
    for (uint32_t i = 0; i < launch->lane_count; i++) {
        uint32_t cta = (uint32_t)draw(launch->lane_count);
        uint64_t round;
        if (launch->lanes[cta].done || fake_moe_awaits(&launch->moe, launch->kernel, cta, &round) >= 0)
            continue;
        fake_moe_run(&launch->moe, &launch->call, launch->kernel, cta, launch->lane_count);
        launch->lanes[cta].done = 1;
        moved = true;
    }
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= launch->lanes[i].done;
    if (over)
        launch_end(launch);
    return moved;
}

static bool step_call(fake_launch *launch)
{
    launch->host(launch->argument);
    launch_end(launch);
    return true;
}

/* The first rank whose gate has not begun; -1: all have. */
static int gate_awaits(const fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;

    for (int r = 0; r < g->world; r++)
        if (r != g->rank &&
            __atomic_load_n(&g->signals[r * WEFT_CUDA_LINE_WORDS], __ATOMIC_ACQUIRE) <= *launch->runs)
            return r;
    return -1;
}

static bool step_gate(fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;

    if (!launch->started) {
        post(launch, g->enter_post0, g->enter_posts);
        return launch->started = true;
    }
    if (gate_awaits(launch) >= 0)
        return false;
    ++*launch->runs;
    launch_end(launch);
    return true;
}

/* The posts of ranks that do not run; no time passes on this link. */
static bool step_link(fake_launch *launch)
{
    const weft_cuda_moe_link *l = &launch->link;
    if (l->state->round[l->phase] <= *l->runs)
        return false;
    for (int r = 0; r < l->world; r++)
        if (r != l->rank)
            l->signals[r * WEFT_CUDA_LINE_WORDS] += l->posts;
    ++*l->runs;
    launch_end(launch);
    return true;
}

/* The peers of a rank in the loop, their CTAs in any order. */
static bool step_peers(fake_launch *launch)
{
    bool moved = false, over = true;
    for (uint32_t i = 0; i < launch->lane_count; i++) {
        uint32_t cta = (uint32_t)draw(launch->lane_count);
        if (fake_link_answered(&launch->peers, cta) < launch->answered)
            moved |= fake_link_step(&launch->peers, launch->by_packets, cta);
    }
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= fake_link_answered(&launch->peers, i) == launch->answered;
    if (over)
        launch_end(launch);
    return moved || over;
}

/* Whom a launch of packets or of experts waits for; -1: nobody. */
static int awaited(const fake_launch *launch, uint64_t *round)
{
    const weft_cuda_packets *p = &launch->packets;
    *round = launch->kind == PACKETS ? p->epochs[0] : 0;
    if (launch->kind == GATE) {
        *round = *launch->runs;
        return gate_awaits(launch);
    }
    if (launch->kind == EXCHANGE) {
        *round = launch->exchange.control->run;
        return launch->entered ? exchange_take(&launch->exchange) : exchange_awaits(&launch->exchange);
    }
    for (uint32_t i = 0; launch->kind == EXPERTS && launch->started && i < launch->lane_count; i++)
        if (!launch->lanes[i].done)
            return fake_moe_awaits(&launch->moe, launch->kernel, i, round);
    for (uint32_t i = 0; launch->kind == PACKETS && launch->started && i < launch->lane_count; i++) {
        int64_t first = i * p->chunk_packets, end = first + p->chunk_packets, total = packets_in(p);
        int from = missing_from(p, first, end < total ? end : total, p->epochs[i * WEFT_CUDA_LINE_WORDS] + 1);
        if (!launch->lanes[i].done && from >= 0)
            return from;
    }
    return -1;
}

/* The first wait that does not hold, ENTER signals first; NULL when there is none. */
static const weft_cuda_wait *open_wait(const fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;
    const weft_cuda_wait *first = NULL;
    for (uint32_t l = 0; launch->started && l < launch->lane_count; l++) {
        const weft_cuda_lane *list = lane_at(launch, l);
        const weft_cuda_task *t = &g->tasks[list->task0 + launch->lanes[l].done];
        if (launch->lanes[l].done == list->task_count)
            continue;
        for (uint32_t w = 0; w < t->wait_count; w++) {
            const weft_cuda_wait *wait = &g->waits[t->wait0 + w];
            if (!reached(launch, t->wait0 + w, 1) && (!first || wait->number < g->ranks_enter))
                first = wait;
        }
    }
    for (uint32_t w = 0; w < g->exit_waits && !first; w++)
        if (!reached(launch, g->exit_wait0 + w, 1))
            first = &g->waits[g->exit_wait0 + w];
    return first;
}

/* As Patience of order.cuh: a wait for progress lasts while tasks of any rank end. */
static bool loses_patience(fake_launch *launch, bool enters, int64_t now, int64_t limit)
{
    const weft_cuda_args *g = &launch->args;
    bool planned = launch->kind == PRODUCT || launch->kind == COLLECTIVE;
    uint32_t steps = 1;
    if (now - launch->moved_ns <= limit / 2) {
        launch->seen = 0;
        return false;
    }
    for (int r = 0; r < g->world && planned && !enters; r++)
        steps += __atomic_load_n(&g->peers[r]->steps, __ATOMIC_RELAXED);
    if (!launch->seen)
        launch->seen = steps;
    if (now - launch->moved_ns <= limit || launch->seen == steps)
        return now - launch->moved_ns > limit;
    launch->moved_ns = now;
    launch->seen = 0;
    return false;
}

/* Like the kernels: an abort word ends a launch, and so does a wait that lasts too long. */
static void give_up(fake_launch *launch, int64_t now)
{
    weft_cuda_args *g = &launch->args;
    uint64_t round = 0;
    bool planned = launch->kind == PRODUCT || launch->kind == COLLECTIVE;
    weft_cuda_wait packet = {.number = planned ? 0 : (uint32_t)awaited(launch, &round)};
    const weft_cuda_wait *wait = planned ? open_wait(launch) : packet.number == UINT32_MAX ? NULL : &packet;
    uint64_t limit = wait && wait->number < g->ranks_enter ? g->enter_deadline_ns : g->progress_deadline_ns;
    if (g->stop && __atomic_load_n(g->stop, __ATOMIC_ACQUIRE))
        __atomic_store_n(&g->control->abort, 1, __ATOMIC_RELEASE);
    if (!__atomic_load_n(&g->control->abort, __ATOMIC_ACQUIRE)) {
        if (!wait || !loses_patience(launch, wait->number < g->ranks_enter, now, (int64_t)limit))
            return;
        g->control->record = (weft_cuda_record){.set = 2,
                                                .signal = wait->number,
                                                .plan_task = launch->kind == EXPERTS ? launch->kernel : 0,
                                                .run = planned ? g->control->run : round};
        for (int r = 0; r < g->world; r++)
            __atomic_store_n(launch->kind == EXPERTS
                                 ? &((weft_cuda_control *)((char *)launch->moe.control +
                                                           (r - launch->moe.rank) * launch->moe.stride))
                                        ->abort
                                 : &g->peers[r]->abort,
                             1, __ATOMIC_RELEASE);
    }
    launch_end(launch);
}

/* One round over all streams, each in order; whether `stream` still has something to do. */
static bool advance(CUstream stream, bool *moved)
{
    bool busy[STREAMS_MAX] = {false};
    int kept = 0;
    *moved = false;
    for (int i = 0; i < gpu.count; i++) {
        fake_launch *launch = &gpu.launches[i];
        size_t at = (size_t)(uintptr_t)launch->stream;
        int64_t now = weft_clock_ns();
        if (busy[at])
            continue;
        busy[at] = true;
        if (!launch->moved_ns)
            launch->moved_ns = now;
        if (launch->kind == CALL       ? step_call(launch)
            : launch->kind == PACKETS  ? step_packets(launch)
            : launch->kind == EXCHANGE ? step_exchange(launch)
            : launch->kind == EXPERTS  ? step_experts(launch)
            : launch->kind == LINK     ? step_link(launch)
            : launch->kind == PEERS    ? step_peers(launch)
            : launch->kind == GATE     ? step_gate(launch)
                                       : step_launch(launch)) {
            launch->moved_ns = now;
            *moved = true;
        } else if (launch->kind != LINK && launch->kind != PEERS) {
            give_up(launch, now);
        }
    }
    for (int i = 0; i < gpu.count; i++)
        if (gpu.launches[i].active)
            gpu.launches[kept++] = gpu.launches[i];
    gpu.count = kept;
    for (int i = 0; i < gpu.count; i++)
        if (gpu.launches[i].stream == stream)
            return true;
    return false;
}

bool fake_gpu_busy(CUstream stream)
{
    bool moved, busy;
    pthread_mutex_lock(&gpu.lock);
    busy = advance(stream, &moved);
    pthread_mutex_unlock(&gpu.lock);
    return busy;
}

void fake_gpu_finish(CUstream stream)
{
    for (bool moved = true, busy = true; busy;) {
        pthread_mutex_lock(&gpu.lock);
        busy = advance(stream, &moved);
        pthread_mutex_unlock(&gpu.lock);
        if (busy && !moved)
            nanosleep(&(struct timespec){0, 20000}, NULL);
    }
}

bool fake_gpu_settle(int64_t limit_ns)
{
    for (int64_t begun = weft_clock_ns(); weft_clock_ns() - begun < limit_ns;) {
        bool moved, running;

        pthread_mutex_lock(&gpu.lock);
        advance(NULL, &moved);
        running = gpu.count > 0;
        pthread_mutex_unlock(&gpu.lock);
        if (!running)
            return true;
        if (!moved)
            nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    return false;
}

static bool enqueue(const fake_launch *launch)
{
    bool room;
    pthread_mutex_lock(&gpu.lock);
    room = gpu.count < LAUNCHES_MAX;
    gpu.counts.collectives += launch->kind == COLLECTIVE;
    gpu.counts.packets += launch->kind == PACKETS;
    if (room) {
        gpu.launches[gpu.count] = *launch;
        gpu.launches[gpu.count++].device = fake_gpu_current();
    }
    pthread_mutex_unlock(&gpu.lock);
    return room;
}

bool fake_gpu_launch(const weft_cuda_args *args, uint32_t lanes, bool hopper, bool early, CUstream stream)
{
    fake_launch launch = {.args = *args,
                          .lane_count = lanes + args->copy_count,
                          .hopper = hopper,
                          .stream = stream,
                          .active = true};
    pthread_mutex_lock(&gpu.lock);
    gpu.counts.early += early;
    pthread_mutex_unlock(&gpu.lock);
    return enqueue(&launch);
}

/* ---- products by themselves -------------------------------------------------------------------------- */

typedef struct fake_splitk {
    weft_cuda_splitk args;
    weft_cuda_exchange exchange; /* where it sends */
    bool sends;
    fake_map weights, tokens;
    int tile_tokens, tile_cols, form;
    uint32_t ctas, cluster;
} fake_splitk;

/* `lines` of an operand, all of k side by side, as the copy engine brings it: nothing beyond its end. */
static float *splitk_lines(const fake_map *map, bool along_k, int lines, int64_t k)
{
    float *all = malloc((size_t)(lines * k) * sizeof(*all) + 1);

    for (int64_t i = 0; all && i < lines * k; i++)
        all[i] = (float)through_map(map, map->dtype, (uint64_t)(along_k ? i % k : i / k),
                                    (uint64_t)(along_k ? i / k : i % k));
    return all;
}

/* The sum over all slices of k, in their order. */
static float splitk_sum(const weft_cuda_splitk *p, const float *x, const float *y)
{
    int parts = p->slices * p->groups;
    float sum = 0;

    for (int part = 0; part < parts; part++) {
        int64_t begin = (int64_t)p->steps * part / parts * WEFT_CUDA_SPLITK_STEP,
                end = (int64_t)p->steps * (part + 1) / parts * WEFT_CUDA_SPLITK_STEP;
        float slice = 0;

        for (int64_t k = begin; k < end; k++)
            slice += x[k] * y[k];
        sum += slice;
    }
    return sum;
}

static double splitk_finish(const weft_cuda_splitk *p, float sum, int64_t row, int64_t col)
{
    double x = (double)p->alpha * (double)sum;

    if (p->c)
        x += (double)p->beta * weft_element_get((weft_dtype)p->dtype, p->c, (size_t)(row * p->c_ld + col));
    if (p->bias)
        x += weft_element_get((weft_dtype)p->dtype, p->bias, (size_t)col);
    return activate(p->act, x);
}

/* Tile by tile, as the CTAs of the grid find theirs; one that is left out keeps what was in D. */
static void splitk_run(void *argument)
{
    fake_splitk *f = argument;
    const weft_cuda_splitk *p = &f->args;
    int64_t depth = (int64_t)p->steps * WEFT_CUDA_SPLITK_STEP;
    float *x = splitk_lines(&f->tokens, true, p->m, depth),
          *y = splitk_lines(&f->weights, f->form, p->n, depth);
    int sets = (int)(f->ctas / f->cluster) / p->groups;
    double sent[WEFT_CUDA_EXCHANGE_WIDTH];
    bool sound = x && y && f->cluster == (uint32_t)(p->slices * p->sharers) && f->ctas % f->cluster == 0 &&
                 p->steps >= p->slices * p->groups && f->tokens.box_inner == WEFT_CUDA_SPLITK_STEP &&
                 f->tokens.box_outer == (uint32_t)(f->tile_tokens / p->sharers) &&
                 f->weights.box_inner == WEFT_CUDA_SPLITK_STEP &&
                 f->weights.box_outer == (uint32_t)(f->form ? f->tile_cols : WEFT_CUDA_SPLITK_STEP);

    for (int tile = 0; sound && tile < sets * p->sharers; tile++) {
        int set = tile / p->sharers, row0 = set % p->m_tiles * f->tile_tokens,
            col0 = (set / p->m_tiles * p->sharers + tile % p->sharers) * f->tile_cols;

        for (int row = row0; row < row0 + f->tile_tokens && row < p->m; row++)
            for (int col = col0; col < col0 + f->tile_cols && col < p->n; col++) {
                float sum = splitk_sum(p, x + row * depth, y + col * depth);

                sent[col % WEFT_CUDA_EXCHANGE_WIDTH] = (double)sum;
                if (f->sends && col % WEFT_CUDA_EXCHANGE_WIDTH == WEFT_CUDA_EXCHANGE_WIDTH - 1)
                    exchange_send(&f->exchange, row, col - WEFT_CUDA_EXCHANGE_WIDTH + 1, sent);
                if (f->sends)
                    continue;
                weft_element_set((weft_dtype)p->dtype, p->d, (size_t)(row * p->d_ld + col),
                                 splitk_finish(p, sum, row, col));
            }
        /* the memory of groups is there, and the counts are zero between runs */
        for (int i = 0; p->groups > 1 && i < p->slices; i++)
            if (p->arrived[tile * p->slices + i] != 0)
                weft_element_set((weft_dtype)p->dtype, p->d, 0, NAN);
        if (p->groups > 1)
            memset(p->sums + (int64_t)tile * p->groups * f->tile_tokens * f->tile_cols, 0xff,
                   (size_t)(p->groups * f->tile_tokens * f->tile_cols) * sizeof(float));
    }
    free(x);
    free(y);
    free(f);
}

bool fake_gpu_exchange(const weft_cuda_exchange *exchange, CUstream stream)
{
    fake_launch launch = {.exchange = *exchange, .kind = EXCHANGE, .stream = stream, .active = true};

    pthread_mutex_lock(&gpu.lock);
    gpu.counts.exchanges++;
    pthread_mutex_unlock(&gpu.lock);
    launch.args.control = exchange->control;
    launch.args.peers = exchange->controls;
    launch.args.world = exchange->world;
    launch.args.stop = exchange->stop;
    launch.args.enter_deadline_ns = exchange->deadline_ns;
    launch.args.ranks_enter = (uint32_t)exchange->world;
    return enqueue(&launch);
}

bool fake_gpu_splitk(const weft_cuda_splitk *args, const weft_cuda_exchange *exchange, int tile, int form,
                     uint32_t ctas, uint32_t cluster, bool early, CUstream stream)
{
    static const int shapes[][2] = {
#define SHAPE(tokens, cols, ctas) {tokens, cols},
        WEFT_CUDA_SPLITK_TILES(SHAPE)
#undef SHAPE
    };
    fake_splitk *f = malloc(sizeof(*f));

    if (!f)
        return false;
    *f = (fake_splitk){.args = *args,
                       .sends = exchange != NULL,
                       .tile_tokens = shapes[tile][0],
                       .tile_cols = shapes[tile][1],
                       .form = form,
                       .ctas = ctas,
                       .cluster = cluster};
    memcpy(&f->weights, &args->weights, sizeof(f->weights));
    memcpy(&f->tokens, &args->tokens, sizeof(f->tokens));
    if (exchange)
        f->exchange = *exchange;
    pthread_mutex_lock(&gpu.lock);
    gpu.counts.splitk++;
    gpu.counts.early += early;
    pthread_mutex_unlock(&gpu.lock);
    /* what waits in the same kernel does so behind it */
    return fake_gpu_call(splitk_run, f, stream) &&
           (!exchange || !exchange->receives || fake_gpu_exchange(exchange, stream));
}

bool fake_gpu_call(void (*call)(void *argument), void *argument, CUstream stream)
{
    fake_launch launch = {.kind = CALL, .host = call, .argument = argument, .stream = stream, .active = true};
    return enqueue(&launch);
}

bool fake_gpu_sums(const weft_cuda_args *args, uint32_t lanes, CUstream stream)
{
    pthread_mutex_lock(&gpu.lock);
    gpu.counts.sums++;
    pthread_mutex_unlock(&gpu.lock);
    return fake_gpu_launch(args, lanes, false, false, stream);
}

bool fake_gpu_gate(const weft_cuda_args *args, uint64_t *runs, CUstream stream)
{
    fake_launch launch = {.args = *args, .kind = GATE, .runs = runs, .stream = stream, .active = true};
    pthread_mutex_lock(&gpu.lock);
    gpu.counts.gates++;
    pthread_mutex_unlock(&gpu.lock);
    return enqueue(&launch);
}

bool fake_gpu_collective(const weft_cuda_args *args, uint32_t lanes, int32_t reduction, CUstream stream)
{
    fake_launch launch = {.args = *args,
                          .kind = COLLECTIVE,
                          .reduction = (weft_reduction)reduction,
                          .lane_count = lanes,
                          .stream = stream,
                          .active = true};
    return enqueue(&launch);
}

bool fake_gpu_packets(const weft_cuda_packets *packets, uint32_t ctas, CUstream stream)
{
    fake_launch launch = {.packets = *packets,
                          .kind = PACKETS,
                          .reduction = (weft_reduction)packets->reduction,
                          .lane_count = ctas,
                          .stream = stream,
                          .active = true};
    launch.args.control = packets->control;
    launch.args.peers = packets->controls;
    launch.args.world = packets->world;
    launch.args.stop = packets->stop;
    launch.args.enter_deadline_ns = packets->deadline_ns;
    launch.args.ranks_enter = (uint32_t)packets->world;
    return enqueue(&launch);
}

bool fake_gpu_moe(const weft_cuda_moe *lane, const weft_cuda_moe_call *call, weft_gpu_moe_kernel kernel,
                  uint32_t ctas, CUstream stream)
{
    fake_launch launch = {.moe = *lane,
                          .call = *call,
                          .kernel = kernel,
                          .kind = EXPERTS,
                          .lane_count = ctas,
                          .stream = stream,
                          .active = true};
    launch.args.control = lane->control;
    launch.args.world = lane->world;
    launch.args.stop = lane->stop;
    launch.args.enter_deadline_ns = lane->deadline_ns;
    launch.args.ranks_enter = (uint32_t)lane->world;
    return enqueue(&launch);
}

bool fake_gpu_moe_link(const weft_cuda_moe_link *link, CUstream stream)
{
    fake_launch launch = {.link = *link, .kind = LINK, .stream = stream, .active = true};
    return enqueue(&launch);
}

bool fake_gpu_peers(const weft_cuda_link *link, bool packets, uint32_t ctas, CUstream stream)
{
    fake_launch launch = {.peers = *link,
                          .by_packets = packets,
                          .answered = fake_link_answered(link, 0) + link->runs,
                          .kind = PEERS,
                          .lane_count = ctas,
                          .stream = stream,
                          .active = true};
    *link->up = ctas;
    return enqueue(&launch);
}

fake_gpu_counts fake_gpu_take_counts(void)
{
    fake_gpu_counts counts = gpu.counts;
    gpu.counts = (fake_gpu_counts){0};
    return counts;
}
