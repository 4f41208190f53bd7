/* `weft plan`: what it prints, proves and refuses. The path of the command is the only argument. */
#include "support/check.h"

#include <sys/wait.h>

static const char *command;
static char output[1 << 16];

/* Runs `weft plan ARGUMENTS` and returns its exit status; both streams are in `output`. */
static int plan(const char *arguments)
{
    char line[512];
    size_t bytes;
    FILE *pipe;

    snprintf(line, sizeof(line), "'%s' plan %s 2>&1", command, arguments);
    pipe = popen(line, "r");
    if (!pipe)
        return -1;
    bytes = fread(output, 1, sizeof(output) - 1, pipe);
    output[bytes] = 0;
    while (fgetc(pipe) != EOF) {
    }
    return WEXITSTATUS(pclose(pipe));
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    command = argv[1];

    CHECK_INT(plan("ag_gemm 64 48 32 -n 2 --schedule direct --rank 1"), 0);
    CHECK_HAS(output, "plan ag_gemm direct rank 1 of 2");
    CHECK_HAS(output, "A@0[");
    CHECK(!strstr(output, "rank 0 of 2"));
    CHECK_INT(plan("all_reduce --bytes 4K -n 3 --schedule two_shot --json"), 0);
    CHECK_HAS(output, "{\"op\":\"all_reduce\",\"schedule\":\"two_shot\"");
    CHECK_HAS(output, "\"rank\":2");

    CHECK_INT(plan("gemm_ar 100 90 80 -n 5 --schedule two_shot --threads 3 --check"), 0);
    CHECK_HAS(output, "gemm_ar two_shot over 5 ranks is right");
    CHECK_INT(plan("gemm_rs 100 90 80 -n 3 --scatter cols --check --json"), 0);
    CHECK_HAS(output, "\"findings\":[],\"ok\":true");

    CHECK_INT(plan("all_gather --bytes 4K -n 8 --nodes 3+5 --schedule pull --check"), 0);
    CHECK_HAS(output, "is right");
    CHECK_INT(plan("all_gather --bytes 4K -n 4 --nodes 2 --schedule pull --rank 0"), 0);
    CHECK_HAS(output, "domains 0 0 1 1\n");
    CHECK_INT(plan("all_gather --bytes 4K -n 4 --nodes 2+1"), 2);
    CHECK_HAS(output, "--nodes '2+1'");

    CHECK_INT(plan("ag_gemm -n 2"), 2);
    CHECK_HAS(output, "needs its sizes");
    CHECK_INT(plan("ag_gemm 8 8 8 --schedule one_shot"), 2);
    CHECK_HAS(output, "has no schedule one_shot");
    CHECK_INT(plan("gemm_rs 8 8 8 --scatter cols --schedule ReduceScatter1D_TilingA_RotatingC"), 2);
    CHECK_HAS(output, "scatter rows");
    CHECK_INT(plan("ag_gemm 8 8 8 -n 2 --rank 2"), 2);
    CHECK_HAS(output, "ranks 0 to 1");
    return check_report("test_tools_plan");
}
