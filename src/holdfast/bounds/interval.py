"""Interval bound propagation: a box of images in, a box of outputs out (Eq. 15, 16)."""

from __future__ import annotations

import torch

from holdfast.bounds.box import Box
from holdfast.bounds.graph import INPUT, Graph

_FINAL = 2.0**-21


def interval_bounds(graph: Graph, images: Box, *, rounding: bool = False) -> Box:
    """A box that holds the network's output for every image in `images`; two forward passes.

    With `rounding` it also holds what float32 inference computes (see `operations`). Differentiable
    in the weights and the box, so training uses the same code.
    """
    box = all_boxes(graph, images, rounding=rounding, keep=False)[-1]
    if rounding:
        box = Box(box.centre, torch.add(box.radius, box.centre.abs() + box.radius, alpha=_FINAL))
    return box


def all_boxes(graph: Graph, images: Box, *, rounding: bool, keep: bool = True) -> list[Box]:
    """The box of the images and of every step's output; with `keep` off, only the last is sure to be there."""
    boxes: list[Box | None] = [images]
    last_use = {i: number for number, step in enumerate(graph.steps) for i in step.inputs}
    spare: set[int] = set()
    """Boxes that share their memory with nothing else."""
    for number, step in enumerate(graph.steps):
        inputs = [box for i in step.inputs if (box := boxes[i]) is not None]
        done = [] if keep else [i for i in step.inputs if last_use[i] == number and i != INPUT]
        # Networks of some size spend more on fresh memory than on the arithmetic of activations.
        if spare.issuperset(step.inputs) and len(done) == len(step.inputs) and not torch.is_grad_enabled():
            boxes.append(step.operation.interval_over(inputs, rounding))
            over = True
        else:
            boxes.append(step.operation.interval(inputs, rounding))
            over = False
        if step.operation.fresh or over:
            spare.add(number + 1)
        for i in done:
            boxes[i] = None
    return boxes  # type: ignore[return-value]
