"""A learned metric as the last layer of an embedder: x ↦ G f(x), so that plain distances are the metric's.

A metric is about feature vectors; once it is a layer, whatever bounds, smooths or attacks an embedder sees it too, and
what is then certified is about pixels. Shifts cancel in distances and are left out. Where the network ends with a
linear layer and nothing normalises after it, the two become one, which bounds see through better.
"""

from __future__ import annotations

import base64
import copy
import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from holdfast.errors import ModelError
from holdfast.models.callable import CallableEmbedder
from holdfast.models.embedder import Embedder, placement
from holdfast.models.inference import inference
from holdfast.models.metric import Metric
from holdfast.models.registry import MODELS

Matrix = NDArray[np.float32]


class UnitNorm(nn.Module):
    """z / ‖z‖; the zero vector stays zero."""

    def forward(self, vectors: Tensor) -> Tensor:
        return functional.normalize(vectors, dim=1)


def stored(metric: Metric) -> dict[str, Any]:
    """A metric as a gallery keeps it: the matrix for raw vectors in float32, and how it was learned."""
    with np.errstate(over="ignore"):
        matrix = (metric.transform / metric.span).astype("<f4")
    if not np.isfinite(matrix).all() or not matrix.any():
        raise ModelError(
            "the metric is zero, or not finite, for vectors as they are; learn it from features that vary"
        )
    return {
        "method": metric.about.get("method"),
        "embedder": metric.about.get("embedder"),
        "rank": matrix.shape[0],
        "features": matrix.shape[1],
        "matrix": base64.b64encode(matrix.tobytes()).decode(),
    }


def matrix_of(kept: dict[str, Any]) -> Matrix:
    """The matrix of a metric that a gallery keeps."""
    content = base64.b64decode(kept["matrix"])
    return np.frombuffer(content, dtype="<f4").reshape(kept["rank"], kept["features"])


def under_metric(base: Embedder | CallableEmbedder, kept: dict[str, Any]) -> Embedder | CallableEmbedder:
    """`base` with the metric behind its vectors, after their normalisation if there is one; `base` stays as it is."""
    if base.candidate_side is not None:
        raise ModelError(
            f"a metric is for embedders whose candidates have the vectors of queries, and those of this one are a "
            f"{base.candidate_side.name}; index without a metric",
            option="metric",
        )
    matrix = matrix_of(kept)
    if base.dim != matrix.shape[1]:
        raise ModelError(
            f"the metric is of {matrix.shape[1]} features, and the embedder gives vectors of {base.dim}; learn one "
            "from this embedder's ('holdfast metric features')"
        )
    if kept["embedder"] not in (None, *base.fingerprints()):
        raise ModelError(
            "the metric was learned from another embedder's vectors; learn one from this embedder's "
            "('holdfast metric features')"
        )
    made = _foreign(base, matrix) if isinstance(base, CallableEmbedder) else _embedder(base, matrix)
    made.metric, made.origin = kept, base.origin
    made.card = None if base.card is None else {**base.card, **made.describe()}
    made.longest = _longest(matrix) if base.unit_norm else None
    return made


def _longest(matrix: Matrix) -> float:
    """At least ‖Gz‖ for every ‖z‖ ≤ 1, as float32 computes it: the product errs by less than d·2⁻²³ ‖G‖_F.

    Near zero each of the d products and sums of a row errs by up to 2⁻¹²⁶ more.
    """
    exact = matrix.astype(np.float64)
    error = exact.shape[1] * 2.0**-22 * float(np.linalg.norm(exact)) + exact.size * 2.0**-120
    return float((np.linalg.norm(exact, 2) + error) * (1 + 2e-5))


def _foreign(base: CallableEmbedder, matrix: Matrix) -> CallableEmbedder:
    weight = torch.from_numpy(matrix.copy())
    digest = hashlib.sha256(matrix.tobytes()).hexdigest()
    return CallableEmbedder(
        lambda images: base(images) @ weight.T,
        base.spec,
        name=base.name,
        source=base.fingerprints()[-1] + digest,
    )


def _embedder(base: Embedder, matrix: Matrix) -> Embedder:
    device, dtype = placement(base)
    weight = torch.from_numpy(matrix.copy())
    network = None if base.unit_norm else _merged(base, weight)
    if network is None:
        layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False).to(device=device, dtype=dtype)
        layer.weight.data.copy_(weight)
        before = [copy.deepcopy(base.network), copy.deepcopy(base.flatten)]
        network = nn.Sequential(*before, *([UnitNorm()] if base.unit_norm else []), layer)
    made = Embedder(
        network.eval(),
        spec=base.spec,
        dim=matrix.shape[0],
        unit_norm=False,
        pixels=base.pixels,
        architecture=base.architecture,
    )
    made.normalise.to(device=device, dtype=dtype)
    return made.eval()


def _merged(base: Embedder, weight: Tensor) -> nn.Module | None:
    """The network with the metric in its last linear layer; None where that is not the last thing it does."""
    name = base.architecture.get("name")
    if name not in MODELS:
        return None
    network = copy.deepcopy(base.network)
    place = MODELS[name].classifier.rstrip(".")
    last = network.get_submodule(place)
    if not isinstance(last, nn.Linear):
        return None
    product = weight.double() @ last.weight.detach().double().cpu()
    joined = nn.Linear(last.in_features, len(weight), bias=last.bias is not None).to(last.weight)
    joined.weight.data.copy_(product)
    if last.bias is not None:
        joined.bias.data.copy_(weight.double() @ last.bias.detach().double().cpu())
    parent, _, leaf = place.rpartition(".")
    setattr(network.get_submodule(parent) if parent else network, leaf, joined)
    device, dtype = placement(base)
    images = torch.rand((2, *base.spec.shape), generator=torch.Generator().manual_seed(0)).to(device, dtype)
    with inference(base):
        wanted = base.features(images).double() @ weight.double().T.to(device)
        try:
            found = base.flatten(network.eval()(base.normalise(images))).double()
        except RuntimeError:
            return None
    size = float(wanted.abs().max())
    return (
        network
        if found.shape == wanted.shape and float((found - wanted).abs().max()) <= 1e-3 * size
        else None
    )
