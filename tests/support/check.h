/*
 * Checks for test programs. A failed check prints where and what, counts, and lets the test go on;
 * `return check_report("name")` at the end of main turns the count into the exit status.
 */
#ifndef WEFT_TESTS_SUPPORT_CHECK_H
#define WEFT_TESTS_SUPPORT_CHECK_H

#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

static _Atomic int check_failures;
static _Atomic long check_count;

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        check_count++;                                                                                       \
        if (!(condition)) {                                                                                  \
            if (check_failures++ < 20)                                                                       \
                fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                      \
        }                                                                                                    \
    } while (0)

#define CHECK_INT(actual, expected)                                                                          \
    do {                                                                                                     \
        long long actual_ = (long long)(actual), expected_ = (long long)(expected);                          \
        check_count++;                                                                                       \
        if (actual_ != expected_) {                                                                          \
            if (check_failures++ < 20)                                                                       \
                fprintf(stderr, "%s:%d: %s is %lld, expected %lld\n", __FILE__, __LINE__, #actual, actual_,  \
                        expected_);                                                                          \
        }                                                                                                    \
    } while (0)

#define CHECK_HAS(text, part)                                                                                \
    do {                                                                                                     \
        const char *text_ = (text), *part_ = (part);                                                         \
        check_count++;                                                                                       \
        if (!strstr(text_, part_)) {                                                                         \
            if (check_failures++ < 20)                                                                       \
                fprintf(stderr, "%s:%d: \"%s\" does not contain \"%s\"\n", __FILE__, __LINE__, text_,        \
                        part_);                                                                              \
        }                                                                                                    \
    } while (0)

/* WEFT_SOAK=0: for runs beside whole ones, where everything takes many times as long (emulation, a
 * sanitizer). */
static inline bool check_brief(void)
{
    const char *soak = getenv("WEFT_SOAK");

    return soak && *soak == '0';
}

/* How often to repeat what `make soak` repeats in full: WEFT_SOAK=1 gives `full`, 0 a third of `reduced`. */
static inline long check_repeat(long reduced, long full)
{
    const char *soak = getenv("WEFT_SOAK");

    return soak && *soak == '1' ? full : check_brief() ? (reduced + 2) / 3 : reduced;
}

static inline int check_report(const char *name)
{
    if (check_failures) {
        fprintf(stderr, "%s: %d of %ld checks failed\n", name, (int)check_failures, (long)check_count);
        return 1;
    }
    if (!check_count) {
        fprintf(stderr, "%s: nothing was checked\n", name);
        return 1;
    }
    return 0;
}

/* A small deterministic generator (splitmix64), so that a printed seed reproduces a failure. */
static inline uint64_t check_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
