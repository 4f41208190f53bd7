/* See interpreter.h. */
#include "bench/interpreter.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t start(char *const argv[], int *to, int *from)
{
    int in[2], out[2];
    pid_t pid = -1;

    if (pipe(in))
        return -1;
    if (pipe(out) == 0) {
        pid = fork();
        if (pid == 0) {
            dup2(in[0], 0);
            dup2(out[1], 1);
            close(in[0]);
            close(in[1]);
            close(out[0]);
            close(out[1]);
            execvp(argv[0], argv);
            fprintf(stderr, "weft bench: %s: %s\n", argv[0], strerror(errno));
            _exit(127);
        }
        close(out[1]);
        if (pid < 0)
            close(out[0]);
        *from = out[0];
    }
    close(in[0]);
    if (pid < 0)
        close(in[1]);
    *to = in[1];
    return pid;
}

int interpreter_open(interpreter *python, char *const argv[])
{
    char version[40];
    int to, from;

    memset(python, 0, sizeof *python);
    signal(SIGPIPE, SIG_IGN); /* an interpreter that died is seen when it is asked */
    python->pid = start(argv, &to, &from);
    if (python->pid < 0) {
        python->pid = 0;
        return 1;
    }
    python->ask = fdopen(to, "w");
    python->answer = fdopen(from, "r");
    if (!python->ask || !python->answer || fscanf(python->answer, "ready %39s", version) != 1) {
        interpreter_close(python);
        return 1;
    }
    snprintf(python->name, sizeof python->name, "PyTorch %s", version);
    return 0;
}

void interpreter_close(interpreter *python)
{
    if (!python->pid)
        return;
    if (python->ask)
        fclose(python->ask);
    if (python->answer)
        fclose(python->answer);
    while (waitpid(python->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    python->pid = 0;
}
