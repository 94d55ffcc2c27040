"""Certified retrieval by a smoothed embedder, over queries: radii, rejections and abstentions as rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.certify.smoothing import Answers, Form, Smoothing, check_samples, class_pairs
from holdfast.certify.smoothing.confidence import ball, printed_slack, share_below
from holdfast.certify.smoothing.radius import printed_radius, vote_radius
from holdfast.data import ImageSet
from holdfast.evaluate.draw import draw_or_all, ordered_ks
from holdfast.evaluate.folder import ROWS, SMOOTHED, Task, pending
from holdfast.evaluate.rows import Rows, read_rows
from holdfast.metrics import bootstrap
from holdfast.models import Embedder, Foreign, to_unit
from holdfast.models.smoothed import Smoothed
from holdfast.progress import bar

FORMS: tuple[Form, ...] = ("cdf", "half-space")
RULES = ("paper", "half-space", "cdf", "votes")
"""The printed form; the tight forms of the same deployed search; and the majority of noisy copies, another rule."""
BLOCK = 5
SIZES = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
"""The radii of the table, in units of σ."""


@dataclass(frozen=True)
class Line:
    """One rule at one K: recall of the smoothed search, and what is certified."""

    rule: str
    k: int
    queries: int
    recall: float
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


@dataclass(frozen=True)
class SmoothedCertification:
    """A finished evaluation of a smoothed search."""

    folder: Path
    rows: Rows
    table: tuple[Line, ...]


def certify_smoothed(
    base: Embedder | Foreign,
    images: ImageSet,
    out: str | Path,
    smoothing: Smoothing,
    *,
    queries: int | None = None,
    candidates: int | None = None,
    seed: int = 0,
    ks: Sequence[int] = (1, 5),
) -> SmoothedCertification:
    """Certify that a query's class stays among the top K of the smoothed search, in ℓ2, for each query.

    The gallery is smoothed once and frozen; only queries are altered. Each radius is wrong with probability
    at most `smoothing.alpha`; divide it by the number of queries for a statement about all of them.
    """
    labels = images.require_labels("certified recall")
    asked, found = draw_or_all(images, queries, candidates, seed)
    ks = ordered_ks(ks, len(found))
    noise = {"noise": asdict(smoothing)}
    settings = {"queries": queries, "candidates": candidates, "seed": seed, "ks": ks, **noise}
    frozen = Smoothed(base, smoothing.sigma, smoothing.gallery, seed=smoothing.seed, bound=smoothing.bound)
    check_samples(smoothing, max(ks))
    task = Task(Path(out), SMOOTHED, frozen, images, settings)
    if task.finished():
        return read_smoothed(task.folder)
    with task.writing(len(asked), _columns(ks)) as writer:
        gallery = task.vectors(found).double().numpy()
        with bar("sampling queries", len(asked), writer.done) as advance:
            for _, span in pending([(None, len(asked), BLOCK)], writer.done):
                rows = []
                for number in asked[span.start : span.stop]:
                    others = found != number
                    row = {"query": images.ids[number], "label": int(labels[number])}
                    image = to_unit(images.batch([int(number)]))[0]
                    kinds = labels[found][others]
                    rows.append(
                        row | _row(frozen, image, gallery[others], kinds, labels[number], ks, smoothing)
                    )
                    advance()
                writer.append(rows)
        task.finish(writer, [asdict(line) for line in _table(writer.read())])
    return read_smoothed(task.folder)


def read_smoothed(folder: Path) -> SmoothedCertification:
    """A finished evaluation from its folder."""
    rows = read_rows(folder / ROWS)
    return SmoothedCertification(folder, rows, _table(rows))


def _row(
    frozen: Smoothed,
    image: Tensor,
    gallery: NDArray[np.float64],
    kinds: NDArray[np.int64],
    kind: int,
    ks: Sequence[int],
    how: Smoothing,
) -> dict[str, Any]:
    """What the samples say of one query. A query whose class, or every other, has no candidate has no radius."""
    same = kinds == kind
    first = torch.cat(list(frozen.sample(image, 0, how.first))).double().numpy()
    asked = same.any() and not same.all()
    answers = None
    if asked:
        pairs = class_pairs(first.mean(0), gallery[same], gallery[~same])
        answers = Answers(pairs, first, frozen.bound)
    total = np.zeros(gallery.shape[1])
    votes = np.zeros(len(ks), dtype=np.int64)
    for part in frozen.sample(image, how.first, how.first + how.n):
        vectors = part.double().numpy()
        total += vectors.sum(0)
        if answers is not None:
            answers.add(vectors)
            votes += [int((_ahead(vectors, gallery, same) < k).sum()) for k in ks]
    mean = total / how.n
    away = np.linalg.norm(gallery - mean, axis=1)
    row: dict[str, Any] = {"answerable": int(asked)}
    ahead = int(_ahead(mean[None], gallery, same)[0]) if asked else len(gallery)
    margin = float(away[~same].min() - away[same].min()) if asked else -np.inf
    slack = printed_slack(how.n, how.alpha, gallery.shape[1], frozen.bound)
    # The search, which knows no label, abstains where its first hit's class may not be the nearest to g.
    rivals = away[kinds != kinds[away.argmin()]]
    gap = rivals.min() - away.min() if len(rivals) else np.inf
    row["abstains"] = int(gap <= 2 * ball(how.n, how.alpha, frozen.bound))
    row["margin"] = margin if asked else 0.0
    for i, k in enumerate(ks):
        row[f"recall_{k}"] = int(ahead < k)
        row[f"voted_{k}"] = int(2 * votes[i] > how.n)
        if k == 1:
            # Algorithm 1: a query whose margin the samples do not settle is rejected, with radius -1.
            known = margin - slack >= 0
            printed = printed_radius(np.array([margin - slack]), how.sigma, frozen.bound)[0]
            row["paper_1"] = float(printed) if known else -1.0
        for form in FORMS:
            radius = answers.top_radius(k, how.sigma, how.alpha, form) if answers is not None else 0.0
            # Where fewer than k candidates could be ahead nothing can fail; no two images are farther apart.
            row[f"{form}_{k}"] = min(radius, math.sqrt(image.numel()))
        share = share_below(votes[i : i + 1], how.n, how.alpha)
        row[f"votes_{k}"] = float(vote_radius(share, how.sigma)[0])
    return row


def _ahead(
    vectors: NDArray[np.float64], gallery: NDArray[np.float64], same: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """How many candidates of other classes are at least as near as the nearest of the right one."""
    squared = (gallery**2).sum(1)[None] - 2 * vectors @ gallery.T
    counted = (squared[:, ~same] <= squared[:, same].min(1, keepdims=True)).sum(1)
    return np.asarray(counted)


def rules_of(k: int) -> tuple[str, ...]:
    """The rules that speak of the top k: the paper leaves more than one neighbour as future work."""
    return RULES if k == 1 else RULES[1:]


def _columns(ks: Sequence[int]) -> dict[str, str]:
    found = {"query": "str", "label": "int", "answerable": "int", "abstains": "int", "margin": "float"}
    for k in ks:
        found |= {f"recall_{k}": "int", f"voted_{k}": "int"}
        found |= dict.fromkeys((f"{rule}_{k}" for rule in rules_of(k)), "float")
    return found


def _table(rows: Rows) -> tuple[Line, ...]:
    lines: list[Line] = []
    some = rows.columns["answerable"] > 0
    if not some.any():
        return ()
    radii = tuple(share * rows.header["config"]["noise"]["sigma"] for share in SIZES)
    for k in rows.header["config"]["ks"]:
        for rule in rules_of(k):
            column = np.maximum(rows.columns[f"{rule}_{k}"][some], 0.0)
            right = rows.columns[f"{'voted' if rule == 'votes' else 'recall'}_{k}"][some] > 0
            radius = np.where(right, column, 0.0)
            lines.append(
                Line(
                    rule,
                    k,
                    int(some.sum()),
                    float(right.mean()),
                    float((radius > 0).mean()),
                    float((right & (radius <= 0)).mean()),
                    float(radius.mean()),
                    radii,
                    tuple(float((radius > r).mean()) for r in radii),
                    bootstrap(radius),
                )
            )
    return tuple(lines)
