/* All cases on the GPU. Without one there is nothing to test here: the test says so and passes. */
#include "cases.h"

int main(int argc, char **argv)
{
    weft_error_text error = {0};
    weft_status status = weft_cuda_device_open(0, &device, &error);
    const char *only = argc > 1 ? argv[1] : "";
    if (status == WEFT_ERR_UNSUPPORTED) {
        printf("no GPU to test on: %s\n", error.text);
        return 0;
    }
    many_runs = (int)check_repeat(200, 1000);
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK)
        return check_report(error.text);
    if (!*only || strstr(only, "gemm"))
        test_gemm_alone(),
            printf("gemm_alone: %ld checks, %d failed\n", (long)check_count, (int)check_failures),
            fflush(stdout);
    if (!*only || strstr(only, "strides"))
        test_any_strides(),
            printf("any_strides: %ld checks, %d failed\n", (long)check_count, (int)check_failures),
            fflush(stdout);
    if (!*only || strstr(only, "ops"))
        test_operations(),
            printf("operations: %ld checks, %d failed\n", (long)check_count, (int)check_failures),
            fflush(stdout);
    if (!*only || strstr(only, "missing"))
        test_missing_rank(),
            printf("missing_rank: %ld checks, %d failed\n", (long)check_count, (int)check_failures),
            fflush(stdout);
    weft_cuda_device_close(&device);
    return check_report("test_cuda_device");
}
