/*
 * Binaries that run with glibc 2.28, built with a newer one (WEFT_PORTABLE, the build of the wheel).
 *
 * Included before everything else, in every file. Functions that got a new version since 2.28 are asked for
 * by the version they had: those of libm that stopped setting errno, and those that moved into libc from
 * libpthread and libdl, which the link then names itself. What 2.28 does not have at all is in glibc_2_28.c,
 * and the start of a program in start_2_28.c.
 */
#if defined(__aarch64__)
#define WEFT_GLIBC_FIRST "GLIBC_2.17"
#define WEFT_GLIBC_AFFINITY "GLIBC_2.17"
#elif defined(__x86_64__)
#define WEFT_GLIBC_FIRST "GLIBC_2.2.5"
#define WEFT_GLIBC_AFFINITY "GLIBC_2.3.4"
#else
#error "WEFT_PORTABLE knows aarch64 and x86-64"
#endif

#define WEFT_GLIBC_OLD(name, version) __asm__(".symver " #name "," #name "@" version)

WEFT_GLIBC_OLD(exp, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(exp2, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(log, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(log2, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pow, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(fmod, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(dlopen, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(dlclose, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(dlsym, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(dlerror, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(dladdr, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_create, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_join, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_detach, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_once, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_kill, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_sigmask, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_mutex_trylock, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_barrier_init, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_barrier_wait, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_barrier_destroy, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_key_create, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_getspecific, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_setspecific, WEFT_GLIBC_FIRST);
WEFT_GLIBC_OLD(pthread_setaffinity_np, WEFT_GLIBC_AFFINITY);
WEFT_GLIBC_OLD(pthread_getaffinity_np, WEFT_GLIBC_AFFINITY);

#undef WEFT_GLIBC_OLD

/* Where _GNU_SOURCE means C23 (from 2.38 on), strtol, sscanf and their kin read 0b101 too, under new names.
 */
#include <features.h>
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0
