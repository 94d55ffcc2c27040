"""What can be used as a model here without training one: a table, with speeds measured on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from holdfast.models.adapters.pretrained import with_weights
from holdfast.models.embedder import Embedder
from holdfast.models.find import ADAPTERS
from holdfast.models.inference import inference
from holdfast.models.registry import MODELS, build
from holdfast.spec import ImageSpec

_AT_ONCE, _PASSES = 4, 3


@dataclass(frozen=True)
class Entry:
    """A pretrained network."""

    name: str
    side: int
    dim: int
    parameters: int
    speed: float | None
    """Images a second on this machine, with as many threads as torch has; None: not measured."""
    trained_on: str
    licence: str
    source: str
    installed: bool
    command: str


@dataclass(frozen=True)
class Kind:
    """A kind of name for models that are brought along."""

    form: str
    says: str
    installed: bool
    command: str


def pretrained(*, measure: bool = True) -> list[Entry]:
    """All networks with weights, whether these are installed or not."""
    return [_entry(name, measure) for name in with_weights()]


def kinds() -> list[Kind]:
    """All kinds of names but those of `pretrained`."""
    own = Kind("FOLDER", "a run's folder, or a checkpoint in it", True, "")
    others = [Kind(a.form, a.says, a.installed, a.command) for a in ADAPTERS if not a.opens_alone]
    return [own, *others]


def _entry(name: str, measure: bool) -> Entry:
    shipped = MODELS[name].shipped
    assert shipped is not None
    spec = ImageSpec(3, shipped.side, shipped.side)
    with torch.random.fork_rng(devices=[]):
        embedder = build(name, spec=spec, head="none", pretrained=False).eval()
    return Entry(
        name=name,
        side=shipped.side,
        dim=embedder.dim,
        parameters=sum(parameter.numel() for parameter in embedder.parameters()),
        speed=images_a_second(embedder) if measure else None,
        trained_on=shipped.trained_on,
        licence=shipped.licence,
        source=f"PyPI: {shipped.package}",
        installed=shipped.path is not None,
        command=shipped.command,
    )


def images_a_second(embedder: Embedder) -> float:
    """How fast the network embeds here: the best of a few passes, since what disturbs a machine only slows it down."""
    images = torch.full((_AT_ONCE, *embedder.spec.shape), 0.5)
    best = float("inf")
    with inference(embedder):
        for _ in range(_PASSES):
            begun = time.perf_counter()
            embedder(images)
            best = min(best, time.perf_counter() - begun)
    return _AT_ONCE / best
