/* Which backends this build has. See backend.h. */
#include "run/backend.h"

#ifdef WEFT_HAVE_CUDA
#include "run/cuda/backend.h"
#endif

static const weft_backend *const backends[] = {
    &weft_cpu_backend,
#ifdef WEFT_HAVE_CUDA
    &weft_cuda_backend,
#endif
    NULL,
};

const weft_backend *weft_backend_at(int index)
{
    return index >= 0 && index < (int)(sizeof(backends) / sizeof(*backends)) ? backends[index] : NULL;
}

weft_status weft_backend_attach(weft_group *group, int device)
{
    const weft_backend *backend;
    weft_status status = WEFT_ERR_UNSUPPORTED;
    bool asked = false;

    for (int i = 0; (backend = weft_backend_at(i)) && status == WEFT_ERR_UNSUPPORTED; i++)
        if (backend->attach) {
            status = backend->attach(group, device);
            asked = true;
        }
    return asked ? status
                 : weft_error_set(
                       &group->error, WEFT_ERR_UNSUPPORTED,
                       "weft_group_use_gpu(%d): this build has no GPU backend (it was made without nvcc, or "
                       "with WEFT_CUDA=OFF)",
                       device);
}
