/*
 * How the sums of a tile's slices come together, of WIDTH columns of a row at a time: out of the shared
 * memory of all, or, where WEFT_CUDA_SENT is defined, through that of the GPU. Included by splitk_sm90.cu.
 *
 * An SM takes far fewer bytes a cycle out of another's shared memory than out of L2 (by the times of whole
 * kernels, 5 to 8 beside up to 64): where a slice has many
 * sums, it writes them there as the tensor cores have them, and when all of the cluster have, the slices add
 * up their shares and turn them round in their own shared memory.
 */
#ifndef WEFT_RUN_CUDA_SLICES_SM90_CUH
#define WEFT_RUN_CUDA_SLICES_SM90_CUH

namespace
{

constexpr int EIGHT = WEFT_CUDA_SPLITK_EIGHT;

/* Rows of D that a tile has. */
__device__ __forceinline__ int tile_rows(const weft_cuda_splitk &p, const Work &w)
{
    return max(0, min(p.rows * p.sharers, p.m - w.token0));
}

/* A thread's sums of eight tokens, to [token][column]. */
template <class T> __device__ __forceinline__ void put_eight(uint32_t smem, int token, const float (&x)[4])
{
    int lane = threadIdx.x % 32, col = threadIdx.x / 32 * 16 + lane / 4;
    uint32_t at = smem + 4 * ((token + lane % 4 * 2) * T::LINE + col);
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x[0]) : "memory");
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + 4 * T::LINE), "f"(x[1]) : "memory");
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + 32), "f"(x[2]) : "memory");
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + 4 * T::LINE + 32), "f"(x[3]) : "memory");
}

/* WIDTH sums of a row of this CTA's. */
__device__ __forceinline__ void get_sums(uint32_t at, float (&sum)[WIDTH])
{
#pragma unroll
    for (int i = 0; i < WIDTH; i += 4)
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(sum[i]), "=f"(sum[i + 1]), "=f"(sum[i + 2]), "=f"(sum[i + 3])
                     : "r"(at + 4 * i)
                     : "memory");
}

#ifdef WEFT_CUDA_SENT
/* Where a slice writes the sums of the tile's eight tokens `eight`. */
template <class T>
__device__ __forceinline__ float4 *sent_at(const weft_cuda_splitk &p, const Work &w, int slice, int eight)
{
    int64_t cta = ((int64_t)w.tile * p.groups + w.group) * p.slices + slice;
    return (float4 *)p.sent + (cta * (T::TOKENS / EIGHT) + eight) * T::CONSUMERS + threadIdx.x;
}

/* A thread's sums, to memory. */
template <class T>
__device__ __forceinline__ void give_sums(const weft_cuda_splitk &p, const Work &w, const float (&d)[T::SUMS],
                                          uint32_t)
{
    float4 *to = sent_at<T>(p, w, w.slice, 0);
    int rows = tile_rows(p, w);
#pragma unroll
    for (int j = 0; j < T::SUMS / 4; j++)
        if (EIGHT * j < rows)
            __stcg(to + j * T::CONSUMERS, make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]));
}

/* What a CTA adds up: i from `first` in steps, of the rows from `row` on. The sums over all slices, in their
 * order, are in its shared memory. */
template <class T> struct Share {
    int first, step, total, row;

    __device__ __forceinline__ Share(const weft_cuda_splitk &p, const Work &w, uint32_t smem)
        : first((int)threadIdx.x), step(T::CONSUMERS), row(w.slice * p.eights * EIGHT)
    {
        int rows = min(p.eights * EIGHT, tile_rows(p, w) - row);
        const float4 *from = sent_at<T>(p, w, 0, w.slice * p.eights);
#pragma unroll 2
        for (int eight = 0; EIGHT * eight < rows; eight++, from += T::CONSUMERS) {
            float4 x[SLICES];
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++)
                if (slice < p.slices)
                    x[slice] = __ldcg(from + slice * (T::TOKENS / EIGHT) * T::CONSUMERS);
            float sum[4] = {x[0].x, x[0].y, x[0].z, x[0].w};
#pragma unroll
            for (int slice = 1; slice < SLICES; slice++)
                if (slice < p.slices) {
                    sum[0] += x[slice].x, sum[1] += x[slice].y;
                    sum[2] += x[slice].z, sum[3] += x[slice].w;
                }
            put_eight<T>(smem, EIGHT * eight, sum);
        }
        consumers_sync<T::CONSUMERS>();
        total = rows * (T::COLS / WIDTH);
    }

    __device__ __forceinline__ void get(const weft_cuda_splitk &, const Work &, uint32_t smem, int i,
                                        float (&sum)[WIDTH]) const
    {
        get_sums(smem + 4 * (i / (T::COLS / WIDTH) * T::LINE + i % (T::COLS / WIDTH) * WIDTH), sum);
    }
};
#else
/* Four sums of the CTA `from` of the cluster; `own`: it is this one, whose memory is nearer. */
__device__ __forceinline__ float4 slice_get(uint32_t address, int from, bool own)
{
    float4 x;
    if (own) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                     : "r"(address)
                     : "memory");
        return x;
    }
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}\n"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address), "r"(from)
                 : "memory");
    return x;
}

/* A thread's sums, to the shared memory of its CTA. */
template <class T>
__device__ __forceinline__ void give_sums(const weft_cuda_splitk &p, const Work &, const float (&d)[T::SUMS],
                                          uint32_t smem)
{
#pragma unroll
    for (int j = 0; j < T::SUMS / 4; j++)
        if (has_sums<T>(p, 4 * j))
            put_eight<T>(smem, EIGHT * j, {d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]});
}

/* What a thread adds up: i from `first` in steps, of the rows from `row` on. */
template <class T> struct Share {
    int first, step, total, row;

    __device__ __forceinline__ Share(const weft_cuda_splitk &p, const Work &w, uint32_t)
        : first(w.slice * T::CONSUMERS + (int)threadIdx.x), step(p.slices * T::CONSUMERS),
          total(tile_rows(p, w) * (T::COLS / WIDTH)), row(0)
    {
    }

    /* The sums of its i over all slices, in their order, all on their way together. */
    __device__ __forceinline__ void get(const weft_cuda_splitk &p, const Work &w, uint32_t smem, int i,
                                        float (&sum)[WIDTH]) const
    {
        uint32_t at = smem + 4 * (i / (T::COLS / WIDTH) * T::LINE + i % (T::COLS / WIDTH) * WIDTH);
        float4 x[SLICES][2];
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++)
            if (slice < p.slices) {
                x[slice][0] = slice_get(at, slice * p.sharers + w.peer, slice == w.slice);
                x[slice][1] = slice_get(at + 16, slice * p.sharers + w.peer, slice == w.slice);
            }
        put(sum, x[0]);
#pragma unroll
        for (int slice = 1; slice < SLICES; slice++)
            if (slice < p.slices)
                add(sum, x[slice]);
    }
};
#endif

/* The same over the groups of a tile, `step` apart in memory. */
__device__ __forceinline__ void sum_groups(const float *at, int64_t step, int groups, float (&sum)[WIDTH])
{
    float4 x[2] = {__ldcg((const float4 *)at), __ldcg((const float4 *)at + 1)};
    put(sum, x);
#pragma unroll 4
    for (int group = 1; group < groups; group++) {
        const float4 *next = (const float4 *)(at + group * step);
        x[0] = __ldcg(next);
        x[1] = __ldcg(next + 1);
        add(sum, x);
    }
}

/* True for the CTA whose group is the last one of its share to have written its sums: it sees the others'.
 * The count is its own partner; it is zero again for the next run, which begins after this one's end. */
template <class T>
__device__ __forceinline__ bool is_last(const weft_cuda_splitk &p, const Work &w, uint32_t smem)
{
    uint32_t *arrived = p.arrived + w.tile * p.slices + w.slice;
    consumers_sync<T::CONSUMERS>();
    if (threadIdx.x == 0) {
        __threadfence();
        uint32_t before = atomicAdd(arrived, 1u), last = before == (uint32_t)p.groups - 1;
        if (last)
            *arrived = 0;
        __threadfence();
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(smem + T::last), "r"(last) : "memory");
    }
    consumers_sync<T::CONSUMERS>();
    return shared_word(smem + T::last);
}

/* A consumer's share of the tile's sums, and on. False where another CTA will do it, the last of a tile's
 * groups. */
template <class T, class Out>
__device__ __forceinline__ bool add_up(const weft_cuda_splitk &p, const Work &w, uint32_t smem, Out out)
{
    constexpr int ACROSS = T::COLS / WIDTH, TILE = T::TOKENS * T::COLS;
    const Share<T> share(p, w, smem);
    float *sums = p.sums + (int64_t)w.tile * p.groups * TILE + share.row * T::COLS, sum[WIDTH];
    int row = w.token0 + share.row;
#pragma unroll 1
    for (int i = share.first; i < share.total; i += share.step) {
        share.get(p, w, smem, i, sum);
        if (p.groups > 1) {
            float4 *to = (float4 *)(sums + w.group * TILE + i * WIDTH);
            __stcg(to, make_float4(sum[0], sum[1], sum[2], sum[3]));
            __stcg(to + 1, make_float4(sum[4], sum[5], sum[6], sum[7]));
        } else {
            out(p, row + i / ACROSS, w.col0 + i % ACROSS * WIDTH, sum);
        }
    }
    if (p.groups == 1)
        return true;
    if (!is_last<T>(p, w, smem))
        return false;
#pragma unroll 1
    for (int i = share.first; i < share.total; i += share.step) {
        sum_groups(sums + i * WIDTH, TILE, p.groups, sum);
        out(p, row + i / ACROSS, w.col0 + i % ACROSS * WIDTH, sum);
    }
    return true;
}

} // namespace

#endif
