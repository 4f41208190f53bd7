/* Embeds the fat binaries that nvcc made; WEFT_CUDA_BF16_FILE and so on name them. */
#include "run/cuda/kernels.h"

#define EMBED(symbol, file)                                                                                  \
    __asm__(".pushsection .rodata\n"                                                                         \
            ".balign 16\n"                                                                                   \
            ".global " #symbol "\n"                                                                          \
            ".hidden " #symbol "\n" #symbol ":\n"                                                            \
            ".incbin \"" file "\"\n"                                                                         \
            ".byte 0\n"                                                                                      \
            ".popsection\n")

EMBED(weft_cuda_kernels_bf16, WEFT_CUDA_BF16_FILE);
EMBED(weft_cuda_kernels_f16, WEFT_CUDA_F16_FILE);
EMBED(weft_cuda_kernels_any, WEFT_CUDA_ANY_FILE);
