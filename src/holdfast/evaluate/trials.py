"""The trials of the attacks of ERS: what is altered, what it is aimed at, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.attacks import OBJECTIVES, Candidates, Given, near_targets, random_targets
from holdfast.evaluate.attacked import Numbers, Scene, unit_shift

ATTACKS = ("ca+", "ca-", "qa+", "qa-", "tma", "es", "ltm", "gtm", "gtt")
"""The attacks of ERS; embedding shift gives two of its ten numbers."""
GTM_PUBLISHED = "gtm-published"
"""GTM with the target mistake of the public reference code: beside the others where the search is the published one."""
TOP = 10
"""CA± and QA± succeed when the raised one enters, or the lowered one leaves, the top 10."""
GTT_TOP = 4
TOWARDS = {
    "ca+": -1,
    "ca-": 1,
    "qa+": -1,
    "qa-": 1,
    "tma": 1,
    "es": 1,
    "ltm": -1,
    "gtm": -1,
    "gtt": -1,
    GTM_PUBLISHED: -1,
}
"""The sign of `after` − `before` that the attacker wants."""


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
    rows = slice(span.start, span.stop)
    if OBJECTIVES[attack].alters == "candidates":
        return _on_candidates(scene, gallery, attack, seed, span)
    clean, own = scene.queries[rows], scene.own[rows]
    numbers = scene.asked[rows].tolist()
    targets = None
    if attack in ("qa+", "tma"):
        targets = random_targets(seed, numbers, len(gallery), own)
    elif attack == "qa-":
        targets = near_targets(seed, numbers, clean, gallery, own)
    elif attack in ("gtm", "gtt"):
        away, _ = scene.to_candidates.squared(clean)
        away[_one_hot(own, len(gallery))] = torch.inf
        if attack == "gtm":
            same = scene.query_labels[rows, None] == scene.candidate_labels[None]
            away = away.masked_fill(same, torch.inf)
        targets = away.argmin(1)
    # GTM and GTT choose what they aim at themselves, as an attacker does; here it is only named.
    given = Given(gallery, scene.query_labels[rows], None if attack in ("gtm", "gtt") else targets, own)
    return Trials(attack, span, scene.asked[rows], numbers, clean, given, targets)


def _on_candidates(scene: Scene, gallery: Candidates, attack: str, seed: int, span: range) -> Trials:
    chosen = torch.tensor([i % len(gallery) for i in span])
    # The second time round an image gets another target.
    numbers = [int(scene.found[i % len(gallery)]) + i // len(gallery) * len(scene.images) for i in span]
    itself = {int(c): q for q, c in enumerate(scene.own.tolist()) if c >= 0}
    own = torch.tensor([itself.get(int(c), -1) for c in chosen])
    clean = scene.candidates[chosen]
    if attack == "ca+":
        targets = random_targets(seed, numbers, len(scene.queries), own)
    else:
        targets = near_targets(seed, numbers, clean, Candidates(scene.queries), own)
    given = Given(gallery, scene.candidate_labels[chosen], targets, chosen, scene.queries)
    return Trials(attack, span, scene.found[chosen.numpy()], numbers, clean, given, targets)


def measure(scene: Scene, trials: Trials, vectors: Tensor) -> dict[str, list[Any]]:
    """What the altered images do, from their `vectors` alone: one column for each thing measured.

    `before` and `after` are percentages of candidates ranked before the target (CA±, QA±), cosines
    (TMA), how far the vector's direction moved (ES), and percentages of trials that hold (LTM, GTM:
    the first hit is of the query's class; GTT: the first hit is still in the top 4). Every tie counts
    against the search.
    """
    name = trials.attack
    count = len(vectors)
    shift = unit_shift(trials.clean, vectors)
    recall = [torch.full((count,), -1), torch.full((count,), -1)]
    if OBJECTIVES[name].alters == "query":
        span = slice(trials.span.start, trials.span.stop)
        firsts = [scene.first_ranks(span, v) for v in (trials.clean, vectors)]
        recall = [torch.where(first > 0, (first == 1).long(), -1) for first in firsts]
    success = torch.full((count,), -1)
    states = []
    for v, hit in zip((trials.clean, vectors), recall, strict=True):
        if name in ("ca+", "ca-", "qa+", "qa-", "gtt"):
            ahead, of = _ahead(scene, trials, v)
            if name == "gtt":
                states.append(100.0 * (ahead < GTT_TOP).double())
                success = (ahead >= GTT_TOP).long()
            else:
                states.append(100.0 * ahead.double() / of)
                success = ((ahead < TOP) if name.endswith("+") else (ahead >= TOP)).long()
        elif name == "tma":
            assert trials.targets is not None
            states.append(torch.cosine_similarity(v.double(), scene.candidates[trials.targets].double()))
        elif name == "es":
            states.append(unit_shift(trials.clean, v))
        else:
            states.append(torch.where(hit < 0, torch.nan, 100.0 * hit.double()))
            success = torch.where(hit < 0, -1, 1 - hit)
    if name == "gtt":
        # What is first is in the top 4, whatever ties with it.
        states[0] = torch.full((count,), 100.0)
    return {
        "before": states[0].tolist(),
        "after": states[1].tolist(),
        "recall_before": recall[0].tolist(),
        "recall_after": recall[1].tolist(),
        "shift": shift.tolist(),
        "success": success.tolist(),
    }


def target_ids(scene: Scene, trials: Trials) -> list[str]:
    """The ids of what the trials are aimed at; empty where an attack aims at nothing in particular."""
    if trials.targets is None:
        return [""] * len(trials.span)
    pool = scene.found if OBJECTIVES[trials.attack].alters == "query" else scene.asked
    return [scene.images.ids[pool[t]] for t in trials.targets.tolist()]


def _ahead(scene: Scene, trials: Trials, vectors: Tensor) -> tuple[Tensor, Tensor]:
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
    before = away < at - tie if trials.attack.endswith("+") else away <= at + tie
    return (before & ~absent).sum(1), (~absent).sum(1) + 1


def _one_hot(numbers: Tensor, count: int) -> Tensor:
    """A row for each number, true at that number; all false for -1."""
    out: Tensor = torch.arange(count)[None] == numbers[:, None]
    return out


def damage(attack: str, before: Any, after: Any) -> Any:
    """How far each trial went the attacker's way."""
    return np.nan_to_num(TOWARDS[attack] * (np.asarray(after) - np.asarray(before)))
