/* What the fake GPU is given to do: kernels, graphs of them, streams and events. See fake_gpu.h. */
#include "fake_driver.h"
#include "fake_epilogue.h"
#include "fake_gpu.h"
#include "fake_grouped.h"
#include "fake_ladder.h"

#include "core/clock.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS_MAX = 64, NODES_MAX = 1024 };

/* The kernels, as functions. Several in a row begin with the first of them. */
enum {
    WALKER = 1,
    REHEARSAL,
    COLLECTIVE_KERNEL,
    PACKETS_KERNEL,
    REPITCH_KERNEL,
    MOE_KERNELS,
    MOE_LINK_KERNEL = MOE_KERNELS + WEFT_CUDA_MOE_KERNELS,
    GROUPED_KERNELS,
    PEERS_KERNEL = 900,
    SUMS_KERNEL = 910,
    EXCHANGE_KERNEL,
    GATE_KERNEL,
    CHANNELS_KERNEL,
    EPILOGUE_KERNEL,
    ADD_KERNEL,
    SPLITK_KERNELS = 1000,
    SPLITK_SENT_KERNELS = 1500,
    SPLITK_SEND_KERNELS = 2000,
    LADDER_FUNCTIONS = 3000
};

static CUfunction function_of(int kernel)
{
    return (CUfunction)(uintptr_t)kernel;
}

void fake_kernels(weft_cuda_device *device)
{
    CUfunction *walkers = &device->walkers[0][0][0];
    for (size_t i = 0; i < sizeof(device->walkers) / sizeof(*walkers); i++)
        walkers[i] = function_of(WALKER);
    for (int i = 0; i < 4; i++)
        device->fp8[i / 2][i % 2] = function_of(WALKER);
    device->rehearse = function_of(REHEARSAL);
    for (int i = 0; i <= WEFT_FP8_E5M2; i++) {
        device->collective[i] = function_of(COLLECTIVE_KERNEL);
        if (i <= WEFT_F64)
            device->multimem[i] = device->collective[i];
        device->packets[i] = function_of(PACKETS_KERNEL);
        device->lines[0][i] = device->lines[1][i] = device->packets[i];
    }
    device->lines_moved = device->packets[0];
    for (int i = 0; i < 2 * 2 * WEFT_CUDA_SPLITK_TILE_COUNT; i++) {
        int dtype = i / 2 / WEFT_CUDA_SPLITK_TILE_COUNT, tile = i / 2 % WEFT_CUDA_SPLITK_TILE_COUNT,
            kernel = i % (2 * WEFT_CUDA_SPLITK_TILE_COUNT);

        device->splitk[dtype][tile][i % 2] = function_of(SPLITK_KERNELS + kernel);
        device->splitk_sent[dtype][tile][i % 2] = function_of(SPLITK_SENT_KERNELS + kernel);
        device->splitk_send[dtype][tile][i % 2] = function_of(SPLITK_SEND_KERNELS + kernel);
    }
    device->exchange = function_of(EXCHANGE_KERNEL);
    device->exchange_lines[0] = device->exchange_lines[1] = device->exchange;
    device->repitch = device->turn = function_of(REPITCH_KERNEL);
    device->gate = function_of(GATE_KERNEL);
    device->channels = function_of(CHANNELS_KERNEL);
    device->epilogue = function_of(EPILOGUE_KERNEL);
    device->add = function_of(ADD_KERNEL);
    device->sums = function_of(SUMS_KERNEL);
    for (int i = 0; i < WEFT_CUDA_MOE_KERNELS; i++)
        device->moe[i] = function_of(MOE_KERNELS + i);
    for (int i = 0; i < 4; i++) {
        device->grouped[i / 2][i % 2] = function_of(GROUPED_KERNELS + i);
        device->grouped_stored[i / 2][i % 2] = function_of(GROUPED_KERNELS + 4 + i);
    }
}

/* ---- graphs: collectives, mixture of experts, grouped products and copies, each again on its stream ---- */

typedef struct fake_node {
    CUfunction function;
    unsigned grid;
    CUstream stream;
    weft_cuda_moe lane;
    weft_cuda_moe_args call;
    weft_cuda_moe_link link;
    weft_cuda_grouped_launch grouped;
    weft_cuda_args collective;
    int32_t reduction;
    uint64_t *runs;
    weft_cuda_packets packets;
    weft_cuda_channels channels;
    ladder_args ladder;
    fake_copied copied; /* instead of a function */
} fake_node;

typedef struct fake_graph {
    int count;
    fake_node nodes[NODES_MAX];
} fake_graph;

static fake_graph *capturing[STREAMS_MAX]; /* by stream; those of one thread */

static size_t number_of(CUstream stream)
{
    return (size_t)(uintptr_t)stream;
}

static CUresult fake_node_run(const fake_node *node)
{
    uintptr_t kernel = (uintptr_t)node->function;
    if (!kernel)
        return fake_copy_enqueue(&node->copied, node->stream);
    bool room =
        (uintptr_t)node->function >= LADDER_FUNCTIONS
            ? fake_gpu_ladder(&node->ladder, (ladder_kernel)((uintptr_t)node->function - LADDER_FUNCTIONS),
                              node->grid, node->stream)
        : (uintptr_t)node->function == COLLECTIVE_KERNEL
            ? fake_gpu_collective(&node->collective, node->grid, node->reduction, node->stream)
        : (uintptr_t)node->function == GATE_KERNEL
            ? fake_gpu_gate(&node->collective, node->runs, node->stream)
        : (uintptr_t)node->function == PACKETS_KERNEL
            ? fake_gpu_packets(&node->packets, node->grid, node->stream)
        : kernel == CHANNELS_KERNEL ? fake_gpu_channels(&node->channels, node->grid, node->stream)
        : kernel >= GROUPED_KERNELS ? fake_grouped(&node->grouped, node->stream)
        : kernel == MOE_LINK_KERNEL
            ? fake_gpu_moe_link(&node->link, node->stream)
            : fake_gpu_moe(&node->lane, &node->call, (weft_device_moe_kernel)(kernel - MOE_KERNELS),
                           node->grid, node->stream);
    return room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_node(const fake_node *node)
{
    fake_graph *graph = capturing[number_of(node->stream)];

    if (graph->count == NODES_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->nodes[graph->count++] = *node;
    return CUDA_SUCCESS;
}

bool fake_is_capturing(CUstream stream)
{
    return capturing[number_of(stream)] != NULL;
}

CUresult fake_captured_copy(const fake_copied *copied, CUstream stream)
{
    return add_node(&(fake_node){.stream = stream, .copied = *copied});
}

static CUresult fake_captured_launch(const CUlaunchConfig *config, CUfunction function, void **parameters)
{
    fake_node node = {.function = function, .grid = config->gridDimX, .stream = config->hStream};
    if ((uintptr_t)function >= LADDER_FUNCTIONS) {
        node.ladder = *(ladder_args *)parameters[0];
    } else if ((uintptr_t)function == COLLECTIVE_KERNEL) {
        node.collective = *(weft_cuda_args *)parameters[0];
        node.reduction = *(int32_t *)parameters[1];
    } else if ((uintptr_t)function == GATE_KERNEL) {
        node.collective = *(weft_cuda_args *)parameters[0];
        node.runs = *(uint64_t **)parameters[1];
    } else if ((uintptr_t)function == PACKETS_KERNEL) {
        node.packets = *(weft_cuda_packets *)parameters[0];
    } else if ((uintptr_t)function == CHANNELS_KERNEL) {
        node.channels = *(weft_cuda_channels *)parameters[0];
    } else if ((uintptr_t)function >= GROUPED_KERNELS) {
        node.grouped = (weft_cuda_grouped_launch){.grouped = *(weft_cuda_grouped *)parameters[0],
                                                  .b_map = *(CUtensorMap *)parameters[1],
                                                  .few_map = *(CUtensorMap *)parameters[2],
                                                  .many_map = *(CUtensorMap *)parameters[3],
                                                  .clusters = (int)config->gridDimX / WEFT_CUDA_PAIR};
    } else if ((uintptr_t)function == MOE_LINK_KERNEL) {
        node.link = *(weft_cuda_moe_link *)parameters[0];
    } else {
        node.lane = *(weft_cuda_moe *)parameters[0];
        node.call = *(weft_cuda_moe_args *)parameters[1];
    }
    return fake_is_capturing(config->hStream) ? add_node(&node) : fake_node_run(&node);
}

static CUresult fake_begin_capture(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    capturing[number_of(stream)] = calloc(1, sizeof(fake_graph));
    return CUDA_SUCCESS;
}

static CUresult fake_end_capture(CUstream stream, CUgraph *graph)
{
    fake_graph *made = capturing[number_of(stream)];
    for (int i = 0; i < STREAMS_MAX; i++)
        if (capturing[i] == made)
            capturing[i] = NULL;
    *graph = (CUgraph)made;
    return CUDA_SUCCESS;
}

static CUresult fake_instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    *exec = (CUgraphExec)graph;
    return CUDA_SUCCESS;
}

static CUresult fake_graph_launch(CUgraphExec exec, CUstream stream)
{
    const fake_graph *graph = (const fake_graph *)exec;
    CUresult result = CUDA_SUCCESS;
    (void)stream;
    for (int i = 0; i < graph->count && result == CUDA_SUCCESS; i++)
        result = fake_node_run(&graph->nodes[i]);
    return result;
}

static CUresult fake_exec_destroy(CUgraphExec exec)
{
    (void)exec;
    return CUDA_SUCCESS;
}

static CUresult fake_graph_destroy(CUgraph graph)
{
    free(graph);
    return CUDA_SUCCESS;
}

/* At once, in the calling thread. Broken, it comes and does not wait: always, or the first times. */
static void fake_rehearse(const weft_cuda_rehearsal *r)
{
    if (!r->arrived)
        return;
    int64_t began = weft_clock_ns();
    bool once = fake_breaks_yet("some meetings"), met = false;
    __atomic_fetch_add(r->arrived, 1, __ATOMIC_ACQ_REL); /* partner: the load below */
    for (bool waits = !once && !fake_breaks("all meetings"); waits && !met;
         waits = weft_clock_ns() - began < (int64_t)r->deadline_ns)
        met = __atomic_load_n(r->arrived, __ATOMIC_ACQUIRE) >= r->want;
    *r->met = met;
}

static void add_now(void *argument)
{
    weft_cuda_add *a = argument;
    uint64_t before = __atomic_fetch_add(a->word, a->add, __ATOMIC_ACQ_REL); /* partner: itself; all reads */

    if (a->before)
        *a->before = before;
    free(a);
}

static bool fake_add(const weft_cuda_add *given, CUstream stream)
{
    weft_cuda_add *a = malloc(sizeof(*a));

    if (!a)
        return false;
    *a = *given;
    return fake_gpu_call(add_now, a, stream);
}

static _Atomic uint64_t streams_used;

uint64_t fake_gpu_take_streams(void)
{
    return atomic_exchange(&streams_used, 0);
}

static CUresult fake_launch_kernel(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                   void **extra)
{
    bool hopper = function != NULL; /* as fake_kernels() set it */
    const weft_cuda_args *args = parameters[0];
    (void)extra;
    BREAK(cuLaunchKernelEx);
    streams_used |= (uint64_t)1 << ((uintptr_t)config->hStream % STREAMS_MAX);
    if (function == function_of(REHEARSAL)) {
        fake_rehearse(parameters[0]);
        return CUDA_SUCCESS;
    }
    if ((uintptr_t)function == COLLECTIVE_KERNEL || (uintptr_t)function == PACKETS_KERNEL ||
        (uintptr_t)function == GATE_KERNEL || (uintptr_t)function == CHANNELS_KERNEL ||
        (uintptr_t)function >= LADDER_FUNCTIONS)
        return fake_captured_launch(config, function, parameters);
    if ((uintptr_t)function >= PEERS_KERNEL && (uintptr_t)function <= PEERS_KERNEL + FAKE_LINK_LINES)
        return fake_gpu_peers(parameters[0], (fake_link_kind)((uintptr_t)function - PEERS_KERNEL),
                              config->gridDimX, config->hStream)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_OUT_OF_MEMORY;
    if (function == function_of(SUMS_KERNEL))
        return fake_gpu_sums(args, config->gridDimX, config->hStream) ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_OUT_OF_MEMORY;
    if (function == function_of(REPITCH_KERNEL))
        return fake_gpu_repitch(parameters[0], config->hStream) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (function == function_of(ADD_KERNEL))
        return fake_add(parameters[0], config->hStream) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (function == function_of(EPILOGUE_KERNEL))
        return fake_epilogue(parameters[0], config->hStream) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (function == function_of(EXCHANGE_KERNEL))
        return fake_gpu_exchange(parameters[0], config->hStream) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if ((uintptr_t)function >= SPLITK_KERNELS) {
        bool sends = (uintptr_t)function >= SPLITK_SEND_KERNELS,
             sent = !sends && (uintptr_t)function >= SPLITK_SENT_KERNELS;
        int kernel = (int)((uintptr_t)function - (sends  ? SPLITK_SEND_KERNELS
                                                  : sent ? SPLITK_SENT_KERNELS
                                                         : SPLITK_KERNELS));
        return fake_gpu_splitk(parameters[0], sends ? parameters[1] : NULL, kernel / 2, kernel % 2, sent,
                               config->gridDimX, config->attrs[0].value.clusterDim.x, config->numAttrs > 1,
                               config->hStream)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if ((uintptr_t)function >= MOE_KERNELS)
        return fake_captured_launch(config, function, parameters);
    return fake_gpu_launch(args, config->gridDimX / (hopper && args->tile_m > 128 ? 2 : 1), hopper,
                           config->numAttrs > 0, config->hStream)
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Modules: of the benches alone, whose kernels go by name; those of the library are there with the device. */
static _Atomic int modules;

int fake_gpu_modules(void)
{
    return modules;
}

static CUresult fake_load(CUmodule *module, const void *image)
{
    BREAK(cuModuleLoadData);
    modules++;
    *module = (CUmodule)(uintptr_t)image;
    return CUDA_SUCCESS;
}

static CUresult fake_unload(CUmodule module)
{
    (void)module;
    modules--;
    return CUDA_SUCCESS;
}

static CUresult fake_function(CUfunction *function, CUmodule module, const char *name)
{
    static const struct {
        const char *name;
        int kernel;
    } stand_ins[] = {{"weft_link_signals", PEERS_KERNEL + FAKE_LINK_SIGNALS},
                     {"weft_link_packets", PEERS_KERNEL + FAKE_LINK_PACKETS},
                     {"weft_link_lines", PEERS_KERNEL + FAKE_LINK_LINES},
                     {"weft_experts_link", MOE_LINK_KERNEL},
                     {"weft_sums_link", SUMS_KERNEL},
                     {"weft_exchange_link", EXCHANGE_KERNEL},
                     {"weft_collective_link_f32", COLLECTIVE_KERNEL},
                     {"weft_collective_link_f16", COLLECTIVE_KERNEL},
                     {"weft_collective_link_bf16", COLLECTIVE_KERNEL},
                     {"weft_walk_bf16_nn", WALKER}};
    int kernel = fake_ladder_find(name);
    (void)module;
    BREAK(cuModuleGetFunction);
    *function = (CUfunction)(uintptr_t)(LADDER_FUNCTIONS + kernel);
    for (size_t i = 0; i < sizeof(stand_ins) / sizeof(*stand_ins); i++)
        if (strcmp(name, stand_ins[i].name) == 0) {
            *function = function_of(stand_ins[i].kernel);
            return CUDA_SUCCESS;
        }
    return kernel >= 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult fake_attribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    (void)attribute, (void)function;
    *value = 0;
    return CUDA_SUCCESS;
}

static CUresult fake_set_attribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

static _Atomic int streams_made;

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
    (void)flags;
    *stream = (CUstream)(uintptr_t)(2 + streams_made++ % (STREAMS_MAX - 2)); /* 1: CU_STREAM_LEGACY */
    return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_synchronize(CUstream stream)
{
    BREAK(cuStreamSynchronize);
    NOT_IN_CAPTURE();
    fake_gpu_finish(stream);
    return CUDA_SUCCESS;
}

static CUresult fake_stream_query(CUstream stream)
{
    BREAK(cuStreamQuery);
    return fake_gpu_busy(stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult fake_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    *status = fake_is_capturing(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* An event remembers its stream: it has happened when the stream is through. */
typedef struct fake_event {
    CUstream stream;
    int64_t ns;
} fake_event;

static CUresult fake_event_create(CUevent *event, unsigned flags)
{
    (void)flags;
    BREAK(cuEventCreate);
    *event = calloc(1, sizeof(fake_event));
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_event_destroy(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

static CUresult fake_event_record(CUevent event, CUstream stream)
{
    *(fake_event *)event = (fake_event){stream, weft_clock_ns()};
    return CUDA_SUCCESS;
}

static CUresult fake_event_query(CUevent event)
{
    return fake_gpu_busy(((fake_event *)event)->stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* What a stream waits for is finished at once: nothing that is launched later may be needed for it. */
static CUresult fake_stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    CUstream other = ((fake_event *)event)->stream;
    (void)flags;
    if (capturing[number_of(other)])
        capturing[number_of(stream)] = capturing[number_of(other)];
    else
        fake_gpu_finish(other);
    return CUDA_SUCCESS;
}

static CUresult fake_elapsed(float *ms, CUevent begin, CUevent end)
{
    *ms = (float)(((fake_event *)end)->ns - ((fake_event *)begin)->ns) * 1e-6f;
    return CUDA_SUCCESS;
}

void fake_launch_calls(weft_cuda_driver *calls)
{
    calls->cuLaunchKernelEx = fake_launch_kernel;
    calls->cuStreamCreate = fake_stream_create;
    calls->cuStreamDestroy = fake_stream_destroy;
    calls->cuStreamSynchronize = fake_stream_synchronize;
    calls->cuStreamQuery = fake_stream_query;
    calls->cuStreamIsCapturing = fake_capturing;
    calls->cuStreamBeginCapture = fake_begin_capture;
    calls->cuStreamEndCapture = fake_end_capture;
    calls->cuGraphInstantiate = fake_instantiate;
    calls->cuGraphLaunch = fake_graph_launch;
    calls->cuGraphExecDestroy = fake_exec_destroy;
    calls->cuGraphDestroy = fake_graph_destroy;
    calls->cuEventElapsedTime = fake_elapsed;
    calls->cuModuleLoadData = fake_load;
    calls->cuModuleUnload = fake_unload;
    calls->cuModuleGetFunction = fake_function;
    calls->cuFuncGetAttribute = fake_attribute;
    calls->cuFuncSetAttribute = fake_set_attribute;
    calls->cuStreamWaitEvent = fake_stream_wait;
    calls->cuEventCreate = fake_event_create;
    calls->cuEventDestroy = fake_event_destroy;
    calls->cuEventRecord = fake_event_record;
    calls->cuEventQuery = fake_event_query;
}
