/* What networks this machine has. */
#ifndef WEFT_NET_FABRIC_H
#define WEFT_NET_FABRIC_H

#include <stdbool.h>

/* InfiniBand, or what looks like it. */
bool weft_fabric_infiniband(void);

#endif
