# mypy: disable-error-code="override,assignment"
"""The backend's collectives. Each has a short way, for plain tensors that are waited for, and a call for all the others.

What the library reduces it reduces; other types and operations (int16, bool, bitwise) gather and reduce here, in rank order.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from .._library import quick
from ..errors import TimeoutError, UnsupportedError
from ._base import Base
from ._tensors import (
    _AVG, _BYTE, _FLOATS, _LOCAL, _REDUCTIONS, _ROOTS, _SUM, _back, _bytes, _check_alike, _codes, _counts, _dense, _octets, _unpack,
)  # fmt: skip
from ._work import DONE, Work

_all_reduce = quick.weft_all_reduce


def _options(kind: Any, given: Any, field: str, named: Any) -> Any:
    """torch's options of a call; of its short forms, which have one field of them in their place or by name, made here."""
    if hasattr(given, "asyncOp"):
        return given
    options, value = kind(), named if given is None else given
    if value is not None:
        setattr(options, field, value)
    return options


class Collectives(Base):
    """Calls of all ranks of a group."""

    def _reduce_dense(self, x: Tensor, op: Any) -> Tensor:
        """The reduction over ranks of memory without gaps, in place."""
        codes = _codes(x, op)
        if codes is not None:
            pointer = x.data_ptr()
            self._of(x)._call(_all_reduce, pointer, pointer, x.numel(), *codes)
            return x
        if op not in _LOCAL:
            raise UnsupportedError(f"the backend weft has no reduction {op}")
        if x.is_floating_point() and x.dtype not in _FLOATS:
            raise UnsupportedError(f"neither weft nor torch reduces tensors of {x.dtype}")
        every = self._gather_dense(x)
        total = every[0]
        for other in every[1:]:
            total = _LOCAL[op](total, other)
        if op == _AVG:
            total = total.div(self._size, rounding_mode=None if total.is_floating_point() else "trunc")
        return x.copy_(total)

    def _gather_dense(self, x: Tensor) -> Tensor:
        """ranks x shape."""
        every = x.new_empty((self._size, *x.shape))
        self._of(x)._call(quick.weft_all_gather, x.data_ptr(), every.data_ptr(), _bytes(x), _BYTE)
        return every

    def _check_op(self, op: Any, x: Tensor) -> Any:
        kind = op.op if hasattr(op, "op") else op
        if x.is_sparse and kind != _SUM:
            raise UnsupportedError("the backend weft adds sparse tensors; other reductions are for dense ones")
        if x.is_complex() and kind not in (_SUM, _AVG):
            raise ValueError(f"all_reduce does not support {op} on complex tensors")
        return kind

    def _check_many(self, call: str, each: Sequence[Any]) -> None:
        """Something for every rank."""
        if len(each) != self._size:
            raise ValueError(f"{call}: {len(each)} are given for {self._size} ranks")

    def _check_shares(self, call: str, whole: Tensor, share: Tensor) -> None:
        """One tensor has every rank's share."""
        if whole.dtype != share.dtype or whole.numel() != share.numel() * self._size:
            raise ValueError(
                f"{call}: {whole.numel()} elements of {whole.dtype} and {share.numel()} of {share.dtype} "
                f"on each of {self._size} ranks do not fit each other"
            )

    # ---- what torch calls, and users of a group in short forms: an operation or a root for options. What bounds a wait is the
    # group's timeout.

    def _reduce_now(self, x: Tensor, op: int) -> bool:
        """The case that must be fast, one plain tensor that is waited for, with the number of an operation, which is also its
        hash. Whether it was that, and is done."""
        codes = _REDUCTIONS.get((x.dtype, op))
        if codes is None or self._lane.pending or not x.is_contiguous() or not x.is_cpu or x.is_neg():
            return False
        pointer = x.data_ptr()
        try:
            self.group._call(_all_reduce, pointer, pointer, x.numel(), *codes)
        except TimeoutError as error:
            raise self._late(error) from None
        return True

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None) -> Work:
        if not getattr(opts, "asyncOp", True) and len(tensors) == 1 and self._reduce_now(tensors[0], hash(opts.reduceOp)):
            return DONE
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        opts = _options(c10d.AllreduceOptions, opts, "reduceOp", op)
        ops = [self._check_op(opts.reduceOp, x) for x in tensors]

        def call() -> None:
            for x, op in zip(tensors, ops):
                if x.is_sparse:
                    self._add_sparse(x)
                else:
                    _back(self._reduce_dense(_dense(x), op), x)

        return self._make(opts, tensors, call)

    def _add_sparse(self, x: Tensor) -> None:
        """Every rank's entries, as one tensor of them all."""
        own = x.detach().coalesce()
        indices, values = own.indices().t().contiguous(), own.values()
        counts = self._gather_dense(torch.tensor(own._nnz(), dtype=torch.int64, device=x.device)).tolist()
        where = [indices.new_empty((count, indices.shape[1])) for count in counts]
        what = [values.new_empty((count, *values.shape[1:])) for count in counts]
        self._gather_into(where, indices)
        self._gather_into(what, values)
        total = torch.sparse_coo_tensor(torch.cat(where).t(), torch.cat(what), x.shape, check_invariants=False)
        with torch.no_grad():
            x.copy_(total.coalesce())

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, *, root: Any = None) -> Work:
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        opts = _options(c10d.ReduceOptions, opts, "rootRank", root)
        if op is not None:
            opts.reduceOp = op
        ops = [self._check_op(opts.reduceOp, x) for x in tensors]

        def call() -> None:
            for x, op in zip(tensors, ops):
                dense, codes = _dense(x), _codes(x, op)
                if codes is None:
                    dense = self._reduce_dense(dense.clone(), op)
                else:
                    at = dense.data_ptr()
                    self._of(dense)._call(quick.weft_reduce, at, at, dense.numel(), *codes, _ROOTS[opts.rootRank])
                if self._rank == opts.rootRank:
                    _back(dense, x)

        return self._make(opts, tensors, call)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, *, root: Any = None) -> Work:
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        opts = _options(c10d.BroadcastOptions, opts, "rootRank", root)
        if len(tensors) == 1 and self._at_once(opts, tensors[0], tensors[0]):
            return self._now(quick.weft_broadcast, tensors[0].data_ptr(), tensors[0].nbytes, _BYTE, _ROOTS[opts.rootRank])

        def call() -> None:
            for x in tensors:
                dense = _dense(x)
                self._of(dense)._call(quick.weft_broadcast, dense.data_ptr(), _bytes(dense), _BYTE, _ROOTS[opts.rootRank])
                _back(dense, x)

        return self._make(opts, tensors, call)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *, timeout: Any = None) -> Work:
        lists = [outputs] if outputs and isinstance(outputs[0], Tensor) else list(outputs)
        inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        for out, x in zip(lists, inputs):
            self._check_many("all_gather", out)
            for y in out:
                if y.dtype != x.dtype:
                    raise ValueError(f"all_gather: the output is {y.dtype}, the input {x.dtype}")
            _check_alike("all_gather", x, [out[self._rank]])

        def call() -> None:
            for out, x in zip(lists, inputs):
                self._gather_into(out, x)

        return self._make(opts, [y for out in lists for y in out], call, inputs)

    def _gather_into(self, out: Sequence[Tensor], x: Tensor) -> None:
        """Every rank's tensor; sizes may differ, and every rank knows them all from the outputs."""
        dense, sizes = _dense(x), [_bytes(y) for y in out]
        every = torch.empty(sum(sizes), dtype=torch.uint8, device=x.device)
        self._of(dense)._call(quick.weft_all_gather_v, dense.data_ptr(), every.data_ptr(), _counts(sizes), _BYTE)
        _unpack(every, sizes, out)

    def _exchange(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """inputs[r] to rank r, outputs[r] from it; sizes differ, and no rank knows them all."""
        there, here = [_bytes(x) for x in inputs], [_bytes(y) for y in outputs]
        send = torch.cat([_octets(x) for x in inputs])
        recv = torch.empty(sum(here), dtype=torch.uint8, device=send.device)
        self._of(send)._call(
            quick.weft_all_to_all_v, send.data_ptr(), _counts(there), recv.data_ptr(), _counts(here), _BYTE
        )
        _unpack(recv, here, outputs)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        columns = [[out[i] for out in outputs] for i in range(len(inputs))]
        return self.allgather(columns, inputs, opts)

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        if self._at_once(opts, input, output) and output.numel() == self._size * input.numel():
            return self._now(quick.weft_all_gather, input.data_ptr(), output.data_ptr(), input.nbytes, _BYTE)
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        for y, x in zip(outputs, inputs):
            self._check_shares("all_gather", y, x)

        def call() -> None:
            for y, x in zip(outputs, inputs):
                dense, result = _dense(x), _dense(y)
                self._of(dense)._call(quick.weft_all_gather, dense.data_ptr(), result.data_ptr(), _bytes(dense), _BYTE)
                _back(result, y)

        return self._make(opts, list(outputs), call, inputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, op: Any = None) -> Work:
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        lists = [inputs] if inputs and isinstance(inputs[0], Tensor) else list(inputs)
        opts = _options(c10d.ReduceScatterOptions, opts, "reduceOp", op)
        ops = [self._check_op(opts.reduceOp, y) for y in outputs]
        for y, xs in zip(outputs, lists):
            self._check_many("reduce_scatter", xs)
            _check_alike("reduce_scatter", y, [xs[self._rank]])

        def call() -> None:
            for y, xs, op in zip(outputs, lists, ops):
                flat = [_dense(x).flatten() for x in xs]
                self._scatter_sum(y, torch.cat(flat), op, [part.numel() for part in flat])

        return self._make(opts, outputs, call, [x for xs in lists for x in xs])

    def _scatter_sum(self, y: Tensor, dense: Tensor, op: Any, counts: List[int]) -> None:
        """This rank's share of the reduction of ``dense`` (ranks' shares, one after another) into y."""
        result, codes = _dense(y), _codes(dense, op)
        send, recv = dense.data_ptr(), result.data_ptr()
        if codes is not None and len(set(counts)) == 1:
            self._of(dense)._call(quick.weft_reduce_scatter, send, recv, counts[0], *codes)
        elif codes is not None:
            self._of(dense)._call(quick.weft_reduce_scatter_v, send, recv, _counts(counts), *codes)
        else:
            whole = self._reduce_dense(dense.clone().flatten(), op)
            result.copy_(whole.split(counts)[self._rank].view(result.shape))
        _back(result, y)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        if self._at_once(opts, input, output) and input.numel() == self._size * output.numel():
            codes = _REDUCTIONS.get((input.dtype, hash(opts.reduceOp)))
            if codes is not None:
                at, to = input.data_ptr(), output.data_ptr()
                return self._now(quick.weft_reduce_scatter, at, to, output.numel(), *codes)
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or c10d.ReduceScatterOptions()
        ops = [self._check_op(opts.reduceOp, y) for y in outputs]
        for y, x in zip(outputs, inputs):
            self._check_shares("reduce_scatter", x, y)

        def call() -> None:
            for y, x, op in zip(outputs, inputs, ops):
                dense = _dense(x)
                self._scatter_sum(y, dense, op, [dense.numel() // self._size] * self._size)

        return self._make(opts, list(outputs), call, inputs)

    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Optional[List[int]] = None,
        input_split_sizes: Optional[List[int]] = None,
        opts: Any = None,
        *,
        timeout: Any = None,
    ) -> Work:
        if not input.dim() or not output.dim():
            raise ValueError("all_to_all: tensors without a dimension have no rows to exchange")
        rows_in = input_split_sizes or self._even(input, "input")
        rows_out = output_split_sizes or self._even(output, "output")
        for x, rows in ((input, rows_in), (output, rows_out)):
            self._check_many("all_to_all", rows)
            if sum(rows) != x.shape[0]:
                raise ValueError(f"all_to_all: rows {list(rows)} are not those of a tensor of {tuple(x.shape)}")
        if output.dtype != input.dtype:
            raise ValueError(f"all_to_all: the output is {output.dtype}, the input {input.dtype}")
        even = not input_split_sizes and not output_split_sizes
        if even:
            _check_alike("all_to_all", input, [output])
        if even and self._at_once(opts, input, output):
            at, to = input.data_ptr(), output.data_ptr()
            return self._now(quick.weft_all_to_all, at, to, input.nbytes // self._size, _BYTE)

        def call() -> None:
            dense, result = _dense(input), _dense(output)
            if even:
                send, recv = dense.data_ptr(), result.data_ptr()
                self._of(dense)._call(quick.weft_all_to_all, send, recv, _bytes(dense) // self._size, _BYTE)
            else:
                self._exchange(result.split(rows_out), dense.split(rows_in))
            _back(result, output)

        return self._make(opts, [output], call, [input])

    def _even(self, x: Tensor, what: str) -> List[int]:
        rows = x.shape[0]
        if rows % self._size:
            raise ValueError(
                f"all_to_all: the {what}'s first dimension, {rows}, does not divide over {self._size} ranks"
            )
        return [rows // self._size] * self._size

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        outputs, inputs = list(outputs), list(inputs)
        for tensors in (outputs, inputs):
            self._check_many("all_to_all", tensors)
        if len({x.dtype for x in (*outputs, *inputs)}) > 1:
            raise ValueError("all_to_all: the tensors are not all of one type")

        def call() -> None:
            self._exchange(outputs, inputs)

        return self._make(opts, outputs, call, inputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: Any = None) -> Work:
        inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        lists = [outputs] if outputs and isinstance(outputs[0], Tensor) else list(outputs)
        opts = _options(c10d.GatherOptions, opts, "rootRank", root)
        if self._rank == opts.rootRank:
            for x, out in zip(inputs, lists):
                self._check_many("gather", out)
                _check_alike("gather", x, out)

        def call() -> None:
            for i, x in enumerate(inputs):
                dense, root = _dense(x), self._rank == opts.rootRank
                every = dense.new_empty((self._size if root else 0, *dense.shape))
                at, to = dense.data_ptr(), every.data_ptr()
                self._of(dense)._call(quick.weft_gather, at, to, _bytes(dense), _BYTE, _ROOTS[opts.rootRank])
                for y, got in zip(lists[i] if root else [], every):
                    _back(got, y)

        return self._make(opts, inputs, call, [y for out in lists for y in out])

    def gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:
        root = self._rank == opts.rootRank
        if root:
            self._check_shares("gather", output, input)
        return self.gather([list(output.view(self._size, *input.shape))] if root else [], [input], opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: Any = None) -> Work:
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        lists = [inputs] if inputs and isinstance(inputs[0], Tensor) else list(inputs)
        opts = _options(c10d.ScatterOptions, opts, "rootRank", root)
        if self._rank == opts.rootRank:
            for y, xs in zip(outputs, lists):
                self._check_many("scatter", xs)
                _check_alike("scatter", y, xs)

        def call() -> None:
            for i, y in enumerate(outputs):
                result = _dense(y)
                every = torch.stack([_dense(x).flatten() for x in lists[i]]) if self._rank == opts.rootRank else result
                at, to = every.data_ptr(), result.data_ptr()
                self._of(y)._call(quick.weft_scatter, at, to, _bytes(result), _BYTE, _ROOTS[opts.rootRank])
                _back(result, y)

        return self._make(opts, outputs, call, [x for xs in lists for x in xs])

    def _meet_now(self) -> bool:
        """A barrier that is waited for. Whether no call is under way, and it is done."""
        if self._lane.pending:
            return False
        self._now(quick.weft_barrier)
        return True

    def barrier(self, opts: Any = None, *, timeout: Any = None) -> Work:
        if not getattr(opts, "asyncOp", True) and self._meet_now():
            return DONE
        return self._make(opts, [], self.group.barrier)

    # What torch calls them from 2.15 on.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base


__all__ = ["Collectives"]
