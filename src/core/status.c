/* Names and texts of the status codes, and the writer of error sentences. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    const char *name;
    const char *text;
} status_table[] = {
    [WEFT_OK] = {"WEFT_OK", "the call succeeded"},
    [WEFT_ERR_ARGUMENT] = {"WEFT_ERR_ARGUMENT", "an argument has a value the call cannot take"},
    [WEFT_ERR_MISMATCH] = {"WEFT_ERR_MISMATCH", "the ranks asked for different things"},
    [WEFT_ERR_MEMORY] = {"WEFT_ERR_MEMORY", "memory is exhausted"},
    [WEFT_ERR_TIMEOUT] = {"WEFT_ERR_TIMEOUT", "a wait reached its deadline"},
    [WEFT_ERR_PEER_DIED] = {"WEFT_ERR_PEER_DIED", "a rank ended before its work did"},
    [WEFT_ERR_PEER] = {"WEFT_ERR_PEER", "another rank failed"},
    [WEFT_ERR_LAUNCH] = {"WEFT_ERR_LAUNCH", "the announced ranks could not be met"},
    [WEFT_ERR_SYSTEM] = {"WEFT_ERR_SYSTEM", "the operating system refused something"},
    [WEFT_ERR_UNSUPPORTED] = {"WEFT_ERR_UNSUPPORTED", "this build or machine cannot do it"},
    [WEFT_ERR_STATE] = {"WEFT_ERR_STATE", "calls came out of order"},
    [WEFT_ERR_ABORTED] = {"WEFT_ERR_ABORTED", "the group was aborted"},
};

static int status_known(weft_status status)
{
    return (size_t)status < sizeof(status_table) / sizeof(status_table[0]);
}

const char *weft_status_name(weft_status status)
{
    return status_known(status) ? status_table[status].name : "WEFT_ERR_UNKNOWN";
}

const char *weft_status_text(weft_status status)
{
    return status_known(status) ? status_table[status].text : "not a status of this library";
}

#define TEXT_OF(number) #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *weft_version(void)
{
    return VERSION_TEXT(WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);
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
