/*
 * weft: tensor-parallel matrix products and mixture-of-experts routing over several ranks, with the
 * communication woven into the compute.
 *
 * This is the whole public interface. It is C11, may be included from C++, and names no CUDA or MPI
 * type. Handles are opaque. Every function that can fail returns a weft_status; the sentence that says
 * what went wrong is weft_error(group), or weft_error(NULL) when there is no group yet. The library
 * never exits, aborts or prints.
 */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif

/* ---- status and types ---------------------------------------------------------------------------- */

typedef enum weft_status {
    WEFT_OK = 0,
    WEFT_ERR_ARGUMENT,    /* a value the call cannot take */
    WEFT_ERR_MISMATCH,    /* the ranks asked for different things */
    WEFT_ERR_MEMORY,      /* host, symmetric or device memory is exhausted */
    WEFT_ERR_TIMEOUT,     /* a wait reached its deadline */
    WEFT_ERR_PEER_DIED,   /* a rank ended before its work did */
    WEFT_ERR_PEER,        /* another rank failed or rejected its arguments */
    WEFT_ERR_LAUNCH,      /* ranks were announced that could not be met */
    WEFT_ERR_SYSTEM,      /* the operating system refused something */
    WEFT_ERR_UNSUPPORTED, /* this build or machine cannot do it */
    WEFT_ERR_STATE        /* calls out of order */
} weft_status;

typedef enum weft_dtype {
    WEFT_F32 = 0,
    WEFT_F16,
    WEFT_BF16,
    WEFT_I8,
    WEFT_I32,
    WEFT_I64,
    WEFT_BYTE /* opaque bytes: movement only */
} weft_dtype;

typedef struct weft_group weft_group;

/* A short name and one sentence for a status. Never NULL. */
WEFT_API const char *weft_status_name(weft_status status);
WEFT_API const char *weft_status_text(weft_status status);

/* The library's version, "major.minor.patch". */
WEFT_API const char *weft_version(void);

#ifdef __cplusplus
}
#endif

#endif
