/* Scratch memory of collectives over nodes, and a copy that waits. */
#include "plan/two_level_across.h"

weft_region weft_across_at(const weft_across *x, uint32_t operand, int rank, int row, int64_t unit)
{
    return (weft_region){operand, rank, 0, row, 1, x->c.tile > 0 ? unit * x->c.tile : 0, 0};
}

uint32_t weft_across_scratch(weft_across *x, const char *name, int64_t rows, int64_t cols)
{
    weft_operand operand = {
        .place = WEFT_PLACE_STAGING, .dtype = x->b->problem->dtype, .rows = rows, .cols = cols, .batch = 1};

    for (int i = 0; name[i]; i++)
        operand.name[i] = name[i];
    return weft_builder_operand(x->b, operand);
}

void weft_across_copy(weft_across *x, int64_t rows)
{
    if (x->b->problem->tuning.staged)
        x->copy = weft_across_scratch(x, "copy", rows, x->b->problem->count);
}

void weft_across_copy_when(weft_two_level *t, int lane, weft_region to, weft_region from, weft_wait when)
{
    weft_builder_task(t->builder, lane, WEFT_TASK_COPY, 0);
    weft_builder_to(t->builder, to);
    weft_builder_from(t->builder, from);
    weft_builder_wait(t->builder, when.signal, when.count);
    weft_builder_end(t->builder);
}
