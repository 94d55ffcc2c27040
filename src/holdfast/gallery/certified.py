"""Search whose every hit carries a proof: where it can stand if images were altered within a threat."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.bounds import Box, box_distance_bounds, distance_bounds, normalised
from holdfast.certify import (
    BothAttack,
    CandidateAttack,
    Method,
    QueryAttack,
    RankBounds,
    Verdict,
    largest_eps,
)
from holdfast.certify.blocks import Attack, Distances, few_in_blocks, query_ranks, ranks_in_blocks
from holdfast.certify.certifier import Certifier
from holdfast.errors import ConfigError, GalleryError
from holdfast.gallery.bounding import Bounder
from holdfast.gallery.boxes import named
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.interface import AnyGallery, TooManyError
from holdfast.gallery.kept import Kept, KeptHit
from holdfast.gallery.values import Hit, of_before
from holdfast.models import AnyEmbedder, to_unit
from holdfast.spec import PictureOf
from holdfast.threat import Threat

_SLACK = 1 + 2.0**-30
SHARPENED = 1024
"""Candidates that pruning may leave for the dearer tests of an altered query; they cost memory and time."""


@dataclass(frozen=True)
class CertifiedHit:
    """A hit, and the ranks that it keeps under every attack within the threat.

    CERTIFIED: it surely stays among the k that were asked for. UNKNOWN: the bounds leave it open.
    """

    hit: Hit
    best: int
    worst: int
    verdict: Verdict
    eps: float
    """The eps of the threat, or for `auto` the largest found at which the hit stays; -1 if there is none."""


@dataclass(frozen=True)
class Effort:
    """What a dearer test was good for: hits that the interval test certifies alone, and the seconds of the two."""

    by_intervals: int
    interval_seconds: float
    seconds: float


@dataclass(frozen=True)
class CertifiedHits:
    """The certified hits of one query; `examined` candidates needed the exact test, of `candidates` in all."""

    query: str
    threat: Threat
    hits: tuple[CertifiedHit, ...]
    examined: int
    candidates: int
    sharpened: bool = True
    """False where elided or crown was asked for, but pruning left too many candidates for it."""
    boxes: float | None = None
    """The eps of the stored candidate boxes that were used: that of the threat, or the next larger."""
    reason: str = ""
    """Why nothing could be proved, where the candidates could not be compared at all."""
    picture: PictureOf = "network input"
    """Whose pixels are altered: those of the file, however large it is, or those that the network is given."""
    effort: Effort | None = None
    """Where a dearer test than by intervals was asked for."""


@dataclass(frozen=True)
class Sharper:
    """A dearer test of an altered query than its box, for what the box leaves open; an eps for each box."""

    certifier: Certifier
    method: Method
    image: Tensor
    eps: Tensor
    k: int

    def row(self, number: int) -> Sharper:
        """The test for one of the boxes."""
        return Sharper(self.certifier, self.method, self.image, self.eps[number : number + 1], self.k)

    def attack(self, vectors: Tensor) -> QueryAttack:
        """What altering the query can do to the ranking of these candidates."""
        return self.certifier.query_attack(self.eps, self.method, self.image, vectors, [self.k])


@dataclass(frozen=True)
class Asked:
    """A query as certificates need it: its embedding, and the box of its features before normalisation.

    The box is None where the query is not altered; it has one row, or one for each hit.
    """

    embedding: Floats
    box: Box | None
    unit_norm: bool
    sharper: Sharper | None = None

    def row(self, number: int) -> Asked:
        """The query with one of its boxes."""
        if self.box is None:
            return self
        sharper = None if self.sharper is None else self.sharper.row(number)
        return Asked(self.embedding, self.box.take(slice(number, number + 1)), self.unit_norm, sharper)

    @property
    def moved(self) -> Box:
        """The box of what the query's embedding can become."""
        if self.box is None:
            centre = torch.from_numpy(self.embedding).double()[None]
            return Box(centre, torch.zeros_like(centre))
        return normalised(self.box) if self.unit_norm else self.box


def certified_search(
    gallery: AnyGallery,
    embedder: AnyEmbedder,
    pixels: NDArray[np.uint8],
    k: int,
    threat: Threat,
    name: str = "query",
    *,
    method: Method = "interval",
    keep: bool = False,
    bounder: Bounder | None = None,
) -> CertifiedHits:
    """The k nearest candidates with rank intervals that hold under every attack within `threat`.

    With `linf:auto` each hit gets the largest eps at which it surely stays among the k, found by
    bisection, and its interval there. Methods `elided` and `crown` try harder for an altered query, where
    the interval test leaves a hit open and pruning leaves at most `SHARPENED` candidates. With `keep` the
    gallery keeps the certificate, to be checked again when its candidates change. `bounder` is the embedder's,
    where it is at hand: making one traces the network, which no other thread may use meanwhile.
    """
    if threat.norm != "linf" or (threat.eps is None and (threat.who != "query" or keep)):
        raise ConfigError(
            f"search certifies linf:EPS for the query, the candidates or both, and linf:auto for the query"
            f"{' where it is not kept' if keep else ''}, not '{threat}'"
            + ("; l2 is for a smoothed gallery (index --smooth)" if threat.norm == "l2" else "")
        )
    if method == "paper" or (method != "interval" and threat.who != "query"):
        raise ConfigError(
            f"method {method} is not for '{threat}' in a search: elided and crown are for an altered query; "
            "everything else takes interval"
        )
    if keep and method != "interval":
        raise ConfigError(
            f"a kept certificate is checked again without the network, which {method} needs; "
            "keep one of method interval"
        )
    gallery.check_embedder(embedder_info(embedder))
    if keep and not gallery.info.embedder.current:
        raise GalleryError(f"{of_before(gallery.path)}; until then it keeps no others")
    image = to_unit(torch.from_numpy(np.array(pixels))[None])
    embedding = embedder.embed(image).numpy()[0]
    bounder = None if threat.who == "candidates" else bounder or Bounder(embedder)
    if bounder is not None:
        bounder.certifier.check(method)

    def asked(eps: float | Tensor) -> Asked:
        size = torch.as_tensor(eps, dtype=torch.float64).reshape(-1)
        images = image.expand(len(size), *image.shape[1:])
        if bounder is None:
            return Asked(embedding, None, embedder.unit_norm)
        sharper = None
        sharp = method == "crown" or (method == "elided" and bounder.certifier.split is not None)
        if threat.who == "query" and sharp:
            sharper = Sharper(bounder.certifier, method, image, size, k)
        # On a network that was not trained for intervals their box prunes nothing, and leaves nothing to sharpen.
        found = bounder.tight_features if sharper is not None and method == "crown" else bounder.features
        return Asked(embedding, found(images, size), embedder.unit_norm, sharper)

    if threat.eps is None:
        with gallery.snapshot():
            ranking = Ranking(gallery, embedding, k, threat, name)
            eps = largest_eps(lambda e: ranking.certified(asked(e.clamp(min=0))), len(ranking.slots))
            return ranking.certificate(asked(eps.clamp(min=0)), eps.tolist())
    start = time.perf_counter()
    one = asked(threat.eps)
    with gallery.snapshot():
        found, generation = certify_query(gallery, one, k, threat, name), gallery.info.generation
        if one.sharper is not None and bounder is not None:
            found = _compared(found, time.perf_counter() - start, gallery, bounder, image, embedding)
    if keep:
        gallery.keep([_kept(one, found, k, generation)])
    return found


def _compared(
    found: CertifiedHits,
    seconds: float,
    gallery: AnyGallery,
    bounder: Bounder,
    image: Tensor,
    embedding: Floats,
) -> CertifiedHits:
    """What a dearer test proved, beside what the interval test proves alone, and the time each took."""
    start = time.perf_counter()
    eps = found.threat.eps
    assert eps is not None
    plain = Asked(embedding, bounder.features(image, eps), bounder.unit_norm)
    cheap = certify_query(gallery, plain, len(found.hits), found.threat, found.query)
    sure = sum(hit.verdict == Verdict.CERTIFIED for hit in cheap.hits)
    return replace(found, effort=Effort(sure, time.perf_counter() - start, seconds))


def certify_query(
    gallery: AnyGallery, asked: Asked, k: int, threat: Threat, name: str = "query"
) -> CertifiedHits:
    """As `certified_search`, for a query whose box is known, under a threat with a given eps."""
    with gallery.snapshot():
        return Ranking(gallery, asked.embedding, k, threat, name).certificate(asked)


def certify_again(gallery: AnyGallery, kept: Kept) -> Kept:
    """The kept certificate of a query as it is now; neither its image nor the embedder is needed."""
    box = None
    if kept.centre is not None and kept.radius is not None:
        box = Box(*(torch.from_numpy(half)[None] for half in (kept.centre, kept.radius)))
    asked = Asked(kept.embedding, box, kept.unit_norm)
    with gallery.snapshot():
        generation, threat = gallery.info.generation, Threat.parse(kept.threat)
        if len(gallery):
            found = certify_query(gallery, asked, kept.k, threat, kept.query)
        else:
            found = CertifiedHits(kept.query, threat, (), 0, 0)
    return _kept(asked, found, kept.k, generation)


def certify_picture(
    gallery: AnyGallery, embedder: AnyEmbedder, image: Tensor, kept: Kept, bounder: Bounder | None
) -> Kept:
    """The kept certificate of a query made anew from its picture; `bounder` is None where it is not altered."""
    threat = Threat.parse(kept.threat)
    assert threat.eps is not None
    box = None if bounder is None else bounder.features(image, threat.eps)
    asked = Asked(embedder.embed(image).numpy()[0], box, embedder.unit_norm)
    with gallery.snapshot():
        found = certify_query(gallery, asked, kept.k, threat, kept.query)
        return _kept(asked, found, kept.k, gallery.info.generation)


def _kept(asked: Asked, found: CertifiedHits, k: int, generation: int) -> Kept:
    hits = tuple(KeptHit(e.hit.id, e.best, e.worst, str(e.verdict)) for e in found.hits)
    box = (None, None) if asked.box is None else (asked.box.centre[0].numpy(), asked.box.radius[0].numpy())
    threat = str(found.threat)
    return Kept(found.query, threat, k, generation, hits, asked.unit_norm, asked.embedding, *box)


class Ranking:
    """The hits of one query in one state of a gallery, to be certified under one threat.

    Pruning: let D be the largest distance at which a hit can be, and let the query's embedding move by
    at most ρ and that of candidate c by at most ρ_c. Then c is surely farther than every hit if its
    distance now is above D + ρ + ρ_c. Such a candidate is never as near as a hit under any attack, so
    no count of those that can come before a hit, or stay before it, holds it: it is left out, and the
    intervals are those of the whole gallery.
    """

    def __init__(self, gallery: AnyGallery, embedding: Floats, k: int, threat: Threat, name: str) -> None:
        self._gallery, self._threat, self._k = gallery, threat, k
        stored = threat.who == "query" or gallery.info.embedder.current
        self._reason = "" if stored else of_before(gallery.path)
        self._boxes = None if threat.who == "query" else _stored_size(gallery, threat)
        self._scan = gallery.scan(embedding)
        self._found, self.slots = gallery.hits_of(self._scan, k, name=name)

    def certified(self, asked: Asked) -> Tensor:
        """Which hits surely stay among the k."""
        bounds, _ = self._ranks(asked)
        return ((bounds.worst <= self._k) & bounds.known)[0]

    def certificate(self, asked: Asked, eps: list[float] | None = None) -> CertifiedHits:
        """All hits with their intervals; `eps` is that of each hit, where it is not the threat's."""
        bounds, examined = self._ranks(asked)
        best, worst, known = (t[0].tolist() for t in (bounds.best, bounds.worst, bounds.known))
        hits = []
        for i, hit in enumerate(self._found.hits):
            size = self._threat.eps if eps is None else eps[i]
            assert size is not None
            sure = worst[i] <= self._k and known[i] and size >= 0
            verdict = Verdict.CERTIFIED if sure else Verdict.UNKNOWN
            hits.append(CertifiedHit(hit, best[i], worst[i], verdict, float(size)))
        total = len(self._gallery)
        sharpened = asked.sharper is None or examined <= SHARPENED + len(hits)
        return CertifiedHits(
            self._found.query,
            self._threat,
            tuple(hits),
            examined,
            total,
            sharpened,
            self._boxes,
            self._reason,
            self._gallery.info.embedder.picture,
        )

    def survivors(self, asked: Asked, hits: Slots) -> Slots:
        """The candidates beside `hits` that pruning leaves, for a query with one box."""
        near = self._gallery.possible(self._scan, self._limit(asked, hits), self._boxes)
        return near[~np.isin(near, hits)]

    def _ranks(self, asked: Asked) -> tuple[RankBounds, int]:
        """The intervals of all hits, and how many candidates were not left out; each box by itself."""
        if self._threat.who == "candidates":
            asked = Asked(asked.embedding, None, asked.unit_norm)
        rows = 1 if asked.box is None else len(asked.box)
        each = np.split(np.arange(len(self.slots)), rows)
        parts = [self._ranks_of(asked.row(row), places) for row, places in enumerate(each)]
        bounds = [(b.rank, b.best, b.worst, b.known) for b, _ in parts]
        whole = RankBounds(*(torch.cat(column, dim=1) for column in zip(*bounds, strict=True)))
        return whole, max(examined for _, examined in parts)

    def _ranks_of(self, asked: Asked, places: Slots) -> tuple[RankBounds, int]:
        """The intervals of some of the hits, for a query with one box."""
        hits, rank, total = self.slots[places], torch.from_numpy(places + 1)[None], len(self._gallery)
        try:
            others = np.empty(0, dtype=np.int64) if self._reason else self.survivors(asked, hits)
        except TooManyError as cause:
            self._reason = str(cause)
        if self._reason:
            nothing = torch.zeros_like(rank, dtype=torch.bool)
            return RankBounds(rank, torch.ones_like(rank), torch.full_like(rank, total), nothing), len(hits)
        if self._threat.most is not None:
            clean = self._scan.distances(np.concatenate([hits, others]))
            bounds = few_in_blocks(self._distances, clean, hits, others, rank, self._threat.most, total)
        elif self._boxes is None:
            assert asked.box is not None
            bounds = query_ranks(
                asked.box,
                self._scan.vectors,
                hits,
                others,
                rank,
                total,
                max_norm=self._gallery.max_norm,
                unit_norm=asked.unit_norm,
            )
            if asked.sharper is not None and len(others) <= SHARPENED:
                bounds = self._sharpened(bounds, asked.sharper, hits, others, rank)
        else:
            bounds = ranks_in_blocks(lambda slots: self._attack(asked, slots), hits, others, rank, total)
        return bounds, len(hits) + len(others)

    def _sharpened(
        self, bounds: RankBounds, sharper: Sharper, hits: Slots, others: Slots, rank: Tensor
    ) -> RankBounds:
        """The intervals that both tests allow, where the first left a hit open.

        All candidates at once, never in blocks: which pairs the dearest test tries depends on the others.
        """
        if bool(((bounds.worst <= self._k) & bounds.known).all()):
            return bounds
        slots = np.concatenate([hits, others])
        clean = self._scan.distances(slots)
        # Ranks among these; candidates that tie with a hit are on no side of it.
        among = 1 + torch.from_numpy((clean[None] < clean[: len(hits), None]).sum(1))[None]
        vectors = torch.from_numpy(self._gallery.vectors_at(slots)).double()
        dear = sharper.attack(vectors).ranks(torch.arange(len(hits))[None], among)
        known, worst = dear.known, torch.where(dear.known, dear.worst, len(self._gallery))
        best = torch.where(known, torch.maximum(bounds.best, dear.best), bounds.best)
        return RankBounds(rank, best, torch.minimum(bounds.worst, worst), bounds.known | known)

    def _attack(self, asked: Asked, slots: Slots) -> Attack:
        if self._threat.who == "both":
            return BothAttack(asked.moved, self._candidates(slots))
        return CandidateAttack(self._candidates(slots), asked.moved.centre)

    def _distances(self, slots: Slots) -> Distances:
        """Bounds of the distances of altered candidates to the query."""
        query = torch.from_numpy(self._scan.query).double()[None]
        upper, lower = distance_bounds(self._candidates(slots), query)
        return upper[:, 0], lower[:, 0]

    def _candidates(self, slots: Slots) -> Box:
        if self._boxes is None:
            centre = torch.from_numpy(self._gallery.vectors_at(slots)).double()
            return Box(centre, torch.zeros_like(centre))
        found = self._gallery.boxes_at(self._boxes, slots)
        return Box(torch.from_numpy(found.centre).double(), torch.from_numpy(found.radius).double())

    def _limit(self, asked: Asked, hits: Slots) -> float:
        """Beyond which distance a candidate is left out that stays where it is: D + ρ."""
        moved = asked.moved
        far, _ = box_distance_bounds(moved, self._candidates(hits))
        moves = (moved.centre - torch.from_numpy(asked.embedding).double()).abs() + moved.radius
        return (float(far.max()) + float(moves.norm())) * _SLACK


def _stored_size(gallery: AnyGallery, threat: Threat) -> float:
    """The smallest eps, not below that of the threat, for which the gallery has boxes: a larger box holds all."""
    assert threat.eps is not None
    stored = gallery.info.boxes
    for size in stored:
        if size >= threat.eps:
            return size
    has = f"only boxes for {named(*stored)}" if stored else "no boxes of its candidates"
    raise GalleryError(
        f"{gallery.path} has {has}, so '{threat}' cannot be certified; add them with "
        f"'holdfast index MODEL IMAGES --out {gallery.path} --boxes linf:{threat.size or threat.eps}'"
    )
