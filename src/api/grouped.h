/* Arguments of weft_grouped_gemm, for calls that make such a product as a part of theirs. */
#ifndef WEFT_API_GROUPED_H
#define WEFT_API_GROUPED_H

#include "core/status.h"

#include <weft/weft.h>

/* Puts in what was left out, and checks what can be checked without a backend. */
weft_status weft_grouped_complete(weft_grouped_args *args, weft_error_text *error);

#endif
