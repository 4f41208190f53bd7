/* Ranks on the real GPU as virtual nodes. */
#include "device_parts.h"
#include "nodes_cases.h"

static void placed(int world)
{
    nodes_run(world == 2 ? "ab" : "aab", nodes_body, NULL);
}

int main(int argc, char **argv)
{
    static const device_part parts[] = {{"nodes", placed, 2}, {"nodes", placed, 3}};

    if (!nodes_possible("test_cuda_nodes_device"))
        return NODES_SKIPPED;
    setenv("WEFT_HEAP", "256M", 0);
    device_parts_run(parts, (int)(sizeof(parts) / sizeof(parts[0])), argc, argv);
    return device_parts_report("test_cuda_nodes_device");
}
