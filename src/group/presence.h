/*
 * What shows that a process is there, before there is memory in which it could hold a lock: a Unix socket in
 * the abstract namespace, under a name of random bytes that the others are given. It ends with its process.
 */
#ifndef WEFT_GROUP_PRESENCE_H
#define WEFT_GROUP_PRESENCE_H

#include <stdbool.h>

#include "core/status.h"

enum { WEFT_PRESENCE_BYTES = 16 };

/* Shows this process under a name until `*fd` is closed. */
weft_status weft_presence_open(const unsigned char name[WEFT_PRESENCE_BYTES], int *fd,
                               weft_error_text *error);

/* Whether a process of this machine that was there under a name is there no more. */
bool weft_presence_ended(const unsigned char name[WEFT_PRESENCE_BYTES]);

#endif
