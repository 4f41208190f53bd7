#include "core/cpu.h"

#include "core/cores.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;
static uint32_t cpu_features;
static char cpu_name[64];

#if defined(__aarch64__)
#include <sys/auxv.h>

/* Values of the kernel's interface (Documentation/arm64/elf_hwcaps), which older headers lack. */
enum {
    CAP_ASIMD = 1 << 1,
    CAP_ASIMDHP = 1 << 10,
    CAP_CPUID = 1 << 11,
    CAP_ASIMDDP = 1 << 20,
    CAP_SVE = 1 << 22
};
enum { CAP_ASIMDFHM = 1 << 23 };
enum { CAP2_SVE2 = 1 << 1, CAP2_I8MM = 1 << 13, CAP2_BF16 = 1 << 14 };

static void cpu_detect_name(unsigned long caps)
{
    static const struct {
        unsigned part;
        const char *name;
    } arm[] = {
        {0xd03, "Cortex-A53"},  {0xd08, "Cortex-A72"},  {0xd0b, "Cortex-A76"},
        {0xd0c, "Neoverse N1"}, {0xd40, "Neoverse V1"}, {0xd49, "Neoverse N2"},
        {0xd4f, "Neoverse V2"}, {0xd84, "Neoverse V3"}, {0xd8e, "Neoverse N3"},
    };
    uint64_t midr = 0;

    snprintf(cpu_name, sizeof(cpu_name), "aarch64");
    if (!(caps & CAP_CPUID))
        return;
    __asm__("mrs %0, MIDR_EL1" : "=r"(midr)); /* the kernel answers this read for user space */
    snprintf(cpu_name, sizeof(cpu_name), "aarch64 implementer 0x%02x part 0x%03x",
             (unsigned)(midr >> 24) & 0xff, (unsigned)(midr >> 4) & 0xfff);
    for (size_t i = 0; i < sizeof(arm) / sizeof(arm[0]); i++) {
        if (((midr >> 24) & 0xff) == 0x41 && ((midr >> 4) & 0xfff) == arm[i].part)
            snprintf(cpu_name, sizeof(cpu_name), "%s", arm[i].name);
    }
}

static void cpu_detect(void)
{
    unsigned long caps = getauxval(AT_HWCAP);
    unsigned long caps2 = getauxval(AT_HWCAP2);

    cpu_features = (caps & CAP_ASIMD ? WEFT_CPU_ASIMD : 0) | (caps & CAP_ASIMDHP ? WEFT_CPU_FP16 : 0) |
                   (caps & CAP_ASIMDFHM ? WEFT_CPU_FHM : 0) | (caps & CAP_ASIMDDP ? WEFT_CPU_DOTPROD : 0) |
                   (caps & CAP_SVE ? WEFT_CPU_SVE : 0) | (caps2 & CAP2_SVE2 ? WEFT_CPU_SVE2 : 0) |
                   (caps2 & CAP2_BF16 ? WEFT_CPU_BF16 : 0) | (caps2 & CAP2_I8MM ? WEFT_CPU_I8MM : 0);
    cpu_detect_name(caps);
}

#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };
enum { REQUEST_XCOMP_PERMISSION = 0x1023, XFEATURE_TILE_DATA = 18 };

static uint64_t read_xcr0(void)
{
    uint32_t low, high;

    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static uint32_t features_of_leaf7(uint64_t xcr0)
{
    uint32_t eax, ebx, ecx, edx, sub, found = 0;

    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        return 0;
    sub = eax;
    if ((xcr0 & XCR0_AVX) == XCR0_AVX && ebx & 1u << 5)
        found |= WEFT_CPU_AVX2;
    if ((xcr0 & XCR0_AVX512) == XCR0_AVX512 && ebx & 1u << 16) {
        found |= WEFT_CPU_AVX512F | (ebx & 1u << 30 ? WEFT_CPU_AVX512BW : 0) |
                 (ebx & 1u << 31 ? WEFT_CPU_AVX512VL : 0) | (ebx & 1u << 17 ? WEFT_CPU_AVX512DQ : 0) |
                 (ecx & 1u << 11 ? WEFT_CPU_AVX512VNNI : 0) | (edx & 1u << 23 ? WEFT_CPU_AVX512FP16 : 0);
    }
    if ((xcr0 & XCR0_AMX) == XCR0_AMX && edx & 1u << 24 &&
        !syscall(SYS_arch_prctl, REQUEST_XCOMP_PERMISSION, XFEATURE_TILE_DATA)) {
        found |= WEFT_CPU_AMX_TILE | (edx & 1u << 22 ? WEFT_CPU_AMX_BF16 : 0) |
                 (edx & 1u << 25 ? WEFT_CPU_AMX_INT8 : 0);
    }
    if (sub >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
        found |= found & WEFT_CPU_AVX512F && eax & 1u << 5 ? WEFT_CPU_AVX512BF16 : 0;
        found |= found & WEFT_CPU_AVX2 && eax & 1u << 4 ? WEFT_CPU_AVXVNNI : 0;
    }
    return found;
}

static void cpu_detect_name(void)
{
    uint32_t words[12];

    snprintf(cpu_name, sizeof(cpu_name), "x86-64");
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t *w = words + 4 * i;

        if (!__get_cpuid(0x80000002u + i, w, w + 1, w + 2, w + 3))
            return;
    }
    snprintf(cpu_name, sizeof(cpu_name), "%.48s", (const char *)words);
}

static void cpu_detect(void)
{
    uint32_t eax, ebx, ecx, edx;

    cpu_detect_name();
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & 1u << 27))
        return;
    uint64_t xcr0 = read_xcr0();

    cpu_features = features_of_leaf7(xcr0);
    if ((xcr0 & XCR0_AVX) == XCR0_AVX)
        cpu_features |= (ecx & 1u << 12 ? WEFT_CPU_FMA : 0) | (ecx & 1u << 29 ? WEFT_CPU_F16C : 0);
}

#else

static void cpu_detect(void)
{
    snprintf(cpu_name, sizeof(cpu_name), "unknown CPU");
}

#endif

uint32_t weft_cpu_features(void)
{
    pthread_once(&cpu_once, cpu_detect);
    return cpu_features;
}

bool weft_cpu_has(uint32_t features)
{
    return (features & ~weft_cpu_features()) == 0;
}

const char *weft_cpu_name(void)
{
    pthread_once(&cpu_once, cpu_detect);
    return cpu_name;
}

const char *weft_cpu_feature_name(int index)
{
    static const char *const names[WEFT_CPU_FEATURE_COUNT] = {
        "asimd",      "fp16",       "fhm",     "dotprod",  "bf16",     "i8mm",     "sve",      "sve2",
        "avx2",       "fma",        "f16c",    "avx512f",  "avx512bw", "avx512vl", "avx512dq", "avx512vnni",
        "avx512bf16", "avx512fp16", "avxvnni", "amx_tile", "amx_bf16", "amx_int8",
    };

    return index >= 0 && index < WEFT_CPU_FEATURE_COUNT ? names[index] : NULL;
}

void weft_cpu_feature_list(uint32_t features, char *text, size_t bytes)
{
    size_t used = 0;

    if (bytes)
        text[0] = 0;
    for (int i = 0; i < WEFT_CPU_FEATURE_COUNT && used < bytes; i++) {
        if (features >> i & 1)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? " " : "",
                                     weft_cpu_feature_name(i));
    }
}

/* Read once: files are slow, and what runs in a container keeps its quota. */
static pthread_once_t quota_once = PTHREAD_ONCE_INIT;
static double quota;

static void read_quota(void)
{
    uint64_t control;

    quota = weft_cores_quota("/proc/self/cgroup", "/sys/fs/cgroup", &control);
}

int weft_cpu_count(void)
{
    weft_cores cores = {0};

    pthread_once(&quota_once, read_quota);
    cores.quota = quota;
    weft_cores_allowed(cores.cpus);
    return weft_cores_whole(&cores);
}
