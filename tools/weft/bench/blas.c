/* Loading BLAS libraries. See blas.h. */
#include "bench/blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first of the names that loads. Libraries are never unloaded: they own threads. */
static void *open_first(const char *const *names)
{
    for (; *names; names++) {
        void *handle = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        if (handle)
            return handle;
    }
    return NULL;
}

/* A function of the library; copying the bits avoids a cast ISO C does not define. */
static void find(void *handle, const char *name, void *function)
{
    void *symbol = dlsym(handle, name);

    memcpy(function, &symbol, sizeof symbol);
}

static bool load(blas_library *library, const char *const *names, const char *set_threads, void **handle)
{
    *handle = open_first(names);
    if (!*handle)
        return false;
    find(*handle, "cblas_sgemm", &library->sgemm);
    find(*handle, "cblas_sgemv", &library->sgemv);
    find(*handle, set_threads, &library->set_threads);
    return library->sgemm && library->sgemv && library->set_threads;
}

/* "OpenBLAS 0.3.21 NO_LAPACKE …" gives its first two words. */
static void two_words(char *name, size_t bytes, const char *text)
{
    int spaces = 0;
    size_t length = 0;

    for (; *text && length + 1 < bytes; text++) {
        spaces += *text == ' ';
        if (spaces == 2)
            break;
        name[length++] = *text;
    }
    name[length] = 0;
}

const blas_library *blas_openblas(void)
{
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so", NULL};
    static blas_library library;
    static int loaded;
    void *handle;

    if (!loaded) {
        char *(*config)(void) = NULL;
        loaded = load(&library, names, "openblas_set_num_threads", &handle) ? 1 : -1;
        snprintf(library.name, sizeof library.name, "OpenBLAS");
        if (loaded == 1)
            find(handle, "openblas_get_config", &config);
        if (config)
            two_words(library.name, sizeof library.name, config());
    }
    return loaded == 1 ? &library : NULL;
}

/* BLIS takes 64-bit dims in its own thread call. */
static void (*blis_set_threads)(long threads);

static void set_blis_threads(int threads)
{
    blis_set_threads(threads);
}

const blas_library *blas_blis(void)
{
    static const char *const names[] = {"libblis.so.4", "libblis.so.3", "libblis.so", NULL};
    static blas_library library;
    static int loaded;
    void *handle;

    if (!loaded) {
        const char *(*version)(void) = NULL;
        loaded = load(&library, names, "bli_thread_set_num_threads", &handle) ? 1 : -1;
        snprintf(library.name, sizeof library.name, "BLIS");
        if (loaded == 1) {
            find(handle, "bli_thread_set_num_threads", &blis_set_threads);
            library.set_threads = set_blis_threads;
            find(handle, "bli_info_get_version_str", &version);
        }
        if (version)
            snprintf(library.name, sizeof library.name, "BLIS %s", version());
    }
    return loaded == 1 ? &library : NULL;
}
