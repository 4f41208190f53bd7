/* Embeds what nvcc made into the object of a C file: `content` is an assembler's .incbin line, or empty. */
#ifndef WEFT_RUN_CUDA_EMBED_H
#define WEFT_RUN_CUDA_EMBED_H

#define WEFT_CUDA_EMBED(symbol, content)                                                                     \
    __asm__(".pushsection .rodata\n"                                                                         \
            ".balign 16\n"                                                                                   \
            ".global " #symbol "\n"                                                                          \
            ".hidden " #symbol "\n" #symbol ":\n" content ".byte 0\n"                                        \
            ".popsection\n")

#endif
