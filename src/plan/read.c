/*
 * Reading plans, line by line. Numbers are bounded by what their fields hold, lists by the text they stand
 * in; everything else about a plan is the checker's.
 */
#include "plan/read.h"
#include "core/dtype.h"
#include "plan/print.h"
#include "plan/fields.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SIGNALS = 1 << 26, MOST_RANKS = 16384 };

typedef struct reader {
    const char *at, *line_end, *end;
    const char *where;
    long line;
    weft_error_text *error;
    bool failed;

    weft_plan_part *parts;
    int count, world; /* parts begun; of how many */
    weft_plan_part *part;
    uint64_t stated_hash;
    bool has_hash;
    uint32_t operand_room, lane_room, task_room, region_room, wait_room, post_room;
} reader;

static void fail(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void fail(reader *r, const char *format, ...)
{
    char text[300];
    va_list arguments;

    if (r->failed)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    r->failed = true;
    weft_error_set(r->error, WEFT_ERR_ARGUMENT, "%s, line %ld: %s", r->where, r->line, text);
}

static bool grow(reader *r, void **array, uint32_t count, uint32_t *room, size_t bytes)
{
    uint32_t wanted = *room ? 2 * *room : 16;
    void *more;

    if (r->failed)
        return false;
    if (count < *room)
        return true;
    more = wanted > *room ? realloc(*array, wanted * bytes) : NULL;
    if (!more) {
        r->failed = true;
        weft_error_set(r->error, WEFT_ERR_MEMORY, "no memory for the plan in %s", r->where);
        return false;
    }
    *array = more;
    *room = wanted;
    return true;
}

#define ADD(r, name, room, value)                                                                            \
    do {                                                                                                     \
        if (grow(r, (void **)&(r)->part->name##s, (r)->part->name##_count, &(r)->room,                       \
                 sizeof(*(r)->part->name##s)))                                                               \
            (r)->part->name##s[(r)->part->name##_count++] = (value);                                         \
    } while (0)

/* ---- a line -------------------------------------------------------------------------------------- */

static void skip_blanks(reader *r)
{
    while (r->at < r->line_end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
}

static bool at_line_end(reader *r)
{
    skip_blanks(r);
    return r->at >= r->line_end;
}

static bool take(reader *r, char c)
{
    skip_blanks(r);
    if (r->at < r->line_end && *r->at == c) {
        r->at++;
        return true;
    }
    return false;
}

static void expect(reader *r, char c)
{
    if (!take(r, c))
        fail(r, "there should be a '%c' before '%.*s'", c,
             (int)(r->line_end - r->at < 20 ? r->line_end - r->at : 20), r->at);
}

/* What stands up to the next blank. */
static void word(reader *r, char text[WEFT_WORD_BYTES])
{
    size_t used = 0;

    skip_blanks(r);
    while (r->at < r->line_end && *r->at != ' ' && *r->at != '\t' && *r->at != '\r' &&
           used < WEFT_WORD_BYTES - 1)
        text[used++] = *r->at++;
    text[used] = 0;
    if (!used)
        fail(r, "the line ends too early");
    else if (used == WEFT_WORD_BYTES - 1)
        fail(r, "'%s...' is too long for a word", text);
}

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* A word of letters if that is the next, else nothing is taken. */
static bool take_word(reader *r, const char *wanted)
{
    size_t length = strlen(wanted);

    skip_blanks(r);
    if ((size_t)(r->line_end - r->at) < length || memcmp(r->at, wanted, length) != 0)
        return false;
    if (r->at + length < r->line_end && r->at[length] != ' ' && r->at[length] != '\r')
        return false;
    r->at += length;
    return true;
}

/* `nothing`, which may have a place. */
static bool take_nothing(reader *r)
{
    static const char placed[] = "nothing@";
    size_t length = sizeof(placed) - 1;

    skip_blanks(r);
    if ((size_t)(r->line_end - r->at) < length || memcmp(r->at, placed, length) != 0)
        return take_word(r, "nothing");
    r->at += length - 1;
    return true;
}

static int64_t number(reader *r, int64_t least, int64_t most, const char *what)
{
    char digits[24];
    size_t used = 0;
    int64_t value = 0;

    skip_blanks(r);
    while (r->at < r->line_end && used < sizeof(digits) - 1 &&
           (isdigit((unsigned char)*r->at) || (*r->at == '-' && !used)))
        digits[used++] = *r->at++;
    digits[used] = 0;
    if (!weft_number_parse(digits, &value) || value < least || value > most) {
        fail(r, "%s '%s' is not a number from %lld to %lld", what, digits, (long long)least, (long long)most);
        return least;
    }
    return value;
}

/* ---- regions ------------------------------------------------------------------------------------- */

static uint32_t operand_named(reader *r, const char *name, size_t length)
{
    for (uint32_t i = 0; i < r->part->operand_count; i++) {
        if (strlen(r->part->operands[i].name) == length &&
            memcmp(r->part->operands[i].name, name, length) == 0)
            return i;
    }
    fail(r, "there is no operand '%.*s'", (int)(length < 40 ? length : 40), name);
    return 0;
}

static void span(reader *r, int64_t *begin, int64_t *count)
{
    const int64_t most = INT64_C(1) << 46;

    *begin = number(r, 0, most, "the start");
    expect(r, ':');
    *count = number(r, *begin, most, "the end") - *begin;
}

/* operand@rank#batch[rows, cols] */
static void region(reader *r)
{
    weft_region region = {.rank = r->part->rank};
    const char *name;

    skip_blanks(r);
    name = r->at;
    while (r->at < r->line_end && is_name_char(*r->at))
        r->at++;
    region.operand = operand_named(r, name, (size_t)(r->at - name));
    if (!r->failed && r->at < r->line_end && *r->at == '@') {
        r->at++;
        region.rank = (int32_t)number(r, 0, r->world - 1, "the rank");
    }
    if (!r->failed && r->at < r->line_end && *r->at == '#') {
        r->at++;
        region.batch = number(r, 0, INT64_C(1) << 46, "the batch");
    }
    expect(r, '[');
    span(r, &region.row0, &region.rows);
    expect(r, ',');
    span(r, &region.col0, &region.cols);
    expect(r, ']');
    ADD(r, region, region_room, region);
}

static void count_region(reader *r, weft_task *task)
{
    if (task->region_count == UINT16_MAX)
        fail(r, "a task has at most %d regions", UINT16_MAX);
    else
        task->region_count++;
}

/* C and bias are told apart by what they are. */
static void extras(reader *r, weft_task *task)
{
    do {
        const weft_operand *operand;

        region(r);
        if (r->failed)
            return;
        count_region(r, task);
        operand = &r->part->operands[r->part->regions[r->part->region_count - 1].operand];
        if (operand->role == WEFT_ROLE_C && !(task->flags & (WEFT_TASK_HAS_C | WEFT_TASK_HAS_BIAS)))
            task->flags |= WEFT_TASK_HAS_C;
        else if (operand->role == WEFT_ROLE_BIAS && !(task->flags & WEFT_TASK_HAS_BIAS))
            task->flags |= WEFT_TASK_HAS_BIAS;
        else
            fail(r, "an epilogue takes C, then bias, not %s", operand->name);
    } while (!r->failed && take(r, ','));
}

static void expression(reader *r, weft_task *task)
{
    bool product = task->kind == WEFT_TASK_GEMM;

    do {
        region(r);
        count_region(r, task);
        task->destinations++;
    } while (!r->failed && take(r, ','));
    expect(r, '=');
    region(r);
    count_region(r, task);
    if (product) {
        expect(r, '*');
        region(r);
        count_region(r, task);
    }
    while (!r->failed && take(r, '+')) {
        if (product && task->flags & WEFT_TASK_HAS_ACC)
            fail(r, "a product starts from one sum");
        task->flags |= product ? WEFT_TASK_HAS_ACC : 0;
        region(r);
        count_region(r, task);
    }
    if (!r->failed && take_word(r, "epilogue")) {
        task->flags |= WEFT_TASK_EPILOGUE;
        if (take_word(r, "with"))
            extras(r, task);
    }
}

/* ---- lines --------------------------------------------------------------------------------------- */

static void waits(reader *r, weft_task *task)
{
    do {
        weft_wait wait;

        wait.signal = (uint32_t)number(r, 0, MOST_SIGNALS, "the signal");
        expect(r, '>');
        expect(r, '=');
        wait.count = (uint32_t)number(r, 0, UINT32_MAX, "the count");
        ADD(r, wait, wait_room, wait);
        if (task->wait_count++ == UINT16_MAX)
            fail(r, "a task has at most %d waits", UINT16_MAX);
        skip_blanks(r);
    } while (!r->failed && r->at < r->line_end && isdigit((unsigned char)*r->at));
}

static void posts(reader *r, weft_task *task)
{
    do {
        weft_post post;

        post.signal = (uint32_t)number(r, 0, MOST_SIGNALS, "the signal");
        expect(r, '@');
        post.rank = (int32_t)number(r, 0, r->world - 1, "the rank");
        ADD(r, post, post_room, post);
        if (task->post_count++ == UINT16_MAX)
            fail(r, "a task has at most %d posts", UINT16_MAX);
        skip_blanks(r);
    } while (!r->failed && r->at < r->line_end && isdigit((unsigned char)*r->at));
}

/* r1 lane 0 task 7 KIND ... */
static void read_task(reader *r)
{
    weft_plan_part *part = r->part;
    char kind[WEFT_WORD_BYTES];
    weft_task task = {0};
    int64_t rank = number(r, 0, MOST_RANKS, "the rank"), index;

    if (!r->failed && rank != part->rank)
        fail(r, "a task of rank %lld among those of rank %d", (long long)rank, part->rank);
    if (!r->failed && !take_word(r, "lane"))
        fail(r, "a task says its lane after its rank");
    task.lane = (uint16_t)number(r, 0, part->lane_count ? (int64_t)part->lane_count - 1 : 0, "the lane");
    if (!r->failed && !take_word(r, "task"))
        fail(r, "a task says its number after its lane");
    index = number(r, 0, UINT32_MAX, "the task");
    if (!r->failed && index != part->task_count)
        fail(r, "task %lld comes where task %u should", (long long)index, part->task_count);
    if (!r->failed &&
        (!part->lane_count || (part->task_count && part->tasks[part->task_count - 1].lane > task.lane)))
        fail(r, "tasks come lane by lane, after the lines of the lanes");
    if (r->failed)
        return;
    word(r, kind);
    if (!r->failed && weft_task_kind_parse(kind) < 0)
        fail(r, "'%s' is no kind of task", kind);
    if (r->failed)
        return;
    task.kind = (uint8_t)weft_task_kind_parse(kind);
    task.region0 = part->region_count;
    task.wait0 = part->wait_count;
    task.post0 = part->post_count;
    if (task.kind == WEFT_TASK_COPY && take_nothing(r)) {
        int32_t to = take(r, '@') ? (int32_t)number(r, 0, r->world - 1, "the rank") : part->rank;

        ADD(r, region, region_room, ((weft_region){.rank = to}));
        ADD(r, region, region_room, ((weft_region){.rank = part->rank}));
        task.region_count = 2;
        task.destinations = 1;
    } else if (task.kind != WEFT_TASK_ENTER && task.kind != WEFT_TASK_EXIT) {
        expression(r, &task);
    }
    if (!r->failed && take_word(r, "carry"))
        task.flags |= WEFT_TASK_CARRY;
    if (!r->failed && take_word(r, "wait"))
        waits(r, &task);
    if (!r->failed && take_word(r, "post"))
        posts(r, &task);
    if (!r->failed && !at_line_end(r))
        fail(r, "'%.*s' is too much", (int)(r->line_end - r->at < 40 ? r->line_end - r->at : 40), r->at);
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

    word(r, text);
    if (!r->failed && strlen(text) >= sizeof(o.name))
        fail(r, "the name %s has more than %zu letters", text, sizeof(o.name) - 1);
    for (size_t i = 0; !r->failed && text[i]; i++) {
        o.name[i] = text[i];
        if (!is_name_char(text[i]))
            fail(r, "the name '%s' has more than letters, digits and _", text);
    }
    for (uint32_t i = 0; !r->failed && i < r->part->operand_count; i++) {
        if (strcmp(r->part->operands[i].name, o.name) == 0)
            fail(r, "there are two operands %s", o.name);
    }
    word(r, text);
    if (!r->failed && weft_place_parse(text) < 0)
        fail(r, "'%s' is no place; user, staging and private are", text);
    if (!r->failed)
        o.place = (weft_operand_place)weft_place_parse(text);
    if (!r->failed && o.place == WEFT_PLACE_USER) {
        o.role = weft_role_parse(o.name);
        if (o.role == WEFT_ROLE_NONE)
            fail(r, "a caller has no operand %s", o.name);
    }
    word(r, text);
    if (!r->failed && weft_dtype_parse(text, &o.dtype) != 0)
        fail(r, "'%s' is no type", text);
    o.rows = number(r, 0, most, "rows");
    expect(r, 'x');
    o.cols = number(r, 0, most, "columns");
    if (!r->failed && take_word(r, "batch"))
        o.batch = number(r, 0, most, "the batch");
    if (!r->failed && take_word(r, "row-granule"))
        o.row_granule = number(r, 0, most, "the granule");
    if (!r->failed && take_word(r, "col-granule"))
        o.col_granule = number(r, 0, most, "the granule");
    while (!r->failed && !at_line_end(r)) {
        size_t i = 0;

        word(r, text);
        while (i < sizeof(flags) / sizeof(flags[0]) && strcmp(flags[i], text) != 0)
            i++;
        if (i == sizeof(flags) / sizeof(flags[0]))
            fail(r, "an operand cannot be '%s'", text);
        else
            *set[i] = true;
    }
    ADD(r, operand, operand_room, o);
}

static void read_lane(reader *r)
{
    char kind[WEFT_WORD_BYTES];
    int64_t index = number(r, 0, UINT16_MAX, "the lane");
    weft_lane lane = {0};

    if (!r->failed && index != r->part->lane_count)
        fail(r, "lane %lld comes where lane %u should", (long long)index, r->part->lane_count);
    if (r->failed)
        return;
    word(r, kind);
    if (!r->failed && weft_lane_kind_parse(kind) < 0)
        fail(r, "'%s' is no kind of lane; compute and copy are", kind);
    if (r->failed)
        return;
    lane.kind = (weft_lane_kind)weft_lane_kind_parse(kind);
    if (!at_line_end(r)) { /* how many tasks: for people */
        number(r, 0, UINT32_MAX, "the number of tasks");
        if (!r->failed && (!take_word(r, "tasks") || !at_line_end(r)))
            fail(r, "a lane has 'N tasks'");
    }
    ADD(r, lane, lane_room, lane);
}

static void read_problem(reader *r)
{
    while (!r->failed && !at_line_end(r)) {
        char name[WEFT_WORD_BYTES], value[WEFT_WORD_BYTES];
        int field;

        word(r, name);
        if (r->failed)
            return;
        field = weft_field_find(name);
        if (field < 0)
            fail(r, "a problem has no '%s'", name);
        word(r, value);
        if (!r->failed && !weft_field_set(field, &r->part->problem, value))
            fail(r, "%s cannot be '%s'", name, value);
    }
}

/* Domains are numbered as they first appear. */
static void read_domains(reader *r)
{
    weft_plan_part *part = r->part;
    int64_t most = -1;

    if (part->domain) {
        fail(r, "the domains of rank %d come twice", part->rank);
        return;
    }
    part->domain = calloc((size_t)r->world, sizeof(*part->domain));
    if (!part->domain) {
        r->failed = true;
        weft_error_set(r->error, WEFT_ERR_MEMORY, "no memory for a plan of %d ranks", r->world);
    }
    for (int rank = 0; rank < r->world && !r->failed; rank++) {
        int64_t domain = number(r, 0, most + 1, "the domain");

        part->domain[rank] = (int32_t)domain;
        most = domain > most ? domain : most;
    }
    if (!r->failed && most == 0)
        fail(r, "one domain is said by no line of domains");
}

/* ---- parts --------------------------------------------------------------------------------------- */

/* What a part has when all of its lines are read. */
static void close_part(reader *r)
{
    weft_plan_part *part = r->part;
    weft_error_text error = {0};
    uint32_t next = 0;

    if (!part || r->failed)
        return;
    for (uint32_t i = 0; i < part->lane_count; i++) {
        part->lanes[i].task0 = next;
        next += part->lanes[i].task_count;
    }
    if (weft_problem_resolve(&part->problem, r->world, &part->problem, &error) != WEFT_OK)
        fail(r, "the problem of rank %d: %s", part->rank, error.text);
    else if (part->problem.schedule == WEFT_SCHEDULE_AUTO)
        fail(r, "a plan has a schedule, or custom; auto is none");
    else if (r->has_hash && r->stated_hash != weft_plan_part_hash(part))
        fail(r,
             "what stands here of rank %d has the hash %016llx, not %016llx; a plan that was "
             "changed goes without",
             part->rank, (unsigned long long)weft_plan_part_hash(part), (unsigned long long)r->stated_hash);
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
    word(r, op);
    if (!r->failed)
        word(r, schedule);
    if (!r->failed && weft_op_parse(op, &problem.op) != 0)
        fail(r, "'%s' is no operation", op);
    if (!r->failed && weft_schedule_parse(schedule, &problem.schedule) != 0)
        fail(r, "'%s' is no schedule; of one's own, it is custom", schedule);
    if (!r->failed && !take_word(r, "rank"))
        fail(r, "a plan says 'rank R of W'");
    rank = number(r, 0, MOST_RANKS - 1, "the rank");
    if (!r->failed && !take_word(r, "of"))
        fail(r, "a plan says 'rank R of W'");
    world = number(r, 1, MOST_RANKS, "the number of ranks");
    r->has_hash = !r->failed && take(r, ',');
    if (r->has_hash) {
        char *end;

        if (!take_word(r, "hash"))
            fail(r, "after the comma comes 'hash H'");
        else
            word(r, hash);
        if (!r->failed) {
            r->stated_hash = strtoull(hash, &end, 16);
            if (*end)
                fail(r, "'%s' is no hash", hash);
        }
    }
    if (!r->failed && (rank != r->count || (r->count && world != r->world)))
        fail(r, "the part of rank %lld of %lld comes where rank %d of %d should", (long long)rank,
             (long long)world, r->count, r->count ? r->world : (int)world);
    if (r->failed)
        return;
    if (!r->parts) {
        r->world = (int)world;
        r->parts = calloc((size_t)world, sizeof(*r->parts));
        if (!r->parts) {
            r->failed = true;
            weft_error_set(r->error, WEFT_ERR_MEMORY, "no memory for a plan of %d ranks", r->world);
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
    if (at_line_end(r) || *r->at == '#')
        return;
    if (take_word(r, "plan"))
        open_part(r);
    else if (!r->part)
        fail(r, "a plan begins with 'plan OP SCHEDULE rank 0 of W'");
    else if (take_word(r, "problem"))
        read_problem(r);
    else if (take_word(r, "domains"))
        read_domains(r);
    else if (take_word(r, "operand"))
        read_operand(r);
    else if (take_word(r, "signals"))
        r->part->signal_count = (uint32_t)number(r, 0, MOST_SIGNALS, "the number of signals");
    else if (take_word(r, "lane"))
        read_lane(r);
    else if (take(r, 'r'))
        read_task(r);
    else
        fail(r, "'%.*s' begins no line of a plan", (int)(r->line_end - r->at < 40 ? r->line_end - r->at : 40),
             r->at);
}

/* The posts every signal gets follow from all parts; so does what the ranks compare before a run. */
static void close_plan(reader *r)
{
    uint64_t hash = 0;

    close_part(r);
    if (!r->failed && !r->count)
        fail(r, "there is no plan");
    if (!r->failed && r->count != r->world)
        fail(r, "the plan is of %d ranks, and the file ends after rank %d", r->world, r->count - 1);
    for (int i = 0; i < r->world && !r->failed; i++) {
        hash = (hash ^ weft_plan_part_hash(&r->parts[i])) * 0x9e3779b97f4a7c15u + 1;
        r->parts[i].signal_posts = calloc((size_t)r->parts[i].signal_count + 1, sizeof(uint32_t));
        if (!r->parts[i].signal_posts) {
            r->failed = true;
            weft_error_set(r->error, WEFT_ERR_MEMORY, "no memory for %u signals", r->parts[i].signal_count);
        }
    }
    for (int i = 0; i < r->world && !r->failed; i++) {
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
    reader r = {.at = text, .end = text + bytes, .where = where, .error = error};
    weft_error_text found = {0};

    r.error = &found;
    while (r.at < r.end && !r.failed) {
        const char *line_end = memchr(r.at, '\n', (size_t)(r.end - r.at));

        r.line++;
        r.line_end = line_end ? line_end : r.end;
        read_line(&r);
        if (!r.failed && !at_line_end(&r) && *r.at != '#')
            fail(&r, "'%.*s' is too much", (int)(r.line_end - r.at < 40 ? r.line_end - r.at : 40), r.at);
        r.at = r.line_end < r.end ? r.line_end + 1 : r.end;
    }
    r.line_end = r.end;
    close_plan(&r);
    if (r.failed) {
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

weft_status weft_plan_read_file(const char *path, weft_plan_part **parts, int *world, weft_error_text *error)
{
    FILE *file = fopen(path, "r");
    size_t used = 0, room = 1 << 16, got;
    char *text = NULL, *more;
    weft_status status = WEFT_OK;

    if (!file)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot read %s: %s", path, strerror(errno));
    do {
        room *= 2;
        more = realloc(text, room);
        if (!more) {
            status = weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the plan in %s", path);
            break;
        }
        text = more;
        got = fread(text + used, 1, room - used, file);
        used += got;
    } while (used == room);
    if (status == WEFT_OK && ferror(file))
        status = weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot read %s: %s", path, strerror(errno));
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
