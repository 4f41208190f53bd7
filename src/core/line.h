/* Files of one line, as /proc and /sys have them. */
#ifndef WEFT_CORE_LINE_H
#define WEFT_CORE_LINE_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The first line of a file, without its end; false when there is none. */
static inline bool weft_read_line(const char *path, char *line, size_t bytes)
{
    FILE *file = fopen(path, "re");
    bool read;

    if (!file)
        return false;
    read = fgets(line, (int)bytes, file) != NULL;
    fclose(file);
    line[read ? strcspn(line, "\n") : 0] = 0;
    return read;
}

#endif
