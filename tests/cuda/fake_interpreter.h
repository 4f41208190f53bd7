/* What the interpreter's files share: a launch, its steps, and the fake GPU that all launches of a process
 * are on. fake_walk.c has the kernels that walk a plan's lanes, fake_protocols.c those with a protocol of
 * their own, fake_gpu.c the streams. */
#ifndef WEFT_TESTS_CUDA_FAKE_INTERPRETER_H
#define WEFT_TESTS_CUDA_FAKE_INTERPRETER_H

#include "fake_channels.h"
#include "fake_gpu.h"

#include <pthread.h>

typedef struct fake_lane {
    uint32_t loaded, done; /* tasks the loader and the consumer have finished */
    float *product;        /* of task `loaded - 1`, when it is a GEMM */
    fake_progress at;      /* CHANNELS */
} fake_lane;

typedef enum fake_kind {
    PRODUCT,
    COLLECTIVE,
    PACKETS,
    CHANNELS,
    EXCHANGE,
    EXPERTS,
    CALL,
    LINK,
    PEERS,
    GATE,
    WALK,
    LADDER
} fake_kind;

typedef struct fake_launch {
    weft_cuda_args args; /* PACKETS, EXPERTS: only what waiting needs */
    weft_cuda_packets packets;
    weft_cuda_channels channels;
    weft_cuda_exchange exchange;
    weft_cuda_moe moe;
    weft_cuda_moe_args call;
    weft_device_moe_kernel kernel;
    weft_cuda_moe_link link;
    ladder_args ladder;
    ladder_kernel step; /* LADDER */
    weft_cuda_link peers;
    fake_link_kind by; /* PEERS */
    uint64_t answered; /* by each of its CTAs in the end */
    fake_kind kind;
    weft_reduction reduction;
    uint32_t lane_count;
    bool hopper;
    void (*host)(void *argument); /* CALL: all there is */
    void *argument;
    uint64_t *runs; /* GATE */
    void *walk;     /* WALK: what `walker` began */
    CUstream stream;
    int device;
    fake_lane *lanes;
    bool started, entered, active;
    int64_t moved_ns; /* when it last made progress */
    uint32_t seen;    /* as Patience of order.cuh has it */
} fake_launch;

enum { LAUNCHES_MAX = 4096, STREAMS_MAX = 64 };

/* One GPU per process; its ranks may be threads, so a lock guards all of it. */
typedef struct fake_interpreter {
    pthread_mutex_t lock;
    fake_launch launches[LAUNCHES_MAX];
    int count;
    uint64_t random;
    fake_gpu_counts counts;
    int slow_rank;
    int64_t slow_ns; /* a step of it; 0: nobody is slow */
    const fake_walker *walker;
} fake_interpreter;
extern fake_interpreter gpu;

uint64_t fake_draw(uint64_t below);
void fake_launch_end(fake_launch *launch);
/* Its lanes, at its first step. */
void fake_launch_start(fake_launch *launch);

/* A step of a launch by its kind: whether anything happened. */
bool fake_step_plan(fake_launch *launch); /* PRODUCT, COLLECTIVE */
bool fake_step_walk(fake_launch *launch);
bool fake_step_packets(fake_launch *launch);
bool fake_step_channels(fake_launch *launch);
bool fake_step_exchange(fake_launch *launch);
bool fake_step_experts(fake_launch *launch);
bool fake_step_call(fake_launch *launch);
bool fake_step_link(fake_launch *launch);
bool fake_step_peers(fake_launch *launch);
bool fake_step_gate(fake_launch *launch);
bool fake_step_ladder(fake_launch *launch);

/* The first wait of a plan's launch that does not hold, ENTER signals first; NULL when there is none. */
const weft_cuda_wait *fake_open_wait(const fake_launch *launch);

/* Whom a launch with a protocol of its own waits for, and in which round; -1: nobody. */
int fake_awaited(const fake_launch *launch, uint64_t *round);

void fake_post(const fake_launch *launch, uint32_t post0, uint32_t count);

#endif
