/*
 * The command's arguments as nobody would type them: operations, flags and values at random, right ones
 * beside wrong ones. Flags are those that --help lists, so new ones are tried too. Whatever comes, the
 * command ends by itself with status 0, 1 or 2, and where it is not 0 it says why: with 2, in one line that
 * begins with its name.
 *
 * usage: test_fuzz_command path/to/weft [seed]
 */
#include "support/check.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_FLAGS = 96, MOST_WORDS = 64, OUTPUT_BYTES = 65536, HANG_MS = 120000 };

#if defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

typedef struct flag {
    char name[40];
    bool takes_value;
} flag;

typedef struct tried_command {
    const char *name;
    const char *ops[16];
    flag flags[MOST_FLAGS];
    int flag_count;
} tried_command;

static tried_command commands[] = {
    {.name = "bench",
     .ops = {"ag_gemm", "gemm_rs", "gemm_ar", "gemm_as", "gemm", "all_reduce", "all_gather", "reduce_scatter",
             "all_to_all", "broadcast", "moe", "barrier"}},
    {.name = "plan",
     .ops = {"ag_gemm", "gemm_rs", "gemm_ar", "gemm_as", "all_reduce", "all_gather", "all_to_all"}},
    {.name = "sim",
     .ops = {"ag_gemm", "gemm_rs", "gemm_ar", "gemm_as", "all_reduce", "broadcast", "reduce_scatter", "moe"}},
    {.name = "tune", .ops = {"ag_gemm", "gemm_rs", "gemm_ar", "gemm_as", "all_reduce", "broadcast"}},
    {.name = "run"},
    {.name = "info"},
};

static const char *weft;
static char output[OUTPUT_BYTES], errors[OUTPUT_BYTES];

static int below(uint64_t *state, int bound)
{
    return (int)(check_random(state) % (uint64_t)bound);
}

#define ANY(state, list) (list)[below(state, (int)(sizeof(list) / sizeof((list)[0])))]

/* ---- running it ----------------------------------------------------------------------------------- */

static void append(char *text, int from, bool *open)
{
    char data[4096];
    ssize_t got = read(from, data, sizeof(data));
    size_t used = strlen(text);

    if (got <= 0) {
        *open = false;
        return;
    }
    if ((size_t)got > OUTPUT_BYTES - 1 - used)
        got = (ssize_t)(OUTPUT_BYTES - 1 - used);
    for (ssize_t i = 0; i < got; i++)
        text[used + (size_t)i] = data[i] ? data[i] : '?';
    text[used + (size_t)got] = 0;
}

/* Runs the command; its output in `output` and `errors`. Returns its wait status, -1 when it did not end. */
static int run_command(char **words)
{
    int out[2], err[2], status = -1;
    bool out_open = true, err_open = true, hangs = false;

    output[0] = errors[0] = 0;
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit space = {(rlim_t)6 << 30, (rlim_t)6 << 30}; /* the machine is not ours alone */
        int null = open("/dev/null", O_RDONLY);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!SANITIZED)
            setrlimit(RLIMIT_AS, &space);
        dup2(null, STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        execv(weft, words);
        _exit(99);
    }
    close(out[1]);
    close(err[1]);
    while (out_open || err_open) {
        struct pollfd both[] = {{.fd = out_open ? out[0] : -1, .events = POLLIN},
                                {.fd = err_open ? err[0] : -1, .events = POLLIN}};

        if (poll(both, 2, HANG_MS) == 0) { /* nothing was said for so long */
            hangs = true;
            kill(pid, SIGKILL);
            break;
        }
        if (both[0].revents)
            append(output, out[0], &out_open);
        if (both[1].revents)
            append(errors, err[0], &err_open);
    }
    close(out[0]);
    close(err[0]);
    waitpid(pid, &status, 0);
    return hangs ? -1 : status;
}

/* Collects the flags that --help lists: lines of two spaces and a dash; names come before the value's. */
static void learn_flags(tried_command *command)
{
    char *words[] = {(char *)weft, (char *)command->name, "--help", NULL};

    CHECK_INT(run_command(words), 0);
    for (char *line = strtok(output, "\n"); line; line = strtok(NULL, "\n")) {
        char *at = line + 2;
        int first = command->flag_count;

        if (strncmp(line, "  -", 3) != 0)
            continue;
        while (*at == '-' && command->flag_count < MOST_FLAGS) {
            int length = (int)strcspn(at, ", ");
            flag *it = &command->flags[command->flag_count++];

            snprintf(it->name, sizeof(it->name), "%.*s", length, at);
            at += length + (at[length] == ',') + 1;
        }
        bool takes_value = at[0] && at[-1] == ' ' && at[0] != ' ';
        for (int i = first; i < command->flag_count; i++)
            command->flags[i].takes_value = takes_value;
    }
}

/* ---- making it up --------------------------------------------------------------------------------- */

/* Values that flags of this name take, separated by spaces; what takes a number takes any of the small ones.
 */
static const struct {
    const char *names, *values;
} fits[] = {
    {"--dtype --wire", "f32 bf16 f16 i8 int32 int64 float32"},
    {"--schedule --impl",
     "auto all unfused direct one_shot two_shot multimem push pull all_scatter "
     "AllGather1D_TilingCD_RotatingA "
     "AllGather1D_TilingCD_RotatingB ReduceScatter1D_TilingA_RotatingC ReduceScatter1D_TilingB_RotatingC"},
    {"-c --collective", "all_reduce all_scatter all_gather"},
    {"--gather", "a b"},
    {"--scatter", "rows cols"},
    {"--alpha --beta --eps --skew --scale", "0 1 -1 0.5 2 1e30 -1e-30 3"},
    {"--act", "none relu gelu silu"},
    {"--pack", "run before never"},
    {"--bytes", "64 4K 64:4K 1 7 3:100"},
    {"--op --reduction", "sum min max product average"},
    {"--trace --svg --output", "a.svg b.json c prefix merge"},
    {"--backend", "cpu cuda"},
    {"--peer", "none auto"},
    {"--machine", "cpu h100x8 h100x16 mi300x8 l20x8 this"},
    {"--link", "450GB/s,2us 50GB/s,0us"},
    {"--mode", "exact reduced both"},
    {"--bind", "auto none core numa"},
    {"--set", "none"},
};

static const char *fitting_value(uint64_t *state, const char *name)
{
    static char value[8][64];
    static int next;
    char padded[64], list[64];

    snprintf(padded, sizeof(padded), " %s ", name);
    for (size_t i = 0; i < sizeof(fits) / sizeof(fits[0]); i++) {
        const char *at = fits[i].values;
        int words = 1;

        snprintf(list, sizeof(list), " %s ", fits[i].names);
        if (!strstr(list, padded))
            continue;
        for (const char *c = at; *c; c++)
            words += *c == ' ';
        for (int skip = below(state, words); skip > 0; skip--)
            at = strchr(at, ' ') + 1;
        next = (next + 1) % 8;
        snprintf(value[next], sizeof(value[0]), "%.*s", (int)strcspn(at, " "), at);
        return value[next];
    }
    return NULL;
}

static const char *any_value(uint64_t *state, const char *name)
{
    static const char *const extents[] = {"1", "2", "3", "7", "31", "64", "100", "257", "64", "48"};
    static const char *const few[] = {"1", "2", "3", "4", "0", "-1", "65537", "70000", "99999999999", "x"};
    static const char *const odd[] = {"",
                                      "0",
                                      "-1",
                                      "-0",
                                      "1e3",
                                      "nan",
                                      "inf",
                                      "1e400",
                                      "0x10",
                                      "007",
                                      "99999999999999999999",
                                      "9223372036854775807",
                                      "-9223372036854775808",
                                      "4294967296",
                                      "2147483648",
                                      "1099511627776",
                                      "1099511627777",
                                      "18446744073709551615",
                                      "%s%n%x",
                                      "\xff\xfe",
                                      "--",
                                      "-n",
                                      "/",
                                      "/dev/null",
                                      "/nonexistent/file",
                                      "a b",
                                      "'",
                                      "\n",
                                      "1,2",
                                      "450GB/s,2us",
                                      "64:1M",
                                      "1M:64",
                                      "9G:"};
    static const char *const words[] = {"f32",
                                        "bf16",
                                        "f16",
                                        "i8",
                                        "int32",
                                        "int64",
                                        "auto",
                                        "all",
                                        "unfused",
                                        "direct",
                                        "one_shot",
                                        "two_shot",
                                        "multimem",
                                        "push",
                                        "pull",
                                        "all_scatter",
                                        "AllGather1D_TilingCD_RotatingA",
                                        "AllGather1D_TilingCD_RotatingB",
                                        "ReduceScatter1D_TilingA_RotatingC",
                                        "ReduceScatter1D_TilingB_RotatingC",
                                        "a",
                                        "b",
                                        "rows",
                                        "cols",
                                        "relu",
                                        "gelu",
                                        "silu",
                                        "none",
                                        "run",
                                        "before",
                                        "never",
                                        "sum",
                                        "min",
                                        "product",
                                        "cpu",
                                        "h100x8",
                                        "mi300x8",
                                        "h100x16",
                                        "this",
                                        "all_reduce",
                                        "all_gather",
                                        "exact",
                                        "reduced",
                                        "both",
                                        "core",
                                        "numa",
                                        "prefix",
                                        "merge",
                                        "64K",
                                        "4096",
                                        "64",
                                        "0.5",
                                        "1",
                                        "2",
                                        "json"};
    static char longest[3000];

    /* What makes many processes or threads stays few, and what is repeated is not repeated long. */
    if (strcmp(name, "-n") == 0 || strcmp(name, "--ranks") == 0 || strcmp(name, "--tp") == 0 ||
        strcmp(name, "--num-gpus") == 0 || strcmp(name, "--threads") == 0)
        return ANY(state, few);
    if (strstr(name, "iter") || strstr(name, "warmup"))
        return below(state, 4) ? "1" : "-3";
    if (below(state, 4)) {
        const char *fitting = fitting_value(state, name);

        return fitting ? fitting : ANY(state, extents);
    }
    if (below(state, 16) == 0) {
        memset(longest, 'z', sizeof(longest) - 1);
        return longest;
    }
    const char *value = below(state, 2) ? ANY(state, odd) : ANY(state, words);

    /* A large extent that is no mistake takes as long as it takes. */
    return strspn(value, "0123456789") == strlen(value) && strlen(value) > 4 && strlen(value) < 15 ? "0"
                                                                                                   : value;
}

/* What keeps a measurement short unless a flag that follows says otherwise. Returns how many words. */
static int keep_short(uint64_t *state, const char *op, char **words)
{
    int count = 0;

    if (strstr(op, "gemm")) {
        for (; count < 3; count++)
            words[count] = (char *)any_value(state, "m");
    } else if (strcmp(op, "moe") == 0) {
        words[count++] = "--hidden=64";
        words[count++] = "--tokens=8";
        words[count++] = "--experts=8";
        words[count++] = "--topk=2";
    } else if (strcmp(op, "barrier")) {
        words[count++] = "--bytes=64:4K";
    }
    return count;
}

static int make_up(uint64_t *state, const tried_command *command, char **words)
{
    bool bench = strcmp(command->name, "bench") == 0, tune = strcmp(command->name, "tune") == 0;
    int count = 0, ops = 0;

    words[count++] = (char *)weft;
    words[count++] = (char *)command->name;
    while (ops < 16 && command->ops[ops])
        ops++;
    if (ops && below(state, 12)) {
        const char *op = command->ops[below(state, ops)];

        words[count++] = (char *)op;
        if (bench || tune || below(state, 3) == 0)
            count += keep_short(state, op, words + count);
    }
    for (int flags = below(state, 6); flags > 0 && command->flag_count; flags--) {
        const flag *it = &command->flags[below(state, command->flag_count)];

        if (below(state, 30) == 0) {
            words[count++] = (char *)any_value(state, "");
            continue;
        }
        if (strcmp(it->name, "--torch") == 0) /* starts what it is told to */
            continue;
        words[count++] = (char *)it->name;
        if (it->takes_value && below(state, 40))
            words[count++] = (char *)any_value(state, it->name);
    }
    if (bench) {
        words[count++] = "--iters=1";
        words[count++] = "--warmup=0";
        words[count++] = "--peer=none";
    }
    if (tune) {
        words[count++] = "--seconds=0.001";
        if (below(state, 2))
            words[count++] = "--machine=h100x8";
    }
    if (strcmp(command->name, "run") == 0) {
        words[count++] = "--";
        words[count++] = below(state, 4) ? "true" : "false"; /* status 0 or 1 */
    }
    words[count] = NULL;
    return count;
}

static void show(uint64_t seed, char **words, const char *what)
{
    check_failures++;
    fprintf(stderr, "test_fuzz_command: seed %" PRIu64 ": %s:", seed, what);
    for (int i = 0; words[i]; i++)
        fprintf(stderr, strlen(words[i]) > 60 ? " %.60s..." : " '%s'", words[i]);
    fprintf(stderr, "\n%.400s", errors);
}

static void try_one(uint64_t seed)
{
    uint64_t state = seed;
    tried_command *command = &commands[below(&state, sizeof(commands) / sizeof(commands[0]))];
    char *words[MOST_WORDS], begin[32];

    make_up(&state, command, words);
    int status = run_command(words);
    check_count++;
    if (status == -1)
        show(seed, words, "does not end");
    else if (WIFSIGNALED(status))
        show(seed, words, "is ended by a signal");
    else if (WEXITSTATUS(status) > 2 && (strcmp(command->name, "run") || WEXITSTATUS(status) < 126))
        show(seed, words, "has no such status");
    else if (WEXITSTATUS(status) == 2) {
        const char *end = strchr(errors, '\n');

        snprintf(begin, sizeof(begin), "weft %s: ", command->name);
        if (strncmp(errors, begin, strlen(begin)) != 0 || !end || end[1])
            show(seed, words, "status 2 is not one line");
    } else if (WEXITSTATUS(status) == 1 && !errors[0] && !output[0])
        show(seed, words, "fails without a word");
}

int main(int argc, char **argv)
{
    char path[PATH_MAX], folder[] = "/tmp/weft-fuzz-XXXXXX", clean[64], paths[96];

    if (argc < 2 || !realpath(argv[1], path) || !mkdtemp(folder) || chdir(folder) != 0) {
        fprintf(stderr, "usage: test_fuzz_command path/to/weft [seed]\n");
        return 2;
    }
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL) * 1000003;
    long cases = argc > 2 ? 1 : check_repeat(200, 20000);

    weft = path;
    setenv("XDG_CONFIG_HOME", folder, 1); /* no calibration: the machine described in the build */
    setenv("XDG_CACHE_HOME", folder, 1);  /* nothing tuned */
    /* Hosts are numbers and nonsense: nobody is called. */
    CHECK_INT(symlink("/bin/false", "ssh"), 0);
    snprintf(paths, sizeof(paths), "%s:/usr/local/bin:/usr/bin:/bin", folder);
    setenv("PATH", paths, 1);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        learn_flags(&commands[i]);
    CHECK(commands[0].flag_count > 30);
    for (long i = 0; i < cases; i++)
        try_one(first + (uint64_t)i);
    snprintf(clean, sizeof(clean), "rm -rf %s", folder);
    CHECK_INT(system(clean), 0);
    return check_report("test_fuzz_command");
}
