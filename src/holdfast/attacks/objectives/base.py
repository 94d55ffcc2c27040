"""What an attacker wants: objectives for all images, bound to wishes for a batch."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from holdfast.attacks.candidates import Candidates
from holdfast.errors import ConfigError, DataError

Need = Literal["gallery", "labels", "targets", "queries"]
Alters = Literal["query", "candidates"]
Draws = Literal["any", "near", "first", "other class"]
Measure = Literal["raised", "lowered", "cosine", "shift", "recall", "kept"]


class Assessment(NamedTuple):
    """How far a wish has come for each image; in all of it, less is better for the attacker."""

    loss: Tensor
    """What is minimised; the only part with a gradient."""
    score: Tensor
    """What the attacker counts in the end (a rank, a hit); iterates are judged by it, then by loss."""
    success: Tensor | None = None

    def better(self, other: Assessment) -> Tensor:
        """Where this is strictly better than `other`."""
        return (self.score < other.score) | ((self.score == other.score) & (self.loss < other.loss))

    def detach(self) -> Assessment:
        return Assessment(self.loss.detach(), self.score.detach(), self.success)

    def where(self, mask: Tensor, other: Assessment) -> Assessment:
        """This where `mask`, else `other`."""
        success = None
        if self.success is not None and other.success is not None:
            success = torch.where(mask, self.success, other.success)
        return Assessment(
            torch.where(mask, self.loss, other.loss), torch.where(mask, self.score, other.score), success
        )


@dataclass(frozen=True, eq=False)
class Wish(ABC):
    """What is wanted of each image of a batch, each for itself.

    A field that is a tensor has one row for each image; what images share is no tensor field.
    """

    least: ClassVar[float] = 0.0
    """No loss is below this; an image there is done and needs no gradient."""

    @abstractmethod
    def assess(self, seen: Tensor) -> Assessment:
        """The state of each wish, given what the model shows of each altered image."""

    def loss(self, seen: Tensor) -> Tensor:
        return self.assess(seen).loss

    def success(self, seen: Tensor) -> Tensor | None:
        return self.assess(seen).success

    def take(self, rows: Tensor) -> Self:
        """The wishes of some images, in that order; a row may come more than once."""
        changed = {
            field.name: value[rows] if isinstance(value, Tensor) else value.take(rows)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Tensor | Wish)
        }
        return dataclasses.replace(self, **changed)


@dataclass(frozen=True, eq=False)
class Given:
    """What the attacker knows and has chosen. Tensors but `queries` have one row for each altered image.

    `own` is the candidate that *is* the altered image, or -1: it never counts. `targets` are
    numbers (N or N×T): of candidates for objectives that alter queries, of `queries` for objectives
    that alter candidates. `labels` are the altered images' classes. An attacker who sees only lists of
    hits has no candidates, but perhaps `candidate_labels`.
    """

    candidates: Candidates | None = None
    labels: Tensor | None = None
    targets: Tensor | None = None
    own: Tensor | None = None
    queries: Tensor | None = None
    candidate_labels: Tensor | None = None

    @property
    def classes(self) -> Tensor | None:
        """The candidates' labels, wherever they are known from."""
        if self.candidate_labels is not None or self.candidates is None:
            return self.candidate_labels
        return self.candidates.labels


class Objective(ABC):
    """What is wanted of every image; `bind` makes the wishes of a batch.

    It checks what it is given when it is made, so that a mistake is found before any work.
    """

    name: ClassVar[str]
    wants: ClassVar[str]
    """In plain words, for the table of attacks."""
    alters: ClassVar[Alters] = "query"
    needs: ClassVar[tuple[Need, ...]] = ("gallery",)
    lists: ClassVar[bool] = True
    """Whether a wish can be read off a list of the nearest candidates alone."""
    nudge: ClassVar[bool] = False
    """Whether the gradient is zero at the clean image, so that the search must start beside it."""
    top: ClassVar[int] = 10
    """How long the list is that a target enters or leaves."""
    in_suites: ClassVar[bool] = True
    """Whether `evaluate --attacks` takes it by name; the attacks of ER-Recall have an evaluation of their own."""
    in_ers: ClassVar[bool] = False
    """Whether it is one of the nine attacks of ERS."""
    draws: ClassVar[Draws | None] = None
    """What a suite aims it at: any candidate, one of the nearest 1 %, the first hit, the first of another class."""
    measures: ClassVar[Measure] = "recall"
    """What a suite measures before and after (`holdfast.evaluate.trials.MEASURES`)."""
    part: ClassVar[str | None] = None
    """What tables call the number, where that is not the name in capitals."""

    @classmethod
    def number(cls) -> str:
        """What tables call the number that it reached."""
        return cls.part or cls.name.upper()

    def __init__(self, given: Given) -> None:
        self.given = given
        held: dict[Need, bool] = {
            "gallery": True,  # only once vectors are seen: see `candidates`
            "labels": given.labels is not None and given.classes is not None,
            "targets": given.targets is not None,
            "queries": given.queries is not None,
        }
        for need in self.needs:
            if not held[need]:
                raise self._lacks(need)
        rows = {len(t) for t in (given.labels, given.targets, given.own) if t is not None}
        if len(rows) > 1:
            raise DataError(f"labels, targets and own differ in number: {sorted(rows)}")
        self.rows: int | None = rows.pop() if rows else None
        """How many images it is made for; None: any number."""
        self._check_targets()

    def _lacks(self, need: Need) -> ConfigError:
        return ConfigError(f"the attack {self.name} needs {_NEEDED[need]}")

    def _check_targets(self) -> None:
        targets = self.given.targets
        pool = self.given.candidates if self.alters == "query" else self.given.queries
        if "targets" not in self.needs or targets is None or pool is None:
            return
        kind = "candidates" if self.alters == "query" else "queries"
        wrong = targets[(targets < 0) | (targets >= len(pool))]
        if len(wrong):
            raise DataError(f"target {int(wrong[0])} is not one of the {len(pool)} {kind} (numbered from 0)")

    @property
    def candidates(self) -> Candidates:
        if self.given.candidates is None:
            raise self._lacks("gallery")
        return self.given.candidates

    def targets(self, rows: slice) -> Tensor:
        """The targets of some images, B×T."""
        assert self.given.targets is not None
        return self.given.targets[rows].reshape(len(self.given.targets[rows]), -1)

    def own(self, rows: slice, clean: Tensor) -> Tensor:
        """The candidate that each image is, or -1."""
        if self.given.own is None:
            return torch.full((len(clean),), -1, device=clean.device)
        return self.given.own[rows].to(clean.device)

    @abstractmethod
    def bind(self, rows: slice, clean: Tensor) -> Wish:
        """The wishes for the images at `rows`, whose clean vectors are `clean`."""

    def bind_lists(self, rows: slice, clean: Tensor) -> Wish:
        """As `bind`, where the model shows candidate numbers, nearest first (-1: none), and no vectors."""
        raise ConfigError(f"the attack {self.name} needs vectors; a list of hits does not show its goal")


_NEEDED: dict[str, str] = {
    "gallery": "the candidates' vectors: Given(candidates=Candidates(vectors))",
    "labels": "labels of the images and of the candidates: put the images into one folder per class",
    "targets": "a target for each image: Given(targets=...)",
    "queries": "the vectors of the queries it is aimed at: Given(queries=...)",
}


def without_own(same: Tensor, own: Tensor) -> Tensor:
    """`same` (B×N) with the image itself, where it is a candidate, taken out."""
    rows = (own >= 0).nonzero().squeeze(1)
    same = same.clone()
    same[rows, own[rows]] = False
    return same
