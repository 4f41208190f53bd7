#include "group/sync_kind.h"

_Static_assert(WEFT_SYNC_KINDS <= 16, "four bits of a word");

const char *weft_entry_name(unsigned entry)
{
    static const char *const names[] = {"a call of weft's own",
#define WEFT_ENTRY(entry, name) name,
                                        WEFT_ENTRIES(WEFT_ENTRY)
#undef WEFT_ENTRY
    };

    return names[entry < sizeof(names) / sizeof(*names) ? entry : WEFT_ENTRY_NONE];
}
