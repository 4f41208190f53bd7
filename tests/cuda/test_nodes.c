/* Ranks with fake GPUs on virtual nodes. */
#include "fake_gpu.h"
#include "nodes_cases.h"

int main(void)
{
    if (!nodes_possible("test_cuda_nodes"))
        return NODES_SKIPPED;
    setenv("WEFT_HEAP", "256M", 0);
    fake_gpu_install(2, 8, true);
    nodes_run("ab", nodes_body, NULL);
    nodes_run("aab", nodes_body, NULL);
    return check_report("test_cuda_nodes");
}
