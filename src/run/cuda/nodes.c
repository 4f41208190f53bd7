#include "run/cuda/nodes.h"

#include "choose/choose.h"
#include "core/dtype.h"
#include "run/cpu/counted.h"
#include "run/cpu/program.h"
#include "run/cuda/group.h"
#include "run/cuda/prove.h"
#include "run/given.h"
#include "run/scales.h"
#include "symm/message.h"

#include <stdlib.h>
#include <string.h>

/* Memory of the GPU that a program was given. */
typedef struct object {
    struct object *next;
    char *memory;
    size_t bytes;
} object;

/* What stands in for an operand on the host. */
typedef struct stand_in {
    void *memory; /* pinned */
    size_t bytes;
} stand_in;

typedef struct weft_cuda_nodes {
    weft_cuda_group gpu; /* its device and stream alone */
    object *objects;
    stand_in of[WEFT_ROLE_COUNT], values; /* values: alpha, beta and scales of a run */
} weft_cuda_nodes;

static weft_cuda_nodes *nodes_of(const weft_group *group)
{
    return group->beside;
}

/* ---- attaching ------------------------------------------------------------------------------------ */

static void nodes_detach(weft_group *group)
{
    weft_cuda_nodes *nodes = nodes_of(group);
    weft_cuda_group *g = &nodes->gpu;

    weft_executor_detach(group);
    if (g->device && !group->world->foreign) { /* a driver does not work in a child of fork */
        const weft_cuda_driver *cu = g->device->cu;

        weft_cuda_push(g);
        for (int role = 0; role < WEFT_ROLE_COUNT; role++)
            if (nodes->of[role].memory)
                cu->cuMemFreeHost(nodes->of[role].memory);
        if (nodes->values.memory)
            cu->cuMemFreeHost(nodes->values.memory);
        for (const object *o = nodes->objects; o; o = o->next)
            cu->cuMemFree((CUdeviceptr)(uintptr_t)o->memory);
        if (g->stream)
            cu->cuStreamDestroy(g->stream);
        weft_cuda_pop(g);
        weft_cuda_device_give(g->device);
    }
    while (nodes->objects) {
        object *next = nodes->objects->next;

        free(nodes->objects);
        nodes->objects = next;
    }
    free(nodes);
    group->beside = NULL;
}

static weft_status nodes_attach(weft_group *group, int index)
{
    weft_cuda_nodes *nodes = calloc(1, sizeof(*nodes));
    weft_error_text why;
    weft_status status;

    if (!nodes)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for its GPU", group->rank);
    nodes->gpu.issue_stream = WEFT_STREAM_OWN;
    group->beside = nodes;
    status = weft_cuda_device_take(index, group->rank, &nodes->gpu.device, &group->error);
    if (status == WEFT_OK) {
        weft_cuda_push(&nodes->gpu);
        status = weft_cuda_stream_renew(&nodes->gpu, &group->error);
        weft_cuda_pop(&nodes->gpu);
    }
    status = weft_cuda_agree(group, WEFT_SYNC_GPU, status);
    if (status == WEFT_OK) {
        group->backend = &weft_cuda_nodes_backend;
        return WEFT_OK;
    }
    why = group->error;
    nodes_detach(group);
    group->error = why;
    return status;
}

/* ---- memory --------------------------------------------------------------------------------------- */

static weft_status take_memory(weft_cuda_nodes *nodes, size_t bytes, object **made, weft_error_text *error)
{
    const weft_cuda_driver *cu = nodes->gpu.device->cu;
    object *o = calloc(1, sizeof(*o));
    CUdeviceptr memory = 0;
    weft_status status;

    *made = o;
    if (!o)
        return weft_error_set(error, WEFT_ERR_MEMORY, "out of memory");
    o->bytes = bytes ? bytes : 1;
    status = weft_cuda_check(cu, cu->cuMemAlloc(&memory, o->bytes), "cuMemAlloc", error);
    if (status != WEFT_OK)
        return status;
    o->memory = (char *)(uintptr_t)memory;
    WEFT_CUDA_TRY(cuMemsetD8Async(memory, 0, o->bytes, nodes->gpu.device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(nodes->gpu.device->uploads));
    return WEFT_OK;
}

static void give_memory(const weft_cuda_nodes *nodes, object *o)
{
    if (o && o->memory)
        nodes->gpu.device->cu->cuMemFree((CUdeviceptr)(uintptr_t)o->memory);
    free(o);
}

/* Collective, though only the rank itself can address it. The driver aligns to 256 bytes. */
static weft_status nodes_alloc(weft_group *group, size_t bytes, size_t alignment, void **pointer)
{
    weft_cuda_nodes *nodes = nodes_of(group);
    object *o = NULL;
    weft_status status =
        alignment > 256
            ? weft_error_set(
                  &group->error, WEFT_ERR_UNSUPPORTED,
                  "weft_alloc: alignment is %zu; on GPUs that cannot address one another it is at most 256",
                  alignment)
            : WEFT_OK;

    weft_cuda_push(&nodes->gpu);
    if (status == WEFT_OK)
        status = take_memory(nodes, bytes, &o, &group->error);
    status = weft_cuda_agree(group, WEFT_SYNC_ALLOC, status);
    if (status != WEFT_OK)
        give_memory(nodes, o);
    weft_cuda_pop(&nodes->gpu);
    if (status != WEFT_OK)
        return status;
    o->next = nodes->objects;
    nodes->objects = o;
    *pointer = o->memory;
    return WEFT_OK;
}

static weft_status nodes_release(weft_group *group, void *pointer)
{
    weft_cuda_nodes *nodes = nodes_of(group);
    object **at = &nodes->objects, *o;

    if (!pointer || group->world->foreign)
        return WEFT_OK;
    while (*at && (*at)->memory != pointer)
        at = &(*at)->next;
    o = *at;
    if (!o)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_free: %p is not the beginning of an object of this group, or was freed",
                              pointer);
    *at = o->next;
    weft_cuda_push(&nodes->gpu);
    give_memory(nodes, o);
    weft_cuda_pop(&nodes->gpu);
    return WEFT_OK;
}

static void *nodes_peer(const weft_group *group, const void *pointer, int rank)
{
    const char *at = pointer;

    for (const object *o = nodes_of(group)->objects; o && rank == group->rank; o = o->next)
        if (at >= o->memory && at < o->memory + o->bytes)
            return (void *)(uintptr_t)pointer;
    return NULL;
}

static weft_status nodes_copy(weft_group *group, void *to, const void *from, size_t bytes)
{
    return weft_cuda_copy_on(&nodes_of(group)->gpu, to, from, bytes, &group->error);
}

static const char no_graph[] = "a run of GPUs that cannot address one another (on several nodes, or without "
                               "peer access) goes through the host: no graph can have it";

/* ---- running -------------------------------------------------------------------------------------- */

/* Where an operand of a run is given. */
static void give(weft_operands *host, weft_operand_role role, void *memory)
{
    switch (role) {
    case WEFT_ROLE_A:
        host->a = memory;
        break;
    case WEFT_ROLE_B:
        host->b = memory;
        break;
    case WEFT_ROLE_C:
        host->c = memory;
        break;
    case WEFT_ROLE_BIAS:
        host->bias = memory;
        break;
    case WEFT_ROLE_D:
        host->d = memory;
        break;
    case WEFT_ROLE_SEND:
        host->send = memory;
        break;
    case WEFT_ROLE_RECV:
        host->recv = memory;
        break;
    default:
        break;
    }
}

static weft_status grow(const weft_cuda_group *g, stand_in *s, size_t bytes, weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;

    if (bytes <= s->bytes)
        return WEFT_OK;
    if (s->memory)
        cu->cuMemFreeHost(s->memory);
    *s = (stand_in){0};
    WEFT_CUDA_TRY(cuMemAllocHost(&s->memory, bytes));
    s->bytes = bytes;
    return WEFT_OK;
}

/* Between the caller's matrices and those on the host, which have no gaps. */
static weft_status copy_operand(const weft_cuda_group *g, const weft_given *user, const weft_given *host,
                                bool back, CUstream stream, weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;
    size_t element = (size_t)user->element_bytes, line = (size_t)user->cols * element;

    for (int64_t i = 0; i < user->batch; i++) {
        CUdeviceptr theirs = (CUdeviceptr)(uintptr_t)(user->data + i * user->stride * user->element_bytes),
                    ours = (CUdeviceptr)(uintptr_t)(host->data + i * host->stride * host->element_bytes);
        CUDA_MEMCPY2D lines = {
            .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
            .srcDevice = back ? ours : theirs,
            .srcPitch = back ? line : (size_t)user->ld * element,
            .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
            .dstDevice = back ? theirs : ours,
            .dstPitch = back ? (size_t)user->ld * element : line,
            .WidthInBytes = line,
            .Height = (size_t)user->rows,
        };

        if (user->rows == 1 || user->ld == user->cols)
            WEFT_CUDA_TRY(cuMemcpyAsync(lines.dstDevice, lines.srcDevice, line * (size_t)user->rows, stream));
        else
            WEFT_CUDA_TRY(cuMemcpy2DAsync(&lines, stream));
    }
    return WEFT_OK;
}

/* All operands, in the direction of their use; `host` gets those that are taken in. */
static weft_status copy_all(weft_plan *plan, const weft_operands *user, weft_operands *host, bool back,
                            CUstream stream)
{
    weft_cuda_nodes *nodes = nodes_of(plan->group);
    weft_error_text *error = &plan->group->error;
    const weft_cuda_driver *cu = nodes->gpu.device->cu;
    weft_status status = WEFT_OK;

    for (int role = WEFT_ROLE_A; status == WEFT_OK && role < WEFT_ROLE_COUNT; role++) {
        int operand = plan->operand_of_role[role];
        weft_operands none = {.size = sizeof(none)};
        weft_given theirs, ours;

        if (operand < 0)
            continue;
        theirs = weft_given_of(plan, operand, user);
        ours = weft_given_of(plan, operand, &none);
        if (!back)
            status = weft_given_check(plan, operand, &theirs);
        if (status == WEFT_OK && !back)
            status = grow(&nodes->gpu, &nodes->of[role], weft_given_span(plan, operand, &ours), error);
        ours.data = nodes->of[role].memory;
        if (!back)
            give(host, (weft_operand_role)role, ours.data);
        if (status == WEFT_OK && !weft_given_empty(&theirs) && theirs.data &&
            weft_given_needed(plan, (weft_operand_role)role) && plan->part.operands[operand].output == back)
            status = copy_operand(&nodes->gpu, &theirs, &ours, back, stream, error);
    }
    if (status != WEFT_OK)
        return status;
    WEFT_CUDA_TRY(cuStreamSynchronize(stream));
    return WEFT_OK;
}

/* Alpha, beta and scales, which lie on the GPU or on the host. */
static weft_status copy_values(weft_plan *plan, const weft_operands *user, weft_operands *host,
                               CUstream stream)
{
    weft_cuda_nodes *nodes = nodes_of(plan->group);
    const weft_plan_part *part = &plan->part;
    weft_error_text *error = &plan->group->error;
    const weft_cuda_driver *cu = nodes->gpu.device->cu;
    int d = plan->operand_of_role[WEFT_ROLE_D];
    int64_t width = weft_problem_is_gated(&part->problem) ? 2 : 1,
            rows = d < 0 ? 0 : weft_operand_rows(&part->operands[d], part->world, part->rank),
            cols = d < 0 ? 0 : weft_operand_cols(&part->operands[d], part->world, part->rank) * width;
    const struct {
        const float *from, **to;
        int64_t count;
    } arrays[] = {{user->alpha, &host->alpha, 1},
                  {user->beta, &host->beta, 1},
                  {user->row_scale, &host->row_scale, rows},
                  {user->col_scale, &host->col_scale, cols},
                  {user->a_scale, &host->a_scale, weft_scales_of_a(part).count},
                  {user->b_scale, &host->b_scale, weft_scales_of_b(part).count}};
    size_t count = sizeof(arrays) / sizeof(arrays[0]);
    int64_t at = 0;
    weft_status status;

    if (d < 0)
        return WEFT_OK;
    for (size_t i = 0; i < count; i++)
        at += arrays[i].from ? arrays[i].count : 0;
    status = grow(&nodes->gpu, &nodes->values, (size_t)at * sizeof(float), error);
    at = 0;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        float *to = (float *)nodes->values.memory + at;

        if (!arrays[i].from)
            continue;
        if (arrays[i].count && weft_cuda_memory_type(&nodes->gpu, arrays[i].from))
            WEFT_CUDA_TRY(cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)arrays[i].from,
                                        (size_t)arrays[i].count * sizeof(float), stream));
        else
            memcpy(to, arrays[i].from, (size_t)arrays[i].count * sizeof(float));
        *arrays[i].to = to;
        at += arrays[i].count;
    }
    return status;
}

static weft_status take_in(weft_plan *plan, const weft_operands *user, weft_operands *host, CUstream stream)
{
    const weft_cuda_driver *cu = nodes_of(plan->group)->gpu.device->cu;
    weft_error_text *error = &plan->group->error;
    CUstreamCaptureStatus captured = CU_STREAM_CAPTURE_STATUS_NONE;
    weft_status status;

    WEFT_CUDA_TRY(cuStreamIsCapturing(stream, &captured));
    if (captured != CU_STREAM_CAPTURE_STATUS_NONE)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "%s", no_graph);
    status = copy_values(plan, user, host, stream);
    return status == WEFT_OK ? copy_all(plan, user, host, false, stream) : status;
}

static weft_status nodes_run_on(weft_plan *plan, const weft_operands *operands, void *given)
{
    weft_group *group = plan->group;
    const weft_cuda_group *g = &nodes_of(group)->gpu;
    CUstream stream = weft_cuda_stream(g, given);
    weft_operands host = {.size = sizeof(host)};
    weft_status status = weft_group_check(group);

    if (status != WEFT_OK)
        return status;
    weft_cuda_push(g);
    status = take_in(plan, operands, &host, stream);
    weft_cuda_pop(g);
    if (status != WEFT_OK)
        return weft_session_reject(group, &plan->part.problem, status);
    status = weft_cpu_run(plan, &host);
    if (status != WEFT_OK)
        return status;
    weft_cuda_push(g);
    status = copy_all(plan, operands, &host, true, stream);
    weft_cuda_pop(g);
    if (status == WEFT_OK)
        return WEFT_OK;
    return weft_group_poison(group, status, "rank %d could not copy its results to its GPU: %.400s",
                             group->rank, group->error.text);
}

static weft_status nodes_run(weft_plan *plan, const weft_operands *operands)
{
    return nodes_run_on(plan, operands, WEFT_STREAM_OWN);
}

static weft_status nodes_issue(weft_plan *plan, const weft_operands *operands)
{
    return nodes_run_on(plan, operands, nodes_of(plan->group)->gpu.issue_stream);
}

static bool nodes_reads(const weft_group *group, const void *pointer)
{
    return weft_cuda_reads(&nodes_of(group)->gpu, pointer);
}

/* Runs are over when they return. */
static weft_status nodes_wait(weft_plan *plan, void *stream)
{
    (void)stream;
    return weft_group_check(plan->group);
}

static weft_status nodes_set_stream(weft_group *group, bool ordered, void *stream)
{
    weft_cuda_group *g = &nodes_of(group)->gpu;

    g->issue_ordered = ordered;
    g->issue_stream = ordered ? stream : WEFT_STREAM_OWN;
    return WEFT_OK;
}

static bool nodes_reduces(weft_dtype dtype, weft_reduction reduction)
{
    return weft_dtype_reduces(dtype, reduction);
}

/* ---- collectives with counts, and messages --------------------------------------------------------- */

/* On the stream of the group's calls, to its end: bytes between the caller's memory and a stand-in. */
static weft_status copy_bytes(weft_cuda_nodes *nodes, weft_operand_role role, void *user, int64_t bytes,
                              bool back, weft_error_text *error)
{
    const weft_cuda_group *g = &nodes->gpu;
    const weft_cuda_driver *cu = g->device->cu;
    CUstream stream = weft_cuda_stream(g, g->issue_stream);
    CUstreamCaptureStatus captured = CU_STREAM_CAPTURE_STATUS_NONE;
    CUdeviceptr theirs = (CUdeviceptr)(uintptr_t)user, ours;
    weft_status status;

    WEFT_CUDA_TRY(cuStreamIsCapturing(stream, &captured));
    if (captured != CU_STREAM_CAPTURE_STATUS_NONE)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "%s", no_graph);
    if (bytes == 0)
        return WEFT_OK;
    status = grow(g, &nodes->of[role], (size_t)bytes, error);
    if (status != WEFT_OK)
        return status;
    ours = (CUdeviceptr)(uintptr_t)nodes->of[role].memory;
    if (back)
        WEFT_CUDA_TRY(cuMemcpyAsync(theirs, ours, (size_t)bytes, stream));
    else
        WEFT_CUDA_TRY(cuMemcpyAsync(ours, theirs, (size_t)bytes, stream));
    WEFT_CUDA_TRY(cuStreamSynchronize(stream));
    return WEFT_OK;
}

static weft_status take_bytes(weft_group *group, weft_operand_role role, const void *user, int64_t bytes)
{
    weft_cuda_nodes *nodes = nodes_of(group);
    weft_status status;

    weft_cuda_push(&nodes->gpu);
    status = copy_bytes(nodes, role, (void *)(uintptr_t)user, bytes, false, &group->error);
    weft_cuda_pop(&nodes->gpu);
    return status;
}

/* Others count on the rank's results by now. */
static weft_status give_bytes(weft_group *group, void *user, int64_t bytes)
{
    weft_cuda_nodes *nodes = nodes_of(group);
    weft_status status;

    weft_cuda_push(&nodes->gpu);
    status = copy_bytes(nodes, WEFT_ROLE_RECV, user, bytes, true, &group->error);
    weft_cuda_pop(&nodes->gpu);
    if (status == WEFT_OK)
        return WEFT_OK;
    return weft_group_poison(group, status, "rank %d could not copy its results to its GPU: %.400s",
                             group->rank, group->error.text);
}

static weft_status nodes_counted(weft_group *group, const weft_counted_job *job)
{
    weft_cuda_nodes *nodes = nodes_of(group);
    int64_t element = (int64_t)weft_dtype_size(job->dtype), sent = 0, received = 0;
    weft_counted_job host = *job;
    weft_status status = weft_group_check(group);

    if (status != WEFT_OK)
        return status;
    for (int rank = 0; rank < group->size && job->send_count; rank++) {
        sent = job->shared ? job->send_count[group->rank] * element : sent + job->send_count[rank] * element;
        received =
            job->reduces ? job->recv_count[rank] * element : received + job->recv_count[rank] * element;
    }
    /* recv too: what it stands for is not read, and whether there is memory is known before anybody waits */
    if (job->send_count && (take_bytes(group, WEFT_ROLE_SEND, job->send, sent) != WEFT_OK ||
                            take_bytes(group, WEFT_ROLE_RECV, job->recv, received) != WEFT_OK))
        host.send_count = NULL;
    host.send = nodes->of[WEFT_ROLE_SEND].memory;
    host.recv = nodes->of[WEFT_ROLE_RECV].memory;
    status = weft_counted_run(group, &host);
    return status == WEFT_OK ? give_bytes(group, job->recv, received) : status;
}

static weft_status nodes_send(weft_group *group, const void *data, int64_t count, weft_dtype dtype, int to)
{
    weft_status status = take_bytes(group, WEFT_ROLE_SEND, data, count * (int64_t)weft_dtype_size(dtype));

    if (status != WEFT_OK)
        return status;
    return weft_message_send(group, nodes_of(group)->of[WEFT_ROLE_SEND].memory, count, dtype, to);
}

static weft_status nodes_recv(weft_group *group, void *data, int64_t count, weft_dtype dtype, int from)
{
    int64_t bytes = count * (int64_t)weft_dtype_size(dtype);
    weft_status status = take_bytes(group, WEFT_ROLE_RECV, data, bytes);

    if (status == WEFT_OK)
        status = weft_message_recv(group, nodes_of(group)->of[WEFT_ROLE_RECV].memory, count, dtype, from);
    return status == WEFT_OK ? give_bytes(group, data, bytes) : status;
}

static weft_status nodes_grouped(weft_group *group, const weft_grouped_args *args)
{
    (void)args;
    return weft_error_set(
        &group->error, WEFT_ERR_UNSUPPORTED,
        "weft_grouped_gemm: the GPUs of this group cannot address one another (they are on several nodes, or "
        "have no peer access); a sub-group of one node, or of one GPU, has it");
}

const weft_backend weft_cuda_nodes_backend = {
    .name = "cuda",
    .where = "GPUs of several nodes or without access to each other's memory",
    .attach = nodes_attach,
    .detach = nodes_detach,
    .alloc = nodes_alloc,
    .release = nodes_release,
    .peer = nodes_peer,
    .copy = nodes_copy,
    .plan_create = weft_cpu_plan_create,
    .plan_load = weft_cpu_plan_load,
    .plan_alone = weft_cpu_plan_alone,
    .plan_destroy = weft_cpu_plan_destroy,
    .kept_bytes = (size_t)64 << 20,
    .run = nodes_run,
    .run_on = nodes_run_on,
    .issue = nodes_issue,
    .device_reads = nodes_reads,
    .wait = nodes_wait,
    .settle = weft_group_check,
    .tuned_as = weft_choose_tuned_as,
    .set_stream = nodes_set_stream,
    .reduces = nodes_reduces,
    .counted = nodes_counted,
    .send = nodes_send,
    .recv = nodes_recv,
    .grouped = nodes_grouped,
};
