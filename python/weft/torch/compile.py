# mypy: disable-error-code="union-attr,arg-type,index"
"""Asynchronous tensor parallelism, on the CPU and on GPUs: a pass over compiled graphs that weaves communication into products.

It looks for what DTensor leaves in a graph, forward and backward,

    all_gather_into_tensor → wait_tensor → (view) → mm                 becomes   weft::ag_gemm
    mm → (view) → reduce_scatter_tensor("sum") → wait_tensor           becomes   weft::gemm_rs
    mm → (view) → all_reduce("sum") → wait_tensor                      becomes   weft::gemm_ar

and addmm as mm: a vector after a gathered product is its bias, and so is b in addmm(b / ranks, …) before a sum, which is how DTensor
adds once what every rank has. That holds where the group is one of the backend "weft", the gathered or scattered dimension is the first, and nobody else uses what is in
between. (A gathered tensor that backward needs too is gathered as before: weaving it would move it twice.) ``enable()`` puts it behind inductor's own passes; ``fuse(graph)`` is the pass itself, for other compilers.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, List, Optional, Tuple

import torch
from torch import fx

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


def _as_rows(graph: fx.Graph, before: fx.Node, x: fx.Node) -> fx.Node:
    """x as a matrix: leading dimensions folded."""
    shape = x.meta["val"].shape
    if len(shape) == 2:
        return x
    with graph.inserting_before(before):
        node = graph.call_function(_aten.reshape.default, (x, [-1, shape[-1]]))
    node.meta["val"] = x.meta["val"].reshape(-1, shape[-1])
    return node


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """A collective and the views of it that nobody uses; dead code elimination leaves collectives where they are."""
    for user in list(node.users):
        _erase(graph, user)
    graph.erase_node(node)


def _all_gather(graph: fx.Graph, gather: fx.Node) -> int:
    """Products of a gathered tensor; what was gathered is fused into each, if that is all it is for."""
    x, _, group = gather.args
    wait = _only(gather)
    if not _is(wait, _c10d.wait_tensor.default) or not _ours(group):
        return 0
    products: List[fx.Node] = []
    pending = list(wait.users)
    while pending:
        user = pending.pop()
        if _is(user, *_VIEWS) and _keeps_rows(user, wait):
            pending += list(user.users)
        elif (operands := _operands(user)) is not None and user not in products:
            source = operands[0]
            while _is(source, *_VIEWS):
                source = source.args[0]
            if source is not wait or operands[1] is operands[0] or not _takes(x, operands[2]):
                return 0  # it is the other operand, or both
            products.append(user)
        else:
            return 0
    if not products or not _typed(x):
        return 0
    for product in products:
        _, b, bias = _operands(product)
        rows = _as_rows(graph, product, x)
        fused = _fused(graph, product, torch.ops.weft.ag_gemm.default, (rows, b, bias, _PLACEHOLDER_M, group), product)
        product.replace_all_uses_with(fused)
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
    while (
        _is(source, *_VIEWS, _aten.clone.default) and _only(source) is not None and _keeps_rows(source, source.args[0])
    ):
        source = source.args[0]
    operands, size = _operands(source), group_of(group).size
    if operands is None or _only(source) is None or not _typed(source):
        return 0
    a, b, bias = operands
    if bias is not None:  # the sum has each rank's; a quotient by the number of ranks is a bias that all of them have
        if not _is(bias, _aten.div.Tensor) or bias.args[1] != size or not _takes(a, bias.args[0]):
            return 0
        bias = bias.args[0]
    summed = _shape(collective.args[0])
    if spread and (not isinstance(summed[0], int) or summed[0] % size):
        return 0
    target = torch.ops.weft.gemm_rs.default if spread else torch.ops.weft.gemm_ar.default
    fused = _fused(graph, wait, target, (a, b, bias, group), wait)
    value = wait.meta.get("val")
    result = fused
    if isinstance(value, torch.Tensor) and value.dim() != 2:
        fused.meta["val"] = value.reshape(-1, value.shape[-1])
        with graph.inserting_before(wait):
            result = graph.call_function(_aten.reshape.default, (fused, list(value.shape)))
        result.meta.update(wait.meta)
    wait.replace_all_uses_with(result)
    _erase(graph, collective)
    return 1


def fuse(graph: fx.Graph) -> int:
    """Weaves what it finds in a graph of ATen operators; how many products that were."""
    found = 0
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
