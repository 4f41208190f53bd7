/* Feed-forward experts of layers on GPUs: which there are, and their weights as products read them. The calls
 * of run/experts.h. */
#ifndef WEFT_RUN_CUDA_MOE_FFN_H
#define WEFT_RUN_CUDA_MOE_FFN_H

#include "run/experts.h"

weft_status weft_cuda_moe_ffn_check(weft_group *group, const weft_device_ffn_shape *shape);
weft_status weft_cuda_moe_ffn_pack(weft_group *group, const weft_device_ffn_shape *shape,
                                   const weft_moe_weights *weights, weft_device_ffn *ffn);

#endif
