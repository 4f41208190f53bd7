/*
 * Panel packers for x86, as bodies that each kernel file instantiates with its own constants and compiles
 * with its own instructions. With the counts known, the compiler turns them into vector moves and
 * interleaves.
 */
#ifndef WEFT_GEMM_KERNELS_X86_PACK_H
#define WEFT_GEMM_KERNELS_X86_PACK_H

#include <stdint.h>
#include <string.h>

#define WEFT_INLINE static inline __attribute__((always_inline))

/* k runs along memory: every group of `group` bytes of k is moved as one; `flip` is xor-ed into groups of
 * four. */
WEFT_INLINE void weft_pack_along(void *panel, const void *source, int64_t ld_bytes, int64_t k_bytes,
                                 int lines, int group, uint32_t flip)
{
    char *out = panel;

    for (int64_t p = 0; p < k_bytes; p += group) {
        const char *in = (const char *)source + p;

#pragma GCC unroll 32
        for (int i = 0; i < lines; i++) {
            if (group == 4) {
                uint32_t four;

                memcpy(&four, in + i * ld_bytes, 4);
                four ^= flip;
                memcpy(out + i * 4, &four, 4);
            } else {
                memcpy(out + i * group, in + i * ld_bytes, (size_t)group);
            }
        }
        out += lines * group;
    }
}

/* Lines lie side by side: `kr` rows of the source are interleaved, element by element. */
#define WEFT_PACK_ACROSS(T)                                                                                  \
    WEFT_INLINE void weft_pack_across_##T(T *restrict panel, const T *restrict source, int64_t ld,           \
                                          int64_t k, int lines, int kr, T flip)                              \
    {                                                                                                        \
        for (int64_t p = 0; p < k; p += kr) {                                                                \
            for (int i = 0; i < lines; i++) {                                                                \
                for (int q = 0; q < kr; q++)                                                                 \
                    panel[i * kr + q] = (T)(source[(p + q) * ld + i] ^ flip);                                \
            }                                                                                                \
            panel += lines * kr;                                                                             \
        }                                                                                                    \
    }

WEFT_PACK_ACROSS(uint8_t)
WEFT_PACK_ACROSS(uint16_t)
WEFT_PACK_ACROSS(uint32_t)

#endif
