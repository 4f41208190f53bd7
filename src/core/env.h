/*
 * Every environment variable weft reads for its own settings, one line each: name, kind, default and
 * meaning. Parsing, `weft info` and the documentation come from this table.
 *
 * Kinds: BYTES takes a number with an optional K, M, G or T (powers of 1024); SECONDS a decimal number;
 * CHOICE one of the words before its help; WORD a plain word that its reader checks.
 */
#ifndef WEFT_CORE_ENV_H
#define WEFT_CORE_ENV_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define WEFT_ENV_TABLE(X)                                                                                    \
    X(HEAP, BYTES, "", "",                                                                                   \
      "symmetric memory per rank, e.g. 512M; default: 3/4 of memory, or less under ulimit -v, divided by "   \
      "ranks")                                                                                               \
    X(ENTER_TIMEOUT, SECONDS, "600", "",                                                                     \
      "how long a rank waits for a peer to enter a call, and weft run for a host to start its ranks")        \
    X(PROGRESS_TIMEOUT, SECONDS, "30", "", "how long a rank waits for progress once all have entered")       \
    X(ISA, WORD, "", "", "instruction set of the GEMM kernels; default: the best this CPU has")              \
    X(HUGE, CHOICE, "auto", "auto, off", "huge pages for symmetric memory")                                  \
    X(NODE, WORD, "", "",                                                                                    \
      "a name for the node of this rank; ranks of one machine with different names are on different nodes")  \
    X(SECRET, WORD, "", "", "what ranks of several nodes prove to each other that they know when they meet") \
    X(NET, CHOICE, "auto", "auto, tcp, ucx",                                                                 \
      "what carries messages between nodes; auto is ucx where there is InfiniBand, else tcp")                \
    X(LINK_TIMEOUT, SECONDS, "4", "",                                                                        \
      "after this long without a word from a rank of another node it is lost")                               \
    X(CUBLASLT, WORD, "auto", "", "cuBLASLt for products on GPUs: auto, off, or the path of the library")    \
    X(MACHINE, WORD, "", "",                                                                                 \
      "machine description for `auto`: a name or a path; default: what calibrate wrote")                     \
    X(TUNE, WORD, "", "",                                                                                    \
      "the file of `weft tune`, which `auto` goes by first, or off; default: ~/.cache/weft/tuned")

typedef enum weft_env_kind { WEFT_ENV_BYTES, WEFT_ENV_SECONDS, WEFT_ENV_CHOICE, WEFT_ENV_WORD } weft_env_kind;

typedef enum weft_env_id {
#define WEFT_ENV_ID(name, kind, fallback, choices, help) WEFT_ENV_##name,
    WEFT_ENV_TABLE(WEFT_ENV_ID)
#undef WEFT_ENV_ID
        WEFT_ENV_IDS
} weft_env_id;

typedef struct weft_env_entry {
    const char *name; /* "WEFT_HEAP" */
    weft_env_kind kind;
    const char *fallback; /* as a user would write it; "" when it is derived */
    const char *choices;  /* "auto, off"; "" for other kinds */
    const char *help;
} weft_env_entry;

const weft_env_entry *weft_env_describe(weft_env_id id);
const char *weft_env_kind_name(weft_env_kind kind);

/* The text in force: the variable's value, or the default when it is unset or empty. */
const char *weft_env_word(weft_env_id id);

/* More is no deadline: in nanoseconds it would come near the end of 64 bits. */
#define WEFT_SECONDS_MAX 1e9

/* The number in force. BYTES without default that are unset give 0. A value that cannot be read is
 * WEFT_ERR_ARGUMENT with a sentence in `error`. */
weft_status weft_env_bytes(weft_env_id id, int64_t *value, weft_error_text *error);
weft_status weft_env_seconds(weft_env_id id, double *value, weft_error_text *error);

/* Whether every setting can be read: WEFT_ERR_ARGUMENT and the sentence of the first that cannot. A plain
 * word is left to its reader. */
weft_status weft_env_check(weft_error_text *error);

/* Reads "512M" and the like; returns false when the text is not a size. */
int weft_parse_bytes(const char *text, int64_t *bytes);

#endif
