/* What the files of the fake GPU's driver share: the calls that a test breaks, and the calls that each adds.
 */
#ifndef WEFT_TESTS_CUDA_FAKE_DRIVER_H
#define WEFT_TESTS_CUDA_FAKE_DRIVER_H

#include "run/cuda/driver.h"

bool fake_breaks(const char *call);     /* whether the test wants this use of it to fail */
bool fake_breaks_yet(const char *call); /* the same where it fails for its first uses */
bool fake_forbidden(void);   /* what the driver forbids while somebody captures, in the calling thread */
bool fake_adds_abroad(void); /* whether GPUs can add in one another's memory */

#define BREAK(call)                                                                                          \
    if (fake_breaks(#call))                                                                                  \
    return CUDA_ERROR_UNKNOWN

#define NOT_IN_CAPTURE()                                                                                     \
    if (fake_forbidden())                                                                                    \
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

/* Lines that a copy moves, or that a memset writes. */
typedef struct fake_copied {
    char *to;
    const char *from; /* NULL: zeros, or other bytes */
    size_t bytes, lines, to_pitch, from_pitch;
    unsigned char value;
} fake_copied;

CUresult fake_copy_enqueue(const fake_copied *copied, CUstream stream);
bool fake_is_capturing(CUstream stream);
CUresult fake_captured_copy(const fake_copied *copied, CUstream stream); /* while it is */

void fake_memory_calls(weft_cuda_driver *calls);
void fake_launch_calls(weft_cuda_driver *calls); /* kernels, graphs, streams and events */
void fake_kernels(weft_cuda_device *device);

#endif
