"""torch's own tests of a backend (torch.testing._internal.distributed.distributed_test), driven against weft.

    tests/python/run.sh build tests/python/soak_distributed.py [TEST…]

Prints how many passed, and each that failed; exits with 1 if one failed that is not named below with its reason, if one that is
named passes, or if fewer than 75 pass. Ranks are forked, so that torch is imported once.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import unittest
from typing import Any, Dict

import support

support.need("torch", "expecttest")
SIZE = int(os.environ.get("WEFT_TEST_RANKS", "2"))
BACKEND = os.environ.get("WEFT_TEST_BACKEND", "weft")
# The tests are written for gloo, by name; where they ask for it they get weft.
os.environ.update(BACKEND="gloo", WORLD_SIZE=str(SIZE), TEMP_DIR=tempfile.mkdtemp())

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import weft.torch  # noqa: E402

from torch.testing._internal.distributed import distributed_test  # noqa: E402

REASONS: Dict[str, str] = {
    "test_get_backend": "asks for the name gloo",
    "test_barrier_timeout_full_group": "wants gloo's words for a timeout",
    "test_monitored_barrier_gloo": "gloo's alone",
    "test_monitored_barrier_gloo_rank_0_timeout": "gloo's alone",
    "test_monitored_barrier_gloo_subgroup": "gloo's alone",
    "test_send_recv_any_source": "the sender must be named",
    "test_send_recv_any_source_autograd_profiler": "the sender must be named",
    "test_send_recv_any_source_torch_profiler": "the sender must be named",
    "test_sparse_all_reduce_sum": "dense tensors only",
}
if BACKEND == "gloo":
    REASONS = {}
_init, _new = dist.init_process_group, dist.new_group


def _init_instead(*arguments: Any, backend: Any = None, **options: Any) -> None:
    _init(*arguments, backend=BACKEND if backend == "gloo" else backend, **options)


def _new_instead(*arguments: Any, backend: Any = None, **options: Any) -> Any:
    return _new(*arguments, backend=BACKEND if backend == "gloo" else backend, **options)


dist.init_process_group, dist.new_group = _init_instead, _new_instead


class WeftBackend(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """Every test of the base class, in forked ranks."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def _spawn_processes(self) -> None:
        pass


def main() -> None:
    loader = unittest.defaultTestLoader
    names = sys.argv[1:] or loader.getTestCaseNames(WeftBackend)
    passed, skipped, failed = [], {}, {}
    for name in names:
        noise = io.StringIO()
        result = unittest.TestResult()
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            WeftBackend(name)(result)
        problems = result.errors + result.failures
        if problems:
            failed[name] = problems[0][1]
        elif result.skipped:
            skipped[name] = result.skipped[0][1]
        else:
            passed.append(name)
        print(f"{'FAILED' if problems else 'skipped' if result.skipped else 'passed':8}{name}", flush=True)
    unexpected = [name for name in failed if name not in REASONS]
    fixed = [name for name in passed if name in REASONS]
    for name in unexpected:
        print(f"\n==== {name}\n{failed[name]}")
    for name in fixed:
        print(f"passes now: {name} ({REASONS[name]})")
    for reason in sorted(set(skipped.values())):
        print(f"skipped {list(skipped.values()).count(reason)}: {reason}")
    print(
        f"{len(passed)} passed, {len(failed)} failed ({len(unexpected)} without a known reason), {len(skipped)} skipped"
    )
    sys.exit(bool(unexpected or fixed or (not sys.argv[1:] and len(passed) < 75)))


main()
