/* How many entries a folder has: of /proc/self/task one a thread, of /proc/self/fd one a descriptor, and a
 * few besides. */
#ifndef WEFT_TESTS_SUPPORT_ENTRIES_H
#define WEFT_TESTS_SUPPORT_ENTRIES_H

#include <dirent.h>

static inline int entries_of(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;

    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

#endif
