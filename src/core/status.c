/* Names and texts of the status codes, and the writer of error sentences. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    const char *name;
    const char *text;
} status_table[] = {
    [WEFT_OK] = {"ok", "the call succeeded"},
    [WEFT_ERR_ARGUMENT] = {"argument", "an argument has a value the call cannot take"},
    [WEFT_ERR_MISMATCH] = {"mismatch", "the ranks asked for different things"},
    [WEFT_ERR_MEMORY] = {"memory", "memory is exhausted"},
    [WEFT_ERR_TIMEOUT] = {"timeout", "a wait reached its deadline"},
    [WEFT_ERR_PEER_DIED] = {"peer_died", "a rank ended before its work did"},
    [WEFT_ERR_PEER] = {"peer", "another rank failed"},
    [WEFT_ERR_LAUNCH] = {"launch", "the announced ranks could not be met"},
    [WEFT_ERR_SYSTEM] = {"system", "the operating system refused something"},
    [WEFT_ERR_UNSUPPORTED] = {"unsupported", "this build or machine cannot do it"},
    [WEFT_ERR_STATE] = {"state", "calls came out of order"},
};

static int status_known(weft_status status)
{
    return (size_t)status < sizeof(status_table) / sizeof(status_table[0]);
}

const char *weft_status_name(weft_status status)
{
    return status_known(status) ? status_table[status].name : "unknown";
}

const char *weft_status_text(weft_status status)
{
    return status_known(status) ? status_table[status].text : "not a status of this library";
}

const char *weft_version(void)
{
    return WEFT_VERSION_STRING;
}

weft_status weft_error_set(weft_error_text *error, weft_status status, const char *format, ...)
{
    va_list arguments;

    error->status = status;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof(error->text), format, arguments);
    va_end(arguments);
    return status;
}

weft_error_text *weft_error_thread(void)
{
    static _Thread_local weft_error_text error;

    return &error;
}
