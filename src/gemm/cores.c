/*
 * Which core's kernels this process uses: the best the CPU has, or the one WEFT_ISA names; with blocks for
 * the caches of the machine's first CPU, so that all its processes agree, wherever they are bound.
 */
#include "core/cpu.h"
#include "core/env.h"
#include "core/topo.h"
#include "gemm/gemm.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { CORES_MOST = 16 };

static pthread_once_t fit_once = PTHREAD_ONCE_INIT;
static weft_core fitted[CORES_MOST];

static pthread_once_t current_once = PTHREAD_ONCE_INIT;
static const weft_core *current_core;
static weft_error_text current_error;

static void fit_all(void)
{
    const weft_caches here = {.l1 = weft_topo_cache_bytes_of(0, 1),
                              .l2 = weft_topo_cache_bytes_of(0, 2),
                              .l3 = weft_topo_cache_bytes_of(0, 3)};

    for (int i = 0; i <= weft_cores_of_arch_count && i < CORES_MOST; i++) {
        weft_core *core = &fitted[i];

        *core = i < weft_cores_of_arch_count ? *weft_cores_of_arch[i] : weft_core_portable;
        for (int c = 0; c < WEFT_COMPUTE_COUNT; c++)
            core->bind[c] = weft_binding_fit(&core->bind[c], &core->caches, &here);
        core->caches = (weft_caches){.l1 = here.l1 > 0 ? here.l1 : core->caches.l1,
                                     .l2 = here.l2 > 0 ? here.l2 : core->caches.l2,
                                     .l3 = here.l3 > 0 ? here.l3 : core->caches.l3};
    }
}

const weft_core *weft_core_at(int index)
{
    pthread_once(&fit_once, fit_all);
    return index >= 0 && index <= weft_cores_of_arch_count && index < CORES_MOST ? &fitted[index] : NULL;
}

bool weft_core_available(const weft_core *core)
{
    return weft_cpu_has(core->needs);
}

/* "neon_mm, neon, portable": what a caller may ask for here. */
static const char *available_names(char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (int i = 0; weft_core_at(i); i++) {
        if (weft_core_available(weft_core_at(i)) && used < bytes)
            used +=
                (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", weft_core_at(i)->name);
    }
    return text;
}

weft_status weft_core_find(const char *name, const weft_core **core, weft_error_text *error)
{
    char names[256], missing[128];

    for (int i = 0; weft_core_at(i); i++) {
        const weft_core *candidate = weft_core_at(i);

        if (strcmp(candidate->name, name))
            continue;
        if (!weft_core_available(candidate)) {
            weft_cpu_feature_list(candidate->needs & ~weft_cpu_features(), missing, sizeof(missing));
            return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                  "instruction set %s needs %s, which this CPU lacks; it has: %s", name,
                                  missing, available_names(names, sizeof(names)));
        }
        *core = candidate;
        return WEFT_OK;
    }
    return weft_error_set(error, WEFT_ERR_ARGUMENT,
                          "there is no instruction set \"%s\" in this build; this CPU can run: %s", name,
                          available_names(names, sizeof(names)));
}

static void decide_current(void)
{
    const char *name = weft_env_word(WEFT_ENV_ISA);

    if (*name) {
        weft_error_text why;
        weft_status status = weft_core_find(name, &current_core, &why);

        if (status)
            weft_error_set(&current_error, status, "WEFT_ISA: %s", why.text);
        return;
    }
    for (int i = 0; !current_core; i++) {
        if (weft_core_available(weft_core_at(i)))
            current_core = weft_core_at(i);
    }
}

weft_status weft_core_current(const weft_core **core, weft_error_text *error)
{
    pthread_once(&current_once, decide_current);
    if (!current_core) {
        *error = current_error;
        return current_error.status;
    }
    *core = current_core;
    return WEFT_OK;
}

const weft_binding *weft_core_binding(const weft_core *core, weft_dtype dtype, bool f16_fast)
{
    switch (dtype) {
    case WEFT_F32:
        return &core->bind[WEFT_COMPUTE_F32];
    case WEFT_F16:
        return &core->bind[f16_fast ? WEFT_COMPUTE_F16_FAST : WEFT_COMPUTE_F16];
    case WEFT_BF16:
    case WEFT_FP8_E4M3: /* converted while it is packed: a bfloat16 holds both kinds */
    case WEFT_FP8_E5M2:
        return &core->bind[WEFT_COMPUTE_BF16];
    case WEFT_I8:
        return &core->bind[WEFT_COMPUTE_I8];
    default:
        return NULL;
    }
}
