/* The flags of `weft bench moe` and `weft sim moe` that say which layer is meant; 0 and NULL: not given. */
#ifndef WEFT_TOOLS_CLI_MOE_FLAGS_H
#define WEFT_TOOLS_CLI_MOE_FLAGS_H

#include "cli/options.h"

#include <string.h>

typedef struct moe_asked {
    int64_t experts, topk, hidden, tokens, inter;
    double skew;
    const char *mode; /* exact, reduced, both */
} moe_asked;

static inline const char *moe_read_mode(void *target, const char *value)
{
    if (strcmp(value, "exact") && strcmp(value, "reduced") && strcmp(value, "both"))
        return "exact, reduced or both";
    *(const char **)target = value;
    return NULL;
}

/* What is wrong with --wire, which is fp8 for tokens, or NULL. */
static inline const char *moe_wire_fault(const weft_options *o)
{
    return o->wire_given && o->wire_dtype != WEFT_FP8_E4M3
               ? "--wire: tokens travel as they are given (without it), or as fp8"
               : NULL;
}

/* `more` is what the command has to add about a flag. */
#define MOE_FLAGS(asked, tokens_more, skew_more, mode_help, inter_help)                                      \
    {"--experts",      "E",   OPTIONS_INT,                                                                   \
     &(asked).experts, NULL,  1,                                                                             \
     1 << 20,          "moe", "experts over all ranks (default 256)"},                                       \
        {"--topk",      "K",   OPTIONS_INT,                                                                  \
         &(asked).topk, NULL,  1,                                                                            \
         1 << 16,       "moe", "experts of a token (default 8)"},                                            \
        {"--hidden",      "H",   OPTIONS_INT,                                                                \
         &(asked).hidden, NULL,  1,                                                                          \
         1 << 24,         "moe", "elements of a token (default 7168)"},                                      \
        {"--tokens",      "T",   OPTIONS_INT,                                                                \
         &(asked).tokens, NULL,  1,                                                                          \
         1 << 20,         "moe", "tokens of each rank (default 256)" tokens_more},                           \
        {"--skew",                                                                                           \
         "X",                                                                                                \
         OPTIONS_REAL,                                                                                       \
         &(asked).skew,                                                                                      \
         NULL,                                                                                               \
         0,                                                                                                  \
         1,                                                                                                  \
         "moe",                                                                                              \
         "part of the tokens that all want experts 0 to K - 1" skew_more},                                   \
        {"--mode", "NAME", OPTIONS_CALL, &(asked).mode, moe_read_mode, 0, 0, "moe", mode_help},              \
    {                                                                                                        \
        "--inter", "I", OPTIONS_INT, &(asked).inter, NULL, 1, 1 << 24, "moe", inter_help                     \
    }

#endif
