"""What every attacked evaluation shares: the scene, and ranks measured afresh."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.attacks import Attack, Candidates, Given, Settings, objective
from holdfast.data import ImageSet
from holdfast.errors import ConfigError
from holdfast.evaluate.folder import Task
from holdfast.metrics import Distances, rank
from holdfast.models import AnyEmbedder
from holdfast.threat import Threat

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Scene:
    """Queries, candidates, their vectors and labels. `own[i]` is the candidate that is query i, or -1."""

    images: ImageSet
    asked: Numbers
    found: Numbers
    queries: Tensor
    candidates: Tensor
    query_labels: Tensor
    candidate_labels: Tensor
    own: Tensor

    @property
    def gallery(self) -> Candidates:
        return Candidates(self.candidates, self.candidate_labels)

    @cached_property
    def to_candidates(self) -> Distances:
        return Distances(self.candidates)

    def first_ranks(self, span: slice, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        """Rank of the nearest right hit of the queries at `span` if their vectors were `vectors`.

        Ties count against the search; 0 where a query's class has no candidate.
        """
        blocks = rank(
            vectors,
            self.candidates if candidates is None else candidates,
            self.query_labels[span],
            self.candidate_labels,
            self_match=self.own[span],
            ks=(1,),
            top=1,
            quantiles=1,
        )
        return torch.cat([outcome.first_rank for _, outcome in blocks])


def set_scene(task: Task, asked: Numbers, found: Numbers) -> Scene:
    """The scene of a task; its vectors are kept until the rows are done."""
    images = task.images
    # Without labels no image has another of its kind: nothing is right, and no recall is known.
    labels = np.arange(len(images)) if images.labels is None else images.labels
    union = np.union1d(asked, found)
    vectors = task.vectors(union)
    where = {images.ids[c]: i for i, c in enumerate(found)}
    return Scene(
        images=images,
        asked=asked,
        found=found,
        queries=vectors[np.searchsorted(union, asked)],
        candidates=task.embedder.as_candidates(vectors[np.searchsorted(union, found)]),
        query_labels=torch.from_numpy(labels[asked]),
        candidate_labels=torch.from_numpy(labels[found]),
        own=torch.tensor([where.get(images.ids[q], -1) for q in asked]),
    )


def probe(embedder: AnyEmbedder, images: ImageSet, threat: Threat, settings: Settings) -> None:
    """Try one image for one step, so that what cannot work is refused before anything is written."""
    if threat.eps is None:
        raise ConfigError(f"an attack needs a number for eps, not {threat}; 'auto' is for certificates")
    if threat.eps == 0:
        raise ConfigError(f"{threat} leaves an attacker nothing to do; give an eps above 0")
    one = dataclasses.replace(settings, steps=1, restarts=1, budget=min(settings.budget, 23))
    settings.make(threat.eps)
    attack = Attack(objective("es", Given()), one.make(threat.eps), dataclasses.replace(threat, who="query"))
    attack.run(embedder, images.batch([0]))


def late(trajectory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The smallest loss at the start, with a tenth of the steps to go, and at the end."""
    steps = trajectory.shape[1] - 1
    return trajectory[:, 0], trajectory[:, steps - max(1, steps // 10)], trajectory[:, steps]
