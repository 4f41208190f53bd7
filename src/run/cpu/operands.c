#include "run/cpu/operands.h"

#include "run/cpu/reduce.h"
#include "symm/symm.h"

#include <string.h>

/* Memory that an operand of this run passes through: it lies behind that of the operands before it, which
 * take `*bounced` bytes. */
static weft_status bounce(const weft_plan *plan, weft_program_operand *lain, size_t *bounced)
{
    char *own = weft_symm_own(plan->group, *bounced + lain->bytes);

    if (!own)
        return WEFT_ERR_MEMORY;
    lain->bounce = own + *bounced;
    *bounced += lain->bytes;
    return WEFT_OK;
}

static void copy_instance(const weft_plan *plan, int operand, const weft_given *g, bool out)
{
    const weft_program *program = weft_program_of(plan);
    const weft_program_operand *lain = &program->operands[operand];
    char *bounce = lain->bounce;

    if (plan->part.operands[operand].packed) {
        for (int64_t batch = 0; batch < g->batch; batch++)
            memcpy(bounce + batch * lain->stride_bytes, g->data + batch * g->stride, (size_t)g->stride);
        return;
    }
    for (int64_t batch = 0; batch < g->batch; batch++) {
        weft_view theirs = {g->data + batch * g->stride * lain->element_bytes, g->ld};
        weft_view ours = {bounce + batch * lain->stride_bytes, lain->ld};

        weft_copy((size_t)lain->element_bytes, g->rows, g->cols, out ? theirs : ours, out ? ours : theirs);
    }
}

/* Own and peers' scratch operands; peers' user operands follow when their records are seen. */
static void place_scratch(const weft_plan *plan)
{
    const weft_program *program = weft_program_of(plan);
    weft_executor *x = program->executor;

    for (uint32_t i = 0; i < plan->part.operand_count; i++) {
        const weft_program_operand *lain = &program->operands[i];
        weft_place *places = &x->places[(size_t)i * (size_t)x->world];
        const weft_operand *o = &plan->part.operands[i];

        if (o->place == WEFT_PLACE_STAGING)
            for (int rank = 0; rank < x->world; rank++)
                places[rank] =
                    (weft_place){x->scratch + x->delta[rank] + lain->offset, lain->ld, lain->stride_bytes};
        else if (o->place == WEFT_PLACE_PRIVATE)
            places[x->rank] = (weft_place){x->private_memory + lain->offset, lain->ld, lain->stride_bytes};
        if (o->place != WEFT_PLACE_USER && o->packed) {
            int64_t k = weft_operand_rows(o, x->world, x->rank);
            int64_t n = weft_operand_cols(o, x->world, x->rank) * weft_operand_width(o);

            for (int64_t batch = 0; batch < o->batch; batch++)
                weft_packed_begin(plan->bind, k, n, places[x->rank].base + batch * lain->stride_bytes);
        }
    }
}

/* The operand of a role: where it lies here, as the record tells it.
 * `g` is made in place: a copy of it would be read by wider loads than it was just written with, which wait
 * until its stores are through, behind those to the record, whose line a peer still has. */
static weft_status enter_operand(weft_plan *plan, weft_operand_role role, int operand,
                                 const weft_operands *in, size_t *bounced, weft_record *record)
{
    const weft_program *program = weft_program_of(plan);
    weft_executor *x = program->executor;
    weft_given g = weft_given_of(plan, operand, in);
    weft_program_operand *lain = &program->operands[operand];
    weft_place *place = &x->places[(size_t)operand * (size_t)x->world + (size_t)x->rank];
    weft_status status = weft_given_check(plan, operand, &g);
    weft_symm_place where = 0;
    bool shared = true;

    if (status != WEFT_OK)
        return status;
    lain->bounce = NULL;
    *place = (weft_place){g.data, g.ld,
                          plan->part.operands[operand].packed ? g.stride : g.stride * lain->element_bytes};
    /* Where an operand lies matters only when peers touch it, or would in the other plan. */
    if ((plan->touched | plan->told) & 1u << role) {
        size_t bytes = weft_given_span(plan, operand, &g);

        shared = weft_symm_find(plan->group, g.data, bytes, &where);
        if (!shared && weft_given_tells(plan, role, bytes))
            record->beyond = 1;
    }
    if (weft_given_must_move(plan, operand, &g, in, shared)) {
        status = bounce(plan, lain, bounced);
        if (status != WEFT_OK)
            return status;
        *place = (weft_place){lain->bounce, lain->ld, lain->stride_bytes};
        weft_symm_find(plan->group, lain->bounce, 0, &where);
        if (!plan->part.operands[operand].output)
            copy_instance(plan, operand, &g, false);
    }
    record->place[weft_record_index(role)] = where;
    if (role <= WEFT_ROLE_D) {
        record->ld[role] = place->ld;
        record->stride[role] = place->stride_bytes;
    }
    return WEFT_OK;
}

weft_status weft_operands_enter(weft_plan *plan, const weft_operands *in, weft_record *record)
{
    size_t bounced = 0;

    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++) {
        int operand = plan->operand_of_role[role];
        weft_status status =
            operand < 0 ? WEFT_OK
                        : enter_operand(plan, (weft_operand_role)role, operand, in, &bounced, record);

        if (status != WEFT_OK)
            return status;
    }
    record->own_bytes = weft_symm_own_size(plan->group);
    place_scratch(plan);
    return WEFT_OK;
}

void weft_operands_leave(weft_plan *plan, const weft_operands *in)
{
    const weft_program *program = weft_program_of(plan);

    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++) {
        int operand = plan->operand_of_role[role];
        weft_given g;

        if (operand < 0 || !program->operands[operand].bounce || !plan->part.operands[operand].output)
            continue;
        g = weft_given_of(plan, operand, in);
        if (!weft_given_empty(&g))
            copy_instance(plan, operand, &g, true);
    }
}
