# mypy: disable-error-code="union-attr,arg-type,index"
"""Asynchronous tensor parallelism, on the CPU and on GPUs: a pass over compiled graphs that weaves communication into products.

It looks for what DTensor leaves in a graph, forward and backward,

    all_gather_into_tensor → wait_tensor → (view) → mm                 becomes   weft::ag_gemm
    mm → (view) → reduce_scatter_tensor("sum") → wait_tensor           becomes   weft::gemm_rs
    mm → (view) → all_reduce("sum") → wait_tensor                      becomes   weft::gemm_ar

and addmm as mm: a vector after a gathered product is its bias, and so is b in addmm(b / ranks, …) before a sum, which is
how DTensor adds once what every rank has. That holds where the group is one of the backend "weft" and nobody else uses what is
in between. (A gathered tensor that backward needs too is gathered as before: weaving it would move it twice.)

The gathered or scattered dimension is the first. For another one DTensor cuts what was gathered into the ranks' parts and joins
them there, and the other way round before it scatters. The operators have the rows in the order of the ranks instead: those of
the result, or of what is multiplied, are put in the other order, if the extents before that dimension are known.

``enable()`` puts it behind inductor's own passes; ``fuse(graph)`` is the pass itself, for other compilers.
"""

from __future__ import annotations

import hashlib
import math
import operator
from pathlib import Path
from typing import Any, List, Optional, Tuple

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ._groups import group_of

_aten, _c10d = torch.ops.aten, torch.ops._c10d_functional
_VIEWS = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)
_PLACEHOLDER_M = -1
_TYPES = {"cpu": (torch.float32, torch.bfloat16, torch.float16), "cuda": (torch.bfloat16, torch.float16)}


def _is(node: Any, *targets: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def _shape(node: fx.Node) -> Optional[List[Any]]:
    value = node.meta.get("val")
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _ours(name: Any) -> bool:
    try:
        return isinstance(name, str) and group_of(name) is not None
    except ValueError:
        return False


def _only(node: fx.Node) -> Optional[fx.Node]:
    """The only user of a node."""
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _keeps_rows(view: fx.Node, source: fx.Node) -> bool:
    """Whether a view only folds leading dimensions into rows, or unfolds them: the last dimension stays."""
    a, b = _shape(view), _shape(source)
    return bool(a) and bool(b) and len(a) >= 2 and len(b) >= 2 and a[-1] == b[-1]


def _typed(node: fx.Node) -> bool:
    """Whether the operators take it, where it is."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in _TYPES.get(value.device.type, ())


def _operands(product: Any) -> Optional[Tuple[fx.Node, fx.Node, Optional[fx.Node]]]:
    """a, b and bias of a product that the operators take; a bias is a vector."""
    if _is(product, _aten.mm.default):
        return (*product.args, None)
    if not _is(product, _aten.addmm.default) or any(factor != 1 for factor in product.kwargs.values()):
        return None
    bias, a, b = product.args
    return (a, b, bias) if _shape(bias) == _shape(product)[-1:] else None


def _takes(a: fx.Node, bias: Optional[fx.Node]) -> bool:
    """Whether an operator takes the bias with such rows."""
    if bias is None:
        return True
    x, value = a.meta["val"], bias.meta["val"]
    return bool(value.is_contiguous()) and (value.dtype, value.device) == (x.dtype, x.device)


def _fused(graph: fx.Graph, before: fx.Node, target: Any, arguments: Any, like: fx.Node) -> fx.Node:
    with graph.inserting_before(before):
        node = graph.call_function(target, arguments)
    node.meta.update(like.meta)
    node.meta.pop("eager_input_vals", None)  # of what stood there, which took other inputs
    return node


def _apply(graph: fx.Graph, before: fx.Node, target: Any, x: fx.Node, argument: List[int]) -> fx.Node:
    with graph.inserting_before(before):
        node = graph.call_function(target, (x, argument))
    node.meta["val"] = target(x.meta["val"], argument)
    return node


def _as_rows(graph: fx.Graph, before: fx.Node, x: fx.Node) -> fx.Node:
    """x as a matrix: leading dimensions folded."""
    shape = x.meta["val"].shape
    return x if len(shape) == 2 else _apply(graph, before, _aten.reshape.default, x, [-1, shape[-1]])


def _swapped(graph: fx.Graph, before: fx.Node, x: fx.Node, outer: int, inner: int) -> fx.Node:
    """A matrix whose rows are in the order (outer, inner, rest), with rows in the order (inner, outer, rest)."""
    columns = x.meta["val"].shape[1]
    x = _apply(graph, before, _aten.reshape.default, x, [outer, inner, -1, columns])
    x = _apply(graph, before, _aten.permute.default, x, [1, 0, 2, 3])
    return _apply(graph, before, _aten.reshape.default, x, [-1, columns])


def _moved(joined: Any, size: int) -> Optional[Tuple[fx.Node, int, int]]:
    """A tensor whose ``size`` equal parts along one dimension were joined along another, for nothing else: it, and both
    dimensions."""
    if not _is(joined, _aten.cat.default):
        return None
    parts, to = joined.args[0], joined.args[1] if len(joined.args) > 1 else 0
    split = parts[0].args[0] if _is(parts[0], operator.getitem) else None
    if not _is(split, _aten.split.Tensor) or len(split.users) != size or len(parts) != size:
        return None
    for index, part in enumerate(parts):
        if part.args != (split, index) or _only(part) is None or _shape(part) != _shape(parts[0]):
            return None
    return split.args[0], split.args[2] if len(split.args) > 2 else 0, to


def _before(shape: List[Any], dim: int) -> Optional[int]:
    """The product of the extents before a dimension that is neither the first nor the last, if they are known."""
    known = 0 < dim < len(shape) - 1 and all(isinstance(extent, int) for extent in shape[:dim])
    return math.prod(shape[:dim]) if known else None


def _fixed(matrix: fx.Node) -> bool:
    """Whether it is known how many columns there are."""
    return isinstance((_shape(matrix) or [None])[-1], int)


def _unfolded(value: torch.Tensor, extents: Any, scattered: Optional[int]) -> Optional[List[Any]]:
    """The shape of a sum of a product that a view had unfolded to ``extents``: one that is known only when the graph runs
    is there, but for that which is scattered."""
    shape: List[Any] = list(value.shape)
    if len(shape) != 2:
        for i, extent in enumerate(shape):
            shape[i] = extent if isinstance(extent, int) else -1 if i == scattered else extents[i]
    return shape if shape.count(-1) <= 1 else None


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """A collective and the views of it that nobody uses; dead code elimination leaves collectives where they are."""
    for user in list(node.users):
        _erase(graph, user)
    graph.erase_node(node)


def _all_gather(graph: fx.Graph, gather: fx.Node) -> int:
    """Products of a gathered tensor; what was gathered is fused into each, if that is all it is for."""
    x, size, group = gather.args
    wait = _only(gather)
    if not _is(wait, _c10d.wait_tensor.default) or not _ours(group) or not _fixed(x):
        return 0
    whole, outer = wait, None
    split = _only(wait)
    if _is(split, _aten.split.Tensor):
        whole = next((_only(part) for part in split.users), None)
        moved = _moved(whole, size)
        outer = _before(_shape(x), moved[2]) if moved is not None and moved[:2] == (wait, 0) else None
        if outer is None:
            return 0
    products: List[fx.Node] = []
    pending = list(whole.users)
    while pending:
        user = pending.pop()
        if _is(user, *_VIEWS) and _keeps_rows(user, whole):
            pending += list(user.users)
        elif (operands := _operands(user)) is not None and user not in products:
            source = operands[0]
            while _is(source, *_VIEWS):
                source = source.args[0]
            if source is not whole or operands[1] is operands[0]:
                return 0  # it is the other operand, or both
            if not _takes(x, operands[2]) or not _fixed(user):
                return 0
            products.append(user)
        else:
            return 0
    if not products or not _typed(x):
        return 0
    for product in products:
        _, b, bias = _operands(product)
        rows = _as_rows(graph, product, x)
        fused = _fused(graph, product, torch.ops.weft.ag_gemm.default, (rows, b, bias, _PLACEHOLDER_M, group), product)
        result = fused
        if outer is not None:  # its rows are in the order of the ranks
            result = _swapped(graph, product, fused, size, outer)
        product.replace_all_uses_with(result)
        graph.erase_node(product)
    _erase(graph, gather)
    return len(products)


def _after_product(graph: fx.Graph, collective: fx.Node) -> int:
    """A sum over ranks, spread or whole, of a product that nobody else uses."""
    spread = collective.target is _c10d.reduce_scatter_tensor.default
    source, op, group = collective.args[0], collective.args[1], collective.args[-1]
    wait = _only(collective)
    if op != "sum" or not _is(wait, _c10d.wait_tensor.default) or not _ours(group):
        return 0
    size, dim, outer = group_of(group).size, 0, None
    if spread and _is(source, _aten.cat.default):
        moved = _moved(source, size)
        if moved is None or moved[2] != 0 or _only(source) is None:
            return 0
        source, dim, _ = moved
        outer = _before(_shape(source), dim)
        if outer is None:
            return 0
    extents = None
    while (
        _is(source, *_VIEWS, _aten.clone.default) and _only(source) is not None and _keeps_rows(source, source.args[0])
    ):
        if extents is None and _is(source, *_VIEWS):
            extents = source.args[1]
        source = source.args[0]
    operands = _operands(source)
    if operands is None or _only(source) is None or not _typed(source):
        return 0
    a, b, bias = operands
    if bias is not None:  # the sum has each rank's; a quotient by the number of ranks is a bias that all of them have
        if not _is(bias, _aten.div.Tensor) or bias.args[1] != size or not _takes(a, bias.args[0]):
            return 0
        bias = bias.args[0]
    value = wait.meta["val"]
    if spread and not statically_known_true(collective.args[0].meta["val"].shape[0] == value.shape[0] * size):
        return 0
    shape = _unfolded(value, extents, dim if spread else None)
    if shape is None or not _fixed(a):
        return 0
    if outer is not None:  # the rows of a rank are brought together before they are multiplied
        a = _swapped(graph, wait, a, outer, size)
    target = torch.ops.weft.gemm_rs.default if spread else torch.ops.weft.gemm_ar.default
    fused = _fused(graph, wait, target, (a, b, bias, group), wait)
    result = fused
    if len(shape) != 2:
        fused.meta["val"] = value.reshape(-1, value.shape[-1])
        with graph.inserting_before(wait):
            result = graph.call_function(_aten.reshape.default, (fused, shape))
        result.meta.update(wait.meta)
    wait.replace_all_uses_with(result)
    _erase(graph, collective)
    return 1


def _drop_slices(graph: fx.Graph) -> None:
    """Slices that leave nothing out: what DTensor cuts its padding off with, where a length is not known."""
    for node in graph.find_nodes(op="call_function", target=_aten.slice.Tensor):
        source = node.args[0]
        if not _is(source, _c10d.wait_tensor.default, _aten.cat.default):
            continue
        cut, whole = _shape(node), _shape(source)
        if cut and whole and all(statically_known_true(a == b) for a, b in zip(cut, whole)):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def fuse(graph: fx.Graph) -> int:
    """Weaves what it finds in a graph of ATen operators; how many products that were."""
    found = 0
    _drop_slices(graph)
    for node in list(graph.nodes):
        if _is(node, _c10d.all_gather_into_tensor.default):
            found += _all_gather(graph, node)
        elif _is(node, _c10d.reduce_scatter_tensor.default, _c10d.all_reduce.default, _c10d.all_reduce_.default):
            found += _after_product(graph, node)
    if found:
        graph.eliminate_dead_code()
        graph.lint()
    return found


class _Pass:
    """The pass as inductor keeps it in its cache's key."""

    def __init__(self) -> None:
        self.found = 0

    def __call__(self, graph: fx.Graph) -> None:
        self.found += fuse(graph)

    def uuid(self) -> str:
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def enable() -> Any:
    """Puts the pass behind inductor's: ``torch.compile`` of a DTensor model then calls the fused operators. Returns the
    pass, whose ``found`` counts the products it has woven."""
    import torch._inductor.config as config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Pass(_Pass, CustomGraphPass):
        pass

    made = Pass()
    config.post_grad_custom_post_pass = made
    return made


__all__ = ["enable", "fuse"]
