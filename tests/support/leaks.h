/* A forked rank shares its parent's code, whose leaks the parent reports; looking for them again in each of
 * hundreds of ranks would only take long. */
#ifndef WEFT_TESTS_SUPPORT_LEAKS_H
#define WEFT_TESTS_SUPPORT_LEAKS_H

static int leaks_are_elsewhere; /* set in forked ranks */

#if defined(__SANITIZE_ADDRESS__)
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return leaks_are_elsewhere;
}
#endif

#endif
