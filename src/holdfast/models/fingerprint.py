"""What tells two embedders apart, as one hash that follows the function they compute.

There are two rules. Hashes of the second start with `2:`. Those of the first (files of before) are bare: they cover the
description and the weights, and are blind to a layer's settings.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from holdfast.models.inference import inference

CURRENT = "2:"
"""How a hash by today's rule starts."""
_SILENT = frozenset({"inplace", "device", "dtype", "generator"})
"""Settings of torch's layers that do not change what they compute, or that the tensors tell."""
_DIGITS = 4
"""Decimals, relative to the longest vector, by which two black boxes are told apart."""


def is_current(text: str) -> bool:
    """Whether a hash is by today's rule, so that what it vouches for is the function itself."""
    return text.startswith(CURRENT)


def fingerprint(module: nn.Module, description: Mapping[str, Any], shape: tuple[int, int, int]) -> str:
    """`2:` and a SHA-256 over `description`, all tensors of `module`, and what it computes with them.

    What it computes is its graph as torch.fx traces it in eval mode, with every constant in it and the settings of its
    layers. A module that cannot be traced counts by the settings of torch's layers in it and by what it gives
    for three fixed images. How the weights came about does not count.
    """
    parts = [_canonical(description), tensors_digest(module).encode()]
    with inference(module):
        parts.append(_canonical(_computed(module, shape)))
    return CURRENT + hashlib.sha256(b"\n".join(parts)).hexdigest()


def fingerprint_of_before(network: nn.Module, description: Mapping[str, Any]) -> str:
    """The bare SHA-256 of the first rule: over `description` and every parameter and buffer of `network`."""
    return _hash_tensors(hashlib.sha256(_canonical(description)), _named_tensors(network))


def tensors_digest(module: nn.Module) -> str:
    """SHA-256 over the name, dtype, shape and bytes of every parameter and buffer."""
    return _hash_tensors(hashlib.sha256(), _named_tensors(module))


def settings(module: nn.Module) -> list[Any]:
    """Every layer with its type and its own plain settings, as JSON."""
    found: list[Any] = []
    for name, layer in module.named_modules(remove_duplicate=False):
        found.append([name, type(layer).__qualname__, _settings(layer)])
    return found


def shown(vectors: Tensor) -> list[Any]:
    """Vectors rounded, so that a black box has the same ones on every machine."""
    largest = float(vectors.abs().max()) or 1.0
    rounded: list[Any] = np.round(vectors.float().numpy() / largest, _DIGITS).tolist()
    return rounded


def probes(shape: tuple[int, int, int]) -> Tensor:
    """Three fixed images: grey, noise, and its negative."""
    noise = np.random.default_rng(0).random((1, *shape), dtype=np.float32)
    return torch.from_numpy(np.concatenate([np.full_like(noise, 0.5), noise, 1 - noise]))


def _computed(module: nn.Module, shape: tuple[int, int, int]) -> list[Any]:
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    try:
        graph = None if hooked else fx.Tracer().trace(module)
    # Code that torch.fx cannot follow fails in any way.
    except Exception:
        graph = None
    if graph is not None:
        return ["traced", _graph(module, graph)]
    known = [entry for entry in settings(module) if entry[2] is not None]
    first = next(iter(module.parameters()), torch.zeros(()))
    with torch.no_grad():
        seen = module(probes(shape).to(device=first.device, dtype=first.dtype)).cpu()
    return ["seen", known, shown(seen)]


def _graph(module: nn.Module, graph: fx.Graph) -> list[Any]:
    """The nodes in order, each with what it calls and with what; earlier nodes by their number."""
    numbers: dict[fx.Node, int] = {}
    found: list[Any] = []
    for number, node in enumerate(graph.nodes):
        numbers[node] = number
        entry: list[Any] = [node.op, _called(node.target)]
        if node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            entry += [type(layer).__qualname__, _settings(layer) or _own(layer)]
        elif node.op == "get_attr":
            entry.append(_plain(operator.attrgetter(str(node.target))(module)))
        named = fx.node.map_arg((node.args, node.kwargs), lambda other: f"%{numbers[other]}")
        entry.append(_plain(named))
        found.append(entry)
    return found


def _called(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def _settings(layer: nn.Module) -> dict[str, Any] | None:
    """The constructor's arguments of one of torch's layers, where they are not the default; None for other layers.

    A release of torch that adds an argument does not change the hash of layers that leave it alone.
    """
    kind: Any = type(layer)
    if not kind.__module__.startswith("torch.nn."):
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


def _own(layer: nn.Module) -> dict[str, Any]:
    """What a layer that is not torch's says of itself."""
    inherited = vars(nn.Module())
    return {name: _plain(value) for name, value in sorted(vars(layer).items()) if name not in inherited}


def _plain(value: Any) -> Any:
    """A value as JSON; numbers in full, tensors by their bytes, the rest by the name of its type."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | complex):
        return repr(value)
    if isinstance(value, Tensor | np.ndarray):
        tensor = torch.as_tensor(value)
        return ["tensor", _hash_tensors(hashlib.sha256(), [("", tensor)])]
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
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
