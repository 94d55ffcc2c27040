"""What the rows of a smoothed search say: certified recall rule by rule, and attacks beside it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from holdfast.metrics import bootstrap
from holdfast.rows import Rows

Vectors = NDArray[np.float64]
RULES = ("paper", "ball", "half-space", "cdf", "votes", "item", "deployed")
"""The printed form; tight forms for the query's own class, with all of α; the majority of noisy copies; the first
candidate itself; and what the deployed search states of the class of the nearest, with its share of α."""
_BEFORE = {"mean": "cdf", "votes": "votes"}
"""What rows of before hold beside attacks: the deployed rule's radius with all of α."""
SIZES = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
"""The radii of the table, in units of σ."""


@dataclass(frozen=True)
class Line:
    """One rule at one K and number of samples: recall of the smoothed search, and what is certified."""

    rule: str
    k: int
    queries: int
    recall: float
    """For `item`: how often the candidate that was first by the samples that choose is among the K."""
    certified: float
    """Share of the queries with a right hit and a radius above 0."""
    rejected: float
    """Share with a right hit and no radius: the samples do not settle it."""
    mean_radius: float
    """Over all queries, 0 where nothing is certified."""
    radii: tuple[float, ...]
    recall_at: tuple[float, ...]
    """Recall@K(r) at each of `radii`."""
    interval: tuple[float, float]
    """Of `mean_radius`."""
    n: int = 0
    """Samples that answered."""
    alpha: float = 0.0
    """The probability with which each radius is too large, at most."""


@dataclass(frozen=True)
class AttackLine:
    """Attacks within one ℓ2 size, beside what is certified there, for the first hit's class."""

    eps: float
    queries: int
    recall: float
    """Of the clean queries."""
    attacked: float
    """Recall@1 of the altered queries."""
    certified: float
    """Recall@1(eps) by what the deployed search states."""
    forced: float
    """Share of the queries about which the search abstains once they are altered, and did not before."""
    contradicted: int
    """Certified queries that were brought to a wrong answer of which the search is sure. Each of the two statements
    is wrong with probability at most α: no more than 2α of the queries may be."""


def smoothed_tables(rows: Rows) -> tuple[tuple[Line, ...], tuple[AttackLine, ...]]:
    """What the rows say, rule by rule and attack by attack."""
    return _table(rows), _attack_table(rows)


def rules_in(rows: Rows, k: int) -> tuple[str, ...]:
    """The rules of which the rows speak: older ones lack some."""
    return tuple(rule for rule in rules_of(k) if f"{rule}_{k}" in rows.columns)


def deployed_in(rows: Rows) -> str:
    """The rule that certifies the deployed search, whose abstentions and attacks the rows count."""
    if "deployed_1" in rows.columns:
        return "deployed"
    return _BEFORE[rows.header["config"]["noise"].get("rule", "mean")]


def rules_of(k: int) -> tuple[str, ...]:
    """The rules that speak of the top k: the deployed statement and the printed form are about the nearest."""
    return RULES if k == 1 else RULES[1:-1]


_RIGHT = {"votes": "voted", "item": "listed", "deployed": "right"}


def radii_of(
    rows: Rows, rule: str, k: int, n: int | None = None, alpha: float | None = None
) -> tuple[NDArray[np.bool_], Vectors]:
    """Of all queries that can be asked: whether the rule has them right, and their radii, 0 where it has none.

    `n` is one of the run's marks, or `alpha` one of its alphas; the run's own n and alpha if left out.
    """
    noise, some = rows.header["config"]["noise"], rows.columns["answerable"] > 0
    fewer = "" if n in (None, noise["n"]) else f"_n{n}"
    other = "" if alpha in (None, noise["alpha"]) else f"_a{alpha:g}"
    right = rows.columns[f"{_RIGHT.get(rule, 'recall')}_{k}{fewer}"][some] > 0
    radius = np.maximum(rows.columns[f"{rule}_{k}{fewer}{other}"][some], 0.0)
    return right, np.where(right, radius, 0.0)


def _table(rows: Rows) -> tuple[Line, ...]:
    config = rows.header["config"]
    queries = int((rows.columns["answerable"] > 0).sum())
    if not queries:
        return ()
    n, alpha = config["noise"]["n"], config["noise"]["alpha"]
    looks = [(n, alpha), *((mark, alpha) for mark in config.get("marks", ()))]
    looks += [(n, other) for other in config.get("alphas", ())]
    radii = tuple(share * config["noise"]["sigma"] for share in SIZES)
    lines: list[Line] = []
    for (n, alpha), k in product(looks, config["ks"]):
        for rule in rules_in(rows, k):
            right, radius = radii_of(rows, rule, k, n, alpha)
            lines.append(
                Line(
                    rule,
                    k,
                    queries,
                    float(right.mean()),
                    float((radius > 0).mean()),
                    float((right & (radius <= 0)).mean()),
                    float(radius.mean()),
                    radii,
                    tuple(float((radius > r).mean()) for r in radii),
                    bootstrap(radius),
                    n,
                    alpha,
                )
            )
    return tuple(lines)


def _attack_table(rows: Rows) -> tuple[AttackLine, ...]:
    some = rows.columns["answerable"] > 0
    if not some.any() or 1 not in rows.header["config"]["ks"]:
        return ()
    right, radius = radii_of(rows, deployed_in(rows), 1)
    lines = []
    for i, eps in enumerate(rows.header["config"].get("attacks", ())):
        attacked = rows.columns[f"attacked_{i}"][some] > 0
        forced = rows.columns[f"forced_{i}"][some] > 0
        before = rows.columns["abstains"][some] > 0
        sure = radius > eps
        lines.append(
            AttackLine(
                float(eps),
                int(some.sum()),
                float(right.mean()),
                float(attacked.mean()),
                float(sure.mean()),
                float((forced & ~before).mean()),
                int((sure & (rows.columns[f"fooled_{i}"][some] > 0)).sum()),
            )
        )
    return tuple(lines)
