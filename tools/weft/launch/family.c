#include "launch/family.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct process {
    pid_t pid, parent;
    bool below; /* a descendant */
} process;

static bool read_process(const char *name, process *it)
{
    char path[300], line[512], *after, state;
    FILE *file;
    bool read = false;
    int parent;

    snprintf(path, sizeof(path), "/proc/%s/stat", name);
    file = fopen(path, "re");
    if (!file)
        return false;
    if (fgets(line, sizeof(line), file) && (after = strrchr(line, ')')) &&
        sscanf(after + 1, " %c %d", &state, &parent) == 2 && state != 'Z' && state != 'X') {
        *it = (process){.pid = (pid_t)strtol(name, NULL, 10), .parent = (pid_t)parent};
        read = true;
    }
    fclose(file);
    return read;
}

static process *read_all(int *count)
{
    DIR *proc = opendir("/proc");
    process *all = NULL;
    int room = 0;

    *count = 0;
    if (!proc)
        return NULL;
    for (struct dirent *entry; (entry = readdir(proc));) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        if (*count == room) {
            process *more = realloc(all, sizeof(*all) * (size_t)(room = room ? room * 2 : 256));

            if (!more)
                break;
            all = more;
        }
        *count += read_process(entry->d_name, &all[*count]);
    }
    closedir(proc);
    return all;
}

/* Marks whoever has the caller above it. Passes repeat until nothing changes: parents may come after
 * children. */
static void mark_below(process *all, int count)
{
    pid_t self = getpid();
    bool changed = true;

    while (changed) {
        changed = false;
        for (int i = 0; i < count; i++) {
            bool below = all[i].parent == self;

            for (int j = 0; j < count && !below; j++)
                below = all[j].below && all[j].pid == all[i].parent;
            if (below && !all[i].below)
                all[i].below = changed = true;
        }
    }
}

int launch_family_signal(int signal)
{
    int count, sent = 0;
    process *all = read_all(&count);

    mark_below(all, count);
    for (int i = 0; i < count; i++)
        if (all[i].below) {
            kill(all[i].pid, signal);
            sent++;
        }
    free(all);
    return sent;
}

void launch_family_end(void)
{
    for (;;) {
        launch_family_signal(SIGKILL);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD)
            return;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}
