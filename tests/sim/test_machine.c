/* Machine descriptions: all that ship can be read and say where each number is from; mistakes are named. */
#include "support/check.h"
#include "sim/machine.h"

#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char gpu[] = "name g\nkind gpu\nranks_per_node 4\nunits 10\ngflops bf16 100\nmemory_gbs 50\n"
                          "copy_engines 2\nlink mesh\nlink_gbs 8 # a comment\n";

static void every_number_has_a_source(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[512], key[64], value[64];

    CHECK(file != NULL);
    while (file && fgets(line, sizeof(line), file)) {
        const char *comment = strchr(line, '#');

        if (line[0] == '#' || sscanf(line, "%63s %63s", key, value) != 2)
            continue;
        if (strcmp(key, "about") == 0 || strcmp(key, "name") == 0 || strcmp(key, "kind") == 0 ||
            strcmp(key, "like") == 0 || (strcmp(key, "nodes") == 0 && strcmp(value, "1") == 0))
            continue;
        if (!comment || strlen(comment) < 8)
            fprintf(stderr, "%s: no source: %s", path, line);
        CHECK(comment && strlen(comment) >= 8);
    }
    if (file)
        fclose(file);
}

static void shipped_descriptions_are_whole(void)
{
    static const char *const expected[] = {"h100x8", "h100x16", "h100x1024", "mi300x8", "l20x8", "cpu"};
    weft_error_text error = {0};
    weft_machine machine;
    char path[512];

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        CHECK_INT(weft_machine_find(expected[i], &machine, &error), WEFT_OK);
        CHECK(strcmp(machine.name, expected[i]) == 0);
        CHECK(machine.about[0] != 0);
        snprintf(path, sizeof(path), "%s/%s.machine", MACHINES_DIR, expected[i]);
        every_number_has_a_source(path);
        CHECK_INT(weft_machine_find(path, &machine, &error), WEFT_OK);
    }
    CHECK_INT(weft_machine_find("h100x1024", &machine, &error), WEFT_OK);
    CHECK_INT(machine.nodes * machine.ranks_per_node, 1024);
    CHECK_INT(machine.units, 132);
}

/* fp8 without a rate of its own is multiplied as bfloat16: at the rate that the description ends with. */
static void fp8_has_a_rate(void)
{
    weft_error_text error = {0};
    weft_machine machine;

    CHECK_INT(weft_machine_parse("like cpu\ngflops bf16 500\n", "here", &machine, &error), WEFT_OK);
    CHECK(machine.gflops[WEFT_FP8_E4M3] == 500 && machine.gflops[WEFT_FP8_E5M2] == 500);
    for (int i = 0; weft_machine_builtin_name(i); i++) {
        CHECK_INT(weft_machine_find(weft_machine_builtin_name(i), &machine, &error), WEFT_OK);
        CHECK(!machine.gflops[WEFT_FP8_E4M3] || machine.gflops[WEFT_FP8_E4M3] >= machine.gflops[WEFT_BF16]);
    }
}

static void refuses(const char *text, const char *sentence)
{
    weft_error_text error = {0};
    weft_machine machine = {.units = 77};

    CHECK_INT(weft_machine_parse(text, "here", &machine, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, sentence);
    CHECK_INT(machine.units, 77);
}

static void mistakes_are_named(void)
{
    char text[512];

    snprintf(text, sizeof(text), "%sspeed 3\n", gpu);
    refuses(text, "here:10: unknown key 'speed'");
    snprintf(text, sizeof(text), "%slink star\n", gpu);
    refuses(text, "here:10: link needs switch, mesh or ring");
    snprintf(text, sizeof(text), "%sflag_us -1\n", gpu);
    refuses(text, "here:10: flag_us needs a number");
    snprintf(text, sizeof(text), "%sgflops bf17 5\n", gpu);
    refuses(text, "gflops needs an element type");
    snprintf(text, sizeof(text), "%sunits 2.5\n", gpu);
    refuses(text, "units needs a whole number");
    snprintf(text, sizeof(text), "%stype_step_m bf16 2.5\n", gpu);
    refuses(text, "type_step_m needs an element type and a whole number");
    snprintf(text, sizeof(text), "%screws perhaps\n", gpu);
    refuses(text, "crews needs yes or no");
    snprintf(text, sizeof(text), "%scopy_own 4096 3 3\ncopy_own 64 3 3\n", gpu);
    refuses(text, "ascending order");
    snprintf(text, sizeof(text), "%snodes 2\n", gpu);
    refuses(text, "lacks network_gbs");
    snprintf(text, sizeof(text), "%sfew bf16 2 0 1\n", gpu);
    refuses(text, "here:10: few needs four numbers after its element type");
    snprintf(text, sizeof(text), "%sfew bf16 2 0 1 1 7\n", gpu);
    refuses(text, "here:10: few needs four numbers after its element type");
    snprintf(text, sizeof(text), "%sfew bf17 2 0 1 1\n", gpu);
    refuses(text, "here:10: few needs the name of an element type");
    snprintf(text, sizeof(text), "%sunits 2 3\n", gpu);
    refuses(text, "here:10: units needs a whole number");
    snprintf(text, sizeof(text), "%slink switch ring\n", gpu);
    refuses(text, "here:10: link needs switch");
    snprintf(text, sizeof(text), "%sfew bf16 2 0 1 1\nfew bf16 1 0 1 1\n", gpu);
    refuses(text, "here:11: few needs its points in ascending order");
    snprintf(text, sizeof(text), "%sfew bf16 2 0 1 1\nfew bf16 4 64 1 1\n", gpu);
    refuses(text, "here:11: few needs its points in ascending order");
    refuses("kind gpu\n", "lacks units");
    snprintf(text, sizeof(text), "%sstep_m 0\n", gpu);
    refuses(text, "lacks a step_m");
    snprintf(text, sizeof(text), "%snodes 1e9\n", gpu); /* times ranks_per_node it would overflow */
    refuses(text, "nodes needs a whole number");
    refuses("kind cpu\nunits 2\ngflops f32 1\nmemory_gbs 3\n", "lacks copy_own");
}

/* What a description starts from does not give it products that its hardware has none of. */
static void types_that_are_missing(void)
{
    weft_error_text error = {0};
    weft_machine machine;

    CHECK_INT(weft_machine_find("a100x8", &machine, &error), WEFT_OK);
    CHECK(machine.gflops[WEFT_FP8_E4M3] == 0 && machine.gflops[WEFT_FP8_E5M2] == 0);
    CHECK(machine.gflops[WEFT_I8] > machine.gflops[WEFT_BF16]);
    CHECK_INT(weft_machine_find("epyc96", &machine, &error), WEFT_OK);
    CHECK(machine.gflops[WEFT_FP8_E4M3] == machine.gflops[WEFT_BF16]);
}

static void values_are_read(void)
{
    weft_error_text error = {0};
    weft_machine machine;
    weft_curve curve = {.count = 2, .bytes = {1024, 4096}, .alone = {10, 20}, .all = {5, 1}};

    CHECK_INT(weft_machine_parse(gpu, "here", &machine, &error), WEFT_OK);
    CHECK(machine.kind == WEFT_MACHINE_GPU && machine.link == WEFT_LINK_MESH);
    CHECK(machine.link_gbs == 8 && machine.gflops[WEFT_BF16] == 100 && machine.gflops[WEFT_F32] == 0);
    CHECK(weft_curve_rate(&curve, 1, false) == 10);
    CHECK(weft_curve_rate(&curve, 1e9, true) == 1);
    CHECK(weft_curve_rate(&curve, 2048, false) > 14.9 && weft_curve_rate(&curve, 2048, false) < 15.1);
}

/* Of each of k, and of each element of a B of 100 and 10000 bytes. */
static void few_rows_are_between_points(void)
{
    static const char text[] = "like cpu\nfew f32 4 0 3 1\nfew f32 4 100 2 1\nfew f32 4 10000 4 3\n"
                               "few f32 12 0 7 1\nfew f32 12 100 10 1\nfew f32 12 10000 20 1\n"
                               "few f32 60 0 9 1\nfew f32 60 100 50 1\nfew f32 60 10000 100 1\n";
    static const struct {
        int64_t rows;
        double bytes;
        bool packed;
        double ns;
    } cases[] = {
        {4, 0, false, 3},       {3, 0, false, 3}, /* the kernel for four */
        {4, 1, false, 2},       {4, 1000, false, 3},    {4, 1e9, false, 4},   {4, 1000, true, 2},
        {6, 100, false, 10}, /* whole micro-tiles: */
        {10, 100, false, 10},   {12, 10000, false, 20}, {36, 100, false, 30}, {25, 100, false, 30},
        {36, 10000, false, 60}, {64, 100, false, 60},   {36, 0, false, 8},
    };
    weft_error_text error = {0};
    weft_machine machine;

    CHECK_INT(weft_machine_parse(text, "here", &machine, &error), WEFT_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double ns =
            weft_few_rows_ns(&machine.few[WEFT_F32], cases[i].rows, 12, cases[i].bytes, cases[i].packed);

        CHECK(fabs(ns - cases[i].ns) < 1e-9);
        if (fabs(ns - cases[i].ns) >= 1e-9)
            fprintf(stderr, "    case %d: %g ns\n", (int)i, ns);
    }
    CHECK(machine.few[WEFT_FP8_E4M3].count == machine.few[WEFT_BF16].count);
}

/* What an older calibration has that nothing goes by any more is passed over, and said. */
static void older_calibrations_are_read(void)
{
    weft_error_text error = {0};
    weft_machine machine;

    CHECK_INT(weft_machine_parse("like cpu\nabout mine\ngflops_few bf16 5\nplace_gbs f32 1\n", "here",
                                 &machine, &error),
              WEFT_OK);
    CHECK_HAS(machine.about, "mine, measured by an older weft");
    CHECK_INT(weft_machine_parse("like cpu\nabout mine\n", "here", &machine, &error), WEFT_OK);
    CHECK(strcmp(machine.about, "mine") == 0);
}

/* As a copy that keeps times does: the file is as long and as old as it was. */
static void change_quietly(const char *path, FILE *file)
{
    struct stat was;

    CHECK_INT(stat(path, &was), 0);
    nanosleep(&(struct timespec){0, 50000000}, NULL); /* some clocks of file systems tick that slowly */
    fputs("x", file);
    fflush(file);
    CHECK_INT(futimens(fileno(file), (struct timespec[]){was.st_atim, was.st_mtim}), 0);
}

static void this_machine_is_found_in_order(void)
{
    char folder[] = "/tmp/weft_machine_XXXXXX", path[256], other[256];
    weft_error_text error = {0};
    weft_machine machine;
    FILE *file;

    CHECK(mkdtemp(folder) != NULL);
    setenv("XDG_CONFIG_HOME", folder, 1);
    unsetenv("WEFT_MACHINE");
    CHECK_INT(weft_machine_find(NULL, &machine, &error), WEFT_OK);
    CHECK(strcmp(machine.name, "cpu") == 0);
    CHECK(machine.units >= 1);

    CHECK_INT(weft_machine_user_path(path, sizeof(path), &error), WEFT_OK);
    CHECK(strncmp(path, folder, strlen(folder)) == 0);
    *strrchr(path, '/') = 0;
    if (access(path, F_OK)) {
        char command[300];

        snprintf(command, sizeof(command), "mkdir -p %s", path);
        CHECK_INT(system(command), 0);
    }
    CHECK_INT(weft_machine_user_path(path, sizeof(path), &error), WEFT_OK);
    file = fopen(path, "w");
    CHECK(file != NULL);
    if (file) {
        fputs(gpu, file);
        fclose(file);
    }
    CHECK_INT(weft_machine_find("this", &machine, &error), WEFT_OK);
    CHECK(strcmp(machine.name, "g") == 0);
    CHECK_INT(weft_machine_find("this_gpu", &machine, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "weft calibrate --backend cuda");
    CHECK_INT(weft_machine_gpu_path(other, sizeof(other), &error), WEFT_OK);
    CHECK_INT(rename(path, other), 0);
    for (int again = 0; again < 3; again++) { /* read again when it has changed */
        CHECK_INT(weft_machine_find("this_gpu", &machine, &error), again == 2 ? WEFT_ERR_ARGUMENT : WEFT_OK);
        CHECK(strcmp(machine.name, "g") == 0);
        file = again == 1 ? fopen(other, "r+") : NULL;
        if (file) {
            change_quietly(other, file);
            fclose(file);
        }
    }
    setenv("WEFT_MACHINE", "l20x8", 1);
    CHECK_INT(weft_machine_find(NULL, &machine, &error), WEFT_OK);
    CHECK(strcmp(machine.name, "l20x8") == 0);
    setenv("WEFT_MACHINE", "/nowhere/x", 1);
    CHECK_INT(weft_machine_find(NULL, &machine, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "/nowhere/x");
    CHECK_INT(weft_machine_find("h200", &machine, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "h100x8");
    unlink(other);
    *strrchr(path, '/') = 0;
    rmdir(path);
    rmdir(folder);
}

int main(void)
{
    shipped_descriptions_are_whole();
    mistakes_are_named();
    types_that_are_missing();
    values_are_read();
    fp8_has_a_rate();
    few_rows_are_between_points();
    older_calibrations_are_read();
    this_machine_is_found_in_order();
    return check_report("sim machine");
}
