"""ARML: a Mahalanobis metric trained for certified neighbours (Wang, Chen, Yi, Chen, Hsieh 2020).

For a training point x with a positive x⁺ and a negative x⁻ near it, the distance of x to where the two are equally
near is ε̃ = (d_M(x, x⁻) − d_M(x, x⁺)) / (2‖M(x⁺ − x⁻)‖₂), M = GᵀG. The loss is the mean of −ε̃ (the rebuttal, R3.2),
without a clamp, from G = I on; x⁺ and x⁻ are drawn from the nearest few under the metric as it is (R3.3).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from holdfast.progress import bar
from holdfast.randomness import derive

BLOCK = 1024


class ARML(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The learner, with the conventions of scikit-learn and metric-learn.

    `rank`: rows of G (all features if None); `neighbours`: how many of the nearest a positive or negative is
    drawn from; `refresh`: after how many iterations the nearest are sought anew; an iteration uses every
    training point once. It stops early when the mean ε̃ has not risen by `tolerance` of itself for `patience`
    iterations.
    """

    def __init__(
        self,
        rank: int | None = None,
        iterations: int = 100,
        neighbours: int = 10,
        refresh: int = 5,
        batch: int = 256,
        lr: float = 3e-3,
        patience: int = 20,
        tolerance: float = 1e-3,
        random_state: int = 0,
    ) -> None:
        self.rank = rank
        self.iterations = iterations
        self.neighbours = neighbours
        self.refresh = refresh
        self.batch = batch
        self.lr = lr
        self.patience = patience
        self.tolerance = tolerance
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from vectors and their classes."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("a metric is learned from at least 2 classes; found 1 class")
        points = torch.from_numpy(np.array(X, dtype=np.float32))
        kinds = torch.from_numpy(labels.reshape(-1))
        used = _partnered(kinds).nonzero().squeeze(1)
        if not len(used):
            raise ValueError("no class has 2 samples, so there is no positive to draw")
        size = points.shape[1]
        rank = size if self.rank is None else min(int(self.rank), size)
        start = torch.eye(size) if rank == size else _principal(points, rank)
        weights = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([weights], lr=self.lr)
        best, since = -np.inf, 0
        self.margins_: list[float] = []
        positives = negatives = torch.empty(0, dtype=torch.long)
        with bar("iterations", self.iterations) as advance:
            for iteration in range(self.iterations):
                chance = torch.Generator().manual_seed(derive(self.random_state, "arml", iteration) % 2**63)
                if iteration % max(1, self.refresh) == 0:
                    positives, negatives = nearest_of_each(
                        points @ weights.detach().T, kinds, used, self.neighbours
                    )
                total = 0.0
                for rows in torch.split(torch.randperm(len(used), generator=chance), self.batch):
                    x = points[used[rows]]
                    own, other = (points[_drawn(table[rows], chance)] for table in (positives, negatives))
                    margin = margins(weights, x, own, other)
                    optimiser.zero_grad()
                    (-margin.mean()).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    total += float(margin.detach().sum())
                self.margins_.append(total / len(used))
                advance(1, f"mean margin {self.margins_[-1]:.4f}")
                if self.margins_[-1] > best + self.tolerance * abs(best) or best == -np.inf:
                    best, since = self.margins_[-1], 0
                else:
                    since += 1
                if since >= self.patience:
                    break
        self.n_iter_ = len(self.margins_)
        found = weights.detach().double().numpy()
        # The certificates do not see the scale; one of norm 1 is easy to compare.
        self.components_ = found / np.linalg.norm(found, 2)
        return self

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Vectors whose Euclidean distance is the metric."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(X @ self.components_.T)

    def get_mahalanobis_matrix(self) -> NDArray[np.float64]:
        """M = GᵀG."""
        check_is_fitted(self)
        return np.asarray(self.components_.T @ self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def margins(weights: Tensor, x: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """ε̃ of each triplet, without the clamp; 0 where positive and negative are one and the same."""
    near, far, apart = (x - own) @ weights.T, (x - other) @ weights.T, (own - other) @ weights.T
    length = (apart @ weights).square().sum(1)
    gap = far.square().sum(1) - near.square().sum(1)
    return torch.where(length > 0, gap / (2 * length.clamp(min=1e-30).sqrt()), 0.0)


def nearest_of_each(z: Tensor, kinds: Tensor, used: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """For each of the points `used` the numbers of its nearest positives and negatives, block by block.

    Where a class has fewer than `count` others, its last one stands in their place more than once.
    """
    norms = z.square().sum(1)
    positives: list[Tensor] = []
    negatives: list[Tensor] = []
    for rows in torch.split(used, BLOCK):
        away = norms[None] - 2 * z[rows] @ z.T
        same = kinds[rows][:, None] == kinds[None]
        own = same.clone()
        own[torch.arange(len(rows)), rows] = False
        for table, mask in ((positives, own), (negatives, ~same)):
            ranked = away.masked_fill(~mask, torch.inf).topk(min(count, len(z)), largest=False)
            last = mask.sum(1).clamp(min=1) - 1
            places = torch.minimum(torch.arange(ranked.indices.shape[1])[None], last[:, None])
            table.append(ranked.indices.gather(1, places))
    return torch.cat(positives), torch.cat(negatives)


def _drawn(table: Tensor, chance: torch.Generator) -> Tensor:
    column = torch.randint(table.shape[1], (len(table), 1), generator=chance)
    return table.gather(1, column).squeeze(1)


def _partnered(kinds: Tensor) -> Tensor:
    """Which points share their class with another one."""
    return torch.bincount(kinds)[kinds] > 1


def _principal(points: Tensor, rank: int) -> Tensor:
    """The first directions of variance, to begin a low-rank metric with."""
    centred = points - points.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    found: Tensor = directions[:rank]
    return found
