"""torch's own tests of a backend (torch.testing._internal.distributed.distributed_test), driven against weft.

    tests/python/run.sh build tests/python/soak_distributed.py [TEST…]

Part of `make soak`. Prints how many passed, and each that failed; exits with 1 if one failed that is not named below with its
reason, if one that is named passes, or if fewer than 120 pass. Ranks are forked, so that torch is imported once.

The tests are written for gloo, MPI and NCCL, by name. Where they ask for gloo they get weft, and those that they keep for MPI
(all_to_all on CPU tensors) or for eight ranks though three are enough are run too. The rest needs GPUs.
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

if not support.SOAK and not sys.argv[1:]:
    print("skipped: torch's own tests of a backend are part of `make soak`")
    sys.exit(77)
support.need("torch", "expecttest")
SIZE = int(os.environ.get("WEFT_TEST_RANKS", "4"))
BACKEND = os.environ.get("WEFT_TEST_BACKEND", "weft")
_folder = tempfile.mkdtemp()
os.environ.update(BACKEND="gloo", WORLD_SIZE=str(SIZE), TEMP_DIR=_folder, INIT_METHOD=f"file://{_folder}/meeting")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import weft.torch  # noqa: E402

from torch.testing._internal import common_distributed, common_utils  # noqa: E402

_skip = common_utils.skip_but_pass_in_sandcastle_if


def _skip_unless_mpi(condition: Any, reason: str) -> Any:
    return _skip(condition and not reason.startswith("Only MPI supports"), reason)


if BACKEND == "weft":
    common_utils.skip_but_pass_in_sandcastle_if = _skip_unless_mpi
if SIZE > 2:
    common_distributed.skip_if_small_worldsize = lambda test: test

from torch.testing._internal.distributed import distributed_test  # noqa: E402

REASONS: Dict[str, str] = {
    "test_get_backend": "asks for the name gloo",
    "test_monitored_barrier_failure_order": "torch asks gloo alone",
    "test_monitored_barrier_gloo": "torch asks gloo alone",
    "test_monitored_barrier_gloo_rank_0_timeout": "torch asks gloo alone",
    "test_monitored_barrier_gloo_subgroup": "torch asks gloo alone",
    "test_monitored_barrier_wait_all_ranks": "torch asks gloo alone",
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
    sys.exit(bool(unexpected or fixed or (not sys.argv[1:] and len(passed) < 120)))


main()
