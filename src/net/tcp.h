/* The engine over TCP connections of its own, which every system has. */
#ifndef WEFT_NET_TCP_H
#define WEFT_NET_TCP_H

#include "net/engine.h"

const weft_engine *weft_engine_tcp(void);

#endif
