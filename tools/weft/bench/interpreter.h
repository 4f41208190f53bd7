/* A Python that runs a script of ours as a peer: it says "ready VERSION" when it can do what it is for, then
 * answers lines. */
#ifndef WEFT_TOOLS_BENCH_INTERPRETER_H
#define WEFT_TOOLS_BENCH_INTERPRETER_H

#include <stdio.h>
#include <sys/types.h>

typedef struct interpreter {
    pid_t pid; /* 0 = none */
    FILE *ask, *answer;
    char name[64]; /* "PyTorch 2.1.0" */
} interpreter;

/* argv as for execvp. 1 when it did not get ready. */
int interpreter_open(interpreter *python, char *const argv[]);

/* The end of its input ends it. */
void interpreter_close(interpreter *python);

#endif
