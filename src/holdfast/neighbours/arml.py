"""ARML: a Mahalanobis metric trained for certified neighbours (Wang, Chen, Yi, Chen, Hsieh 2020).

For a training point x with a positive x⁺ and a negative x⁻ near it, the distance of x to where the two are equally
near is ε̃ = (d_M(x, x⁻) − d_M(x, x⁺)) / (2‖M(x⁺ − x⁻)‖₂), M = GᵀG. The loss is the mean of −ε̃ (the rebuttal, R3.2),
without a clamp, from G = I on. Which pair of x⁺ and x⁻ speaks for x is the choice of `pairs`:

* `random`, as in the paper, and the default: both are drawn from the nearest few under the metric as it is (R3.3);
* `critical`: the pair that the certificate itself names, min over negatives of max over positives of ε̃, among the
  nearest few. Its ε̃ is the point's certified radius for K = 1 (up to neighbours farther away), so what rises is
  the mean of what the training points are certified for. That mean can rise at the expense of points with little
  (Splice), and one pair a point is soon learned by heart where features are many (Fashion-MNIST).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save as serialise
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from holdfast.files import atomic_write
from holdfast.progress import bar
from holdfast.randomness import derive, generator

BLOCK = 1024


class ARML(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The learner, with the conventions of scikit-learn and metric-learn.

    `rank`: rows of G (all features if None); `neighbours`: how many of the nearest a positive or negative is
    taken from; `refresh`: after how many iterations the nearest are sought anew, and the critical pairs chosen
    anew; an iteration uses every training point once, and the step falls from `lr` to 0 over all of them. It stops
    early when the mean ε̃, as the nearest are sought anew, has not risen by `tolerance` of itself `patience` times
    in a row; the metric is the best of those moments and of the end. With `checkpoint`, a file, a stopped `fit`
    goes on where it was when it is called again with the same vectors and settings.
    """

    def __init__(
        self,
        rank: int | None = None,
        iterations: int = 100,
        neighbours: int = 10,
        refresh: int = 20,
        pairs: Literal["critical", "random"] = "random",
        batch: int = 512,
        lr: float = 0.01,
        patience: int = 2,
        tolerance: float = 1e-3,
        random_state: int = 0,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.rank = rank
        self.iterations = iterations
        self.neighbours = neighbours
        self.refresh = refresh
        self.pairs = pairs
        self.batch = batch
        self.lr = lr
        self.patience = patience
        self.tolerance = tolerance
        self.random_state = random_state
        self.checkpoint = checkpoint

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from vectors and their classes."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("a metric is learned from at least 2 classes; found 1 class")
        if self.pairs not in ("critical", "random"):
            raise ValueError(f"pairs are critical or random, not {self.pairs!r}")
        for name in ("iterations", "neighbours", "refresh", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        # Margins do not see a shift, and float32 has the more digits for them the nearer to 0 the vectors are.
        points = torch.from_numpy(np.array(X - X.mean(0), dtype=np.float32))
        kinds = torch.from_numpy(labels.reshape(-1))
        if not (torch.bincount(kinds) > 1).any():
            raise ValueError("no class has 2 samples, so there is no positive to draw")
        size = points.shape[1]
        rank = size if self.rank is None else min(int(self.rank), size)
        start = torch.eye(size) if rank == size else _principal(points, rank)
        found = self._learn(points, kinds, start)
        # The certificates do not see the scale; one of norm 1 is easy to compare.
        self.components_ = found / np.linalg.norm(found, 2)
        return self

    def _learn(self, points: Tensor, kinds: Tensor, start: Tensor) -> NDArray[np.float64]:
        used = (torch.bincount(kinds)[kinds] > 1).nonzero().squeeze(1)
        state = _State(start, self.lr)
        file = None if self.checkpoint is None else Path(self.checkpoint)
        about = {**self.get_params(), "checkpoint": None}
        content = hashlib.sha256(points.numpy().tobytes() + kinds.numpy().tobytes()).hexdigest()
        same = derive(0, repr(about), content)
        if file is not None:
            state.restore(file, same)
        tables = (torch.empty(0, dtype=torch.long),) * 2
        with bar("iterations", self.iterations, state.iteration) as advance:
            while state.iteration < self.iterations:
                chance = generator(self.random_state, "arml", state.iteration)
                if state.iteration % self.refresh == 0:
                    if file is not None:
                        atomic_write(file, state.content(same))
                    tables = nearest_of_each(points @ state.weights.detach().T, kinds, used, self.neighbours)
                    chosen, margin = critical(points, state.weights.detach(), used, *tables)
                    state.judge(float(margin.mean()), self.tolerance)
                    if state.since >= self.patience:
                        break
                    tables = chosen if self.pairs == "critical" else tables
                self._pass(points, used, tables, state, chance)
                state.iteration += 1
                advance(1, f"mean margin {state.margins[-1]:.4f}")
            else:
                tables = nearest_of_each(points @ state.weights.detach().T, kinds, used, self.neighbours)
                state.judge(
                    float(critical(points, state.weights.detach(), used, *tables)[1].mean()), self.tolerance
                )
        if file is not None:
            file.unlink(missing_ok=True)
        self.n_iter_ = state.iteration
        self.margins_ = state.margins
        return state.best.double().numpy()

    def _pass(
        self,
        points: Tensor,
        used: Tensor,
        tables: tuple[Tensor, Tensor],
        state: _State,
        chance: torch.Generator,
    ) -> None:
        """Every point once."""
        batches = torch.split(torch.randperm(len(used), generator=chance), self.batch)
        for number, rows in enumerate(batches):
            done = (state.iteration + number / len(batches)) / self.iterations
            state.optimiser.param_groups[0]["lr"] = self.lr * (1 - done)
            own, other = (points[_drawn(table[rows], chance)] for table in tables)
            margin = margins(state.weights, points[used[rows]], own, other)
            state.optimiser.zero_grad()
            (-margin.mean()).backward()  # type: ignore[no-untyped-call]
            state.optimiser.step()

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


class _State:
    """What changes while a metric is learned."""

    def __init__(self, start: Tensor, lr: float) -> None:
        self.weights = start.clone().requires_grad_()
        self.optimiser = torch.optim.Adam([self.weights], lr=lr)
        self.best = start.clone()
        self.margins: list[float] = []
        self.iteration = self.since = 0

    def judge(self, margin: float, tolerance: float) -> None:
        """Take note of the mean ε̃ of the metric as it is."""
        highest = max(self.margins, default=-np.inf)
        if margin > highest:
            self.best = self.weights.detach().clone()
        self.since = 0 if not self.margins or margin > highest + tolerance * abs(highest) else self.since + 1
        self.margins.append(margin)

    def content(self, same: int) -> bytes:
        """Everything, as the bytes of a file; `same` tells one learner and its vectors from others."""
        kept = self.optimiser.state[self.weights]
        tensors = {
            "weights": self.weights.detach(),
            "best": self.best,
            "margins": torch.tensor(self.margins, dtype=torch.float64),
            "counts": torch.tensor([self.iteration, self.since, same]),
            **{f"adam.{name}": value for name, value in kept.items()},
        }
        return serialise(tensors)

    def restore(self, file: Path, same: int) -> None:
        """Go on from `file`, if it is there and was written by the same learner for the same vectors."""
        if not file.exists():
            return
        try:
            tensors = parse(file.read_bytes())
            iteration, since, whose = tensors["counts"].tolist()
        except (SafetensorError, KeyError, ValueError):
            raise ValueError(f"{file} is not a checkpoint of a metric; remove it to begin anew") from None
        if whose != same:
            raise ValueError(f"{file} belongs to other vectors or settings; remove it to begin anew")
        with torch.no_grad():
            self.weights.copy_(tensors["weights"])
        self.best, self.margins = tensors["best"], tensors["margins"].tolist()
        self.iteration, self.since = iteration, since
        kept = {name[5:]: value for name, value in tensors.items() if name.startswith("adam.")}
        if kept:
            self.optimiser.state[self.weights] = kept


def margins(weights: Tensor, x: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """ε̃ of each triplet, without the clamp; 0 where positive and negative are one and the same.

    d_M(x, x⁻) − d_M(x, x⁺) = (x⁺ − x⁻)ᵀM(2x − x⁺ − x⁻), so that M(x⁺ − x⁻) is all that the metric has to be applied to.
    """
    apart: Tensor = torch.linalg.multi_dot([own - other, weights.T, weights])
    length = apart.square().sum(1)
    gap = (apart * (2 * x - own - other)).sum(1)
    return torch.where(length > 0, gap / (2 * length.clamp(min=1e-30).sqrt()), 0.0)


def critical(
    points: Tensor, weights: Tensor, used: Tensor, positives: Tensor, negatives: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """For each of the points `used` the pair that decides min over negatives of max over positives of ε̃, and that.

    The pair is two columns of one number each; the candidates are the tables' rows.
    """
    z = points @ weights.T
    u = z @ weights
    squares, lengths = z.square().sum(1), u.square().sum(1)
    own, other, least = [], [], []
    for rows in torch.split(torch.arange(len(used)), BLOCK):
        ours, theirs, x = positives[rows], negatives[rows], z[used[rows]][:, :, None]
        near, far = (squares[table] - 2 * torch.bmm(z[table], x).squeeze(2) for table in (ours, theirs))
        apart = lengths[ours][:, :, None] + lengths[theirs][:, None]
        apart = apart - 2 * torch.bmm(u[ours], u[theirs].transpose(1, 2))
        gap = far[:, None] - near[:, :, None]
        margin = torch.where(apart > 1e-6 * lengths.max(), gap / (2 * apart.clamp(min=1e-30).sqrt()), 0.0)
        highest = margin.max(1)
        worst = highest.values.min(1)
        column = worst.indices[:, None]
        own.append(ours.gather(1, highest.indices.gather(1, column)))
        other.append(theirs.gather(1, column))
        least.append(worst.values)
    return (torch.cat(own), torch.cat(other)), torch.cat(least)


def nearest_of_each(z: Tensor, kinds: Tensor, used: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """For each of the points `used` the numbers of its nearest positives and negatives, class by class in blocks.

    Where a class has fewer than `count` others, its last one stands in their place more than once.
    """
    positives, negatives = (torch.empty(len(z), count, dtype=torch.long) for _ in range(2))
    for kind in torch.unique(kinds[used]):
        inside = (kinds == kind).nonzero().squeeze(1)
        outside = (kinds != kind).nonzero().squeeze(1)
        positives[inside] = _filled(_nearest(z, inside, inside, count + 1)[:, 1:], count)
        negatives[inside] = _filled(_nearest(z, inside, outside, count), count)
    return positives[used], negatives[used]


def _nearest(z: Tensor, asked: Tensor, among: Tensor, count: int) -> Tensor:
    """The numbers of the nearest `among` some points; a point that is asked for itself comes first."""
    known = z[among]
    norms = known.square().sum(1)
    itself = asked is among
    parts = []
    for first in range(0, len(asked), BLOCK):
        away = torch.addmm(norms[None], z[asked[first : first + BLOCK]], known.T, alpha=-2)
        if itself:
            rows = torch.arange(len(away))
            away[rows, rows + first] = -torch.inf
        parts.append(among[away.topk(min(count, len(among)), largest=False).indices])
    return torch.cat(parts)


def _filled(table: Tensor, count: int) -> Tensor:
    """The table with its last column repeated until there are `count`."""
    return table[:, torch.arange(count).clamp(max=table.shape[1] - 1)]


def _drawn(table: Tensor, chance: torch.Generator) -> Tensor:
    if table.shape[1] == 1:
        return table[:, 0]
    column = torch.randint(table.shape[1], (len(table), 1), generator=chance)
    return table.gather(1, column).squeeze(1)


def _principal(points: Tensor, rank: int) -> Tensor:
    """The first directions of variance, to begin a low-rank metric with."""
    centred = points - points.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    found: Tensor = directions[:rank]
    return found
