/* The engine over UCX: WEFT_ERR_UNSUPPORTED, with a sentence, where it is not (ucx.c, none.c). */
#ifndef WEFT_NET_UCX_H
#define WEFT_NET_UCX_H

#include "net/engine.h"

weft_status weft_engine_ucx(const weft_engine **engine, weft_error_text *error);

#endif
