/* The kernel of src/run/cuda/epilogue.h, on the fake GPU. */
#ifndef WEFT_TESTS_CUDA_FAKE_EPILOGUE_H
#define WEFT_TESTS_CUDA_FAKE_EPILOGUE_H

#include "run/cuda/driver.h"
#include "run/cuda/epilogue_device.h"

bool fake_epilogue(const weft_cuda_epilogue *epilogue, CUstream stream); /* in the stream's order */

#endif
