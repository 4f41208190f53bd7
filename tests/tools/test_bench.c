/*
 * The command as users call it: what it prints, where, and its exit status. Runs the real `weft` (path in
 * argv[1]) with tiny shapes; ranks are processes.
 */
#include "support/check.h"

#include <ctype.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *weft;
static char out[1 << 16], err[1 << 16];

static void read_all(FILE *file, char *text, size_t bytes)
{
    rewind(file);
    text[fread(text, 1, bytes - 1, file)] = 0;
    fclose(file);
}

/* Runs `weft ARGUMENTS`; returns the exit status, or -1 when it did not exit. */
static int run(const char *arguments)
{
    FILE *out_file = tmpfile(), *err_file = tmpfile();
    char line[1024];
    pid_t pid;
    int status = 0;

    snprintf(line, sizeof line, "exec %s %s", weft, arguments);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        dup2(fileno(out_file), STDOUT_FILENO);
        dup2(fileno(err_file), STDERR_FILENO);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    read_all(out_file, out, sizeof out);
    read_all(err_file, err, sizeof err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- a small reader of JSON objects --------------------------------------------------------------- */

static const char *skip(const char *at)
{
    while (*at == ' ')
        at++;
    return at;
}

static const char *after_string(const char *at)
{
    if (*at++ != '"')
        return NULL;
    for (; *at && *at != '"'; at++) {
        if ((unsigned char)*at < 0x20)
            return NULL;
        if (*at == '\\' && !*++at)
            return NULL;
    }
    return *at ? at + 1 : NULL;
}

static const char *after_value(const char *at)
{
    static const char *const words[] = {"true", "false", "null"};
    char *end;

    if (*at == '"')
        return after_string(at);
    for (int i = 0; i < 3; i++) {
        if (strncmp(at, words[i], strlen(words[i])) == 0)
            return at + strlen(words[i]);
    }
    if (*at != '-' && !isdigit((unsigned char)*at))
        return NULL;
    (void)!strtod(at, &end);
    return end > at ? end : NULL;
}

/* The end of the line when it is one flat object, else NULL. */
static const char *after_object(const char *at)
{
    if (*at++ != '{')
        return NULL;
    for (;;) {
        at = after_string(skip(at));
        if (!at || *(at = skip(at)) != ':')
            return NULL;
        at = after_value(skip(at + 1));
        if (!at)
            return NULL;
        at = skip(at);
        if (*at == '}')
            return at[1] == '\n' ? at + 2 : NULL;
        if (*at++ != ',')
            return NULL;
    }
}

static int count_objects(const char *text)
{
    int count = 0;

    while (*text) {
        text = after_object(text);
        if (!text)
            return -1;
        count++;
    }
    return count;
}

static void check_fields(const char *const *fields)
{
    char quoted[64];

    for (; *fields; fields++) {
        snprintf(quoted, sizeof quoted, "\"%s\": ", *fields);
        CHECK_HAS(out, quoted);
    }
}

/* ---- what holds ----------------------------------------------------------------------------------- */

static void products_print_every_field(void)
{
    static const char *const ops[] = {"ag_gemm", "gemm_rs", "gemm_ar", "gemm_as"};
    static const char *const fields[] = {
        "op",         "backend",    "ranks",     "m",        "n",
        "k",          "l",          "dtype",     "schedule", "gemm_us",
        "comm_us",    "unfused_us", "fused_us",  "speedup",  "fused_over_gemm",
        "hidden_pct", "max_err",    "err_bound", "ok",       "chosen",
        "workers",    "tile_m",     "tile_n",    "tile_k",   NULL};
    char line[256];

    for (int i = 0; i < 4; i++) {
        snprintf(line, sizeof line, "bench %s 33 17 29 -n 3 --iters 3 --warmup 1 --json", ops[i]);
        CHECK_INT(run(line), 0);
        CHECK_INT(count_objects(out), 1);
        check_fields(fields);
        CHECK_HAS(out, "\"ok\": true");
        CHECK_HAS(out, "\"ranks\": 3");
        CHECK_HAS(out, ops[i]);
    }
}

static void collectives_print_every_field(void)
{
    static const char *const ops[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                      "broadcast"};
    static const char *const fields[] = {"op", "backend",   "ranks", "dtype",  "bytes", "impl",
                                         "us", "busbw_gbs", "ok",    "chosen", NULL};
    char line[256];

    for (int i = 0; i < 5; i++) {
        snprintf(line, sizeof line, "bench %s --bytes 1000:16K --iters 3 --warmup 1 --schedule all --json",
                 ops[i]);
        CHECK_INT(run(line), 0);
        CHECK(count_objects(out) >= 5 * 2);
        check_fields(fields);
        CHECK(!strstr(out, "\"ok\": false"));
    }
}

static void seeds_calls_work_as_written(void)
{
    CHECK_INT(run("bench ag_gemm 64 96 128 --dtype=float16 --iters=2 --json"), 0);
    CHECK_HAS(out, "\"dtype\": \"float16\"");
    CHECK_INT(run("bench all_reduce --impl two_shot_all_reduce --bytes 4096 --iters 2 --json"), 0);
    CHECK_HAS(out, "\"impl\": \"two_shot\"");
    CHECK_INT(run("bench -n 4 -c all_reduce --m 32 --n 32 --k 32 --iters 2 --json"), 0);
    CHECK_HAS(out, "\"op\": \"gemm_ar\"");
    CHECK_INT(run("bench -n 2 -c all_scatter --M 32 --N 32 --K 32 --iters 2 --json"), 0);
    CHECK_HAS(out, "\"op\": \"gemm_as\"");
    CHECK_INT(run("bench --schedule AllGather1D_TilingCD_RotatingB --m=64 --n=64 --k=64 --alpha=2 --beta=0.5 "
                  "--iterations=2 --warmup-iterations=1 --eps=0.01 --json"),
              0);
    CHECK_HAS(out, "\"op\": \"ag_gemm\"");
    CHECK_HAS(out, "\"schedule\": \"AllGather1D_TilingCD_RotatingB\"");
    CHECK_HAS(out, "\"err_bound\": 0.01");
}

static void people_get_a_table(void)
{
    CHECK_INT(run("bench gemm_rs 24 40 56 --iters 2 --schedule all"), 0);
    CHECK_HAS(out, "GEMM only");
    CHECK_HAS(out, "hidden");
    CHECK_HAS(out, "direct");
    CHECK_HAS(out,
              "ReduceScatter1D_TilingA_RotatingC, tiles "); /* whole names, so that rows can be told apart */
    CHECK_HAS(out, "│ auto ");
    CHECK_HAS(out, "unfused µs");
    CHECK_HAS(out, "medians in µs");
    CHECK_HAS(out, "bound");
    CHECK_INT(run("bench all_reduce --bytes 64:64K --iters 2"), 0);
    CHECK_HAS(out, "auto small");
    CHECK_HAS(out, "auto m"); /* multimem on shared memory */
    CHECK_INT(run("bench --help"), 0);
    CHECK_HAS(out, "gemm_as");
    CHECK_HAS(out, "--BLOCK_SIZE_M");
    CHECK_HAS(out, "two_shot");
}

static void narrow_sums_are_right(void)
{
    CHECK_INT(run("bench gemm_rs 65 66 67 -n 3 --wire bf16 --schedule all --iters 2 --json"), 0);
    CHECK_INT(run("bench gemm_ar 65 66 67 -n 3 --wire f16 --schedule all --threads 2 --iters 2 --json"), 0);
}

static void a_wrong_result_is_status_one(void)
{
    /* No rounding fits into this bound. */
    CHECK_INT(run("bench gemm_ar 64 64 512 --eps 1e-30 --iters 2 --json"), 1);
    CHECK_HAS(out, "\"ok\": false");
}

static void check_wrong(const char *arguments, const char *part)
{
    CHECK_INT(run(arguments), 2);
    CHECK_INT(strlen(out), 0);
    CHECK_HAS(err, part);
    CHECK(strchr(err, '\n') == err + strlen(err) - 1);
}

static void wrong_calls_are_one_line_and_status_two(void)
{
    check_wrong("bench", "which operation");
    check_wrong("bench ag_gemm --frobnicate 3", "--frobnicate");
    check_wrong("bench ag_gemm --m 0", "--m 0");
    check_wrong("bench ag_gemm --set nonsense", "nonsense");
    check_wrong("bench all_reduce --dtype float7", "float7");
    check_wrong("bench ag_gemm --gather b --schedule AllGather1D_TilingCD_RotatingA",
                "AllGather1D_TilingCD_RotatingA");
    check_wrong("frobnicate", "not a command");
}

/* An executable script that stands for a Python; removed by the caller. */
static void write_script(char *path, const char *text)
{
    int fd = mkstemp(path);

    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    CHECK_INT(fchmod(fd, 0700), 0);
    close(fd);
}

static void torch_is_asked_for_products_in_turn(void)
{
    char answers[] = "/tmp/weft-torch-XXXXXX", lacks[] = "/tmp/weft-torch-XXXXXX",
         dies[] = "/tmp/weft-torch-XXXXXX";
    char line[256];
    const char *peer;

    write_script(answers, "#!/bin/sh\necho ready 9.9\nwhile read -r calls; do sleep 0.01; echo done; done\n");
    snprintf(line, sizeof line, "bench gemm 16 16 16 --iters 3 --json --torch %s", answers);
    CHECK_INT(run(line), 0);
    peer = strstr(out, "\"peer\": \"PyTorch 9.9\", \"peer_us\": ");
    CHECK(peer && strtod(strstr(peer, "peer_us") + strlen("peer_us\": "), NULL) > 0);
    write_script(lacks, "#!/bin/sh\nexit 1\n");
    snprintf(line, sizeof line, "bench gemm 16 16 16 --iters 3 --json --torch %s", lacks);
    CHECK_INT(run(line), 2);
    CHECK_HAS(err, "cannot import torch");
    write_script(
        dies, "#!/bin/sh\n[ \"$2\" = 'import torch.distributed' ] && exit\necho ready 9.9\nread -r calls\n");
    snprintf(line, sizeof line, "bench gemm 16 16 16 --iters 3 --json --torch %s", dies);
    CHECK_INT(run(line), 1);
    CHECK_HAS(err, "stopped answering");
    unlink(answers);
    unlink(lacks);
    unlink(dies);
}

static double value_of(const char *key)
{
    const char *at = strstr(out, key);

    return at ? strtod(at + strlen(key), NULL) : 0;
}

static void few_rows_have_both_limits(void)
{
    double gflops, l1, of; /* of one iteration: ratios are medians of those of the iterations */

    CHECK_INT(run("bench gemm 3 48 64 --dtype bf16 --transb --iters 1 --json"), 0);
    CHECK_HAS(out, "\"transb\": true");
    CHECK(!strstr(out, "\"of_memory\": null") && !strstr(out, "\"of_ceiling\": null"));
    gflops = value_of("\"gflops\": ");
    l1 = value_of("\"l1_gflops\": ");
    of = value_of("\"of_l1\": ");
    CHECK(of > 0 && fabs(of * l1 - gflops) < 0.001 * gflops);
}

static void pictures_are_written(void)
{
    char path[] = "/tmp/weft-bench-XXXXXX", line[256], head[64] = "";
    int fd = mkstemp(path);
    FILE *file;

    close(fd);
    snprintf(line, sizeof line, "bench gemm_as 64 64 64 --iters 2 --svg %s", path);
    CHECK_INT(run(line), 0);
    CHECK_HAS(out, path);
    file = fopen(path, "r");
    CHECK(file && fread(head, 1, sizeof head - 1, file) > 0);
    CHECK_HAS(head, "<svg");
    if (file)
        fclose(file);
    unlink(path);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s path/to/weft\n", argv[0]);
        return 2;
    }
    weft = argv[1];
    products_print_every_field();
    collectives_print_every_field();
    seeds_calls_work_as_written();
    people_get_a_table();
    narrow_sums_are_right();
    a_wrong_result_is_status_one();
    wrong_calls_are_one_line_and_status_two();
    torch_is_asked_for_products_in_turn();
    few_rows_have_both_limits();
    pictures_are_written();
    return check_report("test_tools_bench");
}
