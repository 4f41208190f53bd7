/*
 * Machine descriptions as nobody would write them: the shipped ones with lines, words and bytes changed.
 * Reading one gives a machine or one line that says what is wrong; a small problem on a machine that was read
 * takes a finite time, which is told soon.
 *
 * usage: test_fuzz_machine [seed]
 */
#include "support/check.h"

#include "choose/machine.h"
#include "sim/sim.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 16384, MOST_FILES = 16, HANG_SECONDS = 60 };

static char shipped[MOST_FILES][TEXT_BYTES];
static int shipped_count;

static void read_shipped(void)
{
    DIR *folder = opendir(MACHINES_DIR);
    char path[512];

    CHECK(folder != NULL);
    for (struct dirent *entry; folder && (entry = readdir(folder)) && shipped_count < MOST_FILES;) {
        if (!strstr(entry->d_name, ".machine"))
            continue;
        snprintf(path, sizeof(path), "%s/%.200s", MACHINES_DIR, entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file)
            continue;
        shipped[shipped_count][fread(shipped[shipped_count], 1, TEXT_BYTES - 1, file)] = 0;
        shipped_count++;
        fclose(file);
    }
    if (folder)
        closedir(folder);
    CHECK(shipped_count > 0);
}

static int below(uint64_t *state, int bound)
{
    return (int)(check_random(state) % (uint64_t)bound);
}

/* The line with this number, without its end. */
static const char *line_of(const char *text, int number, int *length)
{
    for (; number > 0 && strchr(text, '\n'); number--)
        text = strchr(text, '\n') + 1;
    *length = (int)strcspn(text, "\n");
    return text;
}

static int count_lines(const char *text)
{
    int lines = 1;

    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

/* Puts `word` in the place of the one that begins at `at`. */
static void replace_word(char *text, size_t at, const char *word)
{
    static char rest[TEXT_BYTES];
    size_t length = strcspn(text + at, " \t\n");

    snprintf(rest, sizeof(rest), "%s", text + at + length);
    snprintf(text + at, TEXT_BYTES - at, "%s%s", word, rest);
}

static void mutate(uint64_t *state, char *text)
{
    static const char *const words[] = {
        "0",          "-1",     "1e308", "1e-308", "nan",  "inf",      "-inf",   "99999999999999999999",
        "2147483648", "65536",  "0x10",  "1e9",    "",     "cpu",      "gpu",    "ring",
        "mesh",       "switch", "bf16",  "like",   "name", "\xff\xfe", "%s%n%d", "nodes",
        "0.5",        "f32",    "units", "65537",  "1",    "kind"};
    size_t bytes = strlen(text);
    static char line[TEXT_BYTES];
    int length;
    const char *from;

    if (bytes == 0)
        return;
    switch (below(state, 6)) {
    case 0: /* a byte */
        text[check_random(state) % bytes] = (char)(1 + below(state, 255));
        break;
    case 1: /* a word */
    case 2: {
        size_t at = check_random(state) % bytes;
        while (at > 0 && !strchr(" \t\n", text[at - 1]))
            at--;
        replace_word(text, at, words[below(state, (int)(sizeof(words) / sizeof(words[0])))]);
        break;
    }
    case 3: /* a line twice, at the end */
        from = line_of(text, below(state, count_lines(text)), &length);
        if (bytes + (size_t)length + 3 > TEXT_BYTES)
            break;
        memcpy(line, from, (size_t)length);
        text[bytes] = '\n';
        memcpy(text + bytes + 1, line, (size_t)length);
        text[bytes + 1 + (size_t)length] = 0;
        break;
    case 4: /* a line less */
        from = line_of(text, below(state, count_lines(text)), &length);
        memmove(text + (from - text), from + length, strlen(from + length) + 1);
        break;
    default: /* the end less */
        if (below(state, 4) == 0)
            text[check_random(state) % bytes] = 0;
    }
}

/* The time of a small problem is finite or an error says why there is none. */
static void simulate(uint64_t *state, const weft_machine *machine)
{
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR, WEFT_OP_GEMM_AS,
                                  WEFT_OP_ALL_REDUCE};
    weft_problem problem = {.size = sizeof(problem), .op = ops[below(state, 5)], .l = 1, .alpha = 1};
    weft_problem resolved;
    weft_sim_result result;
    weft_error_text error = {0};
    int world = 1 + below(state, 6);

    problem.m = 1 + below(state, 300);
    problem.n = 1 + below(state, 300);
    problem.k = 1 + below(state, 300);
    problem.count = 1 + below(state, 5000);
    problem.dtype = problem.d_dtype = below(state, 2) ? WEFT_F32 : WEFT_BF16;
    problem.wire_dtype = WEFT_F32;
    if (weft_problem_resolve(&problem, world, &resolved, &error) != WEFT_OK)
        return;
    if (resolved.schedule == WEFT_SCHEDULE_AUTO &&
        weft_choose_schedule(machine, &resolved, world, &resolved.schedule, &error) != WEFT_OK) {
        CHECK(error.text[0] && !strchr(error.text, '\n'));
        return;
    }
    weft_choose_tiles(machine, world, &resolved);
    weft_sim_source source = {.problem = &resolved, .world = world};
    if (weft_sim_run(machine, &source, WEFT_SIM_ALL, false, &result, &error) != WEFT_OK) {
        CHECK(error.text[0] && !strchr(error.text, '\n'));
        return;
    }
    CHECK(isfinite(result.us) && result.us >= 0);
    weft_sim_result_free(&result);
}

static void try_one(uint64_t seed)
{
    static char text[TEXT_BYTES];
    uint64_t state = seed;
    weft_machine machine;
    weft_error_text error = {0};

    snprintf(text, sizeof(text), "%s", shipped[below(&state, shipped_count)]);
    for (int changes = 1 + below(&state, 6); changes > 0; changes--)
        mutate(&state, text);
    if (weft_machine_parse(text, "here", &machine, &error) == WEFT_OK)
        simulate(&state, &machine);
    else {
        CHECK_INT(strncmp(error.text, "here", 4), 0);
        CHECK(!strchr(error.text, '\n'));
    }
}

static char last_words[80]; /* written before each case: a handler may not format */

/* A crash or a hang (SIGALRM) names its seed too. */
static void name_seed(int signal)
{
    (void)signal;
    (void)!write(STDERR_FILENO, last_words, strlen(last_words));
    _exit(1);
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL) * 1000003;
    long cases = argc > 1 ? 1 : check_repeat(2000, 1000000);

    read_shipped();
    signal(SIGALRM, name_seed);
    signal(SIGSEGV, name_seed);
    signal(SIGABRT, name_seed);
    signal(SIGFPE, name_seed);
    for (long i = 0; i < cases; i++) {
        int before = check_failures;

        snprintf(last_words, sizeof(last_words), "test_fuzz_machine: seed %" PRIu64 "\n",
                 first + (uint64_t)i);
        alarm(HANG_SECONDS);
        try_one(first + (uint64_t)i);
        if (check_failures > before)
            fputs(last_words, stderr);
    }
    return check_report("test_fuzz_machine");
}
