/* `weft bench --backend cuda` on the fake GPU: what it fills operands with, how it judges results, what it
 * sets beside them, and ranks as processes. */
#include "bench/cuda/bench_cuda.h"
#include "bench/cuda/baseline.h"
#include "cli/commands.h"
#include "bench/cuda/data.h"
#include "bench/cuda/emulated.h"
#include "calibrate/calibrate.h"
#include "core/dtype.h"
#include "fake_gpu.h"
#include "matrices.h"
#include "plan/print.h"
#include "support/check.h"
#include "support/procs.h"
#include "support/ranks.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static weft_cuda_device device;

static weft_cuda_world run(weft_problem p, int world, const weft_cuda_world_options *options)
{
    weft_error_text error = {0};
    weft_cuda_world w;

    CHECK_INT(weft_cuda_world_make(&device, &p, world, options, &w, &error), WEFT_OK);
    CHECK(gpu_data_fill(&w, 11, true));
    CHECK_INT(weft_cuda_world_launch(&w, &error), WEFT_OK);
    CHECK_INT(weft_cuda_world_finish(&w, &error), WEFT_OK);
    return w;
}

static void test_right_results_pass(void)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
    } cases[] = {{WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A},
                 {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A},
                 {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT},
                 {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int world = 1; world <= 3; world++) {
            weft_problem p = problem_of(cases[i].op, cases[i].schedule, 130, 120, 96);
            weft_cuda_world w = run(p, world, &plain);
            gpu_verdict verdict;

            CHECK(gpu_data_check(&w, &verdict));
            CHECK(verdict.error == 0);
            weft_cuda_world_free(&w);
        }
}

/* A rank alone adds up what it sends; the check knows. */
static void test_alone(void)
{
    static const weft_cuda_world_options alone = {.alone = true, .limits = {10, 5}};
    static const weft_schedule schedules[] = {WEFT_SCHEDULE_REDUCESCATTER_TILING_A, WEFT_SCHEDULE_UNFUSED};

    for (int i = 0; i < 2; i++) {
        weft_problem p = problem_of(WEFT_OP_GEMM_RS, schedules[i], 128, 128, 256);

        p.layout = WEFT_LAYOUT_SCATTER_ROWS;
        weft_cuda_world w = run(p, 4, &alone);
        gpu_verdict verdict;

        CHECK(gpu_data_check(&w, &verdict));
        CHECK(verdict.error == 0);
        weft_cuda_world_free(&w);
    }
}

/* The worst element is named: one that was not written, and one that is off by a little everywhere. */
static void test_wrong_results_are_found(void)
{
    weft_problem p = problem_of(WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER, 64, 64, 64);
    weft_cuda_world w = run(p, 2, &plain);
    weft_cuda_place place = weft_cuda_world_place(&w, WEFT_ROLE_D, 1);
    gpu_verdict verdict;
    double kept = weft_element_get(WEFT_BF16, place.base, (size_t)(7 * place.ld + 9));

    weft_element_set(WEFT_BF16, place.base, (size_t)(7 * place.ld + 9), NAN);
    CHECK(gpu_data_check(&w, &verdict));
    CHECK(verdict.error == INFINITY && isnan(verdict.got));
    CHECK_INT(verdict.rank, 1);
    CHECK_INT(verdict.row, 7);
    CHECK_INT(verdict.col, 9);
    CHECK(verdict.expected == kept);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 64; j++)
            weft_element_set(WEFT_BF16, place.base, (size_t)(i * place.ld + j), 1024);
    CHECK(gpu_data_check(&w, &verdict));
    CHECK_INT(verdict.rank, 1);
    CHECK(verdict.got == 1024 && verdict.error == fabs(1024 - verdict.expected));
    CHECK(verdict.error > verdict.bound);
    weft_cuda_world_free(&w);
}

/* Half of its kernels cannot be loaded: none stay, and later all can. */
static void test_half_a_link(void)
{
    static const char *const calls[] = {"cuModuleLoadData", "cuModuleGetFunction"};
    weft_error_text error = {0};
    emulated link = {.bytes_per_ns = 450};
    int before = fake_gpu_modules();

    for (int i = 0; i < 2; i++) {
        fake_gpu_break(calls[i], 4);
        CHECK_INT(emulated_load(&device, &link, &error), WEFT_ERR_SYSTEM);
        CHECK_HAS(error.text, calls[i]);
        CHECK_INT(fake_gpu_modules(), before);
    }
    fake_gpu_break(NULL, 0);
    CHECK_INT(emulated_load(&device, &link, &error), WEFT_OK);
    CHECK_INT(emulated_load(&device, &link, &error), WEFT_OK);
    CHECK_INT(fake_gpu_modules(), before + EMULATED_IMAGES);
    emulated_free(&device, &link);
    CHECK_INT(fake_gpu_modules(), before);
}

/* What the link of a world carries in a run. */
static int64_t carried(const weft_cuda_world *w)
{
    weft_cuda_emulation link = {0};
    weft_error_text error = {0};

    CHECK_INT(emulated_read(&w->executors[0], w->streams[0], &link, &error), WEFT_OK);
    return link.bytes;
}

/* Over a link, the collective that stands beside an operation moves as many bytes as that does. */
static void test_baseline_moves_the_same(void)
{
    emulated link = {.bytes_per_ns = 450, .latency_ns = 2000};
    const weft_cuda_world_options alone = {
        .alone = true, .dense = true, .stand_in = &link.stand_in, .limits = {10, 5}};
    weft_problem problems[] = {
        problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 512, 512, 256),
        problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, 512, 512, 256),
        problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, 512, 512, 256),
        problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, 512, 1024, 256),
        problem_of(WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER, 512, 512, 256)};
    problems[2].wire_dtype = problems[3].wire_dtype = WEFT_BF16;
    CHECK_INT(emulated_load(&device, &link, &(weft_error_text){0}), WEFT_OK);
    for (size_t i = 0; i < sizeof(problems) / sizeof(problems[0]); i++) {
        weft_error_text error = {0};
        gpu_baseline baseline = {0};
        gpu_verdict verdict;
        weft_cuda_world w = run(problems[i], 4, &alone);

        CHECK(gpu_baseline_make(&device, &problems[i], 4, &alone, &baseline, &error));
        CHECK_INT(baseline.products, 1);
        CHECK(carried(&w) > 0);
        CHECK(gpu_data_check(&w, &verdict));
        CHECK(verdict.any && gpu_verdict_good(&verdict));
        CHECK_INT(carried(&baseline.comm) + (baseline.second.world ? carried(&baseline.second) : 0),
                  carried(&w));
        CHECK(gpu_baseline_enqueue_comm(&baseline, &error));
        CHECK_INT(weft_cuda_world_finish(&baseline.comm, &error), WEFT_OK);
        gpu_baseline_free(&baseline);
        weft_cuda_world_free(&w);
    }
    emulated_free(&device, &link);
}

/* Ranks that share the GPU gather, sum or scatter together, and every one's product is counted. */
static void test_baseline_of_virtual_ranks(void)
{
    static const weft_cuda_world_options all = {.dense = true, .limits = {10, 5}};
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR, WEFT_OP_GEMM_AS};

    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        weft_problem p = problem_of(ops[i], WEFT_SCHEDULE_UNFUSED, 128, 120, 64);
        weft_error_text error = {0};
        gpu_baseline baseline = {0};

        CHECK(gpu_baseline_make(&device, &p, 4, &all, &baseline, &error));
        CHECK_INT(baseline.products, 4);
        for (int round = 0; round < 2; round++)
            CHECK(gpu_baseline_enqueue_comm(&baseline, &error));
        CHECK_INT(weft_cuda_world_finish(&baseline.comm, &error), WEFT_OK);
        gpu_baseline_free(&baseline);
    }
}

/* One rank of a bench whose ranks are processes; rank 0 reads its own report. */
static void bench_as_rank(int rank, bench_operation *operation, const char *const *ops,
                          const options_flag *flags, int argc, char **words, const char *says)
{
    weft_options options;
    bench_context context = {.options = &options, .rank = rank, .random = 5, .threads = 1};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    CHECK_INT(options_parse(&options, "bench", ops, flags, argc, words), 0);
    CHECK_INT(weft_init(&context.group), WEFT_OK);
    context.size = weft_size(context.group);
    report_open(&context.report, rank == 0 ? out : NULL, true, NULL);
    CHECK_INT(operation(&context), 0);
    CHECK_INT(report_close(&context.report), 0);
    fclose(out);
    if (rank == 0) {
        CHECK_HAS(text, "\"how\": \"a process for each rank\"");
        CHECK_HAS(text, says);
        CHECK_HAS(text, "\"ok\": true");
    }
    free(text);
    weft_finalize(context.group);
}

static void bench_rank(int rank, void *argument)
{
    char *words[] = {(char *)argument, "64", "48",     "96",        "--dtype", "bf16", "--iters", "2",
                     "--warmup",       "1",  "--json", "--backend", "cuda",    NULL};

    bench_as_rank(rank, bench_cuda_ranks, NULL, NULL, 13, words, "\"max_err\": 0");
}

static void bench_moe_rank(int rank, void *argument)
{
    static const char *const ops[] = {"moe", NULL};
    char *words[] = {"moe", "--backend", "cuda", "--experts", "10", "--topk",
                     "3",   "--hidden",  "40",   "--tokens",  "6",  "--iters",
                     "2",   "--warmup",  "1",    "--json",    NULL};

    (void)argument;
    bench_as_rank(rank, bench_cuda_moe_ranks, ops, bench_moe_flags, 16, words, "\"mode\": \"reduced\"");
}

/* A plan from a file, beside what auto takes. */
static void bench_plan_rank(int rank, void *argument)
{
    char *words[] = {"--plan", (char *)argument, "--backend", "cuda",  "--iters",
                     "2",      "--warmup",       "1",         "--json"};
    char text[4096] = "";
    FILE *kept = tmpfile();

    if (rank == 0)
        dup2(fileno(kept), STDOUT_FILENO);
    CHECK_INT(bench_run_rank(9, words, NULL), 0);
    fflush(stdout);
    if (rank == 0) {
        rewind(kept);
        CHECK(fread(text, 1, sizeof(text) - 1, kept) > 0);
        CHECK_HAS(text, "\"schedule\": \"custom\"");
        CHECK_HAS(text, "\"ok\": true}\n{");
        CHECK(strstr(text, "\"ok\": false") == NULL);
    }
    fclose(kept);
}

static void test_plan_from_a_file(void)
{
    weft_problem asked = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 64, 48, 96), p;
    char path[] = "/tmp/weft-bench-XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    weft_error_text error = {0};

    CHECK_INT(weft_problem_resolve(&asked, 2, &p, &error), WEFT_OK);
    p.tuning.tile_m = p.tuning.tile_n = 16, p.tuning.tile_k = 32;
    for (int rank = 0; rank < 2; rank++) {
        weft_plan_part part;

        CHECK_INT(weft_plan_make(&p, 2, rank, &part, &error), WEFT_OK);
        part.problem.schedule = WEFT_SCHEDULE_CUSTOM;
        weft_plan_print_text(&part, file);
        weft_plan_part_free(&part);
    }
    fclose(file);
    fake_gpu_install(2, 16, true);
    procs_run(2, bench_plan_rank, path);
    unlink(path);
}

/* An interpreter that is not one: two numbers, and none for what is not there. */
static void bench_sum_rank(int rank, void *argument)
{
    char *words[] = {"all_reduce", "--backend", "cuda", "--bytes", "4096", "--dtype",
                     "bf16",       "--iters",   "2",    "--json",  NULL};

    setenv("WEFT_TORCH_PYTHON", argument, 1);
    bench_as_rank(rank, bench_cuda_collectives, NULL, NULL, 10, words, "\"peer_us\": 4,");
}

/* `path`: as for mkstemp. It also says yes when it is asked whether it can import torch. */
static void make_no_python(char *path)
{
    int file = mkstemp(path);

    CHECK(file >= 0);
    dprintf(file, "#!/bin/sh\n[ \"$2\" = \"import torch.distributed\" ] && exit\n"
                  "echo ready 9.9\nwhile read size; do echo 5 4 nan; done\n");
    fchmod(file, 0700);
    close(file);
}

static void test_torch_beside_all_reduce(void)
{
    char path[] = "/tmp/weft-python-XXXXXX";

    make_no_python(path);
    fake_gpu_install(1, 12, true);
    procs_run(2, bench_sum_rank, path);
    unlink(path);
}

static void test_ranks_as_processes(void)
{
    static const char *const ops[] = {"ag_gemm", "gemm_rs", "gemm_ar", "gemm_as"};

    fake_gpu_install(2, 16, true);
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        procs_run(2 + (int)i % 2, bench_rank, (void *)(uintptr_t)ops[i]);
    fake_gpu_install(1, 12, true);
    procs_run(3, bench_moe_rank, NULL);
}

static char said[1 << 15]; /* by the last call of rows_of */

/* The rows of a call of the command; -1 when it failed. */
static int rows_of(int argc, char **argv)
{
    FILE *kept = tmpfile();
    int before = dup(STDOUT_FILENO), errors = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);
    int rows = 0, status;

    fflush(stdout);
    dup2(fileno(kept), STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO); /* why not, where it refuses */
    status = cmd_bench(argc, argv);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    close(before);
    close(errors);
    close(nowhere);
    rewind(kept);
    said[fread(said, 1, sizeof(said) - 1, kept)] = 0;
    for (const char *c = said; *c; c++)
        rows += *c == '\n';
    fclose(kept);
    return status ? -1 : rows;
}

enum { ANY_ROWS = -2 };

/* A call in a process of its own, because flags stay set: so many rows, none of them wrong, with these words.
 */
static void check_call(int argc, char **argv, int rows, const char *const *says)
{
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        int got = rows_of(argc, argv);
        bool right = (rows == ANY_ROWS ? got >= 0 : got == rows) && !strstr(said, "\"ok\": false");

        for (; right && says && *says; says++)
            right = strstr(said, *says) != NULL;
        if (!right)
            fprintf(stderr, "%s: %d rows\n%s", argv[0], got, said);
        _exit(!right);
    }
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
}

/* The experts' products, PyTorch beside them, and where it cannot stand. */
static void test_moe_experts(void)
{
    static const char *const legend[] = {"; memory: what must pass it, at the rate of a copy", NULL},
                             *const weights[] = {"\"weights\": \"float8_e4m3fn\"", NULL};
    char path[] = "/tmp/weft-python-XXXXXX";
    char *experts[] = {"moe",     "--backend", "cuda",   "--experts", "3",      "--hidden", "32",
                       "--inter", "24",        "--rows", "5",         "--json", "--torch",  path},
         *stored[] = {"moe",     "--backend", "cuda",   "--experts", "3",      "--hidden",  "32",
                      "--inter", "32",        "--rows", "5",         "--json", "--weights", "fp8_e4m3"},
         *unstored[] = {"moe", "--backend", "cuda", "--inter", "24", "--weights", "int8"},
         *rounds[] = {"moe", "--backend", "cuda", "--torch", path},
         *products[] = {"ag_gemm", "8", "8", "8", "--dtype", "bf16", "--backend", "cuda", "--torch", path};

    make_no_python(path);
    fake_gpu_install(1, 12, true);
    check_call(14, experts, 2, NULL);
    check_call(14, stored, 2, weights);
    check_call(7, unstored, -1, NULL);
    check_call(5, rounds, -1, NULL);
    check_call(10, products, -1, NULL);
    check_call(11, experts, ANY_ROWS, legend);
    unlink(path);
}

/* Both modes, all ranks in graphs of their own, and one rank over a link. */
static void test_moe_rounds(void)
{
    static const char *const says[] = {"\"wire\": \"fp8\"", NULL};
    char *all[] = {"moe",    "--backend", "cuda",     "-n", "3",        "--experts", "10",
                   "--topk", "3",         "--hidden", "40", "--tokens", "6",         "--json"},
         *one[] = {"moe", "--backend", "cuda", "-n",       "4", "--experts", "10",     "--topk",
                   "3",   "--hidden",  "40",   "--tokens", "6", "--json",    "--link", "450GB/s,2us"},
         *fp8[] = {"moe",      "--backend", "cuda",     "-n", "3",      "--experts", "10",  "--topk",  "3",
                   "--hidden", "200",       "--tokens", "6",  "--json", "--wire",    "fp8", "--dtype", "f32"},
         *rungs[] = {"moe", "--backend", "cuda", "--impl", "all", "--wire", "fp8"},
         *bf16[] = {"moe", "--backend", "cuda", "--wire", "bf16"},
         *wrong[] = {"moe", "--backend", "cuda", "--skew", "1"};

    fake_gpu_install(1, 12, true);
    check_call((int)(sizeof(all) / sizeof(*all)), all, 2, NULL);
    check_call((int)(sizeof(one) / sizeof(*one)), one, 2, NULL);
    check_call((int)(sizeof(wrong) / sizeof(*wrong)), wrong, -1, NULL);
    check_call((int)(sizeof(fp8) / sizeof(*fp8)), fp8, 2, says);
    check_call((int)(sizeof(rungs) / sizeof(*rungs)), rungs, -1, NULL);
    check_call((int)(sizeof(bf16) / sizeof(*bf16)), bf16, -1, NULL);
}

/* Rounds with experts in them, in both orders, whose results must be the same bits. */
static void test_moe_whole_rounds(void)
{
    static const char *const says[] = {"\"arriving_us\": ", "\"gain\": ", NULL};
    char *all[] = {"moe", "--backend", "cuda", "-n",      "3",  "--experts", "10", "--topk", "3", "--hidden",
                   "40",  "--tokens",  "9",    "--inter", "24", "--movers",  "2",  "--json"},
         *one[] = {"moe", "--backend", "cuda", "-n",       "4",      "--experts",
                   "10",  "--topk",    "3",    "--hidden", "40",     "--tokens",
                   "9",   "--inter",   "24",   "--json",   "--link", "450GB/s,2us"},
         *odd[] = {"moe", "--backend", "cuda", "--tokens", "9", "--inter", "24", "--movers", "3"},
         *rows[] = {"moe", "--backend", "cuda", "--tokens", "9", "--inter", "24", "--rows", "3"};

    fake_gpu_install(1, 12, true);
    check_call((int)(sizeof(all) / sizeof(*all)), all, 2, says);
    check_call((int)(sizeof(one) / sizeof(*one)), one, 2, says);
    check_call((int)(sizeof(odd) / sizeof(*odd)), odd, -1, NULL);
    check_call((int)(sizeof(rows) / sizeof(*rows)), rows, -1, NULL);
}

/* The rungs below fused: exact on integers like it, also with rows that end between vectors, with experts
 * that do not divide by ranks, and with more keys than a chunk has; and where they cannot be. */
static void test_moe_ladder(void)
{
    static char *const dtypes[] = {"f16", "bf16", "f32"}, *const ranks[] = {"3", "1", "2"},
                       *const hidden[] = {"40", "37", "18"}, *const tokens[] = {"6", "90", "50"};
    static const char *const says[] = {"\"impl\": \"fused\"", "\"impl\": \"rows\"", "\"impl\": \"sorted\"",
                                       "\"impl\": \"reference\"", NULL};
    char *link[] = {"moe", "--backend", "cuda", "-n", "2", "--impl", "all", "--link", "450GB/s,2us"},
         *unknown[] = {"moe", "--backend", "cuda", "--impl", "bottom"};

    fake_gpu_install(1, 12, true);
    for (int i = 0; i < 3; i++) {
        char *all[] = {"moe",     "--backend", "cuda",    "-n",     ranks[i],  "--experts", "10",
                       "--topk",  "3",         "--impl",  "all",    "--dtype", dtypes[i],   "--hidden",
                       hidden[i], "--tokens",  tokens[i], "--json", "--iters", "1"};

        check_call(20, all, 5, says);
    }
    check_call(9, link, -1, NULL);
    check_call(5, unknown, -1, NULL);
}

static void say_nothing(const char *what)
{
    (void)what;
}

/* On one GPU all but the links is measured, on several these too; no time is judged. */
static void test_calibration(void)
{
    for (int gpus = 1; gpus <= 3; gpus += 2) {
        weft_machine machine, base;
        weft_error_text error = {0};
        calibrate_gpu gpu;

        fake_gpu_install(gpus, 12, true);
        CHECK_INT(calibrate_gpus(64, say_nothing, &machine, &gpu), 0);
        CHECK_INT(gpu.gpus, gpus);
        CHECK_INT(weft_machine_find(gpu.like, &base, &error), WEFT_OK);
        CHECK(machine.units != base.units);
        CHECK(machine.gflops[WEFT_BF16] > 0 && machine.gflops[WEFT_BF16] != base.gflops[WEFT_BF16]);
        CHECK(machine.gflops[WEFT_FP8_E5M2] > 0 &&
              machine.gflops[WEFT_FP8_E5M2] != base.gflops[WEFT_FP8_E5M2]);
        CHECK(machine.memory_gbs > 0 && machine.memory_gbs != base.memory_gbs);
        CHECK(machine.launch_graph_us > 0 && machine.launch_graph_us != base.launch_graph_us);
        CHECK((machine.link_gbs != base.link_gbs) == (gpus > 1));
        CHECK(machine.link_gbs > 0 && machine.flag_us > 0);
    }
}

/* One rank over a link: every schedule that can, results right also where shares do not end on 16 bytes. */
static void test_collectives_over_a_link(void)
{
    static const char *const ops[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
    static const int rows[] = {5, 4, 3, 4}; /* auto and every other */
    /* of 595 elements: what four peers have; of 119 each: the same in shares */
    static const char *const carried[][2] = {
        {"\"link_bytes\": 4760"}, {"\"link_bytes\": 952"}, {"\"link_bytes\": 952"}, {"\"link_bytes\": 952"}};
    char path[] = "/tmp/weft-page-XXXXXX", text[1 << 16] = "";
    FILE *page = fdopen(mkstemp(path), "r");

    fake_gpu_install(1, 12, true);
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        char *all[] = {(char *)ops[i], "--backend",  "cuda",    "-n",      "5",      "--link",
                       "450GB/s,2us",  "--schedule", "all",     "--bytes", "1190",   "--dtype",
                       "bf16",         "--json",     "--iters", "3",       "--html", path};

        check_call((int)(sizeof(all) / sizeof(*all)), all, rows[i], carried[i]);
    }
    CHECK(fread(text, 1, sizeof(text) - 1, page) > 0);
    CHECK_HAS(text, "\"bound_us\"");
    fclose(page);
    unlink(path);
    /* Slices of 128 KiB in 1093 lines to each of seven peers and back; 128 KiB, to each. */
    static const char *const lines[][3] = {{"\"impl\": \"two_shot_packets\"", "\"link_bytes\": 1958656"},
                                           {"\"impl\": \"packets\"", "\"link_bytes\": 979328"}};
    for (int i = 0; i < 2; i++) {
        char *large[] = {"all_reduce",  "--backend", "cuda",
                         "-n",          "8",         "--link",
                         "450GB/s,2us", "--bytes",   i ? "131072" : "1048576",
                         "--dtype",     "f16",       "--json",
                         "--iters",     "2"};

        check_call((int)(sizeof(large) / sizeof(*large)), large, 1, lines[i]);
    }
    char *two[] = {"all_reduce",  "--backend",  "cuda",     "-n",      "4",   "--link",
                   "450GB/s,2us", "--schedule", "two_shot", "--bytes", "4096"},
         *root[] = {"broadcast", "--backend", "cuda", "-n", "4", "--link", "450GB/s,2us"};

    check_call((int)(sizeof(two) / sizeof(*two)), two, -1, NULL);
    check_call((int)(sizeof(root) / sizeof(*root)), root, -1, NULL);
}

/* Every collective on ranks of one process: all schedules, in graphs, results right. */
static void test_collectives_of_virtual_ranks(void)
{
    static const char *const ops[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                      "broadcast"},
                             *const says[] = {"\"how\": \"virtual ranks on one GPU\"", NULL},
                             *const beside[] = {"\"peer\": \"copied whole\"", NULL};
    char *many[] = {"all_reduce", "--backend", "cuda", "-n", "9", "--bytes", "1190"},
         *torch[] = {"all_reduce", "--backend", "cuda", "-n", "2", "--torch", "python3"};

    fake_gpu_install(2, 12, true);
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        char *all[] = {(char *)ops[i], "--backend", "cuda",    "-n",       i % 2 ? "3" : "4",
                       "--schedule",   "all",       "--bytes", "1190",     "--dtype",
                       "bf16",         "--iters",   "2",       "--warmup", "1",
                       "--json"};

        check_call((int)(sizeof(all) / sizeof(*all)), all, ANY_ROWS, says);
        char *own[] = {(char *)ops[i],  "--backend", "cuda",     "-n",      i % 2 ? "3" : "2",
                       "--user-memory", "--bytes",   "800000",   "--dtype", "f16",
                       "--iters",       "2",         "--warmup", "1",       "--json"};

        check_call((int)(sizeof(own) / sizeof(*own)), own, 1, beside);
    }
    check_call(7, many, -1, NULL);
    check_call(7, torch, -1, NULL);
}

/* What a plan of the problem below takes on these ranks. */
static void takes_rank(weft_group *group, void *argument)
{
    weft_problem p = problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_AUTO, 256, 256, 256);
    weft_problem *taken = argument;
    weft_plan *plan;

    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_OK);
    p.layout = WEFT_LAYOUT_DEFAULT;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    if (weft_rank(group) == 0)
        *taken = *weft_plan_problem(plan);
    weft_plan_destroy(plan);
}

static int tune(const char *op, const char *more)
{
    char *products[] = {(char *)op, "256",       "256",  "256",       "--dtype", "bf16",  "-n",
                        "2",        "--backend", "cuda", "--seconds", "0.01",    "--json"},
         *collectives[] = {(char *)op,  "--bytes", (char *)more, "-n",   "2",
                           "--backend", "cuda",    "--seconds",  "0.01", "--json"};
    int keep = dup(STDOUT_FILENO), null = open("/dev/null", O_WRONLY), status;

    fflush(stdout);
    dup2(null, STDOUT_FILENO);
    status = more ? cmd_tune(10, collectives) : cmd_tune(13, products);
    fflush(stdout);
    dup2(keep, STDOUT_FILENO);
    close(keep);
    close(null);
    return status;
}

/* What was kept for another GPU is not passed over in silence. */
static void tells_of_elsewhere(void)
{
    static const char *const says[] = {"what weft tune kept for this problem is for another machine", NULL};
    char *call[] = {"all_reduce", "--backend", "cuda",    "-n", "2",        "--bytes", "4096",
                    "--dtype",    "f32",       "--iters", "2",  "--warmup", "1"};

    check_call((int)(sizeof(call) / sizeof(*call)), call, ANY_ROWS, says);
}

/* `weft tune --backend cuda` keeps a line for the GPU, and plans of its ranks go by that: of those on as many
 * SMs. */
static void test_tuning(void)
{
    char path[] = "/tmp/weft-tuned-XXXXXX", text[4096] = "", schedule[64] = "", rest[8];
    unsigned long long machine, key;
    weft_problem before, taken;
    FILE *file;

    close(mkstemp(path));
    unlink(path);
    setenv("WEFT_TUNE", path, 1);
    fake_gpu_install(1, 12, true);
    ranks_run(2, takes_rank, &before);
    CHECK_INT(tune("gemm_rs", NULL), 0);
    CHECK_INT(tune("all_reduce", "4096"), 0);
    file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK(fgets(text, sizeof(text), file) && text[0] == '#');
    CHECK(fgets(text, sizeof(text), file) && strstr(text, "gemm_rs 256 256 256 bfloat16 on 2 ranks"));
    CHECK_INT(sscanf(text, "%llx %*s %llx %63s", &machine, &key, schedule), 3);
    CHECK(fgets(text, sizeof(text), file) && strstr(text, "all_reduce 1024 float32 on 2 ranks"));
    CHECK(!fgets(rest, sizeof(rest), file));
    fclose(file);
    file = fopen(path, "w");
    fprintf(file, "%llx %s %llx direct 0 128 0 1 1.5 0 0 0 0 2 0 # by hand\n%s", machine, weft_version(), key,
            text);
    fclose(file);
    ranks_run(2, takes_rank, &taken);
    CHECK(before.schedule != WEFT_SCHEDULE_DIRECT);
    CHECK_INT(taken.schedule, WEFT_SCHEDULE_DIRECT);
    CHECK_INT(taken.tuning.workers, 1);
    CHECK_INT(taken.tuning.tile_n, 128);
    fake_gpu_install(1, 8, true); /* another GPU */
    ranks_run(2, takes_rank, &taken);
    CHECK(taken.schedule != WEFT_SCHEDULE_DIRECT);
    tells_of_elsewhere();
    unlink(path);
    unsetenv("WEFT_TUNE");
}

int main(void)
{
    device = fake_gpu(12, true, 21);
    test_right_results_pass();
    test_alone();
    test_wrong_results_are_found();
    test_half_a_link();
    test_baseline_moves_the_same();
    test_baseline_of_virtual_ranks();
    test_ranks_as_processes();
    test_plan_from_a_file();
    test_torch_beside_all_reduce();
    test_moe_experts();
    test_moe_rounds();
    test_moe_whole_rounds();
    test_moe_ladder();
    test_calibration();
    test_collectives_over_a_link();
    test_collectives_of_virtual_ranks();
    test_tuning();
    return check_report("test_cuda_bench");
}
