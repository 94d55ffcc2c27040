"""Embedders with two sides: candidates are stored as a function of the vector that they would have as a query.

The function is applied in float64 and rounded once, so it costs no second pass through the network, and a bound
of a query's vector is a bound of a candidate's too. A new one is a class here and a line in `SIDES`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.errors import ModelError, unknown_name

PAIRS = 2**22
"""Pairs of classes that one pass over intervals looks at, at most."""
_LEAST = 1e-30
"""What is under the root at least: its slope stays finite where a code is of one class alone."""


class CandidateSide(ABC):
    """How the vector of a candidate is made of the vector that the network gives; both have the same length."""

    name: ClassVar[str]
    says: ClassVar[str]
    """What tables and reports call an embedder that has it."""

    @abstractmethod
    def check_dim(self, dim: int) -> None:
        """Refuse vectors of another length than it is for."""

    def check(self, dim: int, unit_norm: bool) -> None:
        """Refuse an embedder whose vectors it is not for."""
        self.check_dim(dim)
        if unit_norm:
            raise ModelError(
                f"the candidate side '{self.name}' is for vectors as they are; leave the normalisation off "
                "(unit_norm=False, or model.unit_norm=false in training)"
            )

    @abstractmethod
    def exact(self, vectors: Tensor) -> Tensor:
        """The candidates' vectors, in float64; gradients flow through it."""

    @abstractmethod
    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Ends (float64) between which the candidate's vector lies, as it is stored, for every vector between these.

        Where nothing is known of a score (an end that is not finite), the ends are those that always hold.
        """

    def __call__(self, vectors: Tensor) -> Tensor:
        """The candidates' vectors, in the precision of the given ones."""
        return self.exact(vectors.double()).to(vectors.dtype)

    def describe(self) -> dict[str, Any]:
        """What makes it again, ready for JSON."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class ClassCode(CandidateSide):
    """[z, 0, y] ↦ [p, √(1 − ‖p‖²), β y/‖y‖] with p = softmax(z/T): z has a score for each class, y is the fine part.

    All candidates are equally long, so the nearest by Euclidean distance is the one with the largest
    ⟨z, p⟩ + β⟨y, u⟩, u = y_c/‖y_c‖: how much the query scores the candidate's classes, then how alike the fine parts
    are. Without a fine part the order is that of ⟨z, p⟩.
    """

    name: ClassVar[str] = "class-code"
    says: ClassVar[str] = "closed-set: the classes of the training set"

    classes: int
    temperature: float
    fine: int = 0
    """Dimensions of the fine part."""
    weight: float = 0.0
    """β."""

    def __post_init__(self) -> None:
        if not (isinstance(self.classes, int) and self.classes >= 2 and isinstance(self.fine, int)):
            raise ModelError(f"a class code is for 2 classes or more, not {self.classes!r}")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ModelError(f"the temperature of a class code is above 0, not {self.temperature}")
        if self.fine < 0 or not (math.isfinite(self.weight) and self.weight >= 0):
            raise ModelError(
                f"a fine part has 0 dimensions or more and a weight of 0 or more, not {self.fine} and {self.weight}"
            )

    @property
    def dim(self) -> int:
        """The length of the vectors."""
        return self.classes + 1 + self.fine

    def check_dim(self, dim: int) -> None:
        if dim != self.dim:
            fine = f" and {self.fine} of the fine part" if self.fine else ""
            raise ModelError(
                f"a code of {self.classes} classes has {self.dim} dimensions (a score for each class, one that "
                f"stays 0{fine}), not {dim}; leave model.dim out"
            )

    def exact(self, vectors: Tensor) -> Tensor:
        scores, fine = vectors[:, : self.classes], vectors[:, self.classes + 1 :]
        p = torch.softmax(scores / self.temperature, 1)
        rest = (1 - p.square().sum(1, keepdim=True)).clamp(min=_LEAST).sqrt()
        return torch.cat([p, rest, self.weight * functional.normalize(fine, dim=1, eps=_LEAST)], 1)

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        low, high = -torch.inf, torch.inf
        lower = torch.nan_to_num(lower.double(), low, low, low)
        upper = torch.nan_to_num(upper.double(), high, high, high)
        rows = max(1, PAIRS // self.classes**2)
        starts = range(0, len(lower), rows)
        parts = [self._code(lower[i : i + rows], upper[i : i + rows]) for i in starts]
        ends = [torch.cat(half) for half in zip(*parts, strict=True)]
        if self.fine:
            fine = _directions(lower[:, self.classes + 1 :], upper[:, self.classes + 1 :])
            ends = [torch.cat([code, self.weight * part], 1) for code, part in zip(ends, fine, strict=True)]
        # The stored coordinate is rounded once, to float32 at least.
        return ends[0] - _rounded(ends[0]), ends[1] + _rounded(ends[1])

    def _code(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Ends of p and of √(1 − ‖p‖²): p_j is largest where z_j is, and all others are smallest."""
        low, high = (ends[:, : self.classes] / self.temperature for ends in (lower, upper))
        size = torch.maximum(low.abs(), high.abs()).amax(1, keepdim=True)
        share = torch.where(torch.isfinite(size), 2.0**-40 * (1 + size), 1.0)
        least = _shares(low, high) * (1 - share).clamp(min=0)
        most = (_shares(high, low) * (1 + share)).clamp(max=1)
        # Σp² is between 1/n and 1; 1e-12 is more than its sum can err.
        small = torch.maximum(least.square().sum(1, keepdim=True), least.new_tensor(1 / self.classes))
        large = most.square().sum(1, keepdim=True)
        rest = [(1 - s + extra).clamp(min=0).sqrt() for s, extra in ((large, -1e-12), (small, 1e-12))]
        return torch.cat([least, rest[0]], 1), torch.cat([most, rest[1]], 1)


def _shares(own: Tensor, others: Tensor) -> Tensor:
    """1 / (1 + Σ over i ≠ j of exp(others_i − own_j)) for each j."""
    gap = others[:, None, :] - own[:, :, None]
    gap.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    return 1 / (1 + gap.exp().sum(2))


def _directions(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of y/‖y‖, coordinate by coordinate; −1 and 1 where y may be 0."""
    nearest = torch.maximum(torch.maximum(lower, -upper), torch.zeros_like(lower)).norm(dim=1, keepdim=True)
    farthest = torch.maximum(lower.abs(), upper.abs()).norm(dim=1, keepdim=True)
    ends = [
        torch.where(lower < 0, lower / nearest, lower / farthest),
        torch.where(upper > 0, upper / nearest, upper / farthest),
    ]
    sure = (nearest > 2 * _LEAST) & torch.isfinite(farthest)
    low, high = (
        torch.where(sure, end + side * 2.0**-40 * end.abs(), side).clamp(-1, 1)
        for end, side in zip(ends, (-1.0, 1.0), strict=True)
    )
    return low, high


def _rounded(values: Tensor) -> Tensor:
    """More than rounding to float32 can change."""
    return values.abs() * 2.0**-22 + 2.0**-120


SIDES: dict[str, type[ClassCode]] = {ClassCode.name: ClassCode}


def side_of(described: Mapping[str, Any]) -> CandidateSide:
    """The candidate side that `describe` gave."""
    settings = dict(described)
    name = settings.pop("name", None)
    if name not in SIDES:
        raise ModelError(unknown_name("candidate side", str(name), SIDES))
    try:
        return SIDES[name](**settings)
    except TypeError as cause:
        raise ModelError(f"the candidate side '{name}' does not take these settings: {cause}") from None


class Sided:
    """What all embedders offer: vectors of queries by `embed`, and of candidates by `embed_candidates`."""

    candidate_side: CandidateSide | None = None
    """How candidates' vectors are made of queries'; None: they are the same."""
    origin: str | None = None
    """The name by which it was opened, if it was, the same from every folder: a hint that galleries keep."""

    def as_candidates(self, vectors: Tensor) -> Tensor:
        """The candidates' vectors of images whose vectors as queries are these."""
        return vectors if self.candidate_side is None else self.candidate_side(vectors)

    def embed_candidates(self, images: Any) -> Tensor:
        """The vectors of images as candidates, as a gallery stores them."""
        return self.as_candidates(self.embed(images))  # type: ignore[attr-defined]

    @property
    def says(self) -> str:
        """What must be said of its results, if anything."""
        return "" if self.candidate_side is None else self.candidate_side.says
