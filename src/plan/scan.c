/* See scan.h. */
#include "plan/scan.h"

#include "plan/fields.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void weft_scan_fail(weft_scanner *s, const char *format, ...)
{
    char text[300];
    va_list arguments;

    if (s->failed)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    s->failed = true;
    weft_error_set(s->error, WEFT_ERR_ARGUMENT, "%s, line %ld: %s", s->where, s->line, text);
}

void weft_scan_skip_blanks(weft_scanner *s)
{
    while (s->at < s->line_end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

bool weft_scan_at_end(weft_scanner *s)
{
    weft_scan_skip_blanks(s);
    return s->at >= s->line_end;
}

bool weft_scan_take(weft_scanner *s, char c)
{
    weft_scan_skip_blanks(s);
    if (s->at < s->line_end && *s->at == c) {
        s->at++;
        return true;
    }
    return false;
}

void weft_scan_expect(weft_scanner *s, char c)
{
    if (!weft_scan_take(s, c))
        weft_scan_fail(s, "there should be a '%c' before '%.*s'", c,
                       (int)(s->line_end - s->at < 20 ? s->line_end - s->at : 20), s->at);
}

/* What stands up to the next blank. */
void weft_scan_word(weft_scanner *s, char text[WEFT_WORD_BYTES])
{
    size_t used = 0;

    weft_scan_skip_blanks(s);
    while (s->at < s->line_end && *s->at != ' ' && *s->at != '\t' && *s->at != '\r' &&
           used < WEFT_WORD_BYTES - 1)
        text[used++] = *s->at++;
    text[used] = 0;
    if (!used)
        weft_scan_fail(s, "the line ends too early");
    else if (used == WEFT_WORD_BYTES - 1)
        weft_scan_fail(s, "'%s...' is too long for a word", text);
}

/* A word of letters if that is the next, else nothing is taken. */
bool weft_scan_take_word(weft_scanner *s, const char *wanted)
{
    size_t length = strlen(wanted);

    weft_scan_skip_blanks(s);
    if ((size_t)(s->line_end - s->at) < length || memcmp(s->at, wanted, length) != 0)
        return false;
    if (s->at + length < s->line_end && s->at[length] != ' ' && s->at[length] != '\r')
        return false;
    s->at += length;
    return true;
}

int64_t weft_scan_number(weft_scanner *s, int64_t least, int64_t most, const char *what)
{
    char digits[24];
    size_t used = 0;
    int64_t value = 0;

    weft_scan_skip_blanks(s);
    while (s->at < s->line_end && used < sizeof(digits) - 1 &&
           (isdigit((unsigned char)*s->at) || (*s->at == '-' && !used)))
        digits[used++] = *s->at++;
    digits[used] = 0;
    if (!weft_number_parse(digits, &value) || value < least || value > most) {
        weft_scan_fail(s, "%s '%s' is not a number from %lld to %lld", what, digits, (long long)least,
                       (long long)most);
        return least;
    }
    return value;
}
