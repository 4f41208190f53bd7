#include "plan/fields.h"
#include "core/dtype.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {"ENTER", "COPY", "GEMM", "REDUCE", "EXIT", NULL};
static const char *const place_names[] = {"user", "staging", "private", NULL};
static const char *const lane_names[] = {"compute", "copy", NULL};
static const char *const layout_names[] = {"default",      "gather_a",   "gather_b",   "scatter_rows",
                                           "scatter_cols", "gather_a_k", "gather_b_k", NULL};
static const char *const b_form_names[] = {"plain", "pack_in_run", "prepacked", NULL};
static const char *const act_names[] = {"none",       "relu",       "gelu",       "silu",
                                        "relu_gated", "gelu_gated", "silu_gated", NULL};
static const char *const reduction_names[] = {"sum", "min", "max", "product", "average", NULL};
static const char *const role_names[] = {"", "A", "B", "C", "bias", "D", "send", "recv", NULL};

static int find_word(const char *const *names, const char *name)
{
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], name) == 0)
            return i;
    }
    return -1;
}

/* ---- fields of a problem ------------------------------------------------------------------------- */

typedef enum field_kind { FIELD_LONG, FIELD_INT, FIELD_REAL, FIELD_DTYPE, FIELD_WORD } field_kind;

typedef struct field {
    const char *name;
    size_t offset;
    field_kind kind;
    const char *const *words; /* of a word: an enumeration from 0 */
} field;

#define FIELD(name, kind, words)                                                                             \
    {                                                                                                        \
#name, offsetof(weft_problem, name), kind, words                                                     \
    }
#define TUNING(name, kind)                                                                                   \
    {                                                                                                        \
#name, offsetof(weft_problem, tuning.name), kind, NULL                                               \
    }

static const field fields[] = {
    FIELD(layout, FIELD_WORD, layout_names),
    FIELD(m, FIELD_LONG, NULL),
    FIELD(n, FIELD_LONG, NULL),
    FIELD(k, FIELD_LONG, NULL),
    FIELD(l, FIELD_LONG, NULL),
    FIELD(dtype, FIELD_DTYPE, NULL),
    FIELD(d_dtype, FIELD_DTYPE, NULL),
    FIELD(wire_dtype, FIELD_DTYPE, NULL),
    FIELD(transa, FIELD_INT, NULL),
    FIELD(transb, FIELD_INT, NULL),
    FIELD(b_form, FIELD_WORD, b_form_names),
    FIELD(alpha, FIELD_REAL, NULL),
    FIELD(beta, FIELD_REAL, NULL),
    FIELD(bias, FIELD_INT, NULL),
    FIELD(act, FIELD_WORD, act_names),
    FIELD(count, FIELD_LONG, NULL),
    FIELD(reduction, FIELD_WORD, reduction_names),
    FIELD(root, FIELD_INT, NULL),
    FIELD(granule_m, FIELD_LONG, NULL),
    FIELD(granule_n, FIELD_LONG, NULL),
    FIELD(granule_k, FIELD_LONG, NULL),
    FIELD(scales, FIELD_INT, NULL),
    FIELD(fp8_fast, FIELD_INT, NULL),
    TUNING(tile_m, FIELD_LONG),
    TUNING(tile_n, FIELD_LONG),
    TUNING(tile_k, FIELD_LONG),
    TUNING(workers, FIELD_INT),
    TUNING(copiers, FIELD_INT),
    TUNING(chunk_k, FIELD_LONG),
    TUNING(raster, FIELD_LONG),
    TUNING(sums_stay, FIELD_INT),
    TUNING(grain_n, FIELD_INT),
    TUNING(exchange, FIELD_INT),
    TUNING(staged, FIELD_INT),
};

enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };

const char *weft_field_name(int number)
{
    return number >= 0 && number < FIELDS ? fields[number].name : NULL;
}

bool weft_field_is_word(int number)
{
    return fields[number].kind == FIELD_DTYPE || fields[number].kind == FIELD_WORD;
}

int weft_field_find(const char *name)
{
    for (int i = 0; i < FIELDS; i++) {
        if (strcmp(fields[i].name, name) == 0)
            return i;
    }
    return -1;
}

void weft_field_get(int number, const weft_problem *problem, char text[WEFT_WORD_BYTES])
{
    const field *f = &fields[number];
    const char *at = (const char *)problem + f->offset;
    int64_t whole = 0;
    int word = 0;
    float real = 0;

    if (f->kind == FIELD_LONG)
        memcpy(&whole, at, sizeof(whole));
    else if (f->kind == FIELD_REAL)
        memcpy(&real, at, sizeof(real));
    else
        memcpy(&word, at, sizeof(word));
    switch (f->kind) {
    case FIELD_REAL:
        snprintf(text, WEFT_WORD_BYTES, "%.9g", (double)real);
        break;
    case FIELD_DTYPE:
        snprintf(text, WEFT_WORD_BYTES, "%s", weft_dtype_name((weft_dtype)word));
        break;
    case FIELD_WORD:
        snprintf(text, WEFT_WORD_BYTES, "%s", f->words[word]);
        break;
    default:
        snprintf(text, WEFT_WORD_BYTES, "%" PRId64, f->kind == FIELD_LONG ? whole : word);
        break;
    }
}

bool weft_number_parse(const char *text, int64_t *number)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end || errno || text[0] == ' ' || text[0] == '+')
        return false;
    *number = value;
    return true;
}

bool weft_field_set(int number, weft_problem *problem, const char *text)
{
    const field *f = &fields[number];
    char *at = (char *)problem + f->offset, *end;
    weft_dtype dtype;
    int64_t whole;
    float real;
    int word = -1;

    switch (f->kind) {
    case FIELD_LONG:
        if (!weft_number_parse(text, &whole))
            return false;
        memcpy(at, &whole, sizeof(whole));
        return true;
    case FIELD_REAL:
        real = strtof(text, &end);
        if (end == text || *end || !isfinite(real))
            return false;
        memcpy(at, &real, sizeof(real));
        return true;
    case FIELD_INT:
        if (!weft_number_parse(text, &whole) || whole < INT32_MIN || whole > INT32_MAX)
            return false;
        word = (int)whole;
        break;
    case FIELD_DTYPE:
        if (weft_dtype_parse(text, &dtype) != 0)
            return false;
        word = (int)dtype;
        break;
    case FIELD_WORD:
        word = find_word(f->words, text);
        if (word < 0)
            return false;
        break;
    }
    memcpy(at, &word, sizeof(word));
    return true;
}

/* ---- the others ---------------------------------------------------------------------------------- */

const char *weft_task_kind_name(weft_task_kind kind)
{
    return (unsigned)kind <= WEFT_TASK_EXIT ? kind_names[kind] : "invalid";
}

int weft_task_kind_parse(const char *name)
{
    return find_word(kind_names, name);
}

const char *weft_place_name(weft_operand_place place)
{
    return (unsigned)place <= WEFT_PLACE_PRIVATE ? place_names[place] : "invalid";
}

int weft_place_parse(const char *name)
{
    return find_word(place_names, name);
}

const char *weft_lane_kind_name(weft_lane_kind kind)
{
    return kind == WEFT_LANE_COPY ? "copy" : "compute";
}

int weft_lane_kind_parse(const char *name)
{
    return find_word(lane_names, name);
}

weft_operand_role weft_role_parse(const char *name)
{
    int role = find_word(role_names, name);

    return role > 0 ? (weft_operand_role)role : WEFT_ROLE_NONE;
}
