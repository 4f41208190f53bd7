#include "core/part.h"

weft_span weft_part(int64_t extent, int64_t parts, int64_t index)
{
    if (extent < 0 || index < 0 || index >= parts)
        return (weft_span){0, 0};

    int64_t base = extent / parts;
    int64_t longer = extent % parts;

    return (weft_span){
        .begin = index * base + (index < longer ? index : longer),
        .count = base + (index < longer),
    };
}

int64_t weft_part_of(int64_t extent, int64_t parts, int64_t position)
{
    int64_t base = extent / parts;
    int64_t longer = extent % parts;
    int64_t in_longer = longer * (base + 1);

    if (position < in_longer)
        return position / (base + 1);
    return longer + (position - in_longer) / base;
}
