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

#include "core/clock.h"

/* How long children are waited for that neither this process nor /proc can name. */
static const int64_t UNSEEN_NS = 2000000000;

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

static bool is_known(const pid_t *known, int count, pid_t pid)
{
    for (int i = 0; i < count; i++)
        if (known[i] == pid)
            return true;
    return false;
}

int launch_family_signal(const pid_t *known, int count, int signal)
{
    int found, sent = 0;
    process *all = read_all(&found);

    mark_below(all, found);
    /* The known ones first: a shell that waits for what it started is to hear it before its wait ends. */
    for (int i = 0; i < count; i++)
        sent += known[i] > 0 && kill(known[i], signal) == 0;
    for (int i = 0; i < found; i++)
        if (all[i].below && !is_known(known, count, all[i].pid)) {
            kill(all[i].pid, signal);
            sent++;
        }
    free(all);
    return sent;
}

bool launch_family_end(pid_t *known, int count)
{
    int64_t seen_ns = weft_clock_ns();

    for (;;) {
        pid_t ended;

        if (launch_family_signal(known, count, SIGKILL) > 0)
            seen_ns = weft_clock_ns();
        while ((ended = waitpid(-1, NULL, WNOHANG)) > 0)
            for (int i = 0; i < count; i++)
                if (known[i] == ended)
                    known[i] = 0;
        if (ended < 0 && errno == ECHILD)
            return true;
        if (weft_clock_ns() - seen_ns > UNSEEN_NS)
            return false;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}
