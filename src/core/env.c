#include "core/env.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const weft_env_entry entries[WEFT_ENV_IDS] = {
#define WEFT_ENV_ROW(name, kind, fallback, choices, help)                                                    \
    [WEFT_ENV_##name] = {"WEFT_" #name, WEFT_ENV_##kind, fallback, choices, help},
    WEFT_ENV_TABLE(WEFT_ENV_ROW)
#undef WEFT_ENV_ROW
};

const weft_env_entry *weft_env_describe(weft_env_id id)
{
    return &entries[id];
}

const char *weft_env_kind_name(weft_env_kind kind)
{
    static const char *const names[] = {"bytes", "seconds", "choice", "word"};

    return names[kind];
}

const char *weft_env_word(weft_env_id id)
{
    const char *value = getenv(entries[id].name);

    return value && *value ? value : entries[id].fallback;
}

int weft_parse_bytes(const char *text, int64_t *bytes)
{
    static const char units[] = "KMGT";
    const char *unit;
    char *end;
    double number = strtod(text, &end);
    int shift = 0;

    if (end == text || !isfinite(number) || number < 0)
        return 0;
    if (*end) {
        unit = strchr(units, toupper((unsigned char)*end));
        if (!unit)
            return 0;
        shift = 10 * (int)(unit - units + 1);
        end++;
        if (*end == 'i')
            end++;
        if (*end == 'B' || *end == 'b')
            end++;
        if (*end)
            return 0;
    }
    number = ldexp(number, shift);
    if (number >= 0x1p62)
        return 0;
    *bytes = (int64_t)number;
    return 1;
}

weft_status weft_env_bytes(weft_env_id id, int64_t *value, weft_error_text *error)
{
    const char *text = weft_env_word(id);

    *value = 0;
    if (!*text || weft_parse_bytes(text, value))
        return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_ARGUMENT,
                          "%s is \"%s\"; it takes bytes, with K, M, G or T if wanted, such as 512M",
                          entries[id].name, text);
}

weft_status weft_env_seconds(weft_env_id id, double *value, weft_error_text *error)
{
    const char *text = weft_env_word(id);
    char *end;

    *value = strtod(text, &end);
    if (end == text || *end || !(*value > 0 && *value <= WEFT_SECONDS_MAX))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "%s is \"%s\"; it takes a positive number of seconds, at most %g",
                              entries[id].name, text, WEFT_SECONDS_MAX);
    return WEFT_OK;
}

static weft_status check_choice(const weft_env_entry *entry, const char *text, weft_error_text *error)
{
    size_t length = strlen(text);

    for (const char *at = entry->choices; *at; at += strspn(at, ", ")) {
        size_t choice = strcspn(at, ",");

        if (choice == length && memcmp(at, text, length) == 0)
            return WEFT_OK;
        at += choice;
    }
    return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s is \"%s\"; it takes one of %s", entry->name, text,
                          entry->choices);
}

weft_status weft_env_check(weft_error_text *error)
{
    weft_status status = WEFT_OK;

    for (int id = 0; id < WEFT_ENV_IDS && status == WEFT_OK; id++) {
        int64_t bytes;
        double seconds;

        if (entries[id].kind == WEFT_ENV_BYTES)
            status = weft_env_bytes((weft_env_id)id, &bytes, error);
        else if (entries[id].kind == WEFT_ENV_SECONDS)
            status = weft_env_seconds((weft_env_id)id, &seconds, error);
        else if (entries[id].kind == WEFT_ENV_CHOICE)
            status = check_choice(&entries[id], weft_env_word((weft_env_id)id), error);
    }
    return status;
}
