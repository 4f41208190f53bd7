/*
 * Runs lowered plans on a GPU. A rank's run is a list of launches: kernels that copy unaligned operands where
 * there are some, then the walker's; where the plan leaves the product to cuBLASLt or to a kernel for
 * products by themselves, that in place of the walker, or before or after it. Nothing else goes on the
 * stream, so that it can be captured into a graph and replayed.
 */
#ifndef WEFT_RUN_CUDA_EXECUTOR_H
#define WEFT_RUN_CUDA_EXECUTOR_H

#include "run/cuda/cublaslt.h"
#include "run/cuda/driver.h"
#include "run/cuda/exchanged.h"
#include "run/cuda/packets.h"
#include "run/cuda/program.h"
#include "run/cuda/repitch.h"
#include "run/cuda/splitk_product.h"
#include "run/cuda/tables.h"

/* Which kernels run it: products, collectives from task arrays, collectives by packets, what is left of a
 * plan whose product is a launch of its own, and that as marked words. */
typedef enum weft_cuda_kind {
    WEFT_CUDA_PRODUCT,
    WEFT_CUDA_COLLECTIVE,
    WEFT_CUDA_PACKETS,
    WEFT_CUDA_SUMS,
    WEFT_CUDA_EXCHANGE
} weft_cuda_kind;

/* A program on its GPU, ready to run any number of times. */
typedef struct weft_cuda_executor {
    weft_cuda_device *device;
    weft_cuda_args args;
    CUfunction walk;
    weft_cuda_packets packets; /* of a plan that goes by packets, in place of what args has of tasks */
    weft_cuda_packet_rows packet_rows; /* with which the caller's buffers are bound */
    weft_cuda_exchange exchange;       /* EXCHANGE: in their place too */
    weft_cuda_kind kind;
    int32_t reduction;
    uint64_t *runs; /* COLLECTIVE, SUMS: how often each CTA has run, a signal's line apart */
    bool switched;  /* COLLECTIVE: through the switch between GPUs */
    bool early;     /* of those: may come in while the kernel before it ends */
    weft_cuda_tables tables;
    weft_cuda_repitched repitched;
    weft_cublaslt_product library; /* of what cuBLASLt multiplies */
    weft_splitk_product splitk;    /* or a kernel of weft's own */
    bool product_last;             /* after the walker's kernel, else before it */
    bool product_ends;             /* and applies the epilogue */
    unsigned grid;                 /* 0: nothing to launch */
    unsigned threads;              /* of a CTA, EXCHANGE */
    uint64_t *gate;                /* NULL, or the signals of the gate before it, then how often it ran */
    uint32_t gate_post0;
    bool hopper;
    int rank;
} weft_cuda_executor;

/*
 * Kernels in the place of the library's own, and what they read beside the tables (args.link): the one door
 * for measurements of a rank that runs alone (world.h). The bench has them: tools/weft/bench/cuda/emulated.c.
 */
typedef struct weft_cuda_stand_in {
    /* NULL: there is none. `walker` is WEFT_CUDA_WALKERS where it is not Hopper's. */
    CUfunction (*kernel)(const struct weft_cuda_stand_in *self, weft_cuda_kind kind,
                         const weft_problem *problem, int walker);
    /* What the tables are uploaded with: from malloc; NULL: no memory. */
    weft_cuda_beside (*beside)(const struct weft_cuda_stand_in *self, weft_cuda_kind kind,
                               const weft_plan_part *part, const weft_cuda_binding *binding,
                               const weft_cuda_program *program);
    const char *limits; /* what is said where there is no kernel */
} weft_cuda_stand_in;

typedef struct weft_cuda_limits {
    double enter_seconds, progress_seconds;
} weft_cuda_limits;

/*
 * Loads a rank's program. controls[r] is rank r's control block (zeroed before its first run); signals must
 * be zero before the first run too. The context of `device` must be current. Each lane needs its crew
 * resident: more lanes than `crews` is an error.
 */
weft_status weft_cuda_executor_make(weft_cuda_device *device, const weft_plan_part *part,
                                    const weft_cuda_binding *binding, weft_cuda_control *const *controls,
                                    int crews, const weft_cuda_limits *limits, weft_cuda_executor *executor,
                                    weft_error_text *error);
void weft_cuda_executor_free(weft_cuda_executor *executor);

/* What it has of the GPU's memory for itself. */
size_t weft_cuda_executor_bytes(const weft_cuda_executor *executor);

/* Another alpha and beta, of those that its epilogue takes (epilogue.h). */
void weft_cuda_executor_values(weft_cuda_executor *executor, float alpha, float beta);

/* Enqueues one run. */
weft_status weft_cuda_executor_launch(const weft_cuda_executor *executor, CUstream stream,
                                      weft_error_text *error);

/* After the stream has passed the run: WEFT_OK, or the sentence of the wait that expired. */
weft_status weft_cuda_executor_outcome(const weft_cuda_executor *executor, CUstream stream,
                                       weft_cuda_control *copy, weft_error_text *error);

#endif
