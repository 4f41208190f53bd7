/* Micro-tiles at an edge: every number of rows and columns has the sums of the whole micro-tile, to the last
 * bit, and nothing beyond them is read or written. */
#include "gemm/gemm_case.h"

enum { GAP = 5 }; /* elements between rows of C */

typedef struct edge_panels {
    const weft_kernel *kernel;
    int64_t k;
    const void *a, *b;
} edge_panels;

static uint64_t next(uint64_t *state)
{
    return *state = *state * 6364136223846793005u + 1442695040888963407u;
}

static void *panel(weft_dtype dtype, int64_t elements, uint64_t seed)
{
    char *memory = guarded_alloc((size_t)elements * weft_dtype_size(dtype));

    for (int64_t i = 0; i < elements; i++) {
        double value = (double)(next(&seed) >> 40) / (1 << 23) - 1;

        weft_element_set(dtype, memory, (size_t)i, dtype == WEFT_I8 ? floor(value * 128) : value);
    }
    return memory;
}

/* C of an edge ends where memory does. */
static void check_edge(const edge_panels *o, int64_t rows, int64_t cols, bool add)
{
    int64_t ld = cols + GAP, count = (rows - 1) * ld + cols, nr = o->kernel->nr;
    size_t bytes = (size_t)count * 4;
    uint32_t whole[64 * 64], before[64 * 64], *c = guarded_alloc(bytes);

    for (int64_t i = 0; i < count; i++)
        before[i] = c[i] = 0x3f800000u + (uint32_t)i;
    for (int64_t i = 0; i < o->kernel->mr * nr; i++)
        whole[i] = i / nr < rows && i % nr < cols ? before[i / nr * ld + i % nr] : 0;
    o->kernel->run(o->k, o->a, o->b, whole, nr, add);
    o->kernel->edge(rows, cols, o->k, o->a, o->b, c, ld, add);
    for (int64_t i = 0; i < count; i++)
        CHECK(c[i] == (i % ld < cols ? whole[i / ld * nr + i % ld] : before[i]));
    guarded_free(c, bytes);
}

static void check_kernel(const weft_kernel *kernel)
{
    static const int64_t steps[] = {1, 2, 7, 300};

    for (int i = 0; i < 4; i++) {
        edge_panels o = {.kernel = kernel, .k = steps[i] * kernel->k_step};
        int64_t size = (int64_t)weft_dtype_size(kernel->type);

        o.a = panel(kernel->type, o.k * kernel->mr, 1);
        o.b = panel(kernel->type, o.k * kernel->nr, 2);
        for (int64_t rows = 1; rows <= kernel->mr; rows++) {
            for (int64_t cols = 1; cols <= kernel->nr; cols++) {
                check_edge(&o, rows, cols, false);
                check_edge(&o, rows, cols, true);
            }
        }
        guarded_free((void *)(uintptr_t)o.a, (size_t)(o.k * kernel->mr * size));
        guarded_free((void *)(uintptr_t)o.b, (size_t)(o.k * kernel->nr * size));
    }
}

int main(void)
{
    for (int i = 0; weft_core_at(i); i++) {
        const weft_core *core = weft_core_at(i);

        for (int c = 0; c < WEFT_COMPUTE_COUNT && weft_core_available(core); c++) {
            const weft_kernel *kernel = core->bind[c].kernel;

            CHECK(kernel->mr * kernel->nr <= 64 * 64); /* the room here */
            if (kernel->edge)
                check_kernel(kernel);
        }
    }
    return check_report("gemm edge");
}
