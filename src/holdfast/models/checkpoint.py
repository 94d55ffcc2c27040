"""Checkpoints: a folder with model.safetensors and card.json, each refused unless it fits the other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from holdfast.errors import CheckpointError, ModelError, StorageError
from holdfast.files import atomic_write, storage_error
from holdfast.models.adapters.libraries import LIBRARIES
from holdfast.models.card import IN_FLOAT32, Card, WeightsFile, make_card, read_card
from holdfast.models.embedder import Embedder
from holdfast.models.projected import PROJECTION, behind
from holdfast.models.registry import construct
from holdfast.models.sides import side_of
from holdfast.models.weights import fit, parse, read_bytes, refuse_pickle
from holdfast.models.wrap import WRAPPED, embedder_of, layers_digest

WEIGHTS = "model.safetensors"
CARD = "card.json"
_NEXT = "model.next.safetensors"


def save(
    embedder: Embedder,
    folder: Path,
    *,
    config: Mapping[str, Any],
    data: str,
    seed: int,
    metrics: Mapping[str, float],
    precision: str = IN_FLOAT32,
) -> None:
    """Write `embedder` to `folder`: a crash at any moment leaves the checkpoint before it or this one.

    The weights are written beside the old ones first; the card that holds their hash then decides
    between the two, and last the weights take their name.
    """
    if embedder.metric is not None:
        raise CheckpointError(
            "an embedder under a metric is not saved; keep its run and the metric, of which it is made again"
        )
    content = safetensors.torch.save(_tensors(embedder))
    weights = WeightsFile(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    card = make_card(
        embedder, config=config, data=data, seed=seed, metrics=metrics, weights=weights, precision=precision
    )
    pending = folder / _NEXT
    atomic_write(pending, content)
    try:
        atomic_write(folder / CARD, card)
    except StorageError:
        pending.unlink(missing_ok=True)
        raise
    try:
        pending.replace(folder / WEIGHTS)
    except OSError as cause:
        raise storage_error(folder / WEIGHTS, cause) from cause


def _tensors(embedder: Embedder) -> dict[str, Tensor]:
    state = embedder.network.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise CheckpointError(f"{name} of the network is a {kind}; only tensors can be saved")
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}


def load(path: Path | str, *, module: nn.Module | None = None) -> Embedder:
    """The embedder saved at `path` (the folder, or either file), in eval mode, with its `card`.

    Its outputs are those of the saved embedder, bit for bit on the same machine: the weights'
    SHA-256 and the embedder's fingerprint are checked. A wrapped module's code is not in the
    checkpoint, so it is given as `module`, and gets the saved weights.
    """
    folder = _folder(Path(path))
    card, written = read_card(folder / CARD)
    tensors = _read_weights(folder, card.weights)
    name = str(card.architecture.get("name"))
    if name == WRAPPED:
        embedder = _adapted(card, tensors, _own_module(card, module, folder), folder)
    elif module is not None:
        raise CheckpointError(f"{folder} holds a '{name}'; load it without a module")
    elif name in LIBRARIES:
        embedder = _adapted(card, tensors, LIBRARIES[name].rebuild(card.architecture, card.spec), folder)
    else:
        embedder = _rebuild(card, tensors, folder)
    if card.fingerprint not in embedder.fingerprints():
        raise CheckpointError(f"the weights in {folder} do not give the card's fingerprint; one was altered")
    embedder.card, embedder.origin = written, str(Path(path).resolve())
    return embedder.eval()


def _folder(path: Path) -> Path:
    if path.is_dir():
        return path
    if not path.exists():
        raise CheckpointError(f"no checkpoint at {path}; give the folder that holds {CARD} and {WEIGHTS}")
    if path.name in (CARD, WEIGHTS):
        return path.parent
    with path.open("rb") as handle:
        refuse_pickle(path, handle.read(16))
    raise CheckpointError(f"{path} is not a checkpoint; give the folder that holds {CARD} and {WEIGHTS}")


def _read_weights(folder: Path, wanted: WeightsFile) -> dict[str, Tensor]:
    path, pending = folder / WEIGHTS, folder / _NEXT
    if not path.exists() and not pending.exists():
        raise CheckpointError(f"{path} is missing; the card is there, copy the weights beside it")
    # A save that was cut off after its card left the weights under their first name.
    for candidate in (path, pending):
        if candidate.exists():
            content = read_bytes(candidate)
            if hashlib.sha256(content).hexdigest() == wanted.sha256:
                return parse(content, candidate)
    content = read_bytes(path if path.exists() else pending)
    refuse_pickle(path, content[:16])
    if len(content) < wanted.bytes:
        raise CheckpointError(f"{path} is cut short: {len(content)} of {wanted.bytes} bytes; copy it again")
    found = hashlib.sha256(content).hexdigest()
    raise CheckpointError(
        f"{path} was altered: its SHA-256 is {found[:12]}…, the card's {wanted.sha256[:12]}…; copy it again"
    )


def _rebuild(card: Card, tensors: dict[str, Tensor], folder: Path) -> Embedder:
    options = dict(card.architecture)
    name, added = str(options.pop("name", "")), options.pop(PROJECTION, None)
    try:
        # On the meta device nothing is drawn or allocated; every tensor then comes from the file.
        with torch.device("meta"):
            own = None if added is not None and options.get("head") == "none" else card.dim
            network, dim, architecture = construct(name, card.spec, own, options)
            network = behind(network, added, tensors)
        side = None if card.candidate_side is None else side_of(card.candidate_side)
        if side is not None:
            side.check(dim, card.unit_norm)
    except CheckpointError:
        raise
    except (ModelError, TypeError) as cause:
        raise CheckpointError(f"{folder} cannot be rebuilt: {cause}") from cause
    fit(network, tensors, str(folder / WEIGHTS), assign=True)
    return Embedder(
        network,
        spec=card.spec,
        dim=dim if added is None else card.dim,
        unit_norm=card.unit_norm,
        pixels=card.pixels,
        architecture=architecture if added is None else {**architecture, PROJECTION: added},
        candidate_side=side,
    )


def _own_module(card: Card, module: nn.Module | None, folder: Path) -> nn.Module:
    """The module that a run wrapped, which its owner gives; another one is refused."""
    kind = str(card.architecture.get("class"))
    if module is None:
        trained = card.config.get("model")
        named = str(trained.get("name", "")) if isinstance(trained, dict) else ""
        if ".py:" in named:
            raise CheckpointError(
                f"{folder} holds a trained {kind}, whose code is not in it; name it {named.partition('?')[0]}@{folder}"
            )
        where = f"{card.architecture.get('module')}.{kind}"
        raise CheckpointError(
            f"{folder} holds a wrapped {where}; load it with load(path, module={kind}(...))"
        )
    if type(module).__qualname__ != kind:
        raise CheckpointError(f"{folder} holds a wrapped {kind}, not {type(module).__qualname__}")
    return module


def _adapted(card: Card, tensors: dict[str, Tensor], module: nn.Module, folder: Path) -> Embedder:
    """A network that is not of the registry, with the saved weights."""
    added, wrapped = card.architecture.get(PROJECTION), card.architecture.get("name") == WRAPPED
    if wrapped and layers_digest(module) != card.architecture.get("layers"):
        raise CheckpointError(
            f"{folder} holds a wrapped {type(module).__qualname__} with other layers than the module given"
        )
    network = behind(module, added, tensors)
    fit(network, tensors, str(folder / WEIGHTS))
    side = None if card.candidate_side is None else side_of(card.candidate_side)
    mean, std = (card.pixels.mean, card.pixels.std) if card.pixels else (None, None)
    return embedder_of(
        network.eval(),
        card.spec,
        mean=mean,
        std=std,
        unit_norm=card.unit_norm,
        candidate_side=side,
        architecture=None if wrapped and added is None else card.architecture,
    )
