#include "bench/standin/standin.h"

#include "bench/standin/scale.h"

float weft_standin_factor(const weft_standin *standin, int expert)
{
    return (float)(1 + (standin->owner ? standin->owner[expert] : expert));
}

static void standin_block(void *context, int expert, int64_t rows, const void *const *in, void *const *out)
{
    const weft_standin *standin = context;

    for (int64_t i = 0; i < rows; i++)
        weft_standin_scale(standin->dtype, out[i], in[i], weft_standin_factor(standin, expert),
                           standin->hidden);
}

enum { STANDIN_ROW_MOST = 64 };

static void standin_row(void *context, int64_t experts, const int32_t *expert, const float *weight,
                        const void *in, const void *other, void *out)
{
    const weft_standin *standin = context;
    float factor[STANDIN_ROW_MOST];

    for (int64_t i = 0; i < experts; i++)
        factor[i] = weft_standin_factor(standin, expert[i]);
    weft_standin_scale_sum(standin->dtype, out, in, factor, weight, experts, other, standin->hidden);
}

weft_moe_expert weft_standin_expert(weft_standin *standin)
{
    return (weft_moe_expert){.size = sizeof(weft_moe_expert),
                             .context = standin,
                             .block = standin_block,
                             .row = standin->topk <= STANDIN_ROW_MOST ? standin_row : NULL};
}
