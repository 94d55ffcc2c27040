"""Tensors from safetensors files into a network. Pickles are recognised and refused, never loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from holdfast.errors import CheckpointError

_PICKLE_NAMES = {".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin"}
# A zip archive, which torch.save has written since 1.6, and the opcode that starts a bare pickle.
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_SHOWN = 3


def refuse_pickle(path: Path, start: bytes) -> None:
    """Raise if `path`, which begins with `start`, is a pickle by its name or its first bytes."""
    # A safetensors file begins with the length of its header, which may by chance look like the
    # start of a pickle; its ninth byte, where the header opens, tells it apart.
    if start[8:9] == b"{":
        return
    if path.suffix.lower() in _PICKLE_NAMES or start.startswith(_PICKLE_STARTS):
        raise CheckpointError(
            f"{path} is a pickle, which can run code when it is read, so it is not; if you trust it, convert "
            "it once: import torch, safetensors.torch; "
            f"safetensors.torch.save_file(torch.load('{path.name}', weights_only=True), "
            f"'{path.stem}.safetensors')"
        )


def read_bytes(path: Path) -> bytes:
    """The content of a file of weights; a missing or unreadable file is one clear line."""
    try:
        return path.read_bytes()
    except FileNotFoundError as cause:
        raise CheckpointError(f"{path} is missing; check the path") from cause
    except OSError as cause:
        raise CheckpointError(f"could not read {path} ({cause.strerror})") from cause


def parse(content: bytes, path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; `path` is for the error."""
    refuse_pickle(path, content[:16])
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as cause:
        why = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise CheckpointError(f"{path} is no whole safetensors file ({why}); get it again") from cause


def load_backbone(network: nn.Module, tensors: Mapping[str, Tensor], classifier: str, source: str) -> None:
    """Put pretrained `tensors` into `network`; names that begin with `classifier` are left as they are.

    Counts of batches, which files from older versions of torch lack, may be missing.
    """
    own = {
        name: tensor
        for name, tensor in network.state_dict().items()
        if name.startswith(classifier) or name.endswith(".num_batches_tracked")
    }
    backbone = {name: tensor for name, tensor in tensors.items() if not name.startswith(classifier)}
    fit(network, own | backbone, source)


def fit(network: nn.Module, tensors: Mapping[str, Tensor], source: str, *, assign: bool = False) -> None:
    """Put `tensors` into `network`: all of them and nothing else, or an error and `network` untouched."""
    wanted = network.state_dict()
    missing = [name for name in wanted if name not in tensors]
    unknown = [name for name in tensors if name not in wanted]
    if missing or unknown:
        parts = [_some("lacks", missing), _some("has unknown", unknown)]
        found = " and ".join(part for part in parts if part)
        raise CheckpointError(f"{source} does not fit the network: it {found}")
    for name, own in wanted.items():
        if tensors[name].shape != own.shape:
            found = f"{name} is {_shape(tensors[name])}, not {_shape(own)}"
            raise CheckpointError(f"{source} does not fit the network: {found}")
    network.load_state_dict(dict(tensors), assign=assign)


def _some(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {', '.join(names[:_SHOWN])}{more}"


def _shape(tensor: Tensor) -> str:
    return "x".join(str(side) for side in tensor.shape) or "a single number"
