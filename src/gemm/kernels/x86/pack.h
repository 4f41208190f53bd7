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

/*
 * The four packers of a kernel file whose tile is MR x NR, elements of type T, A_KR and B_KR of them side by
 * side. `A_FLIP` is xor-ed into every element of A.
 */
#define WEFT_DEFINE_PACKERS(T, A_KR, B_KR, A_FLIP)                                                           \
    WEFT_DEFINE_PACKER_PAIR(pack_a, T, MR, A_KR, A_FLIP)                                                     \
    WEFT_DEFINE_PACKER_PAIR(pack_b, T, NR, B_KR, 0)

#define WEFT_DEFINE_PACKER_PAIR(name, T, lines, kr, flip)                                                    \
    static void name##_along(void *panel, const void *source, int64_t ld, int64_t k)                         \
    {                                                                                                        \
        enum { BYTES = sizeof(T) };                                                                          \
                                                                                                             \
        weft_pack_along(panel, source, ld *BYTES, k *BYTES, lines, (kr)*BYTES, (flip)*0x01010101u);          \
    }                                                                                                        \
                                                                                                             \
    static void name##_across(void *panel, const void *source, int64_t ld, int64_t k)                        \
    {                                                                                                        \
        weft_pack_across_##T(panel, source, ld, k, lines, kr, flip);                                         \
    }

/* Their places in the kernel's table. */
#define WEFT_PACKERS                                                                                         \
    .pack_a_along = pack_a_along, .pack_a_across = pack_a_across, .pack_b_along = pack_b_along,              \
    .pack_b_across = pack_b_across

#endif
