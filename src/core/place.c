#include "core/place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* 0, or why one of them could not be made. One that is there may be refused for another reason than that. */
static int make_folders(const char *path)
{
    char folder[PATH_BYTES];
    int why = 0;

    snprintf(folder, sizeof(folder), "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(folder, 0777) != 0 && errno != EEXIST && !why)
            why = errno;
        *slash = '/';
    }
    return why;
}

weft_status weft_place_prepare(const char *path, weft_error_text *error)
{
    int folders = *path ? make_folders(path) : 0;
    int made = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int file = made < 0 && errno == EEXIST ? open(path, O_WRONLY | O_CLOEXEC) : made;

    if (file < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot write %.300s: %s", path,
                              strerror(errno == ENOENT && folders ? folders : errno));
    close(file);
    if (made >= 0)
        unlink(path);
    return WEFT_OK;
}
