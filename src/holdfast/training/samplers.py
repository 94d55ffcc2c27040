"""Which images make up a training step."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import ConfigError, DataError
from holdfast.randomness import generator


class Sampler(Protocol):
    """Says which images make up a step; a function of the step's number alone."""

    def indices(self, step: int) -> Tensor: ...


class Shuffled:
    """Plain batches: the images in the order of a fresh permutation on each pass.

    Batch `step` is a function of (number of images, seed, step) alone.
    """

    def __init__(self, images: int, batch: int, seed: int) -> None:
        if images < 1 or batch < 1:
            raise DataError(f"a batch of {batch} cannot be drawn from {images} images")
        self._images, self._batch, self._seed = images, batch, seed
        self._pass: tuple[int, Tensor] | None = None

    def indices(self, step: int) -> Tensor:
        """The images of batch `step`."""
        return self._take(step * self._batch, self._batch)

    def _take(self, first: int, count: int) -> Tensor:
        """`count` images from place `first` on in the endless row of permutations."""
        number, offset = divmod(first, self._images)
        if self._pass is None or self._pass[0] != number:
            order = torch.randperm(self._images, generator=generator(self._seed, "pass", number))
            self._pass = (number, order)
        here = self._pass[1][offset : offset + count]
        if len(here) == count:
            return here
        return torch.cat([here, self._take(first + len(here), count - len(here))])


class ClassGroups:
    """Batches of groups: `per_class` images of one class each, so that every image has a partner.

    Anchors go through a fresh permutation of the images on each pass; partners are drawn from the
    anchor's class. Batch `step` is a function of (labels, seed, step) alone.
    """

    def __init__(self, labels: NDArray[np.int64], batch: int, per_class: int, seed: int) -> None:
        if per_class < 2 or batch % per_class or batch // per_class < 2:
            raise ConfigError(
                f"a batch of {batch} cannot be made of groups of {per_class}: it must hold at least two whole groups"
            )
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise DataError(f"training needs images of at least two classes; found {len(classes)}")
        order = np.argsort(codes, kind="stable")
        counts = np.bincount(codes)
        self._members = torch.from_numpy(order)
        self._starts = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)[:-1]]))
        self._counts = torch.from_numpy(counts)
        self._codes = torch.from_numpy(codes)
        self._anchors = torch.nonzero(self._counts[self._codes] >= 2).squeeze(1)
        if len(self._anchors) == 0:
            raise DataError("training needs a class with at least two images; every class has one")
        rank = torch.empty_like(self._members)
        rank[self._members] = torch.arange(len(rank))
        self._rank_in_class = rank - self._starts[self._codes]
        self._groups = batch // per_class
        self._per_class = per_class
        self._seed = seed
        self._order = Shuffled(len(self._anchors), self._groups, seed)

    def indices(self, step: int) -> Tensor:
        """The images of batch `step`, group after group."""
        chance = generator(self._seed, "partners", step)
        anchors = self._anchors[self._order.indices(step)]
        if (self._codes[anchors] == self._codes[anchors[0]]).all():
            anchors = self._with_another_class(anchors, chance)
        codes = self._codes[anchors]
        counts = self._counts[codes][:, None]
        # A partner stands ≥ 1 places further round the class, so is never the anchor; the places differ
        # as long as the class has enough of them.
        moves = torch.stack([self._moves(int(count), chance) for count in self._counts[codes]])
        places = self._rank_in_class[anchors][:, None] + moves
        partners = self._members[self._starts[codes][:, None] + places % counts]
        return torch.cat([anchors[:, None], partners], 1).flatten()

    def _moves(self, count: int, chance: torch.Generator) -> Tensor:
        wanted, there = self._per_class - 1, max(count - 1, 1)
        if wanted == 1:
            return 1 + torch.randint(there, (1,), generator=chance)
        order = torch.randperm(there, generator=chance)
        return 1 + order.repeat(-(-wanted // there))[:wanted]

    def _with_another_class(self, anchors: Tensor, chance: torch.Generator) -> Tensor:
        """A batch of one class has no negatives: its last anchor gives way to one of another class.

        An image that is alone in its class will do here, with itself for a partner.
        """
        others = torch.nonzero(self._codes != self._codes[anchors[0]]).squeeze(1)
        drawn = others[torch.randint(len(others), (1,), generator=chance)]
        return torch.cat([anchors[:-1], drawn])


class SpreadGroups(ClassGroups):
    """The batches of `ClassGroups` with every group's first image in front, then every second one, …

    So any first part of the batch finds partners in the rest.
    """

    def indices(self, step: int) -> Tensor:
        return super().indices(step).view(self._groups, self._per_class).T.flatten()
