"""Whether inference does what a network's trace says: a proof about another function would be worth nothing.

A trace is made once. What Python does beside it (a branch on something that is not the image, a counter, a random
number, a cast) is not in it. So inference is asked, and its answers must lie in the boxes that the trace gives: at
first for a few images, then for every image that is bounded. What differs only on images that are never asked about,
or only after some number of calls, cannot be found in this way.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.bounds import Box, Graph, image_box, interval_bounds, normalised
from holdfast.errors import ModelError
from holdfast.models import Embedder
from holdfast.models.embedder import placement
from holdfast.models.inference import inference

_EXACT = (torch.float32, torch.float64)
_EPS = 1 / 16
_FAST_MATH = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
"""What oneDNN reads once, when it is loaded; no setting of torch overrides it."""


def features(embedder: Embedder, images: Tensor) -> Tensor:
    """The vectors before normalisation as inference computes them, in float64."""
    device, dtype = placement(embedder)
    with inference(embedder):
        return embedder.features(images.to(device=device, dtype=dtype)).double()


def check_place(embedder: Embedder) -> None:
    """Refuse a network that does not compute in float32 or float64 on the CPU."""
    for variable in _FAST_MATH:
        if os.environ.get(variable, "STRICT").upper() not in ("", "STRICT"):
            raise ModelError(
                f"certificates hold for full float32 products, and {variable}={os.environ[variable]} allows others; "
                "unset it and start again"
            )
    for tensor in (*embedder.parameters(), *embedder.buffers()):
        if tensor.is_floating_point() and tensor.dtype not in _EXACT:
            raise _half(tensor.dtype)
        if tensor.device.type != "cpu":
            raise ModelError(
                f"certificates hold for inference on the CPU, and this embedder is on {tensor.device}; call .cpu()"
            )


def check_agreement(embedder: Embedder, graph: Graph) -> None:
    """Refuse a network whose inference leaves what its trace allows: at random, at corners, one at a time or more."""
    chance = torch.Generator().manual_seed(0)
    shape = (3, *embedder.spec.shape)
    images = torch.rand(shape, generator=chance, dtype=torch.float32)
    images[1] = images[1].round()
    low, high = (images[2] - _EPS).clamp(min=0), (images[2] + _EPS).clamp(max=1)
    corners = torch.where(torch.rand(shape, generator=chance, dtype=torch.float32) < 0.5, low, high)
    with _Watch() as seen:  # type: ignore[no-untyped-call]
        given = features(embedder, images)
    if seen.found is not None:
        raise _half(seen.found)
    try:
        with inference(embedder):
            points = _boxed(graph, images, 0.0)
            around = _boxed(graph, images[2:], _EPS)
    except RuntimeError as cause:
        why = str(cause).strip().splitlines()[0]
        raise ModelError(f"bounds cannot follow what the network does: {why}") from cause
    check_held(points, given)
    check_held(points.take(slice(1)), features(embedder, images[:1]))
    check_held(Box(*(t.expand(3, -1) for t in (around.centre, around.radius))), features(embedder, corners))
    final = normalised(points) if embedder.unit_norm else points
    if bool(torch.isfinite(given).all()):
        check_held(final, embedder.embed(images).double())


def check_held(box: Box, given: Tensor) -> None:
    """Refuse a network whose features, as inference gives them, are not in the box that holds them by its trace."""
    # Written so that NaN is refused too, unless the bounds say that they know nothing.
    same = given.shape == box.centre.shape
    if not same or not bool((((given - box.centre).abs() <= box.radius) | ~torch.isfinite(box.radius)).all()):
        raise contradicted()


def contradicted() -> ModelError:
    """The refusal of a network that does not do what its trace says."""
    return ModelError(
        "the network does something that cannot be seen in its trace (an operation in place, a random number, or a "
        "branch on something else than the image, perhaps), so it cannot be bounded; write it without"
    )


def _boxed(graph: Graph, images: Tensor, eps: float) -> Box:
    return interval_bounds(graph, image_box(images.double(), eps, rounding=True), rounding=True)


def _half(dtype: torch.dtype) -> ModelError:
    return ModelError(
        f"certificates hold for float32 inference, and this embedder computes in {dtype}; call .float()"
    )


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes floats of another precision than the proofs know, wherever they appear."""

    found: torch.dtype | None = None

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor) and (value.is_quantized or value.is_floating_point()):
                self.found = self.found or (None if value.dtype in _EXACT else value.dtype)
        return out
