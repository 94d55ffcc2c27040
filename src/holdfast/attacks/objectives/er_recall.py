"""The attacks behind ER-Recall (Kakizaki et al., Eq. 2, 4, 23, 24): raise something of another class."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from holdfast.attacks.draw import other_class
from holdfast.attacks.objectives.base import Given
from holdfast.attacks.objectives.candidate_rank import RaiseCandidate
from holdfast.attacks.objectives.query_rank import RaiseByQuery
from holdfast.errors import ConfigError

SOURCES = 100
"""Candidates that are altered for each query (section 5.1)."""


class ErQuery(RaiseByQuery):
    """The altered query raises one random candidate of another class (Eq. 2, drawn as for Eq. 23).

    Eq. 2 prints a sum over candidates; the mean has the same minimum. Which target is drawn depends on
    `seed` and the image's number alone.
    """

    name = "er-query"
    wants = "raise a random candidate of another class by altering the query"
    needs = ("gallery", "labels")
    in_suites = in_ers = False

    def __init__(self, given: Given, *, seed: int = 0, numbers: Sequence[int] | None = None, **options: Any):
        labels, classes = given.labels, given.classes
        if labels is not None and classes is not None:
            numbers = range(len(labels)) if numbers is None else numbers
            drawn = other_class(seed, numbers, labels, classes)
            given = dataclasses.replace(given, targets=drawn)
        super().__init__(given, **options)


class ErCandidates(RaiseCandidate):
    """Each altered image is a candidate of another class that is brought to one query (Eq. 4).

    `Given` has one row for each altered candidate; `er_sources` draws which they are.
    """

    name = "er-candidates"
    wants = "bring 100 random candidates of other classes to a query by altering them"
    in_suites = in_ers = False


def er_sources(
    given: Given, *, seed: int = 0, numbers: Sequence[int] | None = None, count: int = SOURCES
) -> Given:
    """What `ErCandidates` needs, from `queries` and their `labels`: `count` sources for each query, in turn.

    In the result `own` numbers the candidates to alter, `targets` the query each is brought to.
    """
    queries, labels, candidates = given.queries, given.labels, given.candidates
    if queries is None or labels is None or candidates is None or candidates.labels is None:
        raise ConfigError("er-candidates needs the queries' vectors and labels, and labelled candidates")
    numbers = range(len(queries)) if numbers is None else numbers
    own = other_class(seed, numbers, labels, candidates.labels, count)
    targets = torch.arange(len(queries)).repeat_interleave(count)
    return Given(candidates, candidates.labels[own.flatten()], targets, own.flatten(), queries)
