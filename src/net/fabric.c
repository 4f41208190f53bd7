#include "net/fabric.h"

#include <dirent.h>

bool weft_fabric_infiniband(void)
{
    DIR *devices = opendir("/sys/class/infiniband");
    const struct dirent *entry;
    bool found = false;

    while (devices && (entry = readdir(devices)))
        found = found || entry->d_name[0] != '.';
    if (devices)
        closedir(devices);
    return found;
}
