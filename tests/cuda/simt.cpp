/* See simt_threads.h. */
#undef _FORTIFY_SOURCE /* whose longjmp goes only up a stack, not to another one */
#include "simt_threads.h"
#include "simt_walk.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>

extern "C" void weft_walk_any_bf16(weft_cuda_args g);
extern "C" void weft_walk_any_f16(weft_cuda_args g);
extern "C" void weft_walk_any_fp8(weft_cuda_args g);

namespace simt
{

enum { LANES = 32, THREADS = WEFT_CUDA_ANY_THREADS, WARPS = THREADS / LANES, STACK_BYTES = 64 << 10 };

struct Meeting {
    uint64_t number;
    int here;
    Together *act;
    void *lanes[LANES];
};

struct Cta {
    Index index, grid;
    const weft_cuda_args *args;
    simt_kernel kernel;
    std::unique_ptr<Thread[]> threads;
    char *shared, *stacks;
    Meeting all, warps[WARPS];
};

static Thread *running;
static jmp_buf scheduler;
static simt_counts counts;
static uint64_t random_state = 1;

void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "CTA %u, thread %u: %s\n", running->cta->index.x, running->index.x, what);
    abort();
}

Thread &self()
{
    return *running;
}

Index Thread::block() const
{
    return cta->index;
}

Index Thread::grid() const
{
    return cta->grid;
}

char *Thread::shared() const
{
    return cta->shared;
}

uint64_t clock_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- threads ----------------------------------------------------------------------------------------- */

/* To the scheduler; goes on when that comes back. */
__attribute__((noinline)) static void leave()
{
    if (!_setjmp(running->state))
        _longjmp(scheduler, 1);
}

static void body()
{
    const weft_cuda_args &g = *running->cta->args;
    if (running->cta->kernel == SIMT_BF16)
        weft_walk_any_bf16(g);
    else if (running->cta->kernel == SIMT_F16)
        weft_walk_any_f16(g);
    else
        weft_walk_any_fp8(g);
    must(running->copies.empty(), "a thread ends with copies under way");
    running->done = true;
    _longjmp(scheduler, 1);
}

__attribute__((noinline)) static void resume(Thread *thread)
{
    running = thread;
    if (_setjmp(scheduler))
        return;
    if (thread->started)
        _longjmp(thread->state, 1);
    thread->started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = thread->stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = NULL;
    makecontext(&context, body, 0);
    setcontext(&context);
}

void let_others()
{
    running->polled = true;
    leave();
}

static void wait_at(const Meeting &meeting)
{
    running->meeting = &meeting.number;
    running->seen = meeting.number;
    leave();
    running->meeting = NULL;
}

void meet_cta()
{
    Meeting &meeting = running->cta->all;
    if (++meeting.here < THREADS) {
        wait_at(meeting);
        return;
    }
    meeting.here = 0;
    meeting.number++;
}

void meet_warp(Together *act, void *mine)
{
    Meeting &meeting = running->cta->warps[running->index.x / LANES];
    must(meeting.here == 0 || meeting.act == act, "its warp is not together");
    meeting.act = act;
    meeting.lanes[running->index.x % LANES] = mine;
    if (++meeting.here < LANES) {
        wait_at(meeting);
        return;
    }
    if (act)
        act(meeting.lanes);
    meeting.here = 0;
    meeting.number++;
}

/* ---- instructions ------------------------------------------------------------------------------------ */

static void must_be_shared(const char *at)
{
    const char *begin = running->cta->shared;
    must(at >= begin && at + 16 <= begin + WEFT_CUDA_ANY_SHARED_BYTES, "an address outside of shared memory");
    must((at - begin) % 16 == 0, "an unaligned address of shared memory");
}

void copy_begin(char *to, const void *from, int bytes)
{
    must_be_shared(to);
    must(reinterpret_cast<uintptr_t>(from) % 16 == 0, "a copy from an unaligned address");
    must(bytes >= 0 && bytes <= 16, "a copy of more than 16 bytes");
    memset(to, 0xff, 16);
    running->copies.push_back({to, static_cast<const char *>(from), bytes, running->groups});
    counts.copies++;
}

void copy_commit()
{
    running->groups++;
}

void copy_wait(int pending)
{
    std::vector<Copy> left;
    for (const Copy &copy : running->copies) {
        if (copy.group + (uint64_t)pending >= running->groups) {
            left.push_back(copy);
            continue;
        }
        memset(copy.to, 0, 16);
        memcpy(copy.to, copy.from, (size_t)copy.bytes);
    }
    running->copies.swap(left);
}

static uint16_t half_at(const char *line, int i)
{
    uint16_t bits;
    memcpy(&bits, line + 2 * i, sizeof(bits));
    return bits;
}

static void load(void *const *lanes, bool transposed)
{
    for (int m = 0; m < 4; m++) {
        const char *lines[8];
        unsigned banks = 0;
        for (int i = 0; i < 8; i++) {
            lines[i] = static_cast<Matrices *>(lanes[m * 8 + i])->at;
            must_be_shared(lines[i]);
            banks |= 1u << (lines[i] - running->cta->shared) / 16 % 8;
        }
        counts.matrices++;
        counts.conflicts += banks != 0xff;
        for (int lane = 0; lane < LANES; lane++) {
            int i = lane / 4, j = lane % 4 * 2;
            uint32_t low = transposed ? half_at(lines[j], i) : half_at(lines[i], j),
                     high = transposed ? half_at(lines[j + 1], i) : half_at(lines[i], j + 1);
            static_cast<Matrices *>(lanes[lane])->x[m] = low | high << 16;
        }
    }
}

void load_lines(void *const *lanes)
{
    load(lanes, false);
}

void load_transposed(void *const *lanes)
{
    load(lanes, true);
}

template <bool BF16> static float widen(uint32_t pair, int which)
{
    uint16_t bits = (uint16_t)(pair >> 16 * which);
    if (BF16)
        return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{bits}));
    return __half2float(__half(__half_raw{bits}));
}

/* m16n8k16: where a lane's elements are, as the PTX manual has it. */
template <bool BF16> static void multiply(void *const *lanes)
{
    float a[16][16], b[16][8];
    for (int lane = 0; lane < LANES; lane++) {
        const Product *x = static_cast<Product *>(lanes[lane]);
        int group = lane / 4, pair = lane % 4 * 2;
        for (int e = 0; e < 8; e++)
            a[group + e / 2 % 2 * 8][pair + e % 2 + e / 4 * 8] = widen<BF16>(x->a[e / 2], e % 2);
        for (int e = 0; e < 4; e++)
            b[pair + e % 2 + e / 2 * 8][group] = widen<BF16>(x->b[e / 2], e % 2);
    }
    counts.products++;
    for (int lane = 0; lane < LANES; lane++) {
        Product *x = static_cast<Product *>(lanes[lane]);
        for (int e = 0; e < 4; e++) {
            int row = lane / 4 + e / 2 * 8, col = lane % 4 * 2 + e % 2;
            float sum = x->d[e];
            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[k][col];
            x->d[e] = sum;
        }
    }
}

void multiply_bf16(void *const *lanes)
{
    multiply<true>(lanes);
}

void multiply_f16(void *const *lanes)
{
    multiply<false>(lanes);
}

/* ---- launches ---------------------------------------------------------------------------------------- */

/* A warp until all of it waits for others; whether it did more than look. */
static bool run_warp(Thread *threads)
{
    bool moved = false;
    for (bool ran = true; ran;) {
        ran = false;
        for (int lane = 0; lane < LANES; lane++) {
            Thread &thread = threads[lane];
            if (thread.done || thread.waits())
                continue;
            thread.polled = false;
            resume(&thread);
            ran |= !thread.polled;
        }
        moved |= ran;
    }
    return moved;
}

static bool run_cta(Cta *cta)
{
    bool moved = false;
    for (bool ran = true; ran;) {
        ran = false;
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        for (int i = 0; i < WARPS; i++)
            ran |= run_warp(&cta->threads[(i ^ (int)(random_state >> 61)) * LANES]);
        moved |= ran;
    }
    return moved;
}

static void cta_make(Cta *cta, uint32_t index, uint32_t grid, const weft_cuda_args *args, simt_kernel kernel)
{
    size_t bytes = (size_t)THREADS * STACK_BYTES;
    cta->index = {index, 0, 0};
    cta->grid = {grid, 1, 1};
    cta->args = args;
    cta->kernel = kernel;
    cta->threads.reset(new Thread[THREADS]());
    cta->all = {};
    memset(cta->warps, 0, sizeof(cta->warps));
    cta->shared = static_cast<char *>(aligned_alloc(1024, WEFT_CUDA_ANY_SHARED_BYTES));
    void *stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!cta->shared || stacks == MAP_FAILED) {
        fprintf(stderr, "no memory for the threads of a CTA\n");
        abort();
    }
    memset(cta->shared, 0xff, WEFT_CUDA_ANY_SHARED_BYTES);
    cta->stacks = static_cast<char *>(stacks);
    for (uint32_t i = 0; i < THREADS; i++) {
        cta->threads[i].index = {i, 0, 0};
        cta->threads[i].cta = cta;
        cta->threads[i].stack = cta->stacks + (size_t)i * STACK_BYTES;
    }
}

} // namespace simt

struct simt_walk {
    weft_cuda_args args;
    std::vector<simt::Cta> ctas;
};

simt_walk *simt_walk_begin(const weft_cuda_args *args, uint32_t ctas, simt_kernel kernel)
{
    simt_walk *walk = new simt_walk{*args, std::vector<simt::Cta>(ctas)};
    for (uint32_t i = 0; i < ctas; i++)
        simt::cta_make(&walk->ctas[i], i, ctas, &walk->args, kernel);
    return walk;
}

bool simt_walk_step(simt_walk *walk)
{
    bool moved = false;
    for (simt::Cta &cta : walk->ctas)
        moved |= simt::run_cta(&cta);
    return moved;
}

bool simt_walk_over(const simt_walk *walk)
{
    for (const simt::Cta &cta : walk->ctas)
        for (int i = 0; i < simt::THREADS; i++)
            if (!cta.threads[i].done)
                return false;
    return true;
}

void simt_walk_free(simt_walk *walk)
{
    for (simt::Cta &cta : walk->ctas) {
        free(cta.shared);
        munmap(cta.stacks, (size_t)simt::THREADS * simt::STACK_BYTES);
    }
    delete walk;
}

simt_counts simt_take_counts(void)
{
    simt_counts taken = simt::counts;
    simt::counts = {};
    return taken;
}
