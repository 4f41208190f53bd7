/* The scheduler behind simt.h: threads, warps and CTAs of a launch, and what they do together. */
#ifndef WEFT_TESTS_CUDA_SIMT_THREADS_H
#define WEFT_TESTS_CUDA_SIMT_THREADS_H

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace simt
{

struct Cta;

struct Index {
    uint32_t x, y, z;
};

struct Copy {
    char *to;
    const char *from;
    int bytes;
    uint64_t group;
};

struct Thread {
    Index index;
    Cta *cta;
    jmp_buf state;
    char *stack;
    bool started, done, polled;
    const uint64_t *meeting; /* it waits until this is not `seen` any more; NULL: it runs */
    uint64_t seen;
    std::vector<Copy> copies;
    uint64_t groups; /* committed so far */

    Index block() const;
    Index grid() const;
    char *shared() const;
    bool waits() const { return meeting && *meeting == seen; }
};

/* What a lane brings to an instruction of its warp. */
struct Matrices {
    const char *at;
    uint32_t *x;
};

struct Product {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
};

typedef void Together(void *const *lanes);
void load_lines(void *const *lanes);
void load_transposed(void *const *lanes);
void multiply_bf16(void *const *lanes);
void multiply_f16(void *const *lanes);

Thread &self();
void must(bool holds, const char *what);
uint64_t clock_ns();
void let_others();
void meet_cta();
void meet_warp(Together *act, void *mine); /* act NULL: nothing but to be there */
void copy_begin(char *to, const void *from, int bytes);
void copy_commit();
void copy_wait(int pending);

} // namespace simt

#endif
