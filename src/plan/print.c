/*
 * Printing a part. A line of text reads
 *
 *   r1 lane 0 task 7 GEMM partial@2[0:8, 0:6] = A[8:16, 0:4] * B[0:4, 0:6] + partial[0:8, 0:6] post 6@2
 *
 * that is rank, lane, index in the part; regions as operand@rank#batch[rows, cols], the own rank and batch 0
 * left out (a bare post to another domain is a COPY of nothing@rank); then `carry`, `wait SIGNAL>=COUNT` and
 * `post SIGNAL@RANK` for what is carried, its waits and posts. read.c reads what is written here.
 */
#include "plan/print.h"
#include "core/dtype.h"
#include "plan/fields.h"

#include <inttypes.h>

/* ---- the hash ------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t hash, int64_t value)
{
    uint64_t z = (hash ^ (uint64_t)value) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u;

    return (z ^ (z >> 29)) * 0x94d049bb133111ebu;
}

static uint64_t mix_operand(uint64_t hash, const weft_operand *o)
{
    const int64_t fields[] = {o->place,       o->role,        o->dtype,      o->rows,        o->cols,
                              o->rows_parted, o->cols_parted, o->transposed, o->packed,      o->handed_on,
                              o->paired,      o->output,      o->batch,      o->row_granule, o->col_granule};

    for (size_t i = 0; i < sizeof(o->name) && o->name[i]; i++)
        hash = mix(hash, o->name[i]);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        hash = mix(hash, fields[i]);
    return hash;
}

/* A copy of nothing has no place, wherever its regions are said to lie. */
static bool is_nothing(const weft_plan_part *part, const weft_task *task)
{
    return task->kind == WEFT_TASK_COPY && task->region_count && !weft_task_regions(part, task)->rows;
}

static uint64_t mix_task(uint64_t hash, const weft_plan_part *part, const weft_task *task)
{
    const int64_t head[] = {task->kind,         task->flags,      task->lane,      task->destinations,
                            task->region_count, task->wait_count, task->post_count};

    for (size_t i = 0; i < sizeof(head) / sizeof(head[0]); i++)
        hash = mix(hash, head[i]);
    if (is_nothing(part, task) && weft_task_crosses(part, task))
        hash = mix(hash, weft_task_regions(part, task)->rank);
    for (uint32_t i = 0; i < task->region_count && !is_nothing(part, task); i++) {
        const weft_region *r = weft_task_regions(part, task) + i;

        hash = mix(mix(mix(hash, r->operand), r->rank), r->batch);
        hash = mix(mix(mix(mix(hash, r->row0), r->rows), r->col0), r->cols);
    }
    for (uint32_t i = 0; i < task->wait_count; i++)
        hash = mix(mix(hash, part->waits[task->wait0 + i].signal), part->waits[task->wait0 + i].count);
    for (uint32_t i = 0; i < task->post_count; i++)
        hash = mix(mix(hash, part->posts[task->post0 + i].signal), part->posts[task->post0 + i].rank);
    return hash;
}

uint64_t weft_plan_part_hash(const weft_plan_part *part)
{
    uint64_t hash = mix(weft_plan_hash(&part->problem, part->domain, part->world), part->rank);

    hash = mix(hash, part->signal_count);
    for (uint32_t i = 0; i < part->operand_count; i++)
        hash = mix_operand(hash, &part->operands[i]);
    for (uint32_t i = 0; i < part->lane_count; i++)
        hash = mix(mix(hash, part->lanes[i].kind), part->lanes[i].task_count);
    for (uint32_t i = 0; i < part->task_count; i++)
        hash = mix_task(hash, part, &part->tasks[i]);
    return hash;
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

static void print_expression(const weft_plan_part *part, const weft_task *task, FILE *file)
{
    const weft_region *regions = weft_task_regions(part, task), *from = weft_task_inputs(part, task);
    weft_task_roles roles = weft_task_roles_of(task);

    if (!task->region_count)
        return;
    if (is_nothing(part, task)) {
        fputs(" nothing", file);
        if (weft_task_crosses(part, task))
            fprintf(file, "@%d", regions->rank);
        return;
    }
    fputc(' ', file);
    print_regions(part, regions, task->destinations, ", ", file);
    fputs(" = ", file);
    if (task->kind == WEFT_TASK_GEMM) {
        print_regions(part, from, 2, " * ", file);
        if (roles.acc >= 0) {
            fputs(" + ", file);
            print_region(part, &regions[roles.acc], file);
        }
    } else {
        print_regions(part, from, roles.inputs, " + ", file);
    }
    if (task->flags & WEFT_TASK_EPILOGUE) {
        fputs(" epilogue", file);
        for (int i = 0; i < roles.end_count; i++) {
            fputs(i ? ", " : " with ", file);
            print_region(part, &regions[roles.ends + i], file);
        }
    }
}

static void print_task(const weft_plan_part *part, uint32_t index, FILE *file)
{
    const weft_task *task = &part->tasks[index];

    fprintf(file, "r%d lane %u task %u %s", part->rank, task->lane, index, weft_task_kind_name(task->kind));
    print_expression(part, task, file);
    if (task->flags & WEFT_TASK_CARRY)
        fputs(" carry", file);
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
            weft_schedule_name(p->op, p->schedule), part->rank, part->world, weft_plan_part_hash(part));
    fputs("problem", file);
    for (int i = 0; weft_field_name(i); i++) {
        char value[WEFT_WORD_BYTES];

        weft_field_get(i, p, value);
        fprintf(file, " %s %s", weft_field_name(i), value);
    }
    fputc('\n', file);
    if (part->domain) {
        fputs("domains", file);
        for (int rank = 0; rank < part->world; rank++)
            fprintf(file, " %d", part->domain[rank]);
        fputc('\n', file);
    }
    for (uint32_t i = 0; i < part->operand_count; i++) {
        const weft_operand *o = &part->operands[i];

        fprintf(file, "operand %s %s %s %" PRId64 " x %" PRId64, o->name, weft_place_name(o->place),
                weft_dtype_name(o->dtype), o->rows, o->cols);
        if (o->batch > 1)
            fprintf(file, " batch %" PRId64, o->batch);
        if (o->row_granule)
            fprintf(file, " row-granule %" PRId64, o->row_granule);
        if (o->col_granule)
            fprintf(file, " col-granule %" PRId64, o->col_granule);
        fprintf(file, "%s%s%s%s%s%s%s\n", o->rows_parted ? " rows-parted" : "",
                o->cols_parted ? " cols-parted" : "", o->transposed ? " transposed" : "",
                o->packed ? " packed" : "", o->handed_on ? " handed-on" : "", o->paired ? " paired" : "",
                o->output ? " output" : "");
    }
    fprintf(file, "signals %u\n", part->signal_count);
    for (uint32_t lane = 0; lane < part->lane_count; lane++)
        fprintf(file, "lane %u %s %u tasks\n", lane, weft_lane_kind_name(part->lanes[lane].kind),
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
    const weft_region *regions = weft_task_regions(part, task), *from = weft_task_inputs(part, task);
    weft_task_roles roles = weft_task_roles_of(task);

    fprintf(file, "{\"task\":%u,\"lane\":%u,\"kind\":\"%s\"", index, task->lane,
            weft_task_kind_name(task->kind));
    if (task->region_count) {
        json_regions(part, "to", regions, task->destinations, file);
        json_regions(part, "from", from, roles.inputs - (roles.acc >= 0), file);
        if (roles.acc >= 0)
            json_regions(part, "acc", &regions[roles.acc], 1, file);
        if (roles.end_count)
            json_regions(part, "epilogue_from", &regions[roles.ends], roles.end_count, file);
        fprintf(file, ",\"epilogue\":%s,\"carry\":%s", task->flags & WEFT_TASK_EPILOGUE ? "true" : "false",
                task->flags & WEFT_TASK_CARRY ? "true" : "false");
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

    fprintf(file, "{\"op\":\"%s\",\"schedule\":\"%s\",\"ranks\":%d,\"rank\":%d,\"hash\":\"%016" PRIx64 "\"",
            weft_op_name(p->op), weft_schedule_name(p->op, p->schedule), part->world, part->rank,
            weft_plan_part_hash(part));
    for (int i = 0; weft_field_name(i); i++) {
        char value[WEFT_WORD_BYTES];
        const char *quote = weft_field_is_word(i) ? "\"" : "";

        weft_field_get(i, p, value);
        fprintf(file, ",\"%s\":%s%s%s", weft_field_name(i), quote, value, quote);
    }
    for (int rank = 0; part->domain && rank < part->world; rank++)
        fprintf(file, "%s%d%s", rank ? "," : ",\"domains\":[", part->domain[rank],
                rank == part->world - 1 ? "]" : "");
    fprintf(file, ",\"signals\":%u", part->signal_count);
}

void weft_plan_print_json(const weft_plan_part *part, FILE *file)
{
    json_head(part, file);
    fputs(",\"operands\":[", file);
    for (uint32_t i = 0; i < part->operand_count; i++) {
        const weft_operand *o = &part->operands[i];

        fprintf(file,
                "%s{\"name\":\"%s\",\"place\":\"%s\",\"dtype\":\"%s\",\"rows\":%" PRId64 ",\"cols\":%" PRId64
                ",\"batch\":%" PRId64 ",\"rows_parted\":%s,\"cols_parted\":%s,\"transposed\":%s,\"packed\":%"
                "s,\"handed_on\":%s,\"paired\":%s,\"output\":%s",
                i ? "," : "", o->name, weft_place_name(o->place), weft_dtype_name(o->dtype), o->rows, o->cols,
                o->batch, o->rows_parted ? "true" : "false", o->cols_parted ? "true" : "false",
                o->transposed ? "true" : "false", o->packed ? "true" : "false",
                o->handed_on ? "true" : "false", o->paired ? "true" : "false", o->output ? "true" : "false");
        if (o->row_granule)
            fprintf(file, ",\"row_granule\":%" PRId64, o->row_granule);
        if (o->col_granule)
            fprintf(file, ",\"col_granule\":%" PRId64, o->col_granule);
        fputc('}', file);
    }
    fputs("],\"lanes\":[", file);
    for (uint32_t i = 0; i < part->lane_count; i++)
        fprintf(file, "%s{\"kind\":\"%s\",\"tasks\":%u}", i ? "," : "",
                weft_lane_kind_name(part->lanes[i].kind), part->lanes[i].task_count);
    fputs("],\"tasks\":[", file);
    for (uint32_t i = 0; i < part->task_count; i++) {
        if (i)
            fputc(',', file);
        json_task(part, i, file);
    }
    fputs("]}\n", file);
}
