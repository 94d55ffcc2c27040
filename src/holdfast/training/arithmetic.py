"""How training computes: images with their channels last, and products in float32 or bfloat16.

Weights, losses and the optimiser are float32 throughout. Evaluation and certificates never come here: they run the
network by itself, in float32 (`models.inference`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.errors import ConfigError, RunError
from holdfast.models import Embedder
from holdfast.models.modes import evaluating
from holdfast.training.processes import of_first

Precision = Literal["float32", "bfloat16"]
Lower = Literal["never", "on request", "measured"]
"""Whether a defence takes a lower precision: never (bounds), if it is asked for, or wherever it is faster."""

_WORTH = 1.1
"""bfloat16 is taken where it is so many times as fast."""
_ANOTHER_MACHINE = 1.5
"""A run goes on by itself unless its precision is so many times slower than the other one here."""
_SECONDS, _ROUNDS, _FEW, _MANY = 0.8, 20, 32, 128


@dataclass(frozen=True)
class Arithmetic:
    """The precision of a run, step by step: a run that is resumed in another one keeps both."""

    precisions: tuple[tuple[int, Precision], ...] = ((0, "float32"),)
    """From which step on which precision holds."""

    @property
    def precision(self) -> Precision:
        """That of the steps to come."""
        return self.precisions[-1][1]

    def changed(self, step: int, precision: Precision) -> Arithmetic:
        """The same up to `step`, another precision from there on."""
        return replace(self, precisions=(*self.precisions, (step, precision)))

    def __str__(self) -> str:
        return " ".join(f"{precision}@{step}" for step, precision in self.precisions)

    @classmethod
    def parse(cls, text: str) -> Arithmetic:
        """What `str` wrote."""
        found: list[tuple[int, Precision]] = []
        for part in text.split():
            name, _, step = part.partition("@")
            if name not in ("float32", "bfloat16") or not step.isdecimal():
                raise RunError(f"the state names an unknown precision '{part}'; train into a new folder")
            found.append((int(step), "float32" if name == "float32" else "bfloat16"))
        return cls(tuple(found)) if found else cls()


class Computed(nn.Module):
    """An embedder as training runs it: channels last, products in `precision`, vectors float32."""

    def __init__(self, whole: Embedder, precision: Precision) -> None:
        super().__init__()
        self.whole = whole
        self._lower = precision == "bfloat16"

    @property
    def freeze_batch_norm(self) -> bool:
        return self.whole.freeze_batch_norm

    def forward(self, images: Tensor) -> Tensor:
        images = images.contiguous(memory_format=torch.channels_last)
        # A context for each pass: the casts that autocast keeps inside one have the gradient mode of the first.
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._lower):
            vectors = self.whole.features(images)
        return self.whole.scaled(vectors.float())


@contextmanager
def channels_last(module: nn.Module) -> Iterator[None]:
    """Inside the block the weights are in the order in which convolutions are fastest: the same numbers."""
    _order(module, torch.channels_last)
    try:
        yield
    finally:
        _order(module, torch.contiguous_format)


def _order(module: nn.Module, order: torch.memory_format) -> None:
    module.to(memory_format=order)  # type: ignore[call-overload]


def choose(
    embedder: Embedder,
    images: Tensor,
    wanted: Literal["auto"] | Precision,
    lower: Lower,
    begun: Arithmetic | None,
    step: int,
    *,
    say: Callable[[str], None],
) -> Arithmetic | None:
    """The arithmetic of a run that is at `step`, from what is asked for and what is fastest on `images` here.

    None for a defence on bounds, which follows the network layer by layer, as it is.
    """
    if lower == "never":
        if wanted == "bfloat16":
            raise ConfigError("a defence on bounds trains in float32; leave train.precision at auto")
        return None
    if wanted == "float32" or (wanted == "auto" and lower == "on request"):
        return _from(begun, step, "float32", wanted, say)
    gain = of_first(speed_up(embedder, images))
    faster: Precision = "bfloat16" if gain >= _WORTH else "float32"
    here = f"bfloat16 is {_times(gain)} float32 on this machine"
    if wanted == "bfloat16":
        say(f"{here}; training in it, as asked")
        return _from(begun, step, wanted, wanted, say)
    if begun is None:
        say(f"{here}; training in {faster}")
        return Arithmetic(((0, faster),))
    slowness = gain if begun.precision == "float32" else 1 / gain
    if slowness >= _ANOTHER_MACHINE:
        raise RunError(
            f"the run was begun in {begun.precision}, and {faster} is {slowness:.1f} times as fast here: another kind "
            f"of machine. Go on with train.precision={faster} or {begun.precision}; only the latter keeps the bits"
        )
    return begun


def _from(
    begun: Arithmetic | None,
    step: int,
    precision: Precision,
    wanted: Literal["auto"] | Precision,
    say: Callable[[str], None],
) -> Arithmetic:
    if begun is None:
        return Arithmetic(((0, precision),))
    if wanted == "auto" or begun.precision == precision:
        return begun
    say(
        f"from step {step} on in {precision} instead of {begun.precision}: the result is not the same to the bit"
    )
    return begun.changed(step, precision)


def _times(gain: float) -> str:
    return f"{gain:.1f} times as fast as" if gain >= 1 else f"{1 / gain:.1f} times as slow as"


def speed_up(embedder: Embedder, images: Tensor) -> float:
    """How many times as fast input gradients are in bfloat16; takes about a second.

    The two take turns, and the fastest of each counts: what disturbs a machine only ever slows it down.
    """
    images = images[:_MANY].repeat(-(-_FEW // len(images)), 1, 1, 1)
    best = {"float32": float("inf"), "bfloat16": float("inf")}
    until = time.perf_counter() + _SECONDS
    with evaluating(embedder), channels_last(embedder):
        models: dict[Precision, Computed] = {
            "float32": Computed(embedder, "float32"),
            "bfloat16": Computed(embedder, "bfloat16"),
        }
        for round_ in range(_ROUNDS + 1):
            for precision, model in models.items():
                taken = _seconds(model, images)
                if round_:  # The first one warms caches.
                    best[precision] = min(best[precision], taken)
            if round_ and time.perf_counter() > until:
                break
    return best["float32"] / best["bfloat16"]


def _seconds(model: nn.Module, images: Tensor) -> float:
    start = time.perf_counter()
    at = images.clone().requires_grad_()
    torch.autograd.grad(model(at).sum(), at)
    return time.perf_counter() - start
