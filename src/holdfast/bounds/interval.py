"""Interval bound propagation: a box of images in, a box of outputs out (Eq. 15, 16)."""

from __future__ import annotations

import torch

from holdfast.bounds.activations import Relu
from holdfast.bounds.box import TINY, Box
from holdfast.bounds.graph import INPUT, Graph
from holdfast.bounds.operations import Affine, Convolution, Linear, Reshape, allowance
from holdfast.bounds.refusals import passing

_FINAL = 2.0**-21
_LARGEST = 2.0**100


def interval_bounds(graph: Graph, images: Box, *, rounding: bool = False) -> Box:
    """A box that holds the network's output for every image in `images`; two forward passes.

    With `rounding` it also holds what float32 inference computes (see `operations`). Differentiable
    in the weights and the box, so training uses the same code.
    """
    box = all_boxes(graph, images, rounding=rounding, keep=False)[-1]
    return charged_box(box) if rounding else box


def charged_box(box: Box) -> Box:
    """The box of a network's output, with room for what float32 does to it behind the last layer."""
    return Box(box.centre, torch.add(box.radius + TINY, box.centre.abs() + box.radius, alpha=_FINAL))


def all_boxes(graph: Graph, images: Box, *, rounding: bool, keep: bool = True) -> list[Box]:
    """The box of the images and of every step's output; with `keep` off, only the last is sure to be there."""
    boxes: dict[int, Box] = {INPUT: images}
    last_use = {i: number for number, step in enumerate(graph.steps) for i in step.inputs}
    spare: set[int] = set()
    """Boxes that share their memory with no other that is still there."""
    paid: set[int] = set()
    """Boxes whose radius has the next layer's allowance on it."""
    for number, step in enumerate(graph.steps):
        inputs = [boxes[i] for i in step.inputs]
        done = {i for i in step.inputs if last_use[i] == number and i != INPUT and not keep}
        # Networks of some size spend more on fresh memory than on the arithmetic of activations.
        over = done == set(step.inputs) <= spare and not torch.is_grad_enabled()
        operation = step.operation
        layer = _only_layer_behind(graph, number) if over and isinstance(operation, Relu) else None
        with passing(step.name):
            if isinstance(operation, Relu) and layer is not None and rounding:
                box = operation.interval_over(
                    inputs, rounding, allowance(layer.terms, inputs[0].centre.dtype)
                )
                paid.add(number + 1)
            elif over and isinstance(operation, Affine):
                box = operation.interval_over(inputs, rounding, paid=step.inputs[0] in paid)
            else:
                box = (operation.interval_over if over else operation.interval)(inputs, rounding)
                if paid.issuperset(step.inputs):
                    paid.add(number + 1)
        boxes[number + 1] = within_float32(box) if rounding else box
        if over or step.operation.fresh:
            spare.add(number + 1)
        else:
            # What it gives may be a view of its input: neither may be overwritten.
            spare.difference_update(step.inputs)
        for i in done:
            del boxes[i]
    return [boxes[i] for i in sorted(boxes)]


def before_kinks(graph: Graph, boxes: list[Box]) -> list[Box]:
    """Of the boxes of all steps, those that go into an activation with a kink at zero (ReLU)."""
    entering = [(step.operation, boxes[i]) for step in graph.steps for i in step.inputs]
    return [box for operation, box in entering if operation.unstable(box) is not None]


def _only_layer_behind(graph: Graph, number: int) -> Linear | Convolution | None:
    """The layer that alone reads what step `number` gives, as it is or reshaped."""
    users = [(n, step) for n, step in enumerate(graph.steps) if number + 1 in step.inputs]
    if len(users) != 1:
        return None
    place, step = users[0]
    if isinstance(step.operation, Reshape):
        return _only_layer_behind(graph, place)
    return step.operation if isinstance(step.operation, Linear | Convolution) else None


def within_float32(box: Box) -> Box:
    """The box, unbounded where float32 inference might overflow, which float64 bounds would not show.

    The radius holds at least 2⁻²⁰ of all that is summed up, so below this limit no sum comes near 2¹²⁷.
    """
    if box.centre.dtype != torch.float64:
        return box
    unsure = ~((box.centre.abs() < _LARGEST) & (box.radius < _LARGEST))
    if not bool(unsure.any()):
        return box
    return Box(box.centre, box.radius.masked_fill(unsure, torch.inf))
