"""Targets drawn by (seed, image number): the same whatever the batch, the order or the part that is run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.attacks.candidates import Candidates
from holdfast.errors import DataError
from holdfast.randomness import generator


def random_targets(seed: int, numbers: Sequence[int], count: int, own: Tensor | None = None) -> Tensor:
    """One of `count` candidates (or queries) for each image, any but itself."""
    out = []
    for row, number in enumerate(numbers):
        skip = -1 if own is None else int(own[row])
        choices = count - (skip >= 0)
        if choices < 1:
            raise DataError("there is no candidate but the image itself to aim at")
        drawn = int(torch.randint(choices, (), generator=generator(seed, "target", number)))
        out.append(drawn + (0 <= skip <= drawn))
    return torch.tensor(out, dtype=torch.int64)


def near_targets(
    seed: int,
    numbers: Sequence[int],
    vectors: Tensor,
    candidates: Candidates,
    own: Tensor | None = None,
    share: float = 0.01,
) -> Tensor:
    """One of the nearest `share` of the candidates of each vector, at least one, never itself.

    For attacks that lower what ranks high: QA− with the queries' vectors against the candidates;
    CA− with the altered candidates' vectors against the queries.
    """
    reach = max(1, round(share * len(candidates)))
    out = []
    for row, number in enumerate(numbers):
        distance = candidates.distances(vectors[row : row + 1])[0]
        if own is not None and own[row] >= 0:
            distance = distance.clone()
            distance[own[row]] = torch.inf
        top = distance.topk(reach, largest=False).indices
        out.append(int(top[torch.randint(reach, (), generator=generator(seed, "near", number))]))
    return torch.tensor(out, dtype=torch.int64)


def other_class(
    seed: int, numbers: Sequence[int], labels: Tensor, candidate_labels: Tensor, count: int = 1
) -> Tensor:
    """`count` different candidates of other classes for each image, N×count."""
    out = []
    for row, number in enumerate(numbers):
        pool = (candidate_labels != labels[row]).nonzero().squeeze(1)
        if len(pool) < count:
            raise DataError(f"image {number} has {len(pool)} candidates of other classes, {count} are needed")
        chosen = torch.randperm(len(pool), generator=generator(seed, "other", number))[:count]
        out.append(pool[chosen])
    return torch.stack(out) if out else torch.zeros((0, count), dtype=torch.int64)
