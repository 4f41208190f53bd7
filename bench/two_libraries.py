"""Products of two builds of libweft in turn, one thread: is a wheel's library as fast as the ordinary build's?

    make && make wheel && unzip -o dist/weft-*.whl 'weft/_lib/*' -d dist
    taskset -c 1 env PYTHONPATH=python WEFT_LIBRARY=build/libweft.so python3 bench/two_libraries.py dist/weft/_lib/libweft.so

Medians of 15 samples of each, in microseconds, and the other library's over that of WEFT_LIBRARY.
"""

from __future__ import annotations

import ctypes as C
import statistics
import sys
import time

import numpy as np

import weft
from weft._library import lib
from weft.products import _gemm_args

STORED = {"float32": "f4", "bfloat16": "u2", "float16": "f2", "int8": "i1"}
SAMPLE_FLOPS = 8e8  # of a sample, at least one call


def main() -> None:
    """Prints the table."""
    other = C.CDLL(sys.argv[1]).weft_gemm
    other.argtypes, other.restype = lib.weft_gemm.argtypes, lib.weft_gemm.restype
    both = lib.weft_gemm, other
    for name, stored in STORED.items():
        for m, n, k in ((1, 2048, 2048), (16, 2048, 2048), (512, 512, 512), (1024, 1024, 1024)):
            a, b = np.ones((m, k), stored), np.ones((k, n), stored)
            d = np.empty((m, n), "i4" if name == "int8" else stored)
            args = _gemm_args(weft.dtypes.dtype_of(name), m, n, k)
            args.a, args.b, args.d = (x.ctypes.data for x in (a, b, d))
            args.lda, args.ldb, args.ldd, args.threads = k, n, n, 1
            calls = max(1, int(SAMPLE_FLOPS / (2 * m * n * k)))
            taken: tuple = ([], [])
            for sample in range(16):  # the first warms up
                for which in (0, 1) if sample % 2 else (1, 0):
                    began = time.perf_counter()
                    for _ in range(calls):
                        if both[which](C.byref(args)):
                            raise RuntimeError(lib.weft_error(None).decode())
                    taken[which].append((time.perf_counter() - began) / calls * 1e6)
            one, two = (statistics.median(times[1:]) for times in taken)
            print(f"{name:9} {m:5} x {n:5} x {k:5} {one:10.1f} {two:10.1f} {two / one:6.3f}", flush=True)


if __name__ == "__main__":
    main()
