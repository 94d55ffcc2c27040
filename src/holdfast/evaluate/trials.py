"""The trials of the attacks of ERS: what is altered, what it is aimed at, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.attacks import OBJECTIVES, Candidates, Given, near_targets, random_targets
from holdfast.attacks.objectives.base import Measure
from holdfast.evaluate.attacked import Numbers, Scene
from holdfast.metrics import unit_shift

ERS = tuple(name for name, kind in OBJECTIVES.items() if kind.in_ers)
"""The attacks of ERS; embedding shift gives two of its ten numbers."""


@dataclass(frozen=True, eq=False)
class Trials:
    """Some trials of one attack; every field has one row for each."""

    attack: str
    span: range
    altered: Numbers
    """The altered images, as numbers of the image set."""
    numbers: list[int]
    """What random numbers are drawn by."""
    clean: Tensor
    given: Given
    targets: Tensor | None
    """Candidates (query attacks) or queries (candidate attacks) that are aimed at."""


def make_trials(scene: Scene, gallery: Candidates, attack: str, seed: int, span: range) -> Trials:
    """Trials `span` of an attack: the i-th query, or for attacks on candidates the i-th candidate (in turn).

    A raised target is any candidate (for CA+ the query it is raised for is any query), a lowered one is
    of the nearest 1 %; both are drawn by the seed and the image's number alone.
    """
    kind, rows = OBJECTIVES[attack], slice(span.start, span.stop)
    if kind.alters == "candidates":
        return _on_candidates(scene, gallery, attack, seed, span)
    clean, own = scene.queries[rows], scene.own[rows]
    numbers = scene.asked[rows].tolist()
    targets = None
    if kind.draws == "any":
        targets = random_targets(seed, numbers, len(gallery), own)
    elif kind.draws == "near":
        targets = near_targets(seed, numbers, clean, gallery, own)
    elif kind.draws is not None:
        away, _ = scene.to_candidates.squared(clean)
        away[_one_hot(own, len(gallery))] = torch.inf
        if kind.draws == "other class":
            same = scene.query_labels[rows, None] == scene.candidate_labels[None]
            away = away.masked_fill(same, torch.inf)
        targets = away.argmin(1)
    # An objective that needs no targets chooses what it aims at itself, as an attacker does; here it is only named.
    told = targets if "targets" in kind.needs else None
    given = Given(gallery, scene.query_labels[rows], told, own)
    return Trials(attack, span, scene.asked[rows], numbers, clean, given, targets)


def _on_candidates(scene: Scene, gallery: Candidates, attack: str, seed: int, span: range) -> Trials:
    chosen = torch.tensor([i % len(gallery) for i in span])
    # The second time round an image gets another target.
    numbers = [int(scene.found[i % len(gallery)]) + i // len(gallery) * len(scene.images) for i in span]
    itself = {int(c): q for q, c in enumerate(scene.own.tolist()) if c >= 0}
    own = torch.tensor([itself.get(int(c), -1) for c in chosen])
    clean = scene.candidates[chosen]
    if OBJECTIVES[attack].draws == "any":
        targets = random_targets(seed, numbers, len(scene.queries), own)
    else:
        targets = near_targets(seed, numbers, clean, Candidates(scene.queries), own)
    given = Given(gallery, scene.candidate_labels[chosen], targets, chosen, scene.queries)
    return Trials(attack, span, scene.found[chosen.numpy()], numbers, clean, given, targets)


def measure(scene: Scene, trials: Trials, vectors: Tensor) -> dict[str, list[Any]]:
    """What the altered images do, from their `vectors` alone: one column for each thing measured.

    `before` and `after` are what the objective `measures`. Every tie counts against the search.
    """
    kind = OBJECTIVES[trials.attack]
    how = MEASURES[kind.measures]
    none = torch.full((len(vectors),), -1)
    recall = [none, none]
    if kind.alters == "query":
        span = slice(trials.span.start, trials.span.stop)
        firsts = [scene.first_ranks(span, v) for v in (trials.clean, vectors)]
        recall = [torch.where(first > 0, (first == 1).long(), -1) for first in firsts]
    before, _ = how.state(scene, trials, trials.clean, recall[0])
    after, success = how.state(scene, trials, vectors, recall[1])
    if how.before is not None:
        before = torch.full_like(before, how.before)
    return {
        "before": before.tolist(),
        "after": after.tolist(),
        "recall_before": recall[0].tolist(),
        "recall_after": recall[1].tolist(),
        "shift": unit_shift(trials.clean, vectors).tolist(),
        "success": (none if success is None else success.long()).tolist(),
    }


def target_ids(scene: Scene, trials: Trials) -> list[str]:
    """The ids of what the trials are aimed at; empty where an attack aims at nothing in particular."""
    if trials.targets is None:
        return [""] * len(trials.span)
    pool = scene.found if OBJECTIVES[trials.attack].alters == "query" else scene.asked
    return [scene.images.ids[pool[t]] for t in trials.targets.tolist()]


State = tuple[Tensor, Tensor | None]
"""A number for each trial, and whether the attacker has what he wants (-1: cannot be said; None: no yes or no)."""


def _raised(scene: Scene, trials: Trials, vectors: Tensor, right: Tensor) -> State:
    ahead, of = _ahead(scene, trials, vectors, ties=False)
    return 100.0 * ahead.double() / of, ahead < OBJECTIVES[trials.attack].top


def _lowered(scene: Scene, trials: Trials, vectors: Tensor, right: Tensor) -> State:
    ahead, of = _ahead(scene, trials, vectors, ties=True)
    return 100.0 * ahead.double() / of, ahead >= OBJECTIVES[trials.attack].top


def _kept(scene: Scene, trials: Trials, vectors: Tensor, right: Tensor) -> State:
    ahead, _ = _ahead(scene, trials, vectors, ties=True)
    gone = ahead >= OBJECTIVES[trials.attack].top
    return 100.0 * (~gone).double(), gone


def _cosine(scene: Scene, trials: Trials, vectors: Tensor, right: Tensor) -> State:
    assert trials.targets is not None
    return torch.cosine_similarity(vectors.double(), scene.candidates[trials.targets].double()), None


def _shift(scene: Scene, trials: Trials, vectors: Tensor, right: Tensor) -> State:
    return unit_shift(trials.clean, vectors), None


def _recall(scene: Scene, trials: Trials, vectors: Tensor, right: Tensor) -> State:
    return torch.where(right < 0, torch.nan, 100.0 * right.double()), torch.where(right < 0, -1, 1 - right)


@dataclass(frozen=True)
class Measurement:
    """One way to measure trials."""

    state: Callable[[Scene, Trials, Tensor, Tensor], State]
    """Of these vectors; the last argument is whether each query's first hit is right (-1: its class has no other)."""
    towards: int
    """The sign of `after` - `before` that the attacker wants."""
    digits: int = 1
    """After the point, in tables."""
    before: float | None = None
    """What it is without an attack, where that needs no measuring."""


MEASURES: dict[Measure, Measurement] = {
    "raised": Measurement(_raised, -1),
    "lowered": Measurement(_lowered, 1),
    "cosine": Measurement(_cosine, 1, digits=3),
    "shift": Measurement(_shift, 1, digits=3),
    "recall": Measurement(_recall, -1),
    # What is first is in the top 4, whatever ties with it.
    "kept": Measurement(_kept, -1, before=100.0),
}
"""Percent of the candidates before the target (raised, lowered), its cosine, how far the vector's direction moved, and
percent of the trials that hold: the first hit is of the query's class (recall), or the first hit is still in the
objective's `top` (kept)."""


def _ahead(scene: Scene, trials: Trials, vectors: Tensor, *, ties: bool) -> tuple[Tensor, Tensor]:
    """How many candidates are ranked before the target of each trial, and how many can be, with itself."""
    assert trials.targets is not None
    targets, n = trials.targets, len(scene.candidates)
    assert trials.given.own is not None
    if OBJECTIVES[trials.attack].alters == "query":
        away, tie = scene.to_candidates.squared(vectors)
        at = away.gather(1, targets[:, None])
        absent = _one_hot(trials.given.own, n) | _one_hot(targets, n)
    else:
        asking = scene.queries[targets]
        away, tie = scene.to_candidates.squared(asking)
        at = (vectors.double() - asking.double()).square().sum(1, keepdim=True)
        absent = _one_hot(trials.given.own, n) | _one_hot(scene.own[targets], n)
    before = away <= at + tie if ties else away < at - tie
    return (before & ~absent).sum(1), (~absent).sum(1) + 1


def _one_hot(numbers: Tensor, count: int) -> Tensor:
    """A row for each number, true at that number; all false for -1."""
    out: Tensor = torch.arange(count)[None] == numbers[:, None]
    return out


def towards(attack: str) -> int:
    """The sign of `after` - `before` that the attacker wants."""
    return MEASURES[OBJECTIVES[attack].measures].towards


def damage(attack: str, before: Any, after: Any) -> Any:
    """How far each trial went the attacker's way."""
    return np.nan_to_num(towards(attack) * (np.asarray(after) - np.asarray(before)))
