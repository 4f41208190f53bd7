/*
 * One parser reads the problem flags of bench, plan and sim: every name users bring means the same thing, and
 * what cannot be right is one line on standard error and status 2.
 */
#include "cli/options.h"

#include "plan/plan.h"
#include "support/check.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char message[4096]; /* what the last parse wrote to standard error */

/* Splits `line` at blanks, parses it, keeps standard error in `message`. */
static int parse_for(weft_options *options, const char *command, const char *const *ops,
                     const options_flag *flags, const char *line)
{
    static char words[64 * 1024]; /* options point into argv: the words live as long as the test */
    static size_t used;
    char *text = words + used, *argv[64];
    int argc = 0;
    FILE *capture = tmpfile();
    int saved = dup(STDERR_FILENO);

    used += (size_t)snprintf(text, sizeof words - used, "%s", line) + 1;
    CHECK(used < sizeof words);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    fflush(stderr);
    dup2(fileno(capture), STDERR_FILENO);
    int status = options_parse(options, command, ops, flags, argc, argv);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(capture);
    message[fread(message, 1, sizeof message - 1, capture)] = 0;
    fclose(capture);
    return status;
}

static int parse_with(weft_options *options, const char *const *ops, const options_flag *flags,
                      const char *line)
{
    return parse_for(options, "bench", ops, flags, line);
}

static int parse(weft_options *options, const char *line)
{
    static const char *const ops[] = {"gemm", "moe", "barrier", NULL};

    return parse_with(options, ops, NULL, line);
}

static void check_problem(const char *line, weft_op op, weft_schedule schedule, int ranks, int64_t m,
                          int64_t n, int64_t k)
{
    weft_options o;

    CHECK_INT(parse(&o, line), 0);
    CHECK_HAS("", message);
    CHECK_INT(o.problem.op, op);
    CHECK_INT(o.problem.schedule, schedule);
    CHECK_INT(o.ranks, ranks);
    CHECK_INT(o.problem.m, m);
    CHECK_INT(o.problem.n, n);
    CHECK_INT(o.problem.k, k);
}

static void seeds_calls_mean_what_they_say(void)
{
    weft_options o;

    check_problem("ag_gemm 1024 12288 49152 --dtype=float16 --iters=10", WEFT_OP_AG_GEMM, WEFT_SCHEDULE_AUTO,
                  2, 1024, 12288, 49152);
    parse(&o, "ag_gemm 1024 12288 49152 --dtype=float16 --iters=10");
    CHECK_INT(o.problem.dtype, WEFT_F16);
    CHECK_INT(o.iterations, 10);
    check_problem("-n 4 -c all_reduce --m 8 --n 9 --k 10", WEFT_OP_GEMM_AR, WEFT_SCHEDULE_AUTO, 4, 8, 9, 10);
    check_problem("--num-gpus 3 --collective all_scatter --M 8 --N 9 --K 10", WEFT_OP_GEMM_AS,
                  WEFT_SCHEDULE_AUTO, 3, 8, 9, 10);
    check_problem("-n4 -c all_gather 1 2 3", WEFT_OP_GEMM_AS, WEFT_SCHEDULE_UNFUSED, 4, 1, 2, 3);
    CHECK_INT(parse(&o, "all_reduce --impl two_shot_all_reduce"), 0);
    CHECK_INT(o.problem.schedule, WEFT_SCHEDULE_TWO_SHOT);
    CHECK_INT(parse(&o, "--impl triton_multimem_all_reduce"), 0);
    CHECK_INT(o.problem.op, WEFT_OP_ALL_REDUCE);
    CHECK_INT(o.problem.schedule, WEFT_SCHEDULE_MULTIMEM);
    CHECK_INT(parse(&o, "--schedule AllGather1D_TilingCD_RotatingA --m=16384 --n=106496 --k=16384 --alpha=2 "
                        "--beta=0.5 --iterations=7 --warmup-iterations=3 --eps=0.25 --l=2"),
              0);
    CHECK_INT(o.problem.op, WEFT_OP_AG_GEMM);
    CHECK_INT(o.problem.schedule, WEFT_SCHEDULE_ALLGATHER_ROTATING_A);
    CHECK_INT(o.problem.n, 106496);
    CHECK_INT(o.problem.l, 2);
    CHECK(o.problem.alpha == 2.0f && o.problem.beta == 0.5f && o.eps == 0.25);
    CHECK_INT(o.iterations, 7);
    CHECK_INT(o.warmup, 3);
    CHECK_INT(parse(&o, "--schedule ReduceScatter1D_TilingB_RotatingC --tp 8"), 0);
    CHECK_INT(o.problem.op, WEFT_OP_GEMM_RS);
    CHECK_INT(o.ranks, 8);
    CHECK_INT(parse(&o, "ag_gemm --M 16384 --N 6656 --K 16384 --BLOCK_SIZE_M 128 --BLOCK_SIZE_N 256 "
                        "--BLOCK_SIZE_K 64"),
              0);
    CHECK_INT(o.problem.tuning.tile_m, 128);
    CHECK_INT(o.problem.tuning.tile_n, 256);
    CHECK_INT(o.problem.tuning.tile_k, 64);
}

static void every_flag_reaches_its_field(void)
{
    weft_options o;

    CHECK_INT(parse(&o, "gemm_rs --scatter cols --dtype i8 --bias --act silu --transa --transb --threads 3 "
                        "--backend cuda --html t.html --json --schedule all --set llama3 --scale 4 "
                        "--seed 7 --alpha -1.5 --warmup 0 --pack before"),
              0);
    CHECK_INT(o.problem.layout, WEFT_LAYOUT_SCATTER_COLS);
    CHECK_INT(o.problem.dtype, WEFT_I8);
    CHECK_INT(o.problem.d_dtype, WEFT_I32);
    CHECK_INT(o.problem.wire_dtype, WEFT_I32);
    CHECK(o.problem.bias && o.problem.transa && o.problem.transb && o.cuda && o.json && o.schedule_all);
    CHECK_INT(o.problem.act, WEFT_ACT_SILU);
    CHECK_INT(o.problem.tuning.workers, 3);
    CHECK_INT(o.problem.b_form, WEFT_B_PREPACKED);
    CHECK(strcmp(o.html, "t.html") == 0 && strcmp(o.set, "llama3") == 0);
    CHECK(o.scale == 4 && o.seed == 7 && o.problem.alpha == -1.5f && o.warmup == 0);
    CHECK_INT(parse(&o, "ag_gemm --trace t.json --svg t.svg"), 0);
    CHECK(strcmp(o.trace, "t.json") == 0 && strcmp(o.svg, "t.svg") == 0);
    CHECK_INT(parse(&o, "all_reduce --bytes 64 --op average"), 0);
    CHECK_INT(o.problem.reduction, WEFT_AVERAGE);
    CHECK_INT(parse(&o, "all_reduce --bytes 64:16M --reduction max --dtype bf16"), 0);
    CHECK_INT(o.bytes_first, 64);
    CHECK_INT(o.bytes_last, 16 << 20);
    CHECK_INT(o.problem.reduction, WEFT_MAX);
    CHECK_INT(parse(&o, "all_gather --bytes 64K"), 0);
    CHECK_INT(o.bytes_first, 64 << 10);
    CHECK_INT(o.bytes_last, 64 << 10);
    CHECK_INT(parse(&o, "moe"), 0);
    CHECK(!o.is_plan_op && strcmp(o.op_name, "moe") == 0);
    CHECK_INT(parse(&o, "--help"), 0);
    CHECK(o.help);
}

static void defaults_are_the_documented_ones(void)
{
    weft_options o;

    CHECK_INT(parse(&o, "ag_gemm"), 0);
    CHECK_INT(o.ranks, 2);
    CHECK_INT(o.problem.dtype, WEFT_F32);
    CHECK_INT(o.problem.schedule, WEFT_SCHEDULE_AUTO);
    CHECK_INT(o.problem.l, 1);
    CHECK_INT(o.warmup, 10);
    CHECK(o.problem.alpha == 1.0f && o.problem.beta == 0.0f && o.eps == 0);
    CHECK(!o.cuda && !o.json && !o.sizes_given && !o.schedule_given);
    CHECK(options_threads(&o) >= 1);
}

static void check_wrong(const char *line, const char *part)
{
    weft_options o;

    CHECK_INT(parse(&o, line), 2);
    CHECK_HAS(message, "weft bench: ");
    CHECK_HAS(message, part);
    /* one line, ended */
    CHECK(strlen(message) > 1 && strchr(message, '\n') == message + strlen(message) - 1);
}

static void wrong_calls_are_one_clear_line(void)
{
    check_wrong("", "which operation");
    check_wrong("ag_gem", "ag_gem is not an operation");
    check_wrong("ag_gemm --frobnicate", "unknown flag --frobnicate");
    check_wrong("ag_gemm -x", "unknown flag -x");
    check_wrong("ag_gemm --m", "--m needs a value");
    check_wrong("ag_gemm --m 0", "--m 0: must be a whole number from 1");
    check_wrong("ag_gemm --m 12x", "--m 12x: must be");
    check_wrong("ag_gemm --m -4", "--m -4: must be");
    check_wrong("ag_gemm -n 0", "-n 0: must be");
    check_wrong("ag_gemm 1 2", "three: M N K");
    check_wrong("ag_gemm 1 2 3 4", "only three plain numbers");
    check_wrong("ag_gemm 0 2 3", "0: M, N and K");
    check_wrong("ag_gemm gemm_rs", "the operation is ag_gemm already");
    check_wrong("ag_gemm 64 64 6x4", "6x4: M, N and K are whole numbers");
    check_wrong("ag_gemm --dtype float99", "--dtype float99: must be one of float32");
    check_wrong("ag_gemm --dtype int64", "multiplies float32");
    check_wrong("ag_gemm --schedule two_shot", "ag_gemm has no schedule two_shot");
    check_wrong("ag_gemm --schedule nonsense", "--schedule nonsense: must be auto");
    check_wrong("ag_gemm -c all_reduce", "means gemm_ar");
    check_wrong("-c all_to_all", "must be all_reduce");
    check_wrong("gemm_ar --gather b", "--gather belongs to ag_gemm");
    check_wrong("ag_gemm --gather c", "a or b");
    check_wrong("ag_gemm --json=yes", "--json takes no value");
    check_wrong("ag_gemm --eps nan", "--eps nan: must be");
    check_wrong("ag_gemm --alpha inf", "finite");
    check_wrong("ag_gemm --iterations 0", "--iterations 0: must be");
    check_wrong("ag_gemm --backend tpu", "cpu or cuda");
    check_wrong("all_reduce --bytes 16M:64", "first:last");
    check_wrong("all_reduce --bytes x", "a size");
    check_wrong("ag_gemm --act tanh", "one of none, relu");
    check_wrong("ag_gemm --scale 4", "--set is missing");
    check_wrong("ag_gemm 64 64 64 --set llama3", "give one or the other");
    check_wrong("ag_gemm --svg /no/such/folder/x.svg", "--svg /no/such/folder/x.svg: cannot write there");
    check_wrong("ag_gemm --trace /dev/null --svg /dev/null", "two files");
    check_wrong("ag_gemm --schedule all --svg /dev/null",
                "--svg draws one run, not every row of --schedule all");
    check_wrong("ag_gemm --set llama3 --trace /dev/null", "--trace draws one run, not every row of --set");
    check_wrong("gemm_rs --dtype i8 --wire bf16", "partial sums of int8 are int32");
    check_wrong("gemm_rs --wire fp8", "--wire fp8: partial sums travel as float32, bfloat16 or float16");
}

/* A flag that would do nothing is refused. */
static void a_flag_says_where_it_belongs(void)
{
    weft_options o;

    check_wrong("ag_gemm --wire bf16", "--wire belongs to gemm_rs, gemm_ar, moe, not to ag_gemm");
    check_wrong("all_reduce --m 5", "--m belongs to products, gemm, not to all_reduce");
    check_wrong("all_gather --op max", "--op belongs to all_reduce, reduce_scatter, not to all_gather");
    check_wrong("gemm_ar --bytes 64", "--bytes belongs to collectives, not to gemm_ar");
    check_wrong("all_reduce 4 5 6", "which all_reduce is not");
    CHECK_INT(parse(&o, "gemm --alpha 2"), 2);
    CHECK_HAS(message, "--alpha belongs to products, not to gemm");
    CHECK_INT(parse(&o, "moe 1 2 3"), 2);
    CHECK_INT(parse(&o, "gemm 1 2 3 --transb"), 0);
    CHECK_INT(parse(&o, "moe --dtype bf16 --set contest -n 3"), 0);
    CHECK_INT(parse_for(&o, "sim", NULL, NULL, "gemm_rs --iters 4"), 2);
    CHECK_HAS(message, "unknown flag --iters");
    CHECK_INT(parse_for(&o, "plan", NULL, NULL, "gemm_rs --set llama3"), 2);
    CHECK_INT(parse_for(&o, "sim", NULL, NULL, "gemm_rs --set llama3 --scale 2"), 0);
}

static void a_command_adds_its_own_flags(void)
{
    static const char *const ops[] = {"moe", NULL};
    int64_t experts = 0;
    bool check = false;
    const char *machine = NULL;
    const options_flag flags[] = {
        {"--experts", "E", OPTIONS_INT, &experts, NULL, 1, 1e6, "moe", "experts over all ranks"},
        {"--check", NULL, OPTIONS_SWITCH, &check, NULL, 0, 0, NULL, "prove the plan"},
        {"--machine", "NAME", OPTIONS_TEXT, &machine, NULL, 0, 0, NULL, "which machine"},
        {0},
    };
    weft_options o;

    CHECK_INT(parse_with(&o, ops, flags, "--experts 64 moe --check --machine=h100x8"), 0);
    CHECK_INT(experts, 64);
    CHECK(check && machine && strcmp(machine, "h100x8") == 0);
    CHECK_INT(parse_with(&o, ops, flags, "--experts 64 ag_gemm"), 2);
    CHECK_HAS(message, "--experts belongs to moe, not to ag_gemm");
}

/* Ranks look at the same moment whether a file can be written; nothing is left of their looking. */
static void ranks_look_for_one_file_together(void)
{
    char folder[] = "/tmp/weft-options-XXXXXX", path[64];

    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/page.html", folder);
    for (int rank = 0; rank < 4; rank++) {
        if (fork() == 0) {
            int wrong = 0;

            for (int i = 0; i < 2000; i++)
                wrong |= options_check_writable("bench", "--html", path);
            _exit(wrong);
        }
    }
    for (int rank = 0, status; rank < 4; rank++) {
        CHECK(wait(&status) > 0);
        CHECK_INT(status, 0);
    }
    CHECK_INT(rmdir(folder), 0);
}

int main(void)
{
    seeds_calls_mean_what_they_say();
    every_flag_reaches_its_field();
    defaults_are_the_documented_ones();
    wrong_calls_are_one_clear_line();
    a_flag_says_where_it_belongs();
    a_command_adds_its_own_flags();
    ranks_look_for_one_file_together();
    return check_report("test_tools_options");
}
