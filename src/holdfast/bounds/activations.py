"""Boxes and slopes through activations and max pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.bounds.box import LARGEST_NORM, TINY, Box, normalised
from holdfast.bounds.operations import Operation
from holdfast.bounds.threads import in_one_order, over_elements

_ROUNDING = 2.0**-20
"""Covers the last places of a library's sigmoid, tanh, … in float32."""


@dataclass(frozen=True)
class Monotone(Operation):
    """A non-decreasing function, coordinate by coordinate or as a maximum over windows.

    Its box is exact. Seen from behind it is bounded by the constants of its box: sound, and loose.
    """

    function: Callable[[Tensor], Tensor]
    exact: bool
    """Whether float32 computes it without error."""

    def interval(self, boxes: Sequence[Box], rounding: bool) -> Box:
        (box,) = boxes
        # What is near zero may be flushed to zero before the function sees it, and as its result.
        low, high = (box.lower - TINY, box.upper + TINY) if rounding else (box.lower, box.upper)
        lower, upper = self.function(low), self.function(high)
        centre, radius = (lower + upper) / 2, (upper - lower) / 2
        if rounding:
            radius = radius + TINY
            if not self.exact:
                radius = radius + _ROUNDING * (centre.abs() + radius + _ROUNDING)
            # A function with ends (tanh) must not hide that inference may have met NaN or infinity before it.
            radius = radius.masked_fill(self._lost(box), torch.inf)
        return Box(centre, radius)

    def _lost(self, box: Box) -> Tensor:
        """Where nothing is known of what the function is given, so that nothing is of its result."""
        return ~(torch.isfinite(box.centre) & torch.isfinite(box.radius))

    def backward(self, slope: Tensor, boxes: Sequence[Box]) -> tuple[list[Tensor], Tensor | float]:
        box = self.interval(boxes, rounding=False)
        reached = (slope * box.centre - slope.abs() * box.radius).flatten(2).sum(2)
        return [slope.new_zeros(*slope.shape[:2], *boxes[0].centre.shape[1:])], reached


class UnitLength(Operation):
    """z / ‖z‖, of which no coordinate is above 1; from behind, the constants of its box."""

    fresh = True

    def interval(self, boxes: Sequence[Box], rounding: bool) -> Box:
        (box,) = boxes
        found = normalised(box)
        # Also where z may be zero the result is no longer than 1; only beyond float32's squares nothing is known.
        most = (box.centre.abs() + box.radius).norm(dim=1, keepdim=True)
        within = 1 + 2.0**-20 + box.centre.shape[1] * 2.0**-24
        loose = torch.isinf(found.radius) & (most < LARGEST_NORM)
        return Box(found.centre, torch.where(loose, within, found.radius))

    def backward(self, slope: Tensor, boxes: Sequence[Box]) -> tuple[list[Tensor], Tensor | float]:
        box = self.interval(boxes, rounding=True)
        reached = (slope * box.centre - slope.abs() * box.radius).flatten(2).sum(2)
        return [torch.zeros_like(slope)], reached


class MaxPool(Monotone):
    """A maximum over windows: at least the one with the largest lower bound, at most the box's upper end."""

    def _lost(self, box: Box) -> Tensor:
        return self.function(super()._lost(box).to(box.centre.dtype)) > 0

    def backward(self, slope: Tensor, boxes: Sequence[Box]) -> tuple[list[Tensor], Tensor | float]:
        box = boxes[0]
        upper = self.function(box.upper)
        _, winner = self.function(box.lower, return_indices=True)  # type: ignore[call-arg]
        above, below = slope.clamp(max=0), slope.clamp(min=0)
        plane = slope.new_zeros(*slope.shape[:3], box.centre[0, 0].numel())
        back = plane.scatter_add(3, winner.flatten(2).expand_as(slope.flatten(3)), below.flatten(3))
        return [back.view(*slope.shape[:2], *box.centre.shape[1:])], (above * upper).flatten(2).sum(2)


@dataclass(frozen=True)
class Leaky(Monotone):
    """max(x, a·x) with 0 ≤ a ≤ 1."""

    least: float

    def unstable(self, box: Box) -> Tensor:
        return _crossing(box)

    def backward(self, slope: Tensor, boxes: Sequence[Box]) -> tuple[list[Tensor], Tensor | float]:
        return _kinked(slope, boxes[0], self.least)


class Relu(Operation):
    """max(x, 0), which float32 computes exactly or flushes to zero; for that the layer behind it pays."""

    fresh = True

    def interval(self, boxes: Sequence[Box], rounding: bool) -> Box:
        (box,) = boxes
        centre, radius = _ReluBox.apply(box.centre, box.radius)  # type: ignore[no-untyped-call]
        return Box(centre, radius)

    def interval_over(self, boxes: Sequence[Box], rounding: bool, ahead: float = 0.0) -> Box:
        """`ahead` is the share that the layer behind would charge: here it costs no pass of its own."""
        from holdfast.bounds.kernels import relu_box_in_place

        box = Box(*in_one_order(boxes[0].centre, boxes[0].radius))
        over_elements(relu_box_in_place, (box.centre, box.radius), ahead, TINY if ahead else 0.0)
        return box

    def unstable(self, box: Box) -> Tensor:
        return _crossing(box)

    def backward(self, slope: Tensor, boxes: Sequence[Box]) -> tuple[list[Tensor], Tensor | float]:
        return _kinked(slope, boxes[0], 0.0)


def _crossing(box: Box) -> Tensor:
    """Where the box holds numbers on both sides of zero."""
    return (box.lower < 0) & (box.upper > 0)


def _kinked(slope: Tensor, box: Box, least: float) -> tuple[list[Tensor], Tensor]:
    """max(x, a·x) from behind: above, the chord k(x − l) + a·l; below, x or a·x, whichever leaves the smaller area."""
    lower, upper, crossing = box.lower, box.upper, _crossing(box)
    width = torch.where(crossing, upper - lower, 1.0)
    straight = torch.where(lower >= 0, 1.0, least).to(upper.dtype)
    chord = torch.where(crossing, (upper - least * lower) / width, straight)
    below = torch.where(crossing, torch.where(upper >= -lower, 1.0, least).to(upper.dtype), straight)
    lifted = torch.where(crossing, (least - chord) * lower, 0.0)
    constant = (slope.clamp(max=0) * lifted).flatten(2).sum(2)
    return [slope * torch.where(slope >= 0, below, chord)], constant


class _ReluBox(torch.autograd.Function):
    """One pass instead of eight: on small networks the passes cost as much as the convolutions."""

    @staticmethod
    def forward(ctx: Any, centre: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        from holdfast.bounds.kernels import relu_box

        centre, radius = in_one_order(centre.detach(), radius.detach())
        out = torch.empty_like(centre), torch.empty_like(radius)
        over_elements(relu_box, (centre, radius, *out))
        ctx.save_for_backward(centre, radius)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        from holdfast.bounds.kernels import relu_box_gradients

        centre, radius = ctx.saved_tensors
        out = tuple(t.clone() for t in in_one_order(centre, *gradients)[1:])
        over_elements(relu_box_gradients, (centre, radius, *out))
        return out
