/* Embeds the fat binaries that nvcc made in the folder WEFT_CUDA_KERNELS, or nothing where there is none. */
#include "run/cuda/kernels.h"

#include "run/cuda/embed.h"

#ifdef WEFT_CUDA_KERNELS
const bool weft_cuda_has_kernels = true;
#define CONTENT(file) ".incbin \"" WEFT_CUDA_KERNELS file ".fatbin\"\n"
#else
const bool weft_cuda_has_kernels = false;
#define CONTENT(file) ""
#endif

#define EMBED(symbol, file) WEFT_CUDA_EMBED(symbol, CONTENT(file))

EMBED(weft_cuda_kernels_bf16, "bf16");
EMBED(weft_cuda_kernels_bf16_224, "bf16_224");
EMBED(weft_cuda_kernels_bf16_128, "bf16_128");
EMBED(weft_cuda_kernels_f16, "f16");
EMBED(weft_cuda_kernels_f16_224, "f16_224");
EMBED(weft_cuda_kernels_f16_128, "f16_128");
EMBED(weft_cuda_kernels_bf16_one256, "bf16_one256");
EMBED(weft_cuda_kernels_bf16_one128, "bf16_one128");
EMBED(weft_cuda_kernels_bf16_few, "bf16_few");
EMBED(weft_cuda_kernels_f16_one256, "f16_one256");
EMBED(weft_cuda_kernels_f16_one128, "f16_one128");
EMBED(weft_cuda_kernels_f16_few, "f16_few");
EMBED(weft_cuda_kernels_bf16_splitk, "bf16_splitk");
EMBED(weft_cuda_kernels_f16_splitk, "f16_splitk");
EMBED(weft_cuda_kernels_any, "any");
EMBED(weft_cuda_kernels_any_fp8, "any_fp8");
EMBED(weft_cuda_kernels_fp8, "fp8");
EMBED(weft_cuda_kernels_fp8_one, "fp8_one");
EMBED(weft_cuda_kernels_collective, "collective");
EMBED(weft_cuda_kernels_packets, "packets");
EMBED(weft_cuda_kernels_lines, "lines");
EMBED(weft_cuda_kernels_channels, "channels");
EMBED(weft_cuda_kernels_onesided, "onesided");
EMBED(weft_cuda_kernels_multimem, "multimem");
EMBED(weft_cuda_kernels_sums, "sums");
EMBED(weft_cuda_kernels_exchange, "exchange");
EMBED(weft_cuda_kernels_epilogue, "epilogue");
EMBED(weft_cuda_kernels_bf16_splitk_send, "bf16_splitk_send");
EMBED(weft_cuda_kernels_f16_splitk_send, "f16_splitk_send");
EMBED(weft_cuda_kernels_bf16_splitk_sent, "bf16_splitk_sent");
EMBED(weft_cuda_kernels_f16_splitk_sent, "f16_splitk_sent");
EMBED(weft_cuda_kernels_moe, "moe");
EMBED(weft_cuda_kernels_moe_move, "moe_move");
EMBED(weft_cuda_kernels_grouped, "grouped");
EMBED(weft_cuda_kernels_grouped_stored, "grouped_stored");
