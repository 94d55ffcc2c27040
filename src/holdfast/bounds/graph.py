"""A network as a list of operations, read off any module that torch.fx can trace."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.dropout import _DropoutNd

from holdfast.bounds.activations import Leaky, MaxPool, Monotone, Relu, UnitLength
from holdfast.bounds.operations import (
    BatchNorm,
    Convolution,
    Linear,
    Operation,
    Pooling,
    Reshape,
    Scale,
    Statistics,
    Sum,
)
from holdfast.bounds.refusals import unsupported as _unsupported
from holdfast.errors import ModelError
from holdfast.models import Embedder
from holdfast.models.folded import UnitNorm
from holdfast.models.inference import inference, tracing

INPUT = 0


@dataclass(frozen=True)
class Step:
    """One operation; `inputs` number earlier results, where 0 is the image and i is step i − 1."""

    operation: Operation
    inputs: tuple[int, ...]
    name: str


@dataclass(frozen=True)
class Graph:
    """The steps in order; the last one is the output."""

    steps: tuple[Step, ...]

    def without_last(self) -> tuple[Graph, Linear] | None:
        """The graph up to its last layer, and that layer, if it is linear."""
        if not self.steps or not isinstance(self.steps[-1].operation, Linear):
            return None
        last = self.steps[-1]
        if last.inputs[0] != len(self.steps) - 1:
            return None
        return Graph(self.steps[:-1]), last.operation  # type: ignore[return-value]

    def under(self, statistics: Mapping[nn.Module, Statistics]) -> Graph:
        """The network whose batch norm, layer by layer, normalises by these statistics of a batch.

        They are constants of the bounds: what is bounded is one function of one image. Gradients go through them.
        """
        return Graph(tuple(replace(step, operation=step.operation.under(statistics)) for step in self.steps))


def trace(module: nn.Module, *, as_is: bool = False) -> Graph:
    """The operations of a module as inference runs it; for an embedder, up to its unnormalised features.

    Linear, Conv2d, batch norm, ReLU and other non-decreasing activations, max and average pooling,
    flatten and sums of branches are known; anything else is an error that names it. With `as_is` every layer
    keeps the mode it has, which is for training on bounds: a proof would be of another function than inference.
    Batch norm in train mode then has no statistics until it is given those of a batch (`Graph.under`).
    """
    with tracing(), nullcontext() if as_is else inference(module):
        return _trace(module)


def _trace(module: nn.Module) -> Graph:
    _check_plain(module)
    name = type(module).__qualname__
    if isinstance(module, Embedder):
        name = str(module.architecture.get("class", module.architecture["name"]))
        module = nn.Sequential(module.normalise, module.network, module.flatten)
    if any(m.training and isinstance(m, _DropoutNd) for m in module.modules()):
        raise ModelError(
            "bounds know no dropout in train mode, which is drawn anew each time; leave dropout out"
        )
    try:
        traced = _Tracer().trace(module)
    except Exception as cause:
        raise ModelError(
            f"bounds cannot follow {name}: the network cannot be traced by torch.fx ({cause}); smooth it, or attack it"
        ) from cause
    return _Reader(module).read(traced)


def _check_plain(module: nn.Module) -> None:
    """Refuse what changes a layer's result without being seen in the trace."""
    everywhere = nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        raise _unsupported("a forward hook on all layers, which may change what they give,", "the network")
    for name, part in module.named_modules():
        if part._forward_hooks or part._forward_pre_hooks:
            raise _unsupported("a forward hook, which may change what a layer gives,", name or "the network")
        names = ("forward", "features") if isinstance(part, Embedder) else ("forward",)
        own = isinstance(part, Embedder) and any(
            getattr(type(part), method) is not getattr(Embedder, method) for method in names
        )
        if own or not vars(part).keys().isdisjoint(names) or type(part).__call__ is not nn.Module.__call__:
            raise _unsupported("a forward of its own on a single layer", name or "the network")


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
        if isinstance(m, UnitNorm):
            return True
        return super().is_leaf_module(m, qualified_name) and not isinstance(m, nn.Sequential)


class _Reader:
    """Walks a traced graph and collects its steps."""

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._where: dict[fx.Node, int] = {}
        self._constants: dict[fx.Node, Tensor] = {}
        self._steps: list[Step] = []
        self._shapes: set[fx.Node] = set()
        """Shapes of values, and the number of images taken from them."""
        self._memory: dict[fx.Node, int] = {}
        """Values with the same number share their memory."""
        self._order: dict[fx.Node, int] = {}

    def read(self, graph: fx.Graph) -> Graph:
        self._order = {node: number for number, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            if node.op == "placeholder":
                self._where[node] = INPUT
                self._memory[node] = self._order[node]
            elif node.op == "get_attr":
                self._constants[node] = _attribute(self._root, str(node.target))
            elif node.op == "output":
                self._check_output(node)
            else:
                self._read_node(node)
        return Graph(tuple(self._steps))

    def _check_output(self, node: fx.Node) -> None:
        (result,) = node.args
        if not isinstance(result, fx.Node) or self._where.get(result) != len(self._steps):
            raise ModelError(
                "the network must return one tensor, the result of its last layer, to be bounded"
            )

    def _read_node(self, node: fx.Node) -> None:
        if self._is_batch_size(node):
            self._shapes.add(node)
            return
        inputs = [arg for arg in node.args if isinstance(arg, fx.Node)]
        if set(node.all_input_nodes) != set(inputs):
            raise _unsupported(f"{node.target} with tensors given by name", node.name)
        values = [arg for arg in inputs if arg in self._where]
        known = tuple(self._where[arg] for arg in values)
        if not known:
            raise _unsupported(f"{node.target} of something else than the image", node.name)
        operation = self._operation(node, len(known))
        in_place = self._is_in_place(node)
        if in_place:
            self._check_not_used_again(node, values[0])
        views = in_place or operation is None or isinstance(operation, Reshape)
        self._memory[node] = self._memory[values[0]] if views else self._order[node]
        if operation is None:
            self._where[node] = known[0]
            return
        self._steps.append(Step(operation, known, node.name))
        self._where[node] = len(self._steps)

    def _is_batch_size(self, node: fx.Node) -> bool:
        """Whether a node is x.shape, or the number of images taken from one: x.size(0), x.shape[0]."""
        first, *rest = node.args or (None,)
        if not isinstance(first, fx.Node):
            return False
        if first in self._where:
            return (node.target, rest) in [("size", []), ("size", [0]), (getattr, ["shape"])]
        return first in self._shapes and (node.target, rest) == (operator.getitem, [0])

    def _is_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self._root.get_submodule(str(node.target)), "inplace", False))
        name = str(getattr(node.target, "__name__", node.target))
        # A flag among the other arguments can only be `inplace`, for the functions that are known.
        flags = any(arg is True for arg in node.args[1:]) and node.target not in _POOLS
        return name == "iadd" or name.endswith("_") or bool(node.kwargs.get("inplace")) or flags

    def _check_not_used_again(self, node: fx.Node, value: fx.Node) -> None:
        """Refuse to overwrite what a later operation reads, by whatever name."""
        memory, now = self._memory[value], self._order[node]
        for other, where in self._memory.items():
            later = any(self._order[user] > now for user in other.users)
            if where == memory and (later or other.op == "placeholder"):
                raise _unsupported("in place on a value that is used again, or on the image", node.name)

    def _operation(self, node: fx.Node, inputs: int) -> Operation | None:
        """What a node does; None where it does nothing."""
        if node.op == "call_module":
            layer = self._root.get_submodule(str(node.target))
            # A relative of a known layer may compute something else: those of quantisation do.
            known = isinstance(layer, UnitNorm) or type(layer).__module__.startswith("torch.nn.")
            for kinds, make in _LAYERS.items():
                if known and isinstance(layer, kinds):
                    return make(layer)
            raise _unsupported(type(layer).__name__, str(node.target))
        target = node.target
        if (target in _SUMS or target in _ARITHMETIC) and (node.kwargs or len(node.args) > 2):
            raise _unsupported(f"{getattr(target, '__name__', target)} with further arguments", node.name)
        if target in _SUMS and inputs == 2:
            return Sum()
        if target in _ARITHMETIC and inputs == 1:
            return self._constant_arithmetic(node)
        if target in ("view", "reshape", torch.reshape):
            sizes = list(node.args[1:])
            if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
                sizes = list(sizes[0])
            if len(sizes) == 2 and sizes[0] in self._shapes and sizes[1] == -1:
                return Reshape(partial(torch.flatten, start_dim=1))
            raise _unsupported("view or reshape to something else than (x.size(0), -1)", node.name)
        rest = {k: v for k, v in node.kwargs.items() if k != "inplace"}
        for names, make_function in _FUNCTIONS.items():
            if target in names:
                return make_function(node.args[1:], rest)
        raise _unsupported(getattr(target, "__name__", str(target)), node.name)

    def _constant_arithmetic(self, node: fx.Node) -> Operation:
        left, right = node.args[:2]
        flipped = not (isinstance(left, fx.Node) and left in self._where)
        other = left if flipped else right
        if isinstance(other, fx.Node) and other in self._constants:
            value = self._constants[other]
        elif isinstance(other, bool | int | float):
            value = torch.tensor(other, dtype=torch.float32)
        else:
            raise _unsupported("arithmetic with something else than a real constant", node.name)
        value = value.squeeze(0) if value.ndim == 4 else value
        one = torch.ones_like(value)
        kind = _ARITHMETIC[node.target]
        if kind == "add":
            return Scale(one, value)
        if kind == "sub":
            return Scale(-one, value) if flipped else Scale(one, -value)
        if kind == "mul":
            return Scale(value, None)
        if flipped:
            raise _unsupported("a constant divided by a tensor", node.name)
        return Scale(1 / value, None)


def _attribute(root: nn.Module, name: str) -> Tensor:
    value: Any = root
    for part in name.split("."):
        value = getattr(value, part)
    return value.detach() if isinstance(value, Tensor) else torch.tensor(value)


def _keep(layer: Any) -> None:
    return None


def _convolution(layer: nn.Conv2d) -> Operation:
    if layer.padding_mode != "zeros":
        raise _unsupported(f"Conv2d with padding mode '{layer.padding_mode}'", "a convolution")
    return Convolution(layer)


def _batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> Operation:
    if layer.running_mean is None:
        raise _unsupported("batch norm without running statistics", "a batch norm")
    return BatchNorm(layer)


def _smooth(layer: nn.Module) -> Operation:
    jumps = isinstance(layer, nn.Softplus) and layer.threshold < 20
    if getattr(layer, "alpha", 1) < 0 or getattr(layer, "beta", 1) <= 0 or jumps:
        raise _unsupported(f"{type(layer).__name__} that is not increasing", "an activation")
    return Monotone(layer, exact=False)


def _average(layer: nn.AvgPool2d) -> Operation:
    if layer.divisor_override is not None and layer.divisor_override < 0:
        raise _unsupported("AvgPool2d with a negative divisor", "a pooling")
    size = layer.kernel_size
    return Pooling(layer, size**2 if isinstance(size, int) else math.prod(size))


def _global_average(layer: nn.AdaptiveAvgPool2d) -> Operation:
    return Pooling(layer, None)


def _leaky(layer: nn.LeakyReLU) -> Operation:
    if layer.negative_slope < 0:
        raise _unsupported("LeakyReLU with a negative slope below zero", "leaky")
    if layer.negative_slope > 1:
        return Monotone(layer, exact=False)
    return Leaky(layer, exact=False, least=layer.negative_slope)


def _max_pool(layer: nn.MaxPool2d) -> Operation:
    return _max_pool_function([getattr(layer, name) for name in _MAX_POOL], {})


def _max_pool_function(args: Any, kwargs: Any) -> Operation:
    given = {**dict(zip(_MAX_POOL, args, strict=False)), **kwargs}
    if given.pop("return_indices", False):
        raise _unsupported("max pooling that returns indices", "a max pool")
    return MaxPool(partial(F.max_pool2d, **given), exact=True)


_MAX_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def _clamp(layer: Any) -> Operation:
    # float32 clamps to limits of its own: .8 is 0.800000012 there.
    ends = torch.tensor([layer.min_val, layer.max_val], dtype=torch.float64)
    return Monotone(layer, exact=bool((ends.float() == ends).all()))


_SMOOTH = (
    nn.Sigmoid,
    nn.Tanh,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.Softplus,
    nn.Softsign,
    nn.Hardsigmoid,
    nn.LogSigmoid,
)
_LAYERS: dict[tuple[type[nn.Module], ...], Callable[[Any], Operation | None]] = {
    (nn.Linear,): Linear,
    (nn.Conv2d,): _convolution,
    (nn.BatchNorm1d, nn.BatchNorm2d): _batch_norm,
    (nn.ReLU,): lambda layer: Relu(),
    (nn.ReLU6, nn.Hardtanh): _clamp,
    (nn.MaxPool2d,): _max_pool,
    (nn.LeakyReLU,): _leaky,
    _SMOOTH: _smooth,
    (nn.AvgPool2d,): _average,
    (nn.AdaptiveAvgPool2d,): _global_average,
    (nn.ZeroPad2d,): lambda layer: Pooling(layer, 1),
    (nn.Flatten,): Reshape,
    (UnitNorm,): lambda layer: UnitLength(),
    (nn.Identity, nn.Dropout, nn.Dropout2d): _keep,
}
_POOLS = {F.max_pool2d, torch.max_pool2d, F.avg_pool2d}
_SUMS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_ARITHMETIC: dict[Any, str] = {
    operator.add: "add",
    torch.add: "add",
    operator.sub: "sub",
    torch.sub: "sub",
    operator.mul: "mul",
    torch.mul: "mul",
    operator.truediv: "div",
    torch.div: "div",
}


def _flatten(args: Any, kwargs: Any) -> Operation:
    return Reshape(partial(_call, torch.flatten, args, kwargs))


def _call(function: Callable[..., Tensor], args: Any, kwargs: Any, x: Tensor) -> Tensor:
    return function(x, *args, **kwargs)


def _monotone(function: Callable[..., Tensor], exact: bool) -> Callable[[Any, Any], Operation]:
    return lambda args, kwargs: Monotone(partial(_call, function, args, kwargs), exact)


def _average_function(args: Any, kwargs: Any) -> Operation:
    divisor = kwargs.get("divisor_override", args[5] if len(args) > 5 else None)
    if divisor is not None and divisor < 0:
        raise _unsupported("avg_pool2d with a negative divisor", "a pooling")
    return Pooling(partial(_call, F.avg_pool2d, args, kwargs), None)


_FUNCTIONS: dict[frozenset[Any], Callable[[Any, Any], Operation]] = {
    frozenset({F.relu, torch.relu, "relu", "relu_"}): lambda args, kwargs: Relu(),
    frozenset({torch.flatten, "flatten"}): _flatten,
    frozenset({F.max_pool2d, torch.max_pool2d}): _max_pool_function,
    frozenset({torch.tanh, F.tanh, "tanh"}): _monotone(torch.tanh, False),
    frozenset({torch.sigmoid, F.sigmoid, "sigmoid"}): _monotone(torch.sigmoid, False),
    frozenset({F.avg_pool2d}): _average_function,
    frozenset({F.adaptive_avg_pool2d}): lambda args, kwargs: Pooling(
        partial(_call, F.adaptive_avg_pool2d, args, kwargs), None
    ),
}
