/* The collective calls a rank can be in, for agreement and for error sentences. */
#ifndef WEFT_GROUP_CALL_H
#define WEFT_GROUP_CALL_H

typedef enum weft_call {
    WEFT_CALL_BARRIER = 1,
    WEFT_CALL_AGREE,
    WEFT_CALL_BROADCAST,
    WEFT_CALL_SPLIT,
    WEFT_CALL_ALLOC,
    WEFT_CALL_GPU,
    WEFT_CALL_COUNTED,
} weft_call;

const char *weft_call_name(unsigned call);

#endif
