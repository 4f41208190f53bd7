/* The descriptions in machines/, compiled in; builtin.c is made from them by the build. */
#ifndef WEFT_SIM_BUILTIN_H
#define WEFT_SIM_BUILTIN_H

typedef struct weft_machine_builtin {
    const char *name; /* of the file, without .machine */
    const char *text;
} weft_machine_builtin;

extern const weft_machine_builtin weft_machine_builtins[];
extern const int weft_machine_builtin_count;

#endif
