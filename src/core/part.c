#include "core/part.h"

#include "core/round.h"

#include <stdlib.h>

weft_span weft_part(int64_t extent, int64_t parts, int64_t index)
{
    if (extent < 0 || index < 0 || index >= parts)
        return (weft_span){0, 0};

    int64_t base = weft_quotient(extent, parts);
    int64_t longer = extent - base * parts;

    return (weft_span){
        .begin = index * base + weft_min(index, longer),
        .count = base + (index < longer),
    };
}

weft_span weft_part_granular(int64_t extent, int64_t granule, int64_t parts, int64_t index)
{
    weft_span units;
    int64_t whole, begin, end;

    if (granule <= 1 || extent < 0)
        return weft_part(extent, parts, index);
    whole = extent / granule;
    units = weft_part(whole + (extent % granule != 0), parts, index);
    end = units.begin + units.count;
    begin = units.begin <= whole ? units.begin * granule : extent;
    end = end <= whole ? end * granule : extent;
    return (weft_span){begin, end - begin};
}

bool weft_batch_overlaps(int64_t rows, int64_t cols, int64_t ld, int64_t batch, int64_t stride)
{
    if (rows <= 0 || cols <= 0)
        return false;
    for (int64_t apart = 1; apart < batch; apart++) {
        int64_t begin = apart * llabs(stride), row = begin / ld, in_row = begin % ld;

        if (begin >= (rows - 1) * ld + cols)
            return false;
        if (in_row < cols || (row + 1 < rows && in_row + cols > ld))
            return true;
    }
    return false;
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
