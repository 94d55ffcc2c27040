"""Whether the order within a class means something: how alike two rankings of one class are."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.errors import DataError


def class_overlap(one: Tensor, other: Tensor, same: Tensor, k: int = 10) -> Tensor:
    """For each query the share of the k nearest same-class candidates by `one` that are so by `other` too.

    `one` and `other` are distances (queries × candidates), `same` says which candidates are of the query's class.
    A query of a class with no more than k candidates tells nothing and gets NaN. Between equal distances the
    candidate that comes first counts.
    """
    if one.shape != other.shape or one.shape != same.shape or one.ndim != 2:
        raise DataError(
            f"two rankings are compared query by query: {tuple(one.shape)}, {tuple(other.shape)} and "
            f"{tuple(same.shape)} differ"
        )
    if k < 1:
        raise DataError(f"k must be at least 1, found {k}")
    nearest = [_nearest(distance, same, k) for distance in (one, other)]
    shared = (nearest[0] & nearest[1]).sum(1).double() / k
    return torch.where(same.sum(1) > k, shared, torch.nan)


def chance_overlap(same: Tensor, k: int = 10) -> Tensor:
    """What `class_overlap` is on average for a random order: k of the candidates of the class."""
    count = same.sum(1).double()
    return torch.where(count > k, k / count, torch.nan)


def _nearest(distance: Tensor, same: Tensor, k: int) -> Tensor:
    far = torch.where(same, distance.double(), torch.inf)
    first = far.sort(dim=1, stable=True).indices[:, :k]
    return torch.zeros_like(same).scatter(1, first, True) & same
