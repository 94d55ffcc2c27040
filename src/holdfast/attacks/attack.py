"""An attack: what is wanted, how it is sought, and what the threat allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.attacks.access import Access, as_access
from holdfast.attacks.ball import Ball
from holdfast.attacks.eight_bit import to_bytes
from holdfast.attacks.objectives.base import Objective
from holdfast.attacks.optimisers import OPTIMISERS
from holdfast.attacks.optimisers.base import Optimiser, Problem
from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.models.inputs import Images, Read, by_sides, reader
from holdfast.progress import bar
from holdfast.threat import Threat

PIXELS = 2**22
"""Pixels of a batch, at most (at least 8 images): networks keep some hundred numbers for each."""
PAIRS = 2**22
"""Image–candidate pairs of a batch, at most."""


@dataclass(frozen=True, eq=False)
class Altered:
    """What an attack made of images; every field has one row for each of them.

    All numbers are about `images` as they are here. `trajectory` is the smallest loss up to each step.
    """

    images: Tensor
    loss_before: Tensor
    loss: Tensor
    score_before: Tensor
    score: Tensor
    success: Tensor | None
    """Whether the wish was fulfilled, where that is a yes or no."""
    gradients: Tensor
    """Gradient evaluations."""
    queries: Tensor
    """Images shown to the model without gradient, the clean one included."""
    zero_gradient: Tensor
    """No usable gradient at the first point, though something was wanted: a sign of gradient masking."""
    trajectory: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def telemetry(self) -> dict[str, float]:
        """Signs that an evaluation is not valid: shares between 0 and 1; both should be small.

        `zero_gradient`: images without a usable gradient at the first point. `late_gain`: which part of
        the whole mean fall of the loss came in the last tenth of the steps; more steps would help.
        """
        mean = self.trajectory.double().mean(0)
        late = mean[-1 - max(1, (len(mean) - 1) // 10)] - mean[-1]
        whole = mean[0] - mean[-1]
        return {
            "zero_gradient": float(self.zero_gradient.double().mean()),
            "late_gain": float(late / whole) if whole > 0 else 0.0,
        }

    def bytes(self) -> Tensor:
        """8-bit images (uint8). They are what was measured only if the attack was run with `eight_bit`."""
        return (255 * self.images).round().to(torch.uint8)


@dataclass(frozen=True)
class Attack:
    """`objective` for every image, sought by `optimiser`, inside `threat`."""

    objective: Objective
    optimiser: Optimiser
    threat: Threat

    def __post_init__(self) -> None:
        if self.threat.who not in (self.objective.alters, "both"):
            raise ConfigError(
                f"the attack {self.objective.name} alters the {self.objective.alters}, "
                f"which the threat {self.threat} does not allow"
            )

    def run(
        self, model: nn.Module | Callable[[Tensor], Any] | Access, images: Images, **options: Any
    ) -> Altered:
        """As `stream`, all images at once."""
        parts = [part for _, part in self.stream(model, images, **options)]
        if not parts:
            raise DataError("there are no images to attack")
        joined: dict[str, Any] = {}
        for field in fields(Altered):
            values = [getattr(part, field.name) for part in parts]
            joined[field.name] = None if values[0] is None else torch.cat(values)
        return Altered(**joined)

    def stream(
        self,
        model: nn.Module | Callable[[Tensor], Any] | Access,
        images: Images,
        *,
        seed: int = 0,
        numbers: Sequence[int] | None = None,
        batch_size: int | None = None,
        start: Tensor | None = None,
        eight_bit: bool = False,
        progress: bool = False,
    ) -> Iterator[tuple[range, Altered]]:
        """Altered images batch by batch: memory does not grow with their number.

        Row i of the objective is about image i. Every altered image was checked to be inside the threat;
        with `eight_bit` it is also an 8-bit image, and all numbers are measured on that. `numbers` are the
        images' numbers (by default their positions): with `seed` they decide what is drawn for an image, so
        that a part of the images, or another batch size, gives the same but for float rounding (which a
        signed step can enlarge where a gradient is nearly zero). `start`: images to start from.
        """
        access = as_access(model)
        if self.objective.alters == "candidates":
            access = access.of_candidates()
        self._check(access)
        total, read = _reader(access, images)
        numbers = range(total) if numbers is None else numbers
        if len(numbers) != total or (self.objective.rows not in (None, total)):
            wishes = total if self.objective.rows is None else self.objective.rows
            raise DataError(
                f"there are {total} images, but {wishes} rows in the objective and {len(numbers)} numbers"
            )
        if start is not None and len(start) != total:
            raise DataError(f"there are {total} images, but {len(start)} to start from")
        given = self.objective.given
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"a batch has at least 1 image, not {batch_size}")
        size = batch_size or _batch_size(read(0, min(total, 1)), given.candidates, given.targets)
        spans = [range(first, min(first + size, total)) for first in range(0, total, size)]
        remembered: dict[int, Tensor] = {}

        def problem(span: range, remember: bool) -> Problem:
            clean = read(span.start, span.stop).to(device=access.device, dtype=access.dtype)
            ball = Ball.of(self.threat, clean)
            rows = slice(span.start, span.stop)
            seen = remembered[span.start] if span.start in remembered else access.see(clean)
            if remember:
                remembered[span.start] = seen
            bind = self.objective.bind_lists if access.lists else self.objective.bind
            wish = bind(rows, seen)
            first = None if start is None else start[rows]
            return Problem(access, wish, ball, seen, numbers[rows], seed, self.objective.nudge, first)

        optimiser = self.optimiser
        if optimiser.shared:
            with access.ready():
                optimiser = optimiser.prepare(lambda: (problem(span, True) for span in spans))
        with bar(f"attack {self.objective.name}", total) if progress else nullcontext(_ignore) as advance:
            for span in spans:
                with access.ready():
                    altered = _solve(problem(span, False), optimiser, eight_bit)
                advance(len(span))
                yield span, altered

    def _check(self, access: Access) -> None:
        if "gallery" in self.objective.needs and not access.lists:
            _ = self.objective.candidates  # an error if there are none
        if self.optimiser.needs_gradients and not access.gradients:
            ways = [
                name
                for name, kind in OPTIMISERS.items()
                if not kind.needs_gradients and (kind.reads_lists or not access.lists)
            ]
            raise ConfigError(
                f"{self.optimiser.name} needs gradients, which this model does not give; "
                f"use {' or '.join(ways)}"
            )
        if access.lists and not (self.objective.lists and self.optimiser.reads_lists):
            raise ConfigError(
                f"the attack {self.objective.name} by {self.optimiser.name} needs vectors; "
                "this model shows only lists of hits"
            )


def _ignore(steps: int = 1, note: str = "") -> None:
    return None


def _solve(problem: Problem, optimiser: Optimiser, eight_bit: bool) -> Altered:
    found = optimiser.search(problem)
    images, state, queries = found.images, found.state, found.queries + 1
    if eight_bit:
        images = to_bytes(problem.ball, images).to(images) / 255
        state, queries = problem.finite(problem.wish.assess(problem.access.see(images))), queries + 1
    images = problem.ball.check(images)
    before = problem.clean()
    count = len(images)
    return Altered(
        images=images.cpu(),
        loss_before=before.loss.cpu(),
        loss=state.loss.cpu(),
        score_before=before.score.cpu(),
        score=state.score.cpu(),
        success=None if state.success is None else state.success.cpu(),
        gradients=torch.full((count,), found.gradients),
        queries=torch.full((count,), queries),
        zero_gradient=found.zero_gradient.cpu(),
        trajectory=found.trajectory.cpu(),
    )


def _reader(access: Access, images: Images) -> tuple[int, Read]:
    """How many images there are, and how to read a part of them as checked floats."""
    if isinstance(images, list | tuple):
        sizes = sorted({by_sides(np.shape(image)) for image in images})
        if len(sizes) > 1:
            raise ModelError(f"images of one size can be attacked together; found {', '.join(sizes[:4])}")
        images = torch.stack([torch.as_tensor(image) for image in images])
    wanted = access.shape
    if wanted is None:
        wanted = getattr(getattr(images, "spec", None), "shape", None) or np.shape(images)[1:]  # type: ignore[arg-type]
        if len(wanted) != 3:
            raise ModelError(f"images are N x C x H x W, found {by_sides(np.shape(images))}")  # type: ignore[arg-type]
    return reader(images, wanted)


def _batch_size(image: Tensor, candidates: object, targets: Tensor | None) -> int:
    most = max(8, min(256, PIXELS // max(1, image.numel())))
    if candidates is None:
        return most
    pairs = len(candidates) * (1 if targets is None or targets.ndim == 1 else targets.shape[1])  # type: ignore[arg-type]
    return max(1, min(most, PAIRS // pairs))
