/* Which engine moves the messages. */
#ifndef WEFT_NET_FIND_H
#define WEFT_NET_FIND_H

#include "net/engine.h"

/* The engine of this machine, or the one that WEFT_NET asks for: WEFT_ERR_UNSUPPORTED, with a sentence, where
 * it cannot be had. */
weft_status weft_engine_find(const weft_engine **engine, weft_error_text *error);

#endif
