/* Detected features have names, and the baseline of the architecture is among them. */
#include "core/cpu.h"
#include "support/check.h"

int main(void)
{
    uint32_t features = weft_cpu_features();
    char list[512];

    weft_cpu_feature_list(features, list, sizeof(list));
#if defined(__aarch64__)
    CHECK(features & WEFT_CPU_ASIMD);
    CHECK_HAS(list, "asimd");
    CHECK(!(features & WEFT_CPU_AVX2));
#elif defined(__x86_64__)
    CHECK(!(features & WEFT_CPU_ASIMD));
    if (features & WEFT_CPU_AVX512F)
        CHECK(features & WEFT_CPU_AVX2);
    if (features & WEFT_CPU_AMX_BF16)
        CHECK(features & WEFT_CPU_AMX_TILE);
#endif
    for (int i = 0; i < WEFT_CPU_FEATURE_COUNT; i++)
        CHECK(weft_cpu_feature_name(i) != NULL);
    CHECK(weft_cpu_feature_name(WEFT_CPU_FEATURE_COUNT) == NULL);
    CHECK(weft_cpu_name()[0] != 0);
    CHECK(weft_cpu_count() >= 1);
    weft_cpu_feature_list(0xffffffff, list, 8);
    CHECK(strlen(list) < 8);
    return check_report("cpu");
}
