"""Products of one process on the CPU beside PyTorch's (oneDNN on x86-64), with one thread and with several.

    PYTHONPATH=python [taskset -c CPUS] python3 bench/torch_cpu.py [--seconds S] SET:TYPE:THREADS ...

for example llama3:bf16:1,8 or square:i8:1; sets are llama3, decode and square, types bf16 and i8.

weft and torch take turns, and so do numbers of threads; a sample waits until the other's threads have gone to sleep,
makes one call that does not count and then as many as take 30 ms. B lies row-major, and once more packed for weft.
Prints Gop/s of medians, weft over torch, and what each number of threads reaches of as many times one thread's rate.
"""

import argparse
import ctypes as C
import statistics
import time

import torch
from weft._library import check, constants, lib, structs

SETS = {
    # Llama 3 8B, 70B and 405B over two ranks, everything divided by eight.
    "llama3": [(m, n, k) for n, k in ((1792, 512), (3584, 1024), (6656, 2048)) for m in (512, 1024, 2048)],
    "decode": [(m, 4096, 4096) for m in (1, 2, 4, 8, 16, 32, 64)],
    "square": [(s, s, s) for s in (512, 1024, 2048, 4096)],
}
CACHES = 192e6  # bytes of B in turn, beyond every cache
SAMPLE = 0.03
SIDES = ("weft", "packed", "torch")


class Product:
    def __init__(self, m, n, k, dtype):
        self.m, self.n, self.k, self.dtype, self.turn = m, n, k, dtype, 0
        size = 1 if dtype == "i8" else 2
        sets = max(2, min(8, round(CACHES / (n * k * size)))) if m <= 64 else 2
        draw = self.integers if dtype == "i8" else self.reals
        self.a = [draw(m, k) for _ in range(sets)]
        self.b = [draw(k, n) for _ in range(sets)]
        self.d = torch.empty(m, n, dtype=torch.int32 if dtype == "i8" else torch.bfloat16)
        self.packed = [self.pack(b) for b in self.b]

    @staticmethod
    def reals(rows, cols):
        return (torch.rand(rows, cols) * 2 - 1).bfloat16()

    @staticmethod
    def integers(rows, cols):
        return torch.randint(-127, 128, (rows, cols), dtype=torch.int8)

    def args(self, threads):
        args = structs["weft_gemm_args"]()
        kind = constants["WEFT_I8" if self.dtype == "i8" else "WEFT_BF16"]
        lib.weft_gemm_args_init_sized(C.byref(args), C.sizeof(args), kind, self.m, self.n, self.k)
        args.threads, args.d = threads, self.d.data_ptr()
        return args

    def pack(self, b):
        args, handle = self.args(0), C.c_void_p()
        args.b = b.data_ptr()
        memory = torch.empty(lib.weft_pack_bytes(C.byref(args)) + 128, dtype=torch.uint8)
        check(lib.weft_pack(C.byref(args), -(-memory.data_ptr() // 128) * 128, C.byref(handle)))
        return memory, handle

    def weft(self, threads, packed):
        args, which = self.args(threads), self.turn % len(self.b)
        self.turn += 1
        args.a = self.a[which].data_ptr()
        if packed:
            args.packed_b = self.packed[which][1].value
        else:
            args.b = self.b[which].data_ptr()
        check(lib.weft_gemm(C.byref(args)))

    def torch(self):
        which = self.turn % len(self.b)
        self.turn += 1
        return (torch._int_mm if self.dtype == "i8" else torch.mm)(self.a[which], self.b[which])

    def agree(self):
        self.turn = 0
        expected = self.torch().double()
        for packed in (False, True):
            self.turn = 0
            self.weft(1, packed)
            error = (self.d.double() - expected).abs().max().item()
            if error > (0 if self.dtype == "i8" else 0.02 * self.k**0.5):
                raise SystemExit(f"{self.m} x {self.n} x {self.k}: the two differ by {error}")


def sample(call):
    time.sleep(0.004)
    call()
    calls, start = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        seconds = time.perf_counter() - start
        if seconds > SAMPLE:
            return seconds / calls


def measure(product, threads, seconds):
    sides = [(name, t) for name in SIDES for t in threads]
    times = {side: [] for side in sides}
    end = time.perf_counter() + seconds
    while len(times[sides[0]]) < 3 or time.perf_counter() < end:
        for name, t in sides:
            if name == "torch":
                torch.set_num_threads(t)
                times[name, t].append(sample(product.torch))
            else:
                times[name, t].append(sample(lambda p=name == "packed", t=t: product.weft(t, p)))
    operations = 2e-9 * product.m * product.n * product.k
    return {side: operations / statistics.median(times[side]) for side in sides}


def run(shapes, dtype, threads, seconds):
    ratios = {t: [] for t in threads}
    scaling = {(name, t): [] for name in SIDES for t in threads}
    for m, n, k in shapes:
        product = Product(m, n, k, dtype)
        product.agree()
        rate = measure(product, threads, seconds)
        for t in threads:
            cells = []
            for name in SIDES:
                share = rate[name, t] / (t / threads[0] * rate[name, threads[0]])
                scaling[name, t].append(share)
                cells.append(f"{rate[name, t]:7.0f} ({share:.2f})")
            ratios[t].append(rate["weft", t] / rate["torch", t])
            shape = f"{m:5d} x {n:5d} x {k:5d}  {t:3d} threads"
            print(f"{shape}  {'  '.join(cells)}  weft / torch {ratios[t][-1]:.2f}", flush=True)
    for t in threads:
        shares = ", ".join(f"{name} {statistics.median(scaling[name, t]):.2f}" for name in SIDES)
        mean = statistics.geometric_mean(ratios[t])
        print(f"{t} threads: weft / torch {mean:.2f} in the mean, median share {shares}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="+", metavar="SET:TYPE:THREADS")
    parser.add_argument("--seconds", type=float, default=3, help="for each shape")
    options = parser.parse_args()
    print(f"torch {torch.__version__}; Gop/s: weft, weft with B packed, torch; in brackets: of threads x one thread's")
    for job in options.jobs:
        name, dtype, threads = job.split(":")
        if dtype not in ("bf16", "i8"):
            parser.error(f"{dtype} is neither bf16 nor i8")
        print(job)
        run(SETS[name], dtype, [int(t) for t in threads.split(",")], options.seconds)


if __name__ == "__main__":
    main()
