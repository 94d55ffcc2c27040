"""Backward linear bounds (CROWN, Zhang et al. 2018): a lower bound of any linear function of the output.

A specification s is carried from the output to the images: s·f(x) ≥ A·x + c for every x of the box, where
each activation is replaced by the line above or below it that its slope asks for. With `rounding`,
the lines hold on boxes that hold what float32 computes, and every step costs |A|·(its error), so the
bound holds for what float32 inference computes, whatever the order of its sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from holdfast import deadline
from holdfast.bounds.box import Box
from holdfast.bounds.graph import INPUT, Graph, Step
from holdfast.bounds.interval import all_boxes, within_float32
from holdfast.bounds.operations import OWN, Affine, Reshape, Sum
from holdfast.bounds.refusals import passing
from holdfast.errors import ConfigError

Intermediate = Literal["interval", "crown"]

FLOATS = 1 << 22
"""No slope, and no set of boxes, holds more numbers at once than this (or than one image's needs)."""

WORK = 1 << 26
"""Numbers of all slopes that finding one layer's intermediate bounds may take for an image: about a second."""

_STRAIGHT = (Affine, Reshape, Sum)


class Relaxation:
    """The boxes of every step for some images; from them follow lower bounds of any number of specifications.

    `intermediate` says how the boxes before activations are found: by intervals, or by linear bounds intersected
    with intervals, which costs two specifications for every number on which the lines there depend.
    """

    def __init__(
        self, graph: Graph, images: Box, *, intermediate: Intermediate = "interval", rounding: bool = False
    ) -> None:
        if intermediate not in ("interval", "crown"):
            raise ConfigError(f"intermediate bounds are by 'interval' or 'crown', not '{intermediate}'")
        self._steps = graph.steps
        images = images.to(torch.float64) if rounding else images
        self._boxes, self._errors = _relaxed(graph.steps, images, intermediate, rounding)

    def lower(self, spec: Tensor) -> Tensor:
        """A lower bound of s·f(x) over every x in each box, as images × specifications; -inf where none is known.

        `spec` is specifications × outputs, or images × specifications × outputs.
        """
        return _lower(self._steps, self._boxes, self._errors, spec)

    def box(self) -> Box:
        """A box of the output, never wider than by intervals."""
        every = torch.ones_like(self._boxes[-1].centre[0], dtype=torch.bool)
        return _tightened(self._steps, self._boxes, self._errors, every)


def linear_bounds(
    graph: Graph,
    images: Box,
    spec: Tensor,
    *,
    intermediate: Intermediate = "interval",
    rounding: bool = False,
) -> Tensor:
    """A lower bound of s·f(x) for every image x in each box, as images × specifications.

    `spec` is specifications × outputs, or images × specifications × outputs; an upper bound is that of
    −s, negated. Where the bounds are not finite it is -inf. Differentiable in the weights and the box.
    """
    parts = [
        Relaxation(graph, images.take(part), intermediate=intermediate, rounding=rounding).lower(
            spec[part] if spec.ndim == 3 else spec
        )
        for part in _blocks(graph, images)
    ]
    return torch.cat(parts) if parts else spec.new_zeros(0, spec.shape[-2])


def linear_box(
    graph: Graph, images: Box, *, intermediate: Intermediate = "interval", rounding: bool = False
) -> Box:
    """A box that holds the network's output for every image in `images`; never wider than by intervals."""
    parts = [
        Relaxation(graph, images.take(part), intermediate=intermediate, rounding=rounding).box()
        for part in _blocks(graph, images)
    ]
    return Box(torch.cat([p.centre for p in parts]), torch.cat([p.radius for p in parts]))


def _blocks(graph: Graph, images: Box) -> Iterator[slice]:
    """Blocks of images whose boxes hold at most `FLOATS` numbers."""
    with torch.no_grad():
        one = all_boxes(graph, images.take(slice(0, 1)), rounding=False)
    size = max(1, FLOATS // max(1, sum(2 * box.centre.numel() for box in one)))
    return (slice(start, start + size) for start in range(0, len(images), size))


def _relaxed(
    steps: Sequence[Step], images: Box, intermediate: Intermediate, rounding: bool
) -> tuple[list[Box], list[Tensor]]:
    """The box of the images and of every step, and what float32 errs at each step."""
    boxes, errors, bent = [images], list[Tensor](), False
    for step in steps:
        if not isinstance(step.operation, _STRAIGHT):
            for i in step.inputs:
                # Before the first activation linear bounds of one affine layer are its interval.
                if intermediate == "crown" and bent and i != INPUT:
                    wanted = step.operation.unstable(boxes[i])
                    if wanted is not None:
                        chosen = _most_open(boxes[i], wanted, sum(box.centre[0].numel() for box in boxes))
                        boxes[i] = _tightened(steps[:i], boxes[: i + 1], errors[:i], chosen)
            bent = True
        inputs = [boxes[i] for i in step.inputs]
        with passing(step.name):
            box = step.operation.interval(inputs, rounding)
            boxes.append(within_float32(box) if rounding else box)
            if rounding:
                errors.append(step.operation.error(inputs))
    return boxes, errors


def _most_open(box: Box, wanted: Tensor, size: int) -> Tensor:
    """Of the `wanted` numbers (a mask, images first), those for which there is `WORK`: the widest on both sides of 0.

    `size` is how many numbers a slope has on its way to the images. Any choice is sound.
    """
    mask = wanted.any(0)
    most = WORK // (2 * max(1, size))
    if int(mask.sum()) <= most:
        return mask
    open_ = torch.where(wanted, torch.minimum(-box.lower, box.upper), -torch.inf).amax(0)
    chosen = torch.zeros_like(mask)
    chosen.view(-1)[open_.flatten().topk(most).indices] = True
    return chosen & mask


def _tightened(steps: Sequence[Step], boxes: Sequence[Box], errors: Sequence[Tensor], wanted: Tensor) -> Box:
    """The last box, intersected with the linear bounds of the `wanted` ones of its numbers, a mask of their shape."""
    box = boxes[-1]
    places = wanted.flatten().nonzero()[:, 0]
    lower, upper = box.lower.flatten(1), box.upper.flatten(1)
    rows = max(1, FLOATS // max(1, wanted.numel()))
    for some in torch.split(places, rows):
        each = torch.zeros(len(some), wanted.numel(), dtype=box.centre.dtype)
        each[torch.arange(len(some)), some] = 1.0
        low, high = _lower(steps, boxes, errors, torch.cat([each, -each])).chunk(2, 1)
        lower = lower.index_copy(1, some, torch.maximum(low, lower[:, some]))
        upper = upper.index_copy(1, some, torch.minimum(-high, upper[:, some]))
    lower, upper = lower.view_as(box.centre), upper.view_as(box.centre)
    centre, radius = (upper + lower) / 2, ((upper - lower) / 2).clamp(min=0)
    if errors:
        radius = radius + OWN * (centre.abs() + radius)
    # Where the interval is not a number, nothing is known; what was not asked for stays as it is.
    known = torch.isfinite(box.radius) & torch.isfinite(box.centre)
    return Box(
        torch.where(known & wanted, centre, box.centre),
        torch.where(wanted, torch.where(known, radius, torch.inf), box.radius),
    )


def _lower(steps: Sequence[Step], boxes: Sequence[Box], errors: Sequence[Tensor], spec: Tensor) -> Tensor:
    """Lower bounds of the specifications, a few at a time, so that no slope holds more than `FLOATS` numbers."""
    widest = max(box.centre[0].numel() for box in boxes) * len(boxes[0])
    rows = max(1, FLOATS // max(1, widest))
    slopes = spec.to(boxes[-1].centre.dtype)
    slopes = slopes.transpose(0, 1) if spec.ndim == 3 else slopes[:, None].expand(-1, len(boxes[0]), -1)
    parts = [
        _carried(steps, boxes, errors, slopes[start : start + rows]) for start in range(0, len(slopes), rows)
    ]
    bound = torch.cat(parts).T if parts else slopes.new_zeros(len(boxes[0]), 0)
    known = torch.stack(
        [(torch.isfinite(b.centre) & torch.isfinite(b.radius)).flatten(1).all(1) for b in boxes]
    ).all(0)
    return torch.where(torch.isfinite(bound) & known[:, None], bound, -torch.inf)


def _carried(steps: Sequence[Step], boxes: Sequence[Box], errors: Sequence[Tensor], spec: Tensor) -> Tensor:
    """From the output to the images (specifications × images); `errors` is empty where rounding is left out."""
    slopes = {len(steps): spec.reshape(*spec.shape[:2], *boxes[-1].centre.shape[1:])}
    constant = spec.new_zeros(spec.shape[:2])
    for number in range(len(steps) - 1, -1, -1):
        deadline.check()
        if (slope := slopes.pop(number + 1, None)) is None:
            continue
        step = steps[number]
        if errors:
            constant = constant - (slope.abs() * errors[number]).flatten(2).sum(2)
        with passing(step.name):
            back, added = step.operation.backward(slope, [boxes[i] for i in step.inputs])
        constant = constant + added
        for i, part in zip(step.inputs, back, strict=True):
            slopes[i] = slopes[i] + part if i in slopes else part
    if INPUT in slopes:
        slope, images = slopes[INPUT], boxes[INPUT]
        reach = images.radius
        if errors:
            reach = reach + OWN * (images.centre.abs() + images.radius)
        constant = constant + (slope * images.centre - slope.abs() * reach).flatten(2).sum(2)
    return constant
