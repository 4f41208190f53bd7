/*
 * Since 2.34 a program is started without naming its constructors, because the C library finds them by
 * itself. An older library runs those it is given, so the wrapped call gives them to any.
 */
typedef void constructor(int, char **, char **);
extern constructor *__init_array_start[], *__init_array_end[];
int weft_start_old(int (*main)(int, char **, char **), int argc, char **argv,
                   void (*init)(int, char **, char **), void (*fini)(void), void (*end)(void), void *stack);
int __wrap___libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
                             void (*init)(int, char **, char **), void (*fini)(void), void (*end)(void),
                             void *stack);
__asm__(".symver weft_start_old,__libc_start_main@" WEFT_GLIBC_FIRST);

static void construct(int argc, char **argv, char **environment)
{
    for (constructor **next = __init_array_start; next < __init_array_end; next++)
        (*next)(argc, argv, environment);
}

int __wrap___libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
                             void (*init)(int, char **, char **), void (*fini)(void), void (*end)(void),
                             void *stack)
{
    return weft_start_old(main, argc, argv, init ? init : construct, fini, end, stack);
}
