/* What a rank syncs for: the collective calls of the group layer, for agreement and for error sentences. */
#ifndef WEFT_GROUP_SYNC_KIND_H
#define WEFT_GROUP_SYNC_KIND_H

typedef enum weft_sync_kind {
    WEFT_SYNC_BARRIER = 1,
    WEFT_SYNC_AGREE,
    WEFT_SYNC_BROADCAST,
    WEFT_SYNC_SPLIT,
    WEFT_SYNC_ALLOC,
    WEFT_SYNC_GPU,
    WEFT_SYNC_COUNTED,
} weft_sync_kind;

const char *weft_sync_name(unsigned kind);

#endif
