"""Bounds and smoothing in one table: what each proves of the first hit, on the same pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast import data
from holdfast.evaluation.smoothed_tables import deployed_in, radii_of
from holdfast.rows import read_rows
from holdfast.threat import parse_eps
from reproduction.cells import CHANCE, Cell
from reproduction.page import digits
from reproduction.plan import Job

if TYPE_CHECKING:
    from reproduction.smoothed import SmoothedSearches

SIZES = (0.1, 0.25, 0.5)
"""ℓ2 sizes of the table."""


def side_by_side(searches: SmoothedSearches, cells: Sequence[Cell]) -> str:
    """A row for each network, method and proof: the first hit without an attack, and what is proved of it.

    An ℓ∞ change of eps on d numbers lies in the ℓ2 ball of eps·√d, so a larger ℓ2 radius proves it too.
    """
    plan = searches.plan
    sizes = list(dict.fromkeys(eps for job in plan.places() for eps in job.eps))
    first = {
        (cell.dataset, cell.model, cell.method, cell.metric, cell.threat, cell.eps): cell
        for cell in cells
        if cell.k == 1 and cell.ours is not None
    }
    lines: dict[str, None] = {}
    for job in plan.jobs():
        place = (job.dataset, job.model)
        clean = first.get((*place, job.method, "recall", "none", "0"))
        chance = first.get((*place, CHANCE, "recall", "none", "0"))
        named = f"| {job.dataset} | {job.model} | {job.method}"
        if clean is not None and chance is not None:
            proved = [first.get((*place, job.method, "certified_hit_rate", "query", eps)) for eps in sizes]
            numbers = [chance, clean, *proved]
            shown = " | ".join("–" if one is None else digits(one.ours) for one in numbers)
            lines[f"{named} | bounds | {clean.n:,} | {shown}{' | –' * len(SIZES)} |"] = None
        for sigma in plan.methods[job.method].sigmas if job.method in plan.methods else []:
            path = searches.file(job, sigma)
            if not path.exists():
                continue
            rows = read_rows(path)
            right, radius = radii_of(rows, deployed_in(rows), 1)
            reach = [parse_eps(eps) * math.sqrt(_numbers(job)) for eps in sizes]
            shares = [right.mean(), *((radius > r).mean() for r in (*reach, *SIZES))]
            shown = " | ".join(digits(share) for share in shares)
            by_chance = digits(None if chance is None else chance.ours)
            lines[f"{named} | smoothing, σ = {sigma:g} | {len(right):,} | {by_chance} | {shown} |"] = None
    if not lines:
        return ""
    columns = ["data set", "network", "method", "proof", "queries", "chance", "Recall@1"]
    columns += [f"proved, ℓ∞ {eps}" for eps in sizes] + [f"ℓ2 {size:g}" for size in SIZES]
    return "\n".join(
        [
            "## Bounds beside smoothing",
            "",
            "The first hit is of the right class, and stays so within a size, on the same pictures. Bounds are of "
            "ℓ∞ and hold surely, for each of the queries; smoothing is of ℓ2, searches by means of noisy copies, and "
            "is wrong about a query with probability at most α (0.01). An ℓ2 radius above ε·√d proves ℓ∞ ε too.",
            "",
            f"| {' | '.join(columns)} |",
            "|---" * len(columns) + "|",
            *lines,
        ]
    )


def _numbers(job: Job) -> int:
    """How many numbers a picture of the run has."""
    wanted = job.config["data"]
    natural = data.natural_spec(data.absolute(wanted["name"]))
    size = wanted.get("image_size")
    return natural.channels * (size or natural.height) * (size or natural.width)
