"""Bounds on distances between boxes and vectors, all pairs at once, differentiable.

Kakizaki, Fukuchi, Sakuma, Eq. 17 and 18. Training and certificates share them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.bounds.box import Box
from holdfast.bounds.threads import in_threads
from holdfast.errors import DataError


def distance_bounds(box: Box, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Upper and lower bounds of ‖z − v‖ for every z in each box and every vector v, as two B×N matrices.

    Exact over the boxes: upper = ‖|m − v| + r‖ (Eq. 17), lower = ‖relu(|m − v| − r)‖ (Eq. 18). The
    gradient at a distance of zero is zero.
    """
    _check_dims(box, vectors)
    upper, lower = _Bounds.apply(box.centre, box.radius, vectors)  # type: ignore[no-untyped-call]
    return upper, lower


def box_distance_bounds(box: Box, other: Box) -> tuple[Tensor, Tensor]:
    """Upper and lower bounds of ‖z − v‖ for every z in each box and every v in each other box; no gradient."""
    from holdfast.bounds.kernels import squared_box_bounds

    _check_dims(box, other.centre)
    tensors = [t.detach().contiguous() for t in (box.centre, box.radius, other.centre, other.radius)]
    upper = torch.empty(len(box), len(other), dtype=box.centre.dtype)
    lower = torch.empty_like(upper)
    arrays = [t.numpy() for t in (*tensors, upper, lower)]
    in_threads(lambda a, b: squared_box_bounds(*arrays, a, b), len(box), upper.numel())
    return upper.sqrt_(), lower.sqrt_()


def _check_dims(box: Box, vectors: Tensor) -> None:
    if box.centre.ndim != 2 or vectors.ndim != 2 or box.centre.shape[1] != vectors.shape[1]:
        raise DataError(
            f"boxes of {tuple(box.centre.shape)} and vectors of {tuple(vectors.shape)} have no distances"
        )


class _Bounds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, centre: Tensor, radius: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        from holdfast.bounds.kernels import squared_bounds

        centre, radius, vectors = (t.detach().contiguous() for t in (centre, radius, vectors))
        upper = torch.empty(len(centre), len(vectors), dtype=centre.dtype)
        lower = torch.empty_like(upper)
        arrays = [t.numpy() for t in (centre, radius, vectors, upper, lower)]
        in_threads(lambda a, b: squared_bounds(*arrays, a, b), len(centre), upper.numel())
        upper.sqrt_()
        lower.sqrt_()
        ctx.save_for_backward(centre, radius, vectors, upper, lower)
        return upper, lower

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from holdfast.bounds.kernels import box_gradients, vector_gradients

        centre, radius, vectors, upper, lower = ctx.saved_tensors
        high, low = (
            torch.where(distance > 0, gradient / distance, 0.0).contiguous()
            for gradient, distance in zip(gradients, (upper, lower), strict=True)
        )
        shared = [t.numpy() for t in (centre, radius, vectors, high, low)]
        at_centre, at_radius, at_vectors = (torch.empty_like(t) for t in (centre, radius, vectors))
        boxes = [at_centre.numpy(), at_radius.numpy()]
        in_threads(lambda a, b: box_gradients(*shared, *boxes, a, b), len(centre), upper.numel())
        if not ctx.needs_input_grad[2]:
            return at_centre, at_radius, None
        points = at_vectors.numpy()
        in_threads(lambda a, b: vector_gradients(*shared, points, a, b), len(vectors), upper.numel())
        return at_centre, at_radius, at_vectors
