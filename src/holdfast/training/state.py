"""A run's state on disk: all that the next step depends on, in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.errors import CheckpointError
from holdfast.files import atomic_write


def save_state(
    path: Path, modules: dict[str, nn.Module], optimiser: Optimizer, notes: Mapping[str, object]
) -> None:
    """Write the state, with what else the run must remember as `notes`, in one atomic move."""
    tensors = {
        f"{part}/{name}": value.detach().contiguous()
        for part, module in modules.items()
        for name, value in module.state_dict().items()
    }
    for index, entry in optimiser.state_dict()["state"].items():
        for key, value in entry.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser/{index}/{key}"] = value.detach().contiguous()
    atomic_write(path, serialise(tensors, metadata={key: str(value) for key, value in notes.items()}))


def read_notes(path: Path) -> dict[str, str]:
    """What a state says beside its tensors; nothing where there is none, or none that can be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError):
        return {}


def load_state(path: Path, modules: dict[str, nn.Module], optimiser: Optimizer) -> dict[str, str]:
    """Put a saved state back in place; its notes."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            part, _, rest = name.partition("/")
            parts.setdefault(part, {})[rest] = value
        for part, module in modules.items():
            module.load_state_dict(parts.get(part, {}))
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"cannot resume from {path}: {reason}; train into a new folder") from None
    _restore_optimiser(optimiser, parts.get("optimiser", {}))
    return notes


def _restore_optimiser(optimiser: Optimizer, saved: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in saved.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = value
    whole = optimiser.state_dict()
    whole["state"] = state
    optimiser.load_state_dict(whole)
    # The fused optimiser walks through memory: what belongs to a parameter must lie in its order.
    for parameter, entry in optimiser.state.items():
        for key, value in entry.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                entry[key] = torch.empty_like(parameter).copy_(value)
