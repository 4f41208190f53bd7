/*
 * Reading plans, line by line. Numbers are bounded by what their fields hold, lists by the text they stand
 * in; everything else about a plan is the checker's.
 */
#include "plan/read.h"
#include "core/dtype.h"
#include "core/grow.h"
#include "plan/print.h"
#include "plan/fields.h"
#include "plan/scan.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SIGNALS = 1 << 26, MOST_RANKS = 16384 };

typedef struct reader {
    weft_scanner scan;

    weft_plan_part *parts;
    int count, world; /* parts begun; of how many */
    weft_plan_part *part;
    uint64_t stated_hash;
    bool has_hash;
    uint32_t operand_room, lane_room, task_room, region_room, wait_room, post_room;
} reader;

static bool grow(reader *r, void **array, uint32_t count, uint32_t *room, size_t bytes)
{
    if (r->scan.failed || weft_grow(array, count, room, bytes))
        return !r->scan.failed;
    r->scan.failed = true;
    weft_error_set(r->scan.error, WEFT_ERR_MEMORY, "no memory for the plan in %s", r->scan.where);
    return false;
}

#define ADD(r, name, room, value)                                                                            \
    do {                                                                                                     \
        if (grow(r, (void **)&(r)->part->name##s, (r)->part->name##_count, &(r)->room,                       \
                 sizeof(*(r)->part->name##s)))                                                               \
            (r)->part->name##s[(r)->part->name##_count++] = (value);                                         \
    } while (0)

/* `nothing`, which may have a place. */
static bool take_nothing(reader *r)
{
    static const char placed[] = "nothing@";
    size_t length = sizeof(placed) - 1;

    weft_scan_skip_blanks(&r->scan);
    if ((size_t)(r->scan.line_end - r->scan.at) < length || memcmp(r->scan.at, placed, length) != 0)
        return weft_scan_take_word(&r->scan, "nothing");
    r->scan.at += length - 1;
    return true;
}

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* ---- regions ------------------------------------------------------------------------------------- */

static uint32_t operand_named(reader *r, const char *name, size_t length)
{
    for (uint32_t i = 0; i < r->part->operand_count; i++) {
        if (strlen(r->part->operands[i].name) == length &&
            memcmp(r->part->operands[i].name, name, length) == 0)
            return i;
    }
    weft_scan_fail(&r->scan, "there is no operand '%.*s'", (int)(length < 40 ? length : 40), name);
    return 0;
}

static void span(reader *r, int64_t *begin, int64_t *count)
{
    const int64_t most = INT64_C(1) << 46;

    *begin = weft_scan_number(&r->scan, 0, most, "the start");
    weft_scan_expect(&r->scan, ':');
    *count = weft_scan_number(&r->scan, *begin, most, "the end") - *begin;
}

/* operand@rank#batch[rows, cols] */
static void region(reader *r)
{
    weft_region region = {.rank = r->part->rank};
    const char *name;

    weft_scan_skip_blanks(&r->scan);
    name = r->scan.at;
    while (r->scan.at < r->scan.line_end && is_name_char(*r->scan.at))
        r->scan.at++;
    region.operand = operand_named(r, name, (size_t)(r->scan.at - name));
    if (!r->scan.failed && r->scan.at < r->scan.line_end && *r->scan.at == '@') {
        r->scan.at++;
        region.rank = (int32_t)weft_scan_number(&r->scan, 0, r->world - 1, "the rank");
    }
    if (!r->scan.failed && r->scan.at < r->scan.line_end && *r->scan.at == '#') {
        r->scan.at++;
        region.batch = weft_scan_number(&r->scan, 0, INT64_C(1) << 46, "the batch");
    }
    weft_scan_expect(&r->scan, '[');
    span(r, &region.row0, &region.rows);
    weft_scan_expect(&r->scan, ',');
    span(r, &region.col0, &region.cols);
    weft_scan_expect(&r->scan, ']');
    ADD(r, region, region_room, region);
}

static void count_region(reader *r, weft_task *task)
{
    if (task->region_count == UINT16_MAX)
        weft_scan_fail(&r->scan, "a task has at most %d regions", UINT16_MAX);
    else
        task->region_count++;
}

/* C and bias are told apart by what they are. */
static void extras(reader *r, weft_task *task)
{
    do {
        const weft_operand *operand;

        region(r);
        if (r->scan.failed)
            return;
        count_region(r, task);
        operand = &r->part->operands[r->part->regions[r->part->region_count - 1].operand];
        if (operand->role == WEFT_ROLE_C && !(task->flags & (WEFT_TASK_HAS_C | WEFT_TASK_HAS_BIAS)))
            task->flags |= WEFT_TASK_HAS_C;
        else if (operand->role == WEFT_ROLE_BIAS && !(task->flags & WEFT_TASK_HAS_BIAS))
            task->flags |= WEFT_TASK_HAS_BIAS;
        else
            weft_scan_fail(&r->scan, "an epilogue takes C, then bias, not %s", operand->name);
    } while (!r->scan.failed && weft_scan_take(&r->scan, ','));
}

static void expression(reader *r, weft_task *task)
{
    bool product = task->kind == WEFT_TASK_GEMM;

    do {
        region(r);
        count_region(r, task);
        task->destinations++;
    } while (!r->scan.failed && weft_scan_take(&r->scan, ','));
    weft_scan_expect(&r->scan, '=');
    region(r);
    count_region(r, task);
    if (product) {
        weft_scan_expect(&r->scan, '*');
        region(r);
        count_region(r, task);
    }
    while (!r->scan.failed && weft_scan_take(&r->scan, '+')) {
        if (product && task->flags & WEFT_TASK_HAS_ACC)
            weft_scan_fail(&r->scan, "a product starts from one sum");
        task->flags |= product ? WEFT_TASK_HAS_ACC : 0;
        region(r);
        count_region(r, task);
    }
    if (!r->scan.failed && weft_scan_take_word(&r->scan, "epilogue")) {
        task->flags |= WEFT_TASK_EPILOGUE;
        if (weft_scan_take_word(&r->scan, "with"))
            extras(r, task);
    }
}

/* ---- lines --------------------------------------------------------------------------------------- */

static void waits(reader *r, weft_task *task)
{
    do {
        weft_wait wait;

        wait.signal = (uint32_t)weft_scan_number(&r->scan, 0, MOST_SIGNALS, "the signal");
        weft_scan_expect(&r->scan, '>');
        weft_scan_expect(&r->scan, '=');
        wait.count = (uint32_t)weft_scan_number(&r->scan, 0, UINT32_MAX, "the count");
        ADD(r, wait, wait_room, wait);
        if (task->wait_count++ == UINT16_MAX)
            weft_scan_fail(&r->scan, "a task has at most %d waits", UINT16_MAX);
        weft_scan_skip_blanks(&r->scan);
    } while (!r->scan.failed && r->scan.at < r->scan.line_end && isdigit((unsigned char)*r->scan.at));
}

static void posts(reader *r, weft_task *task)
{
    do {
        weft_post post;

        post.signal = (uint32_t)weft_scan_number(&r->scan, 0, MOST_SIGNALS, "the signal");
        weft_scan_expect(&r->scan, '@');
        post.rank = (int32_t)weft_scan_number(&r->scan, 0, r->world - 1, "the rank");
        ADD(r, post, post_room, post);
        if (task->post_count++ == UINT16_MAX)
            weft_scan_fail(&r->scan, "a task has at most %d posts", UINT16_MAX);
        weft_scan_skip_blanks(&r->scan);
    } while (!r->scan.failed && r->scan.at < r->scan.line_end && isdigit((unsigned char)*r->scan.at));
}

/* r1 lane 0 task 7 KIND ... */
static void read_task(reader *r)
{
    weft_plan_part *part = r->part;
    char kind[WEFT_WORD_BYTES];
    weft_task task = {0};
    int64_t rank = weft_scan_number(&r->scan, 0, MOST_RANKS, "the rank"), index;

    if (!r->scan.failed && rank != part->rank)
        weft_scan_fail(&r->scan, "a task of rank %lld among those of rank %d", (long long)rank, part->rank);
    if (!r->scan.failed && !weft_scan_take_word(&r->scan, "lane"))
        weft_scan_fail(&r->scan, "a task says its lane after its rank");
    task.lane = (uint16_t)weft_scan_number(&r->scan, 0, part->lane_count ? (int64_t)part->lane_count - 1 : 0,
                                           "the lane");
    if (!r->scan.failed && !weft_scan_take_word(&r->scan, "task"))
        weft_scan_fail(&r->scan, "a task says its number after its lane");
    index = weft_scan_number(&r->scan, 0, UINT32_MAX, "the task");
    if (!r->scan.failed && index != part->task_count)
        weft_scan_fail(&r->scan, "task %lld comes where task %u should", (long long)index, part->task_count);
    if (!r->scan.failed &&
        (!part->lane_count || (part->task_count && part->tasks[part->task_count - 1].lane > task.lane)))
        weft_scan_fail(&r->scan, "tasks come lane by lane, after the lines of the lanes");
    if (r->scan.failed)
        return;
    weft_scan_word(&r->scan, kind);
    if (!r->scan.failed && weft_task_kind_parse(kind) < 0)
        weft_scan_fail(&r->scan, "'%s' is no kind of task", kind);
    if (r->scan.failed)
        return;
    task.kind = (uint8_t)weft_task_kind_parse(kind);
    task.region0 = part->region_count;
    task.wait0 = part->wait_count;
    task.post0 = part->post_count;
    if (task.kind == WEFT_TASK_COPY && take_nothing(r)) {
        int32_t to = weft_scan_take(&r->scan, '@')
                         ? (int32_t)weft_scan_number(&r->scan, 0, r->world - 1, "the rank")
                         : part->rank;

        ADD(r, region, region_room, ((weft_region){.rank = to}));
        ADD(r, region, region_room, ((weft_region){.rank = part->rank}));
        task.region_count = 2;
        task.destinations = 1;
    } else if (task.kind != WEFT_TASK_ENTER && task.kind != WEFT_TASK_EXIT) {
        expression(r, &task);
    }
    if (!r->scan.failed && weft_scan_take_word(&r->scan, "carry"))
        task.flags |= WEFT_TASK_CARRY;
    if (!r->scan.failed && weft_scan_take_word(&r->scan, "wait"))
        waits(r, &task);
    if (!r->scan.failed && weft_scan_take_word(&r->scan, "post"))
        posts(r, &task);
    if (!r->scan.failed && !weft_scan_at_end(&r->scan))
        weft_scan_fail(&r->scan, "'%.*s' is too much",
                       (int)(r->scan.line_end - r->scan.at < 40 ? r->scan.line_end - r->scan.at : 40),
                       r->scan.at);
    part->lanes[task.lane].task_count++;
    ADD(r, task, task_room, task);
}

static void read_operand(reader *r)
{
    static const char *const flags[] = {"rows-parted", "cols-parted", "transposed", "packed",
                                        "handed-on",   "paired",      "output"};
    weft_operand o = {.batch = 1};
    bool *const set[] = {&o.rows_parted, &o.cols_parted, &o.transposed, &o.packed,
                         &o.handed_on,   &o.paired,      &o.output};
    char text[WEFT_WORD_BYTES];
    const int64_t most = INT64_C(1) << 46;

    weft_scan_word(&r->scan, text);
    if (!r->scan.failed && strlen(text) >= sizeof(o.name))
        weft_scan_fail(&r->scan, "the name %s has more than %zu letters", text, sizeof(o.name) - 1);
    for (size_t i = 0; !r->scan.failed && text[i]; i++) {
        o.name[i] = text[i];
        if (!is_name_char(text[i]))
            weft_scan_fail(&r->scan, "the name '%s' has more than letters, digits and _", text);
    }
    for (uint32_t i = 0; !r->scan.failed && i < r->part->operand_count; i++) {
        if (strcmp(r->part->operands[i].name, o.name) == 0)
            weft_scan_fail(&r->scan, "there are two operands %s", o.name);
    }
    weft_scan_word(&r->scan, text);
    if (!r->scan.failed && weft_place_parse(text) < 0)
        weft_scan_fail(&r->scan, "'%s' is no place; user, staging and private are", text);
    if (!r->scan.failed)
        o.place = (weft_operand_place)weft_place_parse(text);
    if (!r->scan.failed && o.place == WEFT_PLACE_USER) {
        o.role = weft_role_parse(o.name);
        if (o.role == WEFT_ROLE_NONE)
            weft_scan_fail(&r->scan, "a caller has no operand %s", o.name);
    }
    weft_scan_word(&r->scan, text);
    if (!r->scan.failed && weft_dtype_parse(text, &o.dtype) != 0)
        weft_scan_fail(&r->scan, "'%s' is no type", text);
    o.rows = weft_scan_number(&r->scan, 0, most, "rows");
    weft_scan_expect(&r->scan, 'x');
    o.cols = weft_scan_number(&r->scan, 0, most, "columns");
    if (!r->scan.failed && weft_scan_take_word(&r->scan, "batch"))
        o.batch = weft_scan_number(&r->scan, 0, most, "the batch");
    if (!r->scan.failed && weft_scan_take_word(&r->scan, "row-granule"))
        o.row_granule = weft_scan_number(&r->scan, 0, most, "the granule");
    if (!r->scan.failed && weft_scan_take_word(&r->scan, "col-granule"))
        o.col_granule = weft_scan_number(&r->scan, 0, most, "the granule");
    while (!r->scan.failed && !weft_scan_at_end(&r->scan)) {
        size_t i = 0;

        weft_scan_word(&r->scan, text);
        while (i < sizeof(flags) / sizeof(flags[0]) && strcmp(flags[i], text) != 0)
            i++;
        if (i == sizeof(flags) / sizeof(flags[0]))
            weft_scan_fail(&r->scan, "an operand cannot be '%s'", text);
        else
            *set[i] = true;
    }
    ADD(r, operand, operand_room, o);
}

static void read_lane(reader *r)
{
    char kind[WEFT_WORD_BYTES];
    int64_t index = weft_scan_number(&r->scan, 0, UINT16_MAX, "the lane");
    weft_lane lane = {0};

    if (!r->scan.failed && index != r->part->lane_count)
        weft_scan_fail(&r->scan, "lane %lld comes where lane %u should", (long long)index,
                       r->part->lane_count);
    if (r->scan.failed)
        return;
    weft_scan_word(&r->scan, kind);
    if (!r->scan.failed && weft_lane_kind_parse(kind) < 0)
        weft_scan_fail(&r->scan, "'%s' is no kind of lane; compute and copy are", kind);
    if (r->scan.failed)
        return;
    lane.kind = (weft_lane_kind)weft_lane_kind_parse(kind);
    if (!weft_scan_at_end(&r->scan)) { /* how many tasks: for people */
        weft_scan_number(&r->scan, 0, UINT32_MAX, "the number of tasks");
        if (!r->scan.failed && (!weft_scan_take_word(&r->scan, "tasks") || !weft_scan_at_end(&r->scan)))
            weft_scan_fail(&r->scan, "a lane has 'N tasks'");
    }
    ADD(r, lane, lane_room, lane);
}

static void read_problem(reader *r)
{
    while (!r->scan.failed && !weft_scan_at_end(&r->scan)) {
        char name[WEFT_WORD_BYTES], value[WEFT_WORD_BYTES];
        int field;

        weft_scan_word(&r->scan, name);
        if (r->scan.failed)
            return;
        field = weft_field_find(name);
        if (field < 0)
            weft_scan_fail(&r->scan, "a problem has no '%s'", name);
        weft_scan_word(&r->scan, value);
        if (!r->scan.failed && !weft_field_set(field, &r->part->problem, value))
            weft_scan_fail(&r->scan, "%s cannot be '%s'", name, value);
    }
}

/* Domains are numbered as they first appear. */
static void read_domains(reader *r)
{
    weft_plan_part *part = r->part;
    int64_t most = -1;

    if (part->domain) {
        weft_scan_fail(&r->scan, "the domains of rank %d come twice", part->rank);
        return;
    }
    part->domain = calloc((size_t)r->world, sizeof(*part->domain));
    if (!part->domain) {
        r->scan.failed = true;
        weft_error_set(r->scan.error, WEFT_ERR_MEMORY, "no memory for a plan of %d ranks", r->world);
    }
    for (int rank = 0; rank < r->world && !r->scan.failed; rank++) {
        int64_t domain = weft_scan_number(&r->scan, 0, most + 1, "the domain");

        part->domain[rank] = (int32_t)domain;
        most = domain > most ? domain : most;
    }
    if (!r->scan.failed && most == 0)
        weft_scan_fail(&r->scan, "one domain is said by no line of domains");
}

/* ---- parts --------------------------------------------------------------------------------------- */

/* What a part has when all of its lines are read. */
static void close_part(reader *r)
{
    weft_plan_part *part = r->part;
    weft_error_text error = {0};
    uint32_t next = 0;

    if (!part || r->scan.failed)
        return;
    for (uint32_t i = 0; i < part->lane_count; i++) {
        part->lanes[i].task0 = next;
        next += part->lanes[i].task_count;
    }
    if (weft_problem_resolve(&part->problem, r->world, &part->problem, &error) != WEFT_OK)
        weft_scan_fail(&r->scan, "the problem of rank %d: %s", part->rank, error.text);
    else if (part->problem.schedule == WEFT_SCHEDULE_AUTO)
        weft_scan_fail(&r->scan, "a plan has a schedule, or custom; auto is none");
    else if (r->has_hash && r->stated_hash != weft_plan_part_hash(part))
        weft_scan_fail(&r->scan,
                       "what stands here of rank %d has the hash %016llx, not %016llx; a plan that was "
                       "changed goes without",
                       part->rank, (unsigned long long)weft_plan_part_hash(part),
                       (unsigned long long)r->stated_hash);
}

/* plan OP SCHEDULE rank R of W, hash H */
static void open_part(reader *r)
{
    char op[WEFT_WORD_BYTES], schedule[WEFT_WORD_BYTES], hash[WEFT_WORD_BYTES];
    weft_problem problem = {.size = sizeof(problem),
                            .l = 1,
                            .alpha = 1,
                            .d_dtype = WEFT_DTYPE_DEFAULT,
                            .wire_dtype = WEFT_DTYPE_DEFAULT};
    int64_t rank, world;

    close_part(r);
    weft_scan_word(&r->scan, op);
    if (!r->scan.failed)
        weft_scan_word(&r->scan, schedule);
    if (!r->scan.failed && weft_op_parse(op, &problem.op) != 0)
        weft_scan_fail(&r->scan, "'%s' is no operation", op);
    if (!r->scan.failed && weft_schedule_parse(schedule, &problem.schedule) != 0)
        weft_scan_fail(&r->scan, "'%s' is no schedule; of one's own, it is custom", schedule);
    if (!r->scan.failed && !weft_scan_take_word(&r->scan, "rank"))
        weft_scan_fail(&r->scan, "a plan says 'rank R of W'");
    rank = weft_scan_number(&r->scan, 0, MOST_RANKS - 1, "the rank");
    if (!r->scan.failed && !weft_scan_take_word(&r->scan, "of"))
        weft_scan_fail(&r->scan, "a plan says 'rank R of W'");
    world = weft_scan_number(&r->scan, 1, MOST_RANKS, "the number of ranks");
    r->has_hash = !r->scan.failed && weft_scan_take(&r->scan, ',');
    if (r->has_hash) {
        char *end;

        if (!weft_scan_take_word(&r->scan, "hash"))
            weft_scan_fail(&r->scan, "after the comma comes 'hash H'");
        else
            weft_scan_word(&r->scan, hash);
        if (!r->scan.failed) {
            r->stated_hash = strtoull(hash, &end, 16);
            if (*end)
                weft_scan_fail(&r->scan, "'%s' is no hash", hash);
        }
    }
    if (!r->scan.failed && (rank != r->count || (r->count && world != r->world)))
        weft_scan_fail(&r->scan, "the part of rank %lld of %lld comes where rank %d of %d should",
                       (long long)rank, (long long)world, r->count, r->count ? r->world : (int)world);
    if (r->scan.failed)
        return;
    if (!r->parts) {
        r->world = (int)world;
        r->parts = calloc((size_t)world, sizeof(*r->parts));
        if (!r->parts) {
            r->scan.failed = true;
            weft_error_set(r->scan.error, WEFT_ERR_MEMORY, "no memory for a plan of %d ranks", r->world);
            return;
        }
    }
    r->part = &r->parts[r->count++];
    r->part->problem = problem;
    r->part->rank = (int)rank;
    r->part->world = r->world;
    r->operand_room = r->lane_room = r->task_room = r->region_room = r->wait_room = r->post_room = 0;
}

static void read_line(reader *r)
{
    if (weft_scan_at_end(&r->scan) || *r->scan.at == '#')
        return;
    if (weft_scan_take_word(&r->scan, "plan"))
        open_part(r);
    else if (!r->part)
        weft_scan_fail(&r->scan, "a plan begins with 'plan OP SCHEDULE rank 0 of W'");
    else if (weft_scan_take_word(&r->scan, "problem"))
        read_problem(r);
    else if (weft_scan_take_word(&r->scan, "domains"))
        read_domains(r);
    else if (weft_scan_take_word(&r->scan, "operand"))
        read_operand(r);
    else if (weft_scan_take_word(&r->scan, "signals"))
        r->part->signal_count =
            (uint32_t)weft_scan_number(&r->scan, 0, MOST_SIGNALS, "the number of signals");
    else if (weft_scan_take_word(&r->scan, "lane"))
        read_lane(r);
    else if (weft_scan_take(&r->scan, 'r'))
        read_task(r);
    else
        weft_scan_fail(&r->scan, "'%.*s' begins no line of a plan",
                       (int)(r->scan.line_end - r->scan.at < 40 ? r->scan.line_end - r->scan.at : 40),
                       r->scan.at);
}

/* The posts every signal gets follow from all parts; so does what the ranks compare before a run. */
static void close_plan(reader *r)
{
    uint64_t hash = 0;

    close_part(r);
    if (!r->scan.failed && !r->count)
        weft_scan_fail(&r->scan, "there is no plan");
    if (!r->scan.failed && r->count != r->world)
        weft_scan_fail(&r->scan, "the plan is of %d ranks, and the file ends after rank %d", r->world,
                       r->count - 1);
    for (int i = 0; i < r->world && !r->scan.failed; i++) {
        hash = (hash ^ weft_plan_part_hash(&r->parts[i])) * 0x9e3779b97f4a7c15u + 1;
        r->parts[i].signal_posts = calloc((size_t)r->parts[i].signal_count + 1, sizeof(uint32_t));
        if (!r->parts[i].signal_posts) {
            r->scan.failed = true;
            weft_error_set(r->scan.error, WEFT_ERR_MEMORY, "no memory for %u signals",
                           r->parts[i].signal_count);
        }
    }
    for (int i = 0; i < r->world && !r->scan.failed; i++) {
        r->parts[i].hash = hash;
        for (uint32_t j = 0; j < r->parts[i].post_count; j++) {
            const weft_post *post = &r->parts[i].posts[j];

            if (post->signal < r->parts[post->rank].signal_count)
                r->parts[post->rank].signal_posts[post->signal]++;
        }
    }
}

static weft_status read_text(const char *text, size_t bytes, const char *where, weft_plan_part **parts,
                             int *world, weft_error_text *error)
{
    reader r = {.scan = {.at = text, .end = text + bytes, .where = where}};
    weft_error_text found = {0};

    r.scan.error = &found;
    while (r.scan.at < r.scan.end && !r.scan.failed) {
        const char *line_end = memchr(r.scan.at, '\n', (size_t)(r.scan.end - r.scan.at));

        r.scan.line++;
        r.scan.line_end = line_end ? line_end : r.scan.end;
        read_line(&r);
        if (!r.scan.failed && !weft_scan_at_end(&r.scan) && *r.scan.at != '#')
            weft_scan_fail(&r.scan, "'%.*s' is too much",
                           (int)(r.scan.line_end - r.scan.at < 40 ? r.scan.line_end - r.scan.at : 40),
                           r.scan.at);
        r.scan.at = r.scan.line_end < r.scan.end ? r.scan.line_end + 1 : r.scan.end;
    }
    r.scan.line_end = r.scan.end;
    close_plan(&r);
    if (r.scan.failed) {
        weft_plan_parts_free(r.parts, r.world);
        *error = found;
        return found.status;
    }
    *parts = r.parts;
    *world = r.world;
    return WEFT_OK;
}

weft_status weft_plan_read(const char *text, size_t bytes, const char *where, weft_plan_part **parts,
                           int *world, weft_error_text *error)
{
    size_t first = 0, length;
    weft_status status;
    char *lines;

    if (memchr(text, 0, bytes))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s is no text", where);
    while (first < bytes && isspace((unsigned char)text[first]))
        first++;
    if (first == bytes || text[first] != '{')
        return read_text(text, bytes, where, parts, world, error);
    status = weft_plan_json_to_text(text, bytes, where, &lines, &length, error);
    if (status != WEFT_OK)
        return status;
    status = read_text(lines, length, where, parts, world, error);
    free(lines);
    return status;
}

/* ---- files --------------------------------------------------------------------------------------- */

enum { MOST_BYTES = 1 << 30 }; /* of a file; one that never ends would be read until the memory is full */

/* More of a file, after what has been read of it; *got: how much. What is no text is not read to its end. */
static weft_status read_more(FILE *file, const char *path, char **text, size_t used, size_t room, size_t *got,
                             weft_error_text *error)
{
    char *more;

    if (used >= MOST_BYTES)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s has more than %d bytes, which no plan has", path,
                              MOST_BYTES);
    more = realloc(*text, room);
    if (!more)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the plan in %s", path);
    *text = more;
    *got = fread(more + used, 1, room - used, file);
    if (ferror(file))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot read %s: %s", path, strerror(errno));
    if (memchr(more + used, 0, *got))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s is no text", path);
    return WEFT_OK;
}

weft_status weft_plan_read_file(const char *path, weft_plan_part **parts, int *world, weft_error_text *error)
{
    FILE *file = fopen(path, "r");
    size_t used = 0, room = 1 << 16, got = 0;
    weft_status status;
    char *text = NULL;

    if (!file)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot read %s: %s", path, strerror(errno));
    do {
        room *= 2;
        status = read_more(file, path, &text, used, room, &got, error);
        used += got;
    } while (status == WEFT_OK && used == room);
    fclose(file);
    if (status == WEFT_OK)
        status = weft_plan_read(text, used, path, parts, world, error);
    free(text);
    return status;
}

void weft_plan_parts_free(weft_plan_part *parts, int world)
{
    for (int i = 0; parts && i < world; i++)
        weft_plan_part_free(&parts[i]);
    free(parts);
}

static void *duplicate(const void *array, size_t count, size_t bytes, bool *failed)
{
    void *copy = malloc(count * bytes + 1);

    if (copy && count)
        memcpy(copy, array, count * bytes);
    *failed = *failed || !copy;
    return copy;
}

weft_status weft_plan_part_copy(const weft_plan_part *part, weft_plan_part *copy, weft_error_text *error)
{
    weft_plan_part out = *part;
    bool failed = false;

    if (part->domain)
        out.domain = duplicate(part->domain, (size_t)part->world, sizeof(*part->domain), &failed);
    out.operands = duplicate(part->operands, part->operand_count, sizeof(*part->operands), &failed);
    out.lanes = duplicate(part->lanes, part->lane_count, sizeof(*part->lanes), &failed);
    out.tasks = duplicate(part->tasks, part->task_count, sizeof(*part->tasks), &failed);
    out.regions = duplicate(part->regions, part->region_count, sizeof(*part->regions), &failed);
    out.waits = duplicate(part->waits, part->wait_count, sizeof(*part->waits), &failed);
    out.posts = duplicate(part->posts, part->post_count, sizeof(*part->posts), &failed);
    out.signal_posts =
        duplicate(part->signal_posts, part->signal_count, sizeof(*part->signal_posts), &failed);
    if (failed) {
        weft_plan_part_free(&out);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the plan of rank %d of %d", part->rank,
                              part->world);
    }
    *copy = out;
    return WEFT_OK;
}
