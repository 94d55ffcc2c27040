"""Certified retrieval by a smoothed embedder, over queries: radii, rejections, abstentions and attacks as rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.attacks.noisy import NoisyAttack
from holdfast.data import ImageSet
from holdfast.errors import ConfigError
from holdfast.evaluation.draw import draw_or_all, ordered_ks
from holdfast.evaluation.folder import SMOOTHED, Block, Task
from holdfast.evaluation.smoothed_tables import AttackLine, Line, rules_of, smoothed_tables
from holdfast.evaluation.spread import HERE, Spread
from holdfast.gallery import Gallery, create_gallery, discard_gallery
from holdfast.gallery.rules import RULES, Question
from holdfast.gallery.smoothed import smoothed
from holdfast.gallery.values import EmbedderInfo
from holdfast.models import CallableEmbedder, Embedder, to_unit
from holdfast.models.smoothed import Smoothed
from holdfast.proofs.smoothing import (
    Answers,
    Form,
    Smoothing,
    candidate_pairs,
    check_samples,
    class_pairs,
)
from holdfast.proofs.smoothing.confidence import printed_slack, share_below
from holdfast.proofs.smoothing.radius import printed_radius, vote_radius
from holdfast.rows import ROWS, Rows, read_rows

Vectors = NDArray[np.float64]
FORMS: tuple[Form, ...] = ("cdf", "half-space", "ball")


@dataclass(frozen=True)
class SmoothedCertification:
    """A finished evaluation of a smoothed search."""

    folder: Path
    rows: Rows
    table: tuple[Line, ...]
    attacks: tuple[AttackLine, ...] = ()


def certify_smoothed(
    base: Embedder | CallableEmbedder,
    images: ImageSet,
    out: str | Path,
    smoothing: Smoothing,
    *,
    queries: int | None = None,
    candidates: int | None = None,
    seed: int = 0,
    ks: Sequence[int] = (1, 5),
    marks: Sequence[int] = (),
    alphas: Sequence[float] = (),
    attacks: Sequence[float] = (),
    spread: Spread = HERE,
) -> SmoothedCertification:
    """Certify that a query's class stays among the top K of the smoothed search, in ℓ2, for each query.

    The gallery is smoothed once and frozen; only queries are altered. Each radius is wrong with probability
    at most `smoothing.alpha`; divide it by the number of queries for a statement about all of them. `marks`
    are smaller numbers of samples at which the same is written down, `alphas` other failure probabilities for
    which all samples answer; `attacks` are ℓ2 sizes within which each query is altered (by gradients through
    noisy copies) and asked again.
    """
    images.require_labels("certified recall")
    asked, found = draw_or_all(images, queries, candidates, seed)
    ks = ordered_ks(ks, len(found))
    marks = tuple(sorted(set(marks)))
    if attacks and 1 not in ks:
        raise ConfigError("attacks are about the nearest neighbour: have 1 among the Ks")
    if marks and not (marks[0] >= 1 and marks[-1] < smoothing.n):
        raise ConfigError(f"marks lie between 1 and n = {smoothing.n}, not at {', '.join(map(str, marks))}")
    alphas = tuple(sorted({*alphas} - {smoothing.alpha}))
    if alphas and not (alphas[0] > 0 and alphas[-1] < 1):
        raise ConfigError(f"alphas are probabilities between 0 and 1, not {alphas[0]:g} to {alphas[-1]:g}")
    if len({f"{alpha:g}" for alpha in (*alphas, smoothing.alpha)}) <= len(alphas):
        raise ConfigError("alphas must differ in their first six digits")
    settings = {
        "queries": queries,
        "candidates": candidates,
        "seed": seed,
        "ks": ks,
        "noise": asdict(smoothing),
        "dim": base.dim,
        "marks": marks,
        "attacks": tuple(attacks),
        **({"alphas": alphas} if alphas else {}),
    }
    frozen = smoothed(base, smoothing)
    check_samples(smoothing, max(ks), max(ks))
    check_samples(smoothing, 3)  # Of the deployed search: two candidates that may be first, and the class.
    if attacks:
        NoisyAttack(frozen)
    task = Task(Path(out), SMOOTHED, frozen, images, settings, spread)
    if task.finished():
        return read_smoothed(task.folder)
    with task.writing(len(asked), _columns(ks, marks, alphas, attacks)) as writer:
        gallery = task.vectors(found).double().numpy()
        work = _Queries(
            frozen, images, asked, found, gallery, tuple(ks), smoothing, marks, alphas, tuple(attacks)
        )
        # A query is the least that a stopped run keeps: with many samples it takes minutes.
        task.fill(writer, "sampling queries", work, [(None, len(asked), 1)])
        certified, attacked = smoothed_tables(writer.read())
        summary = {
            "certified": [asdict(line) for line in certified],
            "attacks": [asdict(line) for line in attacked],
        }
        task.finish(writer, summary)
    return read_smoothed(task.folder)


def read_smoothed(folder: Path) -> SmoothedCertification:
    """A finished evaluation from its folder."""
    rows = read_rows(folder / ROWS)
    return SmoothedCertification(folder, rows, *smoothed_tables(rows))


@dataclass(frozen=True, eq=False)
class _Queries:
    """What every block of queries needs."""

    embedder: Smoothed
    images: ImageSet
    asked: NDArray[np.int64]
    found: NDArray[np.int64]
    gallery: Vectors
    ks: tuple[int, ...]
    how: Smoothing
    marks: tuple[int, ...]
    alphas: tuple[float, ...]
    attacks: tuple[float, ...]

    def __call__(self, what: None, span: range) -> Block:
        return Block([self._row(int(self.asked[i])) for i in span])

    def _row(self, number: int) -> dict[str, Any]:
        images, others = self.images, self.found != number
        labels = images.require_labels("certified recall")
        kinds, kind = labels[self.found][others], int(labels[number])
        image = to_unit(images.batch([number]))[0]
        row: dict[str, Any] = {"query": images.ids[number], "label": kind}
        with _in_memory(self.gallery[others], kinds) as deployed:
            one = _Query(self.embedder, deployed, self.gallery[others], kinds, kind, self.ks, self.how)
            row |= one.row(image, self.marks, self.alphas)
            for i, eps in enumerate(self.attacks):
                altered = self._attack.altered(image, eps, one.gallery, one.kinds, one.kind)
                row |= {f"{key}_{i}": value for key, value in one.seen(altered).items()}
        return row

    @cached_property
    def _attack(self) -> NoisyAttack:
        return NoisyAttack(self.embedder)


@contextmanager
def _in_memory(vectors: Vectors, kinds: NDArray[np.int64]) -> Iterator[Gallery]:
    """A gallery of these vectors while the block lasts: what is measured is the search that is deployed."""
    place = f"memory:{uuid4().hex}"
    info = EmbedderInfo("of the evaluation")
    with create_gallery(place, dim=vectors.shape[1], embedder=info) as gallery:
        ids, labels = [f"{row:09d}" for row in range(len(vectors))], [str(kind) for kind in kinds]
        gallery.add(ids, vectors.astype(np.float32), labels=labels)
        try:
            with gallery.snapshot():
                yield gallery
        finally:
            discard_gallery(place, content=True)


class _Query:
    """One query against the frozen gallery. One whose class, or every other, has no candidate has no radius."""

    def __init__(
        self,
        frozen: Smoothed,
        deployed: Gallery,
        gallery: Vectors,
        kinds: NDArray[np.int64],
        kind: int,
        ks: Sequence[int],
        how: Smoothing,
    ) -> None:
        self.gallery, self.kinds, self.kind = gallery, kinds, kind
        self._frozen, self._ks, self._how = frozen, ks, how
        self._same = kinds == kind
        self._gallery = deployed
        self._answerable = bool(self._same.any() and not self._same.all())

    def row(self, image: Tensor, marks: Sequence[int], alphas: Sequence[float]) -> dict[str, Any]:
        """What the samples say, at each of the marks and in the end, there also for other failure probabilities."""
        how, frozen = self._how, self._frozen
        first = torch.cat(list(frozen.sample(image, 0, how.first))).double().numpy()
        centre = first.mean(0)
        chosen = int(np.square(self.gallery - centre).sum(1).argmin())
        item = Answers(
            candidate_pairs(self.gallery[chosen], np.delete(self.gallery, chosen, 0)), first, frozen.bound
        )
        answers = self._class(self.kind, first) if self._answerable else None
        question = self._question(first)
        total, votes = np.zeros(self.gallery.shape[1]), np.zeros(len(self._ks), dtype=np.int64)
        row: dict[str, Any] = {"answerable": int(self._answerable)}
        done = 0
        for stop in (*marks, how.n):
            for part in frozen.sample(image, how.first + done, how.first + stop):
                vectors = part.double().numpy()
                total += vectors.sum(0)
                item.add(vectors)
                question.add(vectors)
                if answers is not None:
                    answers.add(vectors)
                    ahead = self._ahead(vectors, self._same)
                    votes += [int((ahead < k).sum()) for k in self._ks]
            done = stop
            mean, largest = total / stop, math.sqrt(image.numel())
            said = self._said(mean, stop, votes, answers, chosen)
            said |= self._deployed(question)
            said["deployed_1"] = min(said["deployed_1"], largest)
            said |= self._radii(how.alpha, said["margin"], stop, votes, answers, item, largest)
            row |= said if stop == how.n else {f"{key}_n{stop}": value for key, value in said.items()}
        for alpha in alphas:
            stated = self._deployed(question, alpha / how.alpha)["deployed_1"]
            other = {"deployed_1": min(stated, largest)}
            other |= self._radii(alpha, row["margin"], how.n, votes, answers, item, largest)
            row |= {f"{key}_a{alpha:g}": value for key, value in other.items()}
        return row

    def seen(self, image: Tensor) -> dict[str, Any]:
        """What the deployed search says of an altered query: whether it is right, abstains, or is sure and wrong."""
        how = self._how
        first = torch.cat(list(self._frozen.sample(image, 0, how.first))).double().numpy()
        question = self._question(first)
        for part in self._frozen.sample(image, how.first, how.first + how.n):
            question.add(part.double().numpy())
        said = self._deployed(question)
        fooled = question.label is not None and not said["abstains"] and question.label != str(self.kind)
        return {"attacked": said["right_1"], "forced": said["abstains"], "fooled": int(fooled)}

    def _question(self, first: Vectors) -> Question:
        """The deployed search for the nearest, which knows no label of the query."""
        return RULES[self._how.rule](self._gallery, first, 1, self._how, self._frozen.bound)

    def _deployed(self, question: Question, part: float = 1.0) -> dict[str, Any]:
        """What a search says: whether its first hit is right, and its statement about the class of the nearest.

        A radius counts if the class is the query's own. A tie counts against the claim.
        """
        _, radius = question.answer(part)
        hits, _ = question.hits("")
        own, sure = question.label == str(self.kind), question.label is None or radius > 0
        return {
            "abstains": int(not sure),
            "right_1": int(hits[0].label == str(self.kind) and not hits[0].tied),
            "deployed_1": radius if own else 0.0,
        }

    def _class(self, kind: int, first: Vectors) -> Answers | None:
        """Whether the nearest is of this class, to be asked of samples; None where there is no other class."""
        same = self.kinds == kind
        if same.all():
            return None
        pairs = class_pairs(first.mean(0), self.gallery[same], self.gallery[~same])
        return Answers(pairs, first, self._frozen.bound)

    def _said(
        self, mean: Vectors, n: int, votes: NDArray[np.int64], answers: Answers | None, chosen: int
    ) -> dict[str, Any]:
        """The margin of the printed form, and which rules have the query right."""
        away = np.linalg.norm(self.gallery - mean, axis=1)
        ahead = len(self.gallery) if answers is None else int(self._ahead(mean[None], self._same)[0])
        margin = float(away[~self._same].min() - away[self._same].min()) if answers is not None else 0.0
        row: dict[str, Any] = {"margin": margin}
        place = int((away < away[chosen]).sum())
        for i, k in enumerate(self._ks):
            row[f"recall_{k}"] = int(ahead < k)
            row[f"voted_{k}"] = int(2 * votes[i] > n)
            row[f"listed_{k}"] = int(place < k)
        return row

    def _radii(
        self,
        alpha: float,
        margin: float,
        n: int,
        votes: NDArray[np.int64],
        answers: Answers | None,
        item: Answers,
        largest: float,
    ) -> dict[str, float]:
        """What each rule certifies, too much with probability at most `alpha`."""
        sigma, bound = self._how.sigma, self._frozen.bound
        row: dict[str, float] = {}
        for i, k in enumerate(self._ks):
            if k == 1:
                # Algorithm 1: a query whose margin the samples do not settle is rejected, with radius -1.
                left = margin - printed_slack(n, alpha, self.gallery.shape[1], bound)
                known = answers is not None and left >= 0
                row["paper_1"] = float(printed_radius(np.array([left]), sigma, bound)[0]) if known else -1.0
            for form in FORMS:
                radius = answers.top_radius(k, sigma, alpha, form) if answers is not None else 0.0
                # Where fewer than k candidates could be ahead nothing can fail; no two images are farther apart.
                row[f"{form}_{k}"] = min(radius, largest)
            share = share_below(votes[i : i + 1], n, alpha)
            row[f"votes_{k}"] = float(vote_radius(share, sigma)[0])
            row[f"item_{k}"] = min(item.top_radius(k, sigma, alpha), largest)
        return row

    def _ahead(self, vectors: Vectors, same: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many candidates of other classes are at least as near as the nearest of this one."""
        squared = (self.gallery**2).sum(1)[None] - 2 * vectors @ self.gallery.T
        nearest = squared[:, same].min(1, keepdims=True)
        return np.asarray((squared[:, ~same] <= nearest).sum(1))


def _columns(
    ks: Sequence[int], marks: Sequence[int], alphas: Sequence[float], attacks: Sequence[float]
) -> dict[str, str]:
    said = {"abstains": "int", "margin": "float", "right_1": "int"}
    for k in ks:
        said |= {f"recall_{k}": "int", f"voted_{k}": "int", f"listed_{k}": "int"}
    radii = {"deployed_1": "float"} | {f"{rule}_{k}": "float" for k in ks for rule in rules_of(k)}
    found = {"query": "str", "label": "int", "answerable": "int", **said, **radii}
    for mark in marks:
        found |= {f"{key}_n{mark}": kind for key, kind in (said | radii).items()}
    for alpha in alphas:
        found |= {f"{key}_a{alpha:g}": kind for key, kind in radii.items()}
    for i in range(len(attacks)):
        found |= {f"{what}_{i}": "int" for what in ("attacked", "forced", "fooled")}
    return found
