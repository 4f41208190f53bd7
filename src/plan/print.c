/*
 * Printing a part. A line of text reads
 *
 *   r1 lane 0 task 7 GEMM partial@2[0:8, 0:6] = A[8:16, 0:4] * B[0:4, 0:6] + partial[0:8, 0:6] post 6@2
 *
 * that is rank, lane, index in the part; regions as operand@rank#batch[rows, cols], the own rank and batch 0
 * left out; then `wait SIGNAL>=COUNT` and `post SIGNAL@RANK` for its waits and posts.
 */
#include "plan/print.h"
#include "core/dtype.h"

#include <inttypes.h>

static const char *const kind_names[] = {"ENTER", "COPY", "GEMM", "REDUCE", "EXIT"};
static const char *const place_names[] = {"user", "staging", "private"};
static const char *const layout_names[] = {"default", "gather_a", "gather_b", "scatter_rows", "scatter_cols"};

const char *weft_task_kind_name(weft_task_kind kind)
{
    return (unsigned)kind <= WEFT_TASK_EXIT ? kind_names[kind] : "invalid";
}

static const char *lane_kind_name(weft_lane_kind kind)
{
    return kind == WEFT_LANE_COPY ? "copy" : "compute";
}

/* ---- text ---------------------------------------------------------------------------------------- */

static void print_region(const weft_plan_part *part, const weft_region *r, FILE *file)
{
    fputs(part->operands[r->operand].name, file);
    if (r->rank != part->rank)
        fprintf(file, "@%d", r->rank);
    if (r->batch)
        fprintf(file, "#%" PRId64, r->batch);
    fprintf(file, "[%" PRId64 ":%" PRId64 ", %" PRId64 ":%" PRId64 "]", r->row0, r->row0 + r->rows, r->col0,
            r->col0 + r->cols);
}

static void print_regions(const weft_plan_part *part, const weft_region *regions, int count,
                          const char *between, FILE *file)
{
    for (int i = 0; i < count; i++) {
        if (i)
            fputs(between, file);
        print_region(part, &regions[i], file);
    }
}

static int extra_count(const weft_task *task)
{
    return !!(task->flags & WEFT_TASK_HAS_C) + !!(task->flags & WEFT_TASK_HAS_BIAS);
}

static void print_expression(const weft_plan_part *part, const weft_task *task, FILE *file)
{
    const weft_region *regions = &part->regions[task->region0], *from = regions + task->destinations;
    int inner = task->region_count - task->destinations - extra_count(task);

    if (!task->region_count)
        return;
    if (!regions->rows && task->kind == WEFT_TASK_COPY) {
        fputs(" nothing", file);
        return;
    }
    fputc(' ', file);
    print_regions(part, regions, task->destinations, ", ", file);
    fputs(" = ", file);
    if (task->kind == WEFT_TASK_GEMM) {
        print_regions(part, from, 2, " * ", file);
        if (task->flags & WEFT_TASK_HAS_ACC) {
            fputs(" + ", file);
            print_region(part, &from[2], file);
        }
    } else {
        print_regions(part, from, inner, " + ", file);
    }
    if (task->flags & WEFT_TASK_EPILOGUE) {
        fputs(" epilogue", file);
        for (int i = 0; i < extra_count(task); i++) {
            fputs(i ? ", " : " with ", file);
            print_region(part, &from[inner + i], file);
        }
    }
}

static void print_task(const weft_plan_part *part, uint32_t index, FILE *file)
{
    const weft_task *task = &part->tasks[index];

    fprintf(file, "r%d lane %u task %u %s", part->rank, task->lane, index, weft_task_kind_name(task->kind));
    print_expression(part, task, file);
    for (uint32_t i = 0; i < task->wait_count; i++) {
        const weft_wait *wait = &part->waits[task->wait0 + i];

        fprintf(file, "%s %u>=%u", i ? "" : " wait", wait->signal, wait->count);
    }
    for (uint32_t i = 0; i < task->post_count; i++) {
        const weft_post *post = &part->posts[task->post0 + i];

        fprintf(file, "%s %u@%d", i ? "" : " post", post->signal, post->rank);
    }
    fputc('\n', file);
}

void weft_plan_print_text(const weft_plan_part *part, FILE *file)
{
    const weft_problem *p = &part->problem;

    fprintf(file, "plan %s %s rank %d of %d, hash %016" PRIx64 "\n", weft_op_name(p->op),
            weft_schedule_name(p->op, p->schedule), part->rank, part->world, part->hash);
    for (uint32_t i = 0; i < part->operand_count; i++) {
        const weft_operand *o = &part->operands[i];

        fprintf(file, "operand %s %s %s %" PRId64 " x %" PRId64, o->name, place_names[o->place],
                weft_dtype_name(o->dtype), weft_operand_rows(o, part->world, part->rank),
                weft_operand_cols(o, part->world, part->rank));
        if (o->batch > 1)
            fprintf(file, " batch %" PRId64, o->batch);
        fprintf(file, "%s%s%s%s%s%s\n", o->rows_parted ? " rows-parted" : "",
                o->cols_parted ? " cols-parted" : "", o->transposed ? " transposed" : "",
                o->packed ? " packed" : "", o->handed_on ? " handed-on" : "", o->output ? " output" : "");
    }
    fprintf(file, "signals %u\n", part->signal_count);
    for (uint32_t lane = 0; lane < part->lane_count; lane++)
        fprintf(file, "lane %u %s %u tasks\n", lane, lane_kind_name(part->lanes[lane].kind),
                part->lanes[lane].task_count);
    for (uint32_t i = 0; i < part->task_count; i++)
        print_task(part, i, file);
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static void json_region(const weft_plan_part *part, const weft_region *r, FILE *file)
{
    fprintf(file,
            "{\"operand\":\"%s\",\"rank\":%d,\"batch\":%" PRId64 ",\"rows\":[%" PRId64 ",%" PRId64
            "],\"cols\":[%" PRId64 ",%" PRId64 "]}",
            part->operands[r->operand].name, r->rank, r->batch, r->row0, r->row0 + r->rows, r->col0,
            r->col0 + r->cols);
}

static void json_regions(const weft_plan_part *part, const char *name, const weft_region *regions, int count,
                         FILE *file)
{
    fprintf(file, ",\"%s\":[", name);
    for (int i = 0; i < count; i++) {
        if (i)
            fputc(',', file);
        json_region(part, &regions[i], file);
    }
    fputc(']', file);
}

static void json_task(const weft_plan_part *part, uint32_t index, FILE *file)
{
    const weft_task *task = &part->tasks[index];
    const weft_region *regions = &part->regions[task->region0], *from = regions + task->destinations;
    int extras = extra_count(task), acc = !!(task->flags & WEFT_TASK_HAS_ACC);
    int inner = task->region_count - task->destinations - extras;

    fprintf(file, "{\"task\":%u,\"lane\":%u,\"kind\":\"%s\"", index, task->lane,
            weft_task_kind_name(task->kind));
    if (task->region_count) {
        json_regions(part, "to", regions, task->destinations, file);
        json_regions(part, "from", from, inner - acc, file);
        if (acc)
            json_regions(part, "acc", from + inner - 1, 1, file);
        if (extras)
            json_regions(part, "epilogue_from", from + inner, extras, file);
        fprintf(file, ",\"epilogue\":%s", task->flags & WEFT_TASK_EPILOGUE ? "true" : "false");
    }
    fputs(",\"waits\":[", file);
    for (uint32_t i = 0; i < task->wait_count; i++)
        fprintf(file, "%s{\"signal\":%u,\"count\":%u}", i ? "," : "", part->waits[task->wait0 + i].signal,
                part->waits[task->wait0 + i].count);
    fputs("],\"posts\":[", file);
    for (uint32_t i = 0; i < task->post_count; i++)
        fprintf(file, "%s{\"signal\":%u,\"rank\":%d}", i ? "," : "", part->posts[task->post0 + i].signal,
                part->posts[task->post0 + i].rank);
    fputs("]}", file);
}

static void json_head(const weft_plan_part *part, FILE *file)
{
    const weft_problem *p = &part->problem;

    fprintf(
        file,
        "{\"op\":\"%s\",\"schedule\":\"%s\",\"layout\":\"%s\",\"ranks\":%d,\"rank\":%d,\"hash\":\"%016" PRIx64
        "\"",
        weft_op_name(p->op), weft_schedule_name(p->op, p->schedule), layout_names[p->layout], part->world,
        part->rank, part->hash);
    if (p->op < WEFT_OP_ALL_REDUCE)
        fprintf(file, ",\"m\":%" PRId64 ",\"n\":%" PRId64 ",\"k\":%" PRId64 ",\"l\":%" PRId64, p->m, p->n,
                p->k, p->l);
    else
        fprintf(file, ",\"count\":%" PRId64, p->count);
    fprintf(file,
            ",\"dtype\":\"%s\",\"tile_m\":%" PRId64 ",\"tile_n\":%" PRId64 ",\"tile_k\":%" PRId64
            ",\"workers\":%d,\"signals\":%u",
            weft_dtype_name(p->dtype), p->tuning.tile_m, p->tuning.tile_n, p->tuning.tile_k,
            p->tuning.workers, part->signal_count);
}

void weft_plan_print_json(const weft_plan_part *part, FILE *file)
{
    json_head(part, file);
    fputs(",\"operands\":[", file);
    for (uint32_t i = 0; i < part->operand_count; i++) {
        const weft_operand *o = &part->operands[i];

        fprintf(file,
                "%s{\"name\":\"%s\",\"place\":\"%s\",\"dtype\":\"%s\",\"rows\":%" PRId64 ",\"cols\":%" PRId64
                ",\"batch\":%" PRId64 ",\"transposed\":%s,\"packed\":%s,\"handed_on\":%s,\"output\":%s}",
                i ? "," : "", o->name, place_names[o->place], weft_dtype_name(o->dtype),
                weft_operand_rows(o, part->world, part->rank), weft_operand_cols(o, part->world, part->rank),
                o->batch, o->transposed ? "true" : "false", o->packed ? "true" : "false",
                o->handed_on ? "true" : "false", o->output ? "true" : "false");
    }
    fputs("],\"lanes\":[", file);
    for (uint32_t i = 0; i < part->lane_count; i++)
        fprintf(file, "%s{\"kind\":\"%s\",\"tasks\":%u}", i ? "," : "", lane_kind_name(part->lanes[i].kind),
                part->lanes[i].task_count);
    fputs("],\"tasks\":[", file);
    for (uint32_t i = 0; i < part->task_count; i++) {
        if (i)
            fputc(',', file);
        json_task(part, i, file);
    }
    fputs("]}\n", file);
}
