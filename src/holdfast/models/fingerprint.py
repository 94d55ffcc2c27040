"""What tells two embedders apart, as one hash that follows the function they compute.

There are two rules. Hashes of the second start with `2:`. Those of the first (files of before) are bare: they cover the
description and the weights, and are blind to a layer's settings.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import json
import operator
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from holdfast.models.inference import inference, tracing

CURRENT = "2:"
"""How a hash by today's rule starts."""
_SILENT = frozenset({"inplace", "device", "dtype", "generator"})
"""Settings of torch's layers that do not change what they compute, or that the tensors tell."""
_DIGITS = 4
"""Decimals, relative to the longest vector, by which the first rule tells two black boxes apart."""


def is_current(text: str) -> bool:
    """Whether a hash is by today's rule, so that what it vouches for is the function itself."""
    return text.startswith(CURRENT)


def fingerprint(module: nn.Module, description: Mapping[str, Any], shape: tuple[int, int, int]) -> str:
    """`2:` and a SHA-256 over `description`, all tensors of `module`, and what it computes with them.

    What it computes is its graph as torch.fx traces it in eval mode, with every constant in it and the settings of its
    layers. A module that cannot be followed so (it cannot be traced, has hooks, or calls foreign code) counts by the
    settings and public attributes of all its parts, and roughly by what it gives for three fixed images. How the
    weights came about does not count.
    """
    parts = [_canonical(description), tensors_digest(module).encode()]
    with tracing(), inference(module):
        parts.append(_canonical(_computed(module, shape)))
    return CURRENT + hashlib.sha256(b"\n".join(parts)).hexdigest()


def fingerprint_of_before(network: nn.Module, description: Mapping[str, Any]) -> str:
    """The bare SHA-256 of the first rule: over `description` and every parameter and buffer of `network`."""
    return _hash_tensors(hashlib.sha256(_canonical(description)), _named_tensors(network))


def tensors_digest(module: nn.Module) -> str:
    """SHA-256 over the name, dtype, shape and bytes of every parameter and buffer."""
    return _hash_tensors(hashlib.sha256(), _named_tensors(module))


def settings(module: nn.Module) -> list[Any]:
    """All that decides, beside its tensors, what a module computes: its parts with their settings and attributes."""
    return [
        [name, type(part).__qualname__, _settings(part), _own(part, private=True), _hooked(part)]
        for name, part in module.named_modules(remove_duplicate=False)
    ]


def shown(vectors: Tensor) -> list[Any]:
    """Vectors rounded, by the first rule; another processor may round them otherwise."""
    largest = float(vectors.abs().max()) or 1.0
    rounded: list[Any] = np.round(vectors.float().numpy() / largest, _DIGITS).tolist()
    return rounded


def roughly(vectors: Tensor) -> list[Any]:
    """A few projections of vectors in hundredths of their length: coarse, so that every machine has the same ones."""
    values = vectors.double().flatten(1).numpy()
    ways = np.random.default_rng(0).choice([-1.0, 1.0], (values.shape[1], 2))
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    found = values @ ways / np.where(lengths > 0, lengths, 1.0)
    # Adding 0 makes a negative zero plain.
    rounded: list[Any] = (np.round(found, 2) + 0.0).tolist()
    return rounded


def probes(shape: tuple[int, int, int]) -> Tensor:
    """Three fixed images: grey, noise, and its negative."""
    noise = np.random.default_rng(0).random((1, *shape), dtype=np.float32)
    return torch.from_numpy(np.concatenate([np.full_like(noise, 0.5), noise, 1 - noise]))


def _computed(module: nn.Module, shape: tuple[int, int, int]) -> list[Any]:
    if not any(_hooked(part) or isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        # Code that torch.fx cannot follow fails in any way.
        with suppress(Exception):
            return ["traced", _graph(module, fx.Tracer().trace(module))]
    # The module itself is described by its owner.
    told = [
        [name, type(part).__qualname__, _settings(part), _own(part), _script(part)]
        for name, part in module.named_modules(remove_duplicate=False)
        if part is not module
    ]
    first = next(iter(module.parameters()), torch.zeros(()))
    seen = module(probes(shape).to(device=first.device, dtype=first.dtype)).cpu()
    return ["seen", told, _more_state(module), roughly(seen)]


def _hooked(part: nn.Module) -> bool:
    """Whether something that no trace shows changes what a part gives."""
    return bool(part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part))


def _script(part: nn.Module) -> str | None:
    """The code of a compiled part, without the numbers by which one process tells its classes apart."""
    if not isinstance(part, torch.jit.ScriptModule):
        return None
    return re.sub(r"___torch_mangle_\d+\.", "", str(part.inlined_graph))


def _more_state(module: nn.Module) -> dict[str, Any]:
    """What a state dict has beside parameters and buffers: the packed weights of quantised layers."""
    known = dict(_named_tensors(module))
    return {name: _plain(value) for name, value in module.state_dict().items() if name not in known}


def _graph(module: nn.Module, graph: fx.Graph) -> list[Any]:
    """The nodes in order, each with what it calls and with what; earlier nodes by their number."""
    numbers: dict[fx.Node, int] = {}
    found: list[Any] = []
    for number, node in enumerate(graph.nodes):
        numbers[node] = number
        entry: list[Any] = [node.op, _called(node.target)]
        if node.op == "call_function" and not _is_known(node.target):
            raise ValueError(f"what {node.target} does is not known")
        if node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            if _settings(layer) is None:
                raise ValueError(f"what {type(layer).__qualname__} does is not known")
            entry.append(
                [[name, type(part).__qualname__, _told(part)] for name, part in layer.named_modules()]
            )
        elif node.op == "get_attr":
            entry.append(_plain(operator.attrgetter(str(node.target))(module)))
        named = fx.node.map_arg((node.args, node.kwargs), lambda other: f"%{numbers[other]}")
        entry.append(_plain(named))
        found.append(entry)
    return found


def _is_known(target: Any) -> bool:
    """Whether a function is torch's or Python's own, so that its name says what it does."""
    home = str(getattr(target, "__module__", None) or getattr(type(target), "__module__", ""))
    return home.split(".")[0] in ("torch", "_operator", "operator", "builtins", "math", "_VariableFunctions")


def _told(part: nn.Module) -> Any:
    """A layer's settings, or what a part that is not torch's (a parametrisation) says of itself."""
    known = _settings(part)
    return _own(part) if known is None else known


def _called(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def _settings(layer: nn.Module) -> dict[str, Any] | None:
    """The constructor's arguments of one of torch's layers, where they are not the default; None for other layers.

    A release of torch that adds an argument does not change the hash of layers that leave it alone.
    """
    kind: Any = type(layer)
    if parametrize.is_parametrized(layer):
        kind = kind.__bases__[0]
    if not kind.__module__.startswith("torch.nn.modules."):
        return None
    return {
        name: _plain(value)
        for name, default in _arguments(kind).items()
        if not isinstance(value := getattr(layer, name, default), Tensor | nn.Module)
        and _plain(value) != _plain(default)
    }


@functools.cache
def _arguments(kind: type) -> dict[str, Any]:
    known = inspect.signature(kind).parameters
    return {name: argument.default for name, argument in known.items() if name not in _SILENT}


def _own(layer: nn.Module, *, private: bool = False) -> dict[str, Any]:
    """The attributes of a layer that is not torch's; private ones are often caches, and count only if asked for."""
    inherited = vars(nn.Module())
    return {
        name: _plain(value)
        for name, value in sorted(vars(layer).items())
        if name not in inherited and (private or not name.startswith("_"))
    }


def _plain(value: Any) -> Any:
    """A value as JSON; numbers in full, tensors by their bytes, the rest by the name of its type."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | complex):
        return repr(value)
    if isinstance(value, Tensor | np.ndarray):
        tensor = torch.as_tensor(value)
        tensor = tensor.dequantize() if tensor.is_quantized else tensor
        return ["tensor", _hash_tensors(hashlib.sha256(), [("", tensor)])]
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, slice):
        return ["slice", _plain((value.start, value.stop, value.step))]
    if isinstance(value, functools.partial):
        return ["partial", _plain(value.func), _plain(value.args), _plain(value.keywords)]
    if isinstance(value, torch.dtype | torch.device | torch.memory_format):
        return str(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _named_tensors(network: nn.Module) -> list[tuple[str, Tensor]]:
    # Buffers outside the state dict count as well: they change what the network computes.
    found = [
        *network.named_parameters(remove_duplicate=False),
        *network.named_buffers(remove_duplicate=False),
    ]
    return sorted(found, key=lambda entry: entry[0])


def _hash_tensors(digest: Any, tensors: Iterable[tuple[str, Tensor]]) -> str:
    for name, tensor in tensors:
        # The line says how many bytes follow, so no two sets of tensors hash the same stream.
        digest.update(_canonical([name, str(tensor.dtype), list(tensor.shape)]))
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
