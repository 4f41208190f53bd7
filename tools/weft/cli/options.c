/* Reads the arguments of bench, plan and sim by the flag table. See options.h. */
#include "cli/options_flags.h"
#include "cli/sets.h"

#include "core/cpu.h"
#include "core/dtype.h"
#include "plan/plan.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int options_error(const char *command, const char *format, ...)
{
    char line[1024];
    va_list args;

    va_start(args, format);
    if (vsnprintf(line, sizeof line, format, args) >= (int)sizeof line)
        memcpy(line + sizeof line - 4, "...", 4);
    va_end(args);
    for (char *c = line; *c; c++) /* an argument that is told back may have lines of its own */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    fprintf(stderr, "weft %s: %s\n", command, line);
    return 2;
}

/* ---- reading -------------------------------------------------------------------------------------- */

static bool name_matches(const char *names, const char *name, size_t length)
{
    while (*names) {
        size_t here = strcspn(names, "|");
        if (here == length && memcmp(names, name, length) == 0)
            return true;
        names += here + (names[here] == '|');
    }
    return false;
}

static const char *first_name(const options_flag *flag, char buffer[static 40])
{
    snprintf(buffer, 40, "%.*s", (int)strcspn(flag->names, "|"), flag->names);
    return buffer;
}

static bool is_number(const char *text)
{
    return *text && strspn(text, "0123456789") == strlen(text);
}

/* Stores a value; returns NULL or what it should have been. */
static const char *store(const options_flag *flag, const char *value, char *wanted, size_t wanted_bytes)
{
    char *end;

    errno = 0;
    switch (flag->kind) {
    case OPTIONS_SWITCH:
        *(bool *)flag->target = true;
        return NULL;
    case OPTIONS_TEXT:
        *(const char **)flag->target = value;
        return *value ? NULL : "something";
    case OPTIONS_CALL:
        return flag->read(flag->target, value);
    case OPTIONS_INT: {
        long long number = strtoll(value, &end, 10);
        if (end == value || *end || errno || (double)number < flag->min || (double)number > flag->max) {
            snprintf(wanted, wanted_bytes, "a whole number from %.0f to %.0f", flag->min, flag->max);
            return wanted;
        }
        *(int64_t *)flag->target = number;
        return NULL;
    }
    case OPTIONS_REAL: {
        double number = strtod(value, &end);
        if (end == value || *end || !(number >= flag->min && number <= flag->max)) {
            snprintf(wanted, wanted_bytes, "a number from %g to %g", flag->min, flag->max);
            return wanted;
        }
        *(double *)flag->target = number;
        return NULL;
    }
    }
    return "readable";
}

static int set_plain_number(weft_options *o, const char *command, const char *text)
{
    int64_t *const target[] = {&o->problem.m, &o->problem.n, &o->problem.k};
    long long number;

    errno = 0;
    number = strtoll(text, NULL, 10);
    if (o->numbers == 3)
        return options_error(command, "%s: only three plain numbers are read: M N K", text);
    if (errno || number < 1 || number > OPTIONS_MOST_EXTENT)
        return options_error(command, "%s: M, N and K are whole numbers from 1 to %" PRId64, text,
                             OPTIONS_MOST_EXTENT);
    *target[o->numbers++] = number;
    return 0;
}

static int set_op(weft_options *o, const char *command, const char *const *ops, const char *name)
{
    if (isdigit((unsigned char)*name))
        return options_error(command, "%s: M, N and K are whole numbers", name);
    if (o->op_name)
        return options_error(command, "%s: the operation is %s already", name, o->op_name);
    for (; ops && *ops; ops++) {
        if (strcmp(*ops, name) == 0) {
            o->op_name = *ops;
            return 0;
        }
    }
    if (weft_op_parse(name, &o->problem.op) != 0)
        return options_error(command, "%s is not an operation (weft %s --help lists them)", name, command);
    o->op_name = weft_op_name(o->problem.op);
    o->is_plan_op = true;
    return 0;
}

static weft_options *defaults(weft_options *o)
{
    struct timespec now;

    memset(o, 0, sizeof *o);
    o->problem.size = sizeof o->problem;
    o->problem.l = 1;
    o->problem.alpha = 1.0f;
    o->problem.b_form = WEFT_B_PACK_IN_RUN;
    o->ranks = 2;
    o->warmup = 10;
    clock_gettime(CLOCK_REALTIME, &now);
    o->seed = (uint64_t)now.tv_sec * 1000003u ^ (uint64_t)now.tv_nsec;
    return o;
}

/* What the last parsed flags imply for one another. */
static int settle_op(weft_options *o, const char *command, const char *const *ops)
{
    weft_problem *p = &o->problem;

    if (o->collective) {
        const char *meant = strcmp(o->collective, "all_reduce") == 0 ? "gemm_ar" : "gemm_as";
        if (o->op_name && strcmp(o->op_name, meant) && strcmp(o->op_name, o->collective))
            return options_error(command, "--collective %s means %s, but the operation asked for is %s",
                                 o->collective, meant, o->op_name);
        if (!o->op_name) {
            int status = set_op(o, command, NULL, meant);
            if (status)
                return status;
            if (strcmp(o->collective, "all_gather") == 0 && !o->schedule_given) {
                p->schedule = WEFT_SCHEDULE_UNFUSED;
                o->schedule_given = true;
            }
        }
    }
    if (!o->op_name && o->schedule_given && !o->schedule_all) {
        switch (p->schedule) {
        case WEFT_SCHEDULE_ALLGATHER_ROTATING_A:
        case WEFT_SCHEDULE_ALLGATHER_ROTATING_B:
            return set_op(o, command, ops, "ag_gemm");
        case WEFT_SCHEDULE_REDUCESCATTER_TILING_A:
        case WEFT_SCHEDULE_REDUCESCATTER_TILING_B:
            return set_op(o, command, ops, "gemm_rs");
        case WEFT_SCHEDULE_ONE_SHOT:
        case WEFT_SCHEDULE_TWO_SHOT:
        case WEFT_SCHEDULE_MULTIMEM:
            return set_op(o, command, ops, o->sizes_given ? "gemm_ar" : "all_reduce");
        case WEFT_SCHEDULE_ALL_SCATTER:
            return set_op(o, command, ops, "gemm_as");
        default:
            break;
        }
    }
    if (!o->op_name)
        return options_error(command, "which operation? (weft %s --help lists them)", command);
    return 0;
}

static bool op_has_schedule(weft_op op, weft_schedule schedule)
{
    static const weft_layout layouts[] = {WEFT_LAYOUT_DEFAULT, WEFT_LAYOUT_GATHER_B,
                                          WEFT_LAYOUT_SCATTER_COLS};

    if (schedule == WEFT_SCHEDULE_AUTO)
        return true;
    for (int i = 0; i < 3; i++) {
        int count;
        const weft_schedule *list = weft_schedule_list(op, layouts[i], &count);
        for (int j = 0; j < count; j++) {
            if (list[j] == schedule)
                return true;
        }
    }
    return false;
}

static int settle_problem(weft_options *o, const char *command)
{
    weft_problem *p = &o->problem, resolved;
    weft_error_text error;
    bool gemm = p->op <= WEFT_OP_GEMM_AS;

    if (o->schedule_wanted)
        return options_error(command, "--schedule %s: must be %s", o->impl, o->schedule_wanted);
    if (!op_has_schedule(p->op, p->schedule))
        return options_error(command, "%s has no schedule %s (weft %s --help lists them)", o->op_name,
                             weft_schedule_name(p->op, p->schedule), command);
    if (gemm && p->dtype > WEFT_I8 && !weft_dtype_is_fp8(p->dtype))
        return options_error(command, "--dtype %s: %s multiplies float32, bfloat16, float16, int8 or fp8",
                             weft_dtype_name(p->dtype), o->op_name);
    if (o->wire_given && weft_dtype_is_fp8(o->wire_dtype))
        return options_error(command, "--wire fp8: partial sums travel as float32, bfloat16 or float16");
    if (o->wire_given && p->dtype == WEFT_I8)
        return options_error(command, "--wire %s: partial sums of int8 are int32, and travel so",
                             weft_dtype_name(o->wire_dtype));
    p->d_dtype = weft_dtype_result(p->dtype);
    p->wire_dtype = o->wire_given ? o->wire_dtype : weft_dtype_accumulator(p->dtype);
    p->tuning.workers = (int)o->threads;
    if (!p->m)
        p->m = 1024;
    if (!p->n)
        p->n = 4096;
    if (!p->k)
        p->k = 4096;
    if (o->scale > 0 && !o->set)
        return options_error(command, "--scale divides the shapes of a set: --set is missing");
    if (o->set && o->sizes_given)
        return options_error(command, "--set %s brings its own M, N and K: give one or the other", o->set);
    if (o->set && !set_is_known(o->set))
        return options_error(command, "--set %s: must be one of %s", o->set, set_names);
    if (o->set && strcmp(o->set, "decode") == 0 && !o->pack_given)
        p->b_form = WEFT_B_PREPACKED;
    if (weft_problem_resolve(p, (int)o->ranks, &resolved, &error) != WEFT_OK)
        return options_error(command, "%s", error.text);
    if (strcmp(command, "bench") == 0 && gemm && weft_layout_gathers_k(p->layout))
        return options_error(command, "--gather: along k it is planned and simulated, not measured here");
    if (strcmp(command, "bench") == 0 && gemm && weft_problem_is_gated(p))
        return options_error(command,
                             "--act: gated activations are planned and simulated, not measured here");
    if (strcmp(command, "bench") == 0 && gemm && resolved.layout == WEFT_LAYOUT_GATHER_B &&
        p->b_form == WEFT_B_PREPACKED)
        return options_error(
            command, "--pack before: unfused, which is measured beside it, cannot gather packed weights");
    return 0;
}

/* Whether `word` is one of the words that spaces separate. */
static bool is_listed(const char *words, const char *word)
{
    for (size_t length; *words; words += length + (words[length] == ' ')) {
        length = strcspn(words, " ");
        if (strlen(word) == length && memcmp(words, word, length) == 0)
            return true;
    }
    return false;
}

/* A flag that means nothing to the operation is an error: it would do nothing without a word. */
static int check_meant(const weft_options *o, const char *command, const options_flag *flag)
{
    const char *family = !o->is_plan_op                     ? o->op_name
                         : o->problem.op <= WEFT_OP_GEMM_AS ? "products"
                                                            : "collectives";
    char name[40], ops[80];
    size_t length = 0;

    if (is_listed(flag->ops, o->op_name) || is_listed(flag->ops, family))
        return 0;
    for (const char *c = flag->ops; *c && length + 3 < sizeof ops; c++) {
        if (*c == ' ')
            ops[length++] = ',';
        ops[length++] = *c;
    }
    ops[length] = 0;
    return options_error(command, "%s belongs to %s, not to %s", first_name(flag, name), ops, o->op_name);
}

/* All ranks of a bench look at the same time: where the file is missing, each tries a name of its own, so
 * that none finds or removes what another has just made. */
int options_check_writable(const char *command, const char *flag, const char *path)
{
    char try[PATH_MAX];
    int file = path ? open(path, O_WRONLY | O_CLOEXEC) : -1;

    if (!path)
        return 0;
    if (file < 0 && errno == ENOENT && snprintf(try, sizeof try, "%s.%d", path, (int)getpid()) < PATH_MAX) {
        file = open(try, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file >= 0)
            unlink(try);
    }
    if (file < 0)
        return options_error(command, "%s %s: cannot write there: %s", flag, path, strerror(errno));
    close(file);
    return 0;
}

static int settle_files(const weft_options *o, const char *command)
{
    int status = options_check_writable(command, "--trace", o->trace);

    if (o->trace && o->svg && strcmp(o->trace, o->svg) == 0)
        return options_error(command, "--trace and --svg need two files, not %s twice", o->svg);
    if (o->html && ((o->svg && strcmp(o->html, o->svg) == 0) || (o->trace && strcmp(o->html, o->trace) == 0)))
        return options_error(command, "--html needs a file of its own, not %s", o->html);
    if ((o->svg || o->trace) && (o->set || o->schedule_all))
        return options_error(command, "%s draws one run, not every row of %s: --html does",
                             o->svg ? "--svg" : "--trace", o->set ? "--set" : "--schedule all");
    if (status == 0)
        status = options_check_writable(command, "--svg", o->svg);
    return status ? status : options_check_writable(command, "--html", o->html);
}

/* The flag an argument names; *value is what follows '=' or the letter, NULL when nothing does. */
static const options_flag *find_flag(const options_flag *flags, int count, const char *argument,
                                     const char **value)
{
    bool is_long = argument[1] == '-';
    size_t length = is_long ? strcspn(argument, "=") : 2;

    *value =
        is_long ? (argument[length] ? argument + length + 1 : NULL) : (argument[2] ? argument + 2 : NULL);
    for (int i = 0; i < count; i++) {
        if (name_matches(flags[i].names, argument, length))
            return &flags[i];
    }
    return NULL;
}

/* Whether a flag says what the problem is, or how it is made: all that a plan from a file says itself. */
static bool is_of_problem(const weft_options *o, const options_flag *flag)
{
    const char *target = flag->target, *problem = (const char *)&o->problem;

    return (target >= problem && target < problem + sizeof(o->problem)) || flag->target == &o->set ||
           flag->target == &o->scale;
}

int options_parse(weft_options *o, const char *command, const char *const *ops, const options_flag *more,
                  int argc, char **argv)
{
    options_flag flags[OPTIONS_MOST_FLAGS];
    const options_flag *special[OPTIONS_MOST_FLAGS];
    int count = options_problem_flags(defaults(o), command, flags), specials = 0, status = 0;
    char name[40], wanted[96];

    for (; more && more->names && count < OPTIONS_MOST_FLAGS; more++)
        flags[count++] = *more;
    for (int i = 0; i < argc && !status; i++) {
        const char *argument = argv[i], *value;
        if (argument[0] != '-' || !argument[1]) {
            status = is_number(argument) ? set_plain_number(o, command, argument)
                                         : set_op(o, command, ops, argument);
            continue;
        }
        const options_flag *flag = find_flag(flags, count, argument, &value);
        if (!flag)
            return options_error(command, "unknown flag %s (weft %s --help lists them)", argument, command);
        snprintf(name, sizeof name, "%.*s", argument[1] == '-' ? (int)strcspn(argument, "=") : 2, argument);
        if (!flag->value && value)
            return options_error(command, "%s takes no value", name);
        if (flag->value && !value) {
            if (++i == argc)
                return options_error(command, "%s needs a value: %s", argument, flag->help);
            value = argv[i];
        }
        const char *right = store(flag, value ? value : "", wanted, sizeof wanted);
        if (right)
            return options_error(command, "%s %s: must be %s", name, value, right);
        if (flag->target == &o->ranks)
            o->ranks_given = true;
        if (!o->problem_flag && is_of_problem(o, flag))
            o->problem_flag = argument;
        if (flag->ops && specials < OPTIONS_MOST_FLAGS)
            special[specials++] = flag;
    }
    if (status || o->help)
        return status;
    if (o->numbers == 1 || o->numbers == 2)
        return options_error(command, "plain numbers come as three: M N K");
    o->sizes_given = o->problem.m || o->problem.n || o->problem.k;
    status = settle_op(o, command, ops);
    for (int i = 0; i < specials && !status; i++)
        status = check_meant(o, command, special[i]);
    if (status == 0 && o->numbers &&
        (o->is_plan_op ? o->problem.op > WEFT_OP_GEMM_AS : strcmp(o->op_name, "gemm")))
        status =
            options_error(command, "three plain numbers are M N K of a product, which %s is not", o->op_name);
    if (status == 0)
        status = settle_files(o, command);
    return status || !o->is_plan_op ? status : settle_problem(o, command);
}

int options_threads(const weft_options *o)
{
    long cores = weft_cpu_count();

    if (o->threads)
        return (int)o->threads;
    return cores > o->ranks ? (int)(cores / o->ranks) : 1;
}
