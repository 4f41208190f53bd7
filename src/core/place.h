/*
 * A place for a file that is written after minutes of work: asked for before.
 */
#ifndef WEFT_CORE_PLACE_H
#define WEFT_CORE_PLACE_H

#include "core/status.h"

/* Makes the folders above `path`, and asks whether a file can be written there; leaves none that was not
 * there. */
weft_status weft_place_prepare(const char *path, weft_error_text *error);

#endif
