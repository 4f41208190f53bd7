/*
 * Mutants of every generator's plans: a wait or a post dropped or moved, two tasks swapped, a region shrunk
 * or moved, a task cut in two, two destinations made one, another order of addition, an operand that is
 * declared something else, data pushed to another peer or in another's stead, a region of another operand or
 * rank, an epilogue too many or too few, words for others, the name of another schedule; half of them over
 * several domains. The interpreter says whether a mutant's meaning changed (a wrong result or a hang under
 * some random schedule).
 *
 * Whatever the checker accepts must compute exactly. The mutants it accepts are those it has proved
 * equivalent: a wait that another one implies, two tasks of a lane that do not depend on each other.
 *
 * usage: test_plan_mutate [SEED [MUTANTS OF EACH KIND FOR EVERY SCHEDULE]]
 */
#include "interpret.h"
#include "plan/check.h"

#include "support/check.h"

typedef enum mutation {
    DROP_WAIT,
    DROP_POST,
    FORGET_POST, /* and announce one fewer, and wait for one fewer: the counts still add up */
    SWAP_TASKS,
    SHRINK_REGION,
    SHRINK_TASK, /* all regions alike: the shapes still fit */
    MOVE_REGION,
    POST_EARLIER,
    SWAP_SOURCES, /* of a sum */
    JOIN_REGIONS, /* two regions of a task in the same operand become one */
    CUT_TASK,     /* in two, the upper and the lower rows of everything */
    CARRY_ON,     /* a flag that says nobody else reads it */
    CHANGE_TYPE,
    CHANGE_OPERAND,
    REDIRECT,       /* what is pushed to a peer goes to another one, and so does the word of it */
    SWAP_PUSHES,    /* two that a rank pushes elsewhere bring each other's data */
    OTHER_OPERAND,  /* a region of an operand becomes the same one of another that has it */
    OTHER_RANK,     /* or of another rank's instance */
    FINISH,         /* what is finished is not, or what is not is */
    WAIT_LESS,      /* for one post fewer */
    WAIT_ELSEWHERE, /* for another signal */
    POST_ELSEWHERE, /* another signal, or another rank's */
    OTHER_NAME,     /* of a schedule: with it goes whether a collective may be in place */
    MUTATIONS
} mutation;

static const char *const mutation_names[] = {
    "drop wait",   "drop post",      "forget post",    "swap tasks",     "shrink region", "shrink task",
    "move region", "post earlier",   "swap sources",   "join regions",   "cut task",      "carry on",
    "change type", "change operand", "redirect",       "swap pushes",    "other operand", "other rank",
    "finish",      "wait less",      "wait elsewhere", "post elsewhere", "other name"};

typedef struct tally {
    long made, changed, caught, equivalent, cautious;
} tally;

static tally tallies[MUTATIONS];

static uint32_t pick(uint64_t *seed, uint32_t below)
{
    return (uint32_t)(check_random(seed) % below);
}

/* A random task that satisfies something; NULL when tries run out. */
static weft_task *pick_task(weft_plan_part *part, uint64_t *seed, bool (*fits)(const weft_task *))
{
    for (int tries = 0; tries < 50; tries++) {
        weft_task *task = &part->tasks[pick(seed, part->task_count)];

        if (fits(task))
            return task;
    }
    return NULL;
}

static bool has_wait(const weft_task *task)
{
    return task->wait_count > 0;
}

static bool has_post(const weft_task *task)
{
    return task->post_count > 0;
}

static bool has_region(const weft_task *task)
{
    return task->region_count > 0;
}

static bool drop_post(weft_plan_part *parts, int rank, bool forget, uint64_t *seed)
{
    weft_plan_part *part = &parts[rank];
    weft_task *task = pick_task(part, seed, has_post);
    weft_post *posts, dropped;
    uint32_t at;

    if (!task)
        return false;
    posts = &part->posts[task->post0];
    at = pick(seed, task->post_count);
    dropped = posts[at];
    posts[at] = posts[--task->post_count];
    if (forget) {
        weft_plan_part *target = &parts[dropped.rank];
        uint32_t full = target->signal_posts[dropped.signal]--;

        for (uint32_t i = 0; i < target->task_count; i++) {
            weft_task *t = &target->tasks[i];

            for (uint32_t j = t->wait_count; j-- > 0;) {
                weft_wait *wait = &target->waits[t->wait0 + j];

                if (wait->signal != dropped.signal || wait->count != full)
                    continue;
                if (--wait->count == 0)
                    *wait = target->waits[t->wait0 + --t->wait_count];
            }
        }
    }
    return true;
}

static bool swap_tasks(weft_plan_part *part, uint64_t *seed)
{
    const weft_lane *lane = &part->lanes[pick(seed, part->lane_count)];
    uint32_t a, b;
    weft_task task;

    if (lane->task_count < 2)
        return false;
    a = lane->task0 + pick(seed, lane->task_count);
    b = lane->task0 + pick(seed, lane->task_count);
    if (a == b)
        return false;
    task = part->tasks[a];
    part->tasks[a] = part->tasks[b];
    part->tasks[b] = task;
    return true;
}

static bool shrink_region(weft_plan_part *part, uint64_t *seed)
{
    weft_task *task = pick_task(part, seed, has_region);
    weft_region *region;

    if (!task)
        return false;
    region = &part->regions[task->region0 + pick(seed, task->region_count)];
    if (!region->rows || !region->cols)
        return false;
    if (pick(seed, 2))
        region->rows--;
    else
        region->cols--;
    return true;
}

/* One row fewer everywhere (a GEMM: not in B; no task shrinks its bias). */
static bool shrink_task(weft_plan_part *part, uint64_t *seed)
{
    weft_task *task = pick_task(part, seed, has_region);

    if (!task || !part->regions[task->region0].rows || !part->regions[task->region0].cols)
        return false;
    for (uint32_t i = 0; i < task->region_count; i++) {
        bool is_b = task->kind == WEFT_TASK_GEMM && i == task->destinations + 1u;
        bool is_bias = (task->flags & WEFT_TASK_HAS_BIAS) && i == task->region_count - 1u;

        if (!is_b && !is_bias)
            part->regions[task->region0 + i].rows--;
    }
    return true;
}

static bool move_region(weft_plan_part *part, uint64_t *seed)
{
    weft_task *task = pick_task(part, seed, has_region);
    weft_region *region;

    if (!task)
        return false;
    region = &part->regions[task->region0 + pick(seed, task->region_count)];
    if (!region->rows || !region->cols)
        return false;
    switch (pick(seed, 3)) {
    case 0:
        region->row0 += region->row0 ? -1 : 1;
        break;
    case 1:
        region->col0 += region->col0 ? -1 : 1;
        break;
    default:
        region->rank = (region->rank + 1) % part->world;
        break;
    }
    return true;
}

static bool post_earlier(weft_plan_part *part, uint64_t *seed)
{
    weft_task *task = pick_task(part, seed, has_post), *before;
    weft_post *posts, moved;
    uint32_t index, back;

    if (!task)
        return false;
    index = (uint32_t)(task - part->tasks);
    back = index - part->lanes[task->lane].task0;
    moved = part->posts[task->post0];
    if (!back || moved.signal < 2 * (uint32_t)part->world)
        return false;
    before = task - 1 - pick(seed, back);
    posts = realloc(part->posts, (part->post_count + before->post_count + 1u) * sizeof(*posts));
    CHECK(posts != NULL);
    part->posts = posts;
    for (uint32_t i = 0; i < before->post_count; i++)
        posts[part->post_count + i] = posts[before->post0 + i];
    before->post0 = part->post_count;
    part->post_count += before->post_count + 1u;
    posts[before->post0 + before->post_count++] = moved;
    task->post0++;
    task->post_count--;
    return true;
}

static bool adds(const weft_task *task)
{
    return task->kind == WEFT_TASK_REDUCE;
}

static bool swap_sources(weft_plan_part *part, uint64_t *seed)
{
    weft_task *task = pick_task(part, seed, adds);
    weft_region *sources, region;
    uint32_t count, a, b;

    if (!task)
        return false;
    count = task->region_count - task->destinations - !!(task->flags & WEFT_TASK_HAS_C) -
            !!(task->flags & WEFT_TASK_HAS_BIAS);
    sources = &part->regions[task->region0 + task->destinations];
    a = pick(seed, count);
    b = pick(seed, count);
    if (a == b)
        return false;
    region = sources[a];
    sources[a] = sources[b];
    sources[b] = region;
    return true;
}

static bool join_regions(weft_plan_part *part, uint64_t *seed)
{
    weft_task *task = pick_task(part, seed, has_region);
    weft_region *one, *other;

    if (!task)
        return false;
    one = &part->regions[task->region0 + pick(seed, task->region_count)];
    other = &part->regions[task->region0 + pick(seed, task->region_count)];
    if (one == other || !one->rows || !one->cols || one->rows != other->rows || one->cols != other->cols)
        return false;
    *other = *one;
    if (pick(seed, 2))
        other->row0 += other->row0 ? -1 : 1;
    return true;
}

/* A GEMM whose parts are not carried, with rows to divide. */
static bool is_product(const weft_task *task)
{
    return task->kind == WEFT_TASK_GEMM && !(task->flags & WEFT_TASK_CARRY);
}

static bool cut_task(weft_plan_part *part, uint64_t *seed)
{
    weft_task *task = pick_task(part, seed, is_product), lower;
    weft_region *regions;
    uint32_t index, at;
    int64_t upper;

    if (!task || part->regions[task->region0].rows < 2)
        return false;
    index = (uint32_t)(task - part->tasks);
    if (index && part->tasks[index - 1].flags & WEFT_TASK_CARRY)
        return false;
    upper = part->regions[task->region0].rows / 2;
    regions = realloc(part->regions, (part->region_count + task->region_count) * sizeof(*regions));
    part->regions = regions;
    part->tasks = realloc(part->tasks, (part->task_count + 1u) * sizeof(*part->tasks));
    CHECK(regions && part->tasks);
    task = &part->tasks[index];
    lower = *task;
    at = part->region_count;
    lower.region0 = at;
    lower.wait_count = 0;
    for (uint32_t i = 0; i < task->region_count; i++) {
        bool is_b = i == task->destinations + 1u;
        bool is_bias = (task->flags & WEFT_TASK_HAS_BIAS) && i == task->region_count - 1u;
        weft_region *r = &regions[task->region0 + i];

        regions[at + i] = *r;
        if (is_b || is_bias)
            continue;
        regions[at + i].row0 += upper;
        regions[at + i].rows -= upper;
        r->rows = upper;
    }
    part->region_count += task->region_count;
    task->post_count = 0;
    memmove(task + 2, task + 1, (part->task_count - index - 1) * sizeof(*task));
    task[1] = lower;
    part->task_count++;
    part->lanes[lower.lane].task_count++;
    for (uint32_t lane = lower.lane + 1u; lane < part->lane_count; lane++)
        part->lanes[lane].task0++;
    return true;
}

/* The same on every rank, or the parts would differ. */
static bool change_operand(weft_plan_part *parts, int world, bool type, uint64_t *seed)
{
    uint32_t which = pick(seed, parts[0].operand_count), how = pick(seed, 9);
    weft_dtype dtype = (weft_dtype)pick(seed, WEFT_BYTE);

    if (type && dtype == parts[0].operands[which].dtype)
        return false;
    for (int rank = 0; rank < world; rank++) {
        weft_operand *o = &parts[rank].operands[which];

        if (type) {
            o->dtype = dtype;
            continue;
        }
        switch (how) {
        case 0:
            o->place = (weft_operand_place)((o->place + 1) % 3);
            break;
        case 1:
            o->role = (weft_operand_role)((o->role + 1) % WEFT_ROLE_COUNT);
            break;
        case 2:
            o->output = !o->output;
            break;
        case 3:
            o->rows_parted = !o->rows_parted;
            break;
        case 4:
            o->cols_parted = !o->cols_parted;
            break;
        case 5:
            o->packed = !o->packed;
            break;
        case 6:
            o->handed_on = !o->handed_on;
            break;
        case 7:
            o->rows++;
            break;
        default:
            o->batch++;
            break;
        }
    }
    return true;
}

/* A COPY that this rank pushes to a peer: over nodes, a message. */
static weft_task *pick_push(weft_plan_part *part, uint64_t *seed)
{
    for (int tries = 0; tries < 50; tries++) {
        weft_task *task = &part->tasks[pick(seed, part->task_count)];

        if (task->kind == WEFT_TASK_COPY && task->region_count &&
            part->regions[task->region0].rank != part->rank)
            return task;
    }
    return NULL;
}

/* The counts of posts move along, so that they still add up. */
static bool redirect(weft_plan_part *parts, int world, int rank, uint64_t *seed)
{
    weft_plan_part *part = &parts[rank];
    weft_task *task = pick_push(part, seed);
    int from, to = (int)pick(seed, (uint32_t)world);

    if (!task)
        return false;
    from = part->regions[task->region0].rank;
    if (to == rank || to == from)
        return false;
    part->regions[task->region0].rank = to;
    for (uint32_t i = 0; i < task->post_count; i++) {
        weft_post *post = &part->posts[task->post0 + i];

        if (post->rank != from)
            continue;
        parts[from].signal_posts[post->signal]--;
        parts[to].signal_posts[post->signal]++;
        post->rank = to;
    }
    return true;
}

static bool swap_pushes(weft_plan_part *part, uint64_t *seed)
{
    weft_task *one = pick_push(part, seed), *other = one ? pick_push(part, seed) : NULL;
    weft_region *a, *b, swap;

    if (!other || other == one)
        return false;
    a = &part->regions[one->region0 + 1];
    b = &part->regions[other->region0 + 1];
    if (memcmp(a, b, sizeof(*a)) == 0 || a->rows != b->rows || a->cols != b->cols ||
        part->operands[a->operand].dtype != part->operands[b->operand].dtype)
        return false;
    swap = *a;
    *a = *b;
    *b = swap;
    return true;
}

static bool holds(const weft_operand *operand, int world, const weft_region *region)
{
    return region->row0 + region->rows <= weft_operand_rows(operand, world, region->rank) &&
           region->col0 + region->cols <= weft_operand_cols(operand, world, region->rank) &&
           region->batch < (operand->batch ? operand->batch : 1);
}

static bool change_region(weft_plan_part *part, int world, bool operand, uint64_t *seed)
{
    weft_task *task = pick_task(part, seed, has_region);
    weft_region *region, changed;

    if (!task)
        return false;
    region = &part->regions[task->region0 + pick(seed, task->region_count)];
    changed = *region;
    if (operand)
        changed.operand = pick(seed, part->operand_count);
    else
        changed.rank = (int32_t)pick(seed, (uint32_t)world);
    if ((changed.operand == region->operand && changed.rank == region->rank) ||
        part->operands[changed.operand].packed != part->operands[region->operand].packed ||
        part->operands[changed.operand].dtype != part->operands[region->operand].dtype ||
        !holds(&part->operands[changed.operand], world, &changed))
        return false;
    *region = changed;
    return true;
}

static bool change_word(weft_plan_part *part, int world, mutation kind, uint64_t *seed)
{
    weft_task *task = pick_task(part, seed, kind == POST_ELSEWHERE ? has_post : has_wait);
    uint32_t other = pick(seed, part->signal_count);

    if (!task)
        return false;
    if (kind == POST_ELSEWHERE) {
        weft_post *post = &part->posts[task->post0 + pick(seed, task->post_count)];

        if (pick(seed, 2))
            post->signal = other;
        else
            post->rank = (int32_t)pick(seed, (uint32_t)world);
    } else {
        weft_wait *wait = &part->waits[task->wait0 + pick(seed, task->wait_count)];

        if (kind == WAIT_LESS && wait->count < 2)
            return false;
        if (kind == WAIT_LESS)
            wait->count--;
        else
            wait->signal = other;
    }
    return true;
}

static bool change_name(weft_plan_part *parts, int world, uint64_t *seed)
{
    const weft_problem *problem = &parts[0].problem;
    int count;
    const weft_schedule *list = weft_schedule_list(problem->op, problem->layout, &count);
    weft_schedule name = list[pick(seed, (uint32_t)count)];

    if (name == problem->schedule)
        return false;
    for (int rank = 0; rank < world; rank++)
        parts[rank].problem.schedule = name;
    return true;
}

static bool mutate(weft_plan_part *parts, int world, mutation kind, uint64_t *seed)
{
    int rank = (int)pick(seed, (uint32_t)world);
    weft_plan_part *part = &parts[rank];
    weft_task *task;
    uint32_t at;

    switch (kind) {
    case DROP_WAIT:
        task = pick_task(part, seed, has_wait);
        if (!task)
            return false;
        at = pick(seed, task->wait_count);
        part->waits[task->wait0 + at] = part->waits[task->wait0 + --task->wait_count];
        return true;
    case DROP_POST:
        return drop_post(parts, rank, false, seed);
    case FORGET_POST:
        return drop_post(parts, rank, true, seed);
    case SWAP_TASKS:
        return swap_tasks(part, seed);
    case SHRINK_REGION:
        return shrink_region(part, seed);
    case SHRINK_TASK:
        return shrink_task(part, seed);
    case POST_EARLIER:
        return post_earlier(part, seed);
    case SWAP_SOURCES:
        return swap_sources(part, seed);
    case JOIN_REGIONS:
        return join_regions(part, seed);
    case CUT_TASK:
        return cut_task(part, seed);
    case CARRY_ON:
        task = pick_task(part, seed, has_region);
        if (!task)
            return false;
        task->flags ^= WEFT_TASK_CARRY;
        return true;
    case REDIRECT:
        return redirect(parts, world, rank, seed);
    case SWAP_PUSHES:
        return swap_pushes(part, seed);
    case OTHER_OPERAND:
    case OTHER_RANK:
        return change_region(part, world, kind == OTHER_OPERAND, seed);
    case FINISH:
        task = pick_task(part, seed, has_region);
        if (!task || task->kind == WEFT_TASK_COPY)
            return false;
        task->flags ^= WEFT_TASK_EPILOGUE;
        return true;
    case WAIT_LESS:
    case WAIT_ELSEWHERE:
    case POST_ELSEWHERE:
        return change_word(part, world, kind, seed);
    case OTHER_NAME:
        return change_name(parts, world, seed);
    case CHANGE_TYPE:
    case CHANGE_OPERAND:
        return change_operand(parts, world, kind == CHANGE_TYPE, seed);
    default:
        return move_region(part, seed);
    }
}

/* Is there a schedule under which the mutant fails? A few random ones of each kind are tried. */
static bool meaning_changed(const weft_plan_part *parts, int world, uint64_t seed, int schedules)
{
    for (int i = 0; i < schedules; i++) {
        if (interpret(parts, world, 3, i % 2, seed + (uint64_t)i) != INTERPRET_EXACT)
            return true;
    }
    return interpret_bits(parts, world, seed) != INTERPRET_EXACT;
}

static void one_mutant(const interpret_kind *kind, mutation how, uint64_t seed)
{
    uint64_t state = seed;
    weft_problem problem = interpret_random(kind->op, kind->schedule, kind->layout, &state);
    int world = 2 + (int)(check_random(&state) % 4);
    weft_plan_part parts[5];
    int32_t domain[5] = {0};
    tally *count = &tallies[how];

    if (check_random(&state) % 2 &&
        !(kind->layout == WEFT_LAYOUT_GATHER_B && problem.b_form == WEFT_B_PREPACKED))
        interpret_domains(world, domain, &state);
    problem.root = (int)(check_random(&state) % (uint64_t)world);
    problem.m += 2;
    problem.n += 2;
    problem.k += 1;
    problem.count += 3;
    if (!interpret_make_over(&problem, domain, world, parts)) {
        CHECK(!"a plan was made");
        return;
    }
    if (mutate(parts, world, how, &state)) {
        weft_check_report report;
        weft_error_text error;
        bool accepted, changed;

        CHECK_INT(weft_plan_check(parts, world, &report, &error), WEFT_OK);
        accepted = report.count == 0;
        changed = meaning_changed(parts, world, seed, accepted ? 12 : 4);
        count->made++;
        count->changed += changed;
        count->caught += changed && !accepted;
        count->equivalent += accepted && !changed;
        count->cautious += !accepted && !changed;
        if (accepted && changed)
            fprintf(stderr, "accepted but wrong: %s, seed %llu: %s\n", mutation_names[how],
                    (unsigned long long)seed, interpret_describe(&problem, world));
        CHECK(!(accepted && changed));
    }
    interpret_free(parts, world);
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    long count = argc > 2 ? strtol(argv[2], NULL, 10) : check_repeat(9, 400), changed = 0, caught = 0;
    interpret_kind kind;

    for (int i = 0; interpret_kind_at(i, &kind); i++) {
        for (int how = 0; how < MUTATIONS; how++) {
            for (long j = 0; j < count; j++)
                one_mutant(&kind, (mutation)how,
                           first + 100000u * (uint64_t)(i * MUTATIONS + how + 1) + (uint64_t)j);
        }
    }
    printf("%-14s %8s %8s %8s %11s %9s\n", "mutation", "mutants", "changed", "caught", "equivalent",
           "cautious");
    for (int how = 0; how < MUTATIONS; how++) {
        const tally *t = &tallies[how];

        printf("%-14s %8ld %8ld %8ld %11ld %9ld\n", mutation_names[how], t->made, t->changed, t->caught,
               t->equivalent, t->cautious);
        CHECK(t->made > 0 && t->changed > 0);
        changed += t->changed;
        caught += t->caught;
    }
    CHECK(1000 * caught >= 995 * changed);
    return check_report("test_plan_mutate");
}
