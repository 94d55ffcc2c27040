"""Rank intervals of a search: which ranks its hits can have if images were altered within a threat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.bounds import Box, box_distance_bounds, distance_bounds, normalised
from holdfast.certificate import BoundsProof, RankInterval, Verdict
from holdfast.certify import Alteration, AlteredBoth, AlteredCandidates, RankBounds, query_ranks
from holdfast.certify.blocks import Distances, few_in_blocks, ranks_in_blocks
from holdfast.certify.certifier import Certifier
from holdfast.errors import GalleryError
from holdfast.gallery.boxes import named
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.kept import Kept, KeptHit
from holdfast.gallery.stores.base import TooManyError
from holdfast.gallery.values import GalleryInfo, Hits, of_before
from holdfast.models import AnyEmbedder
from holdfast.threat import Threat

_SLACK = 1 + 2.0**-30
SHARPENED = 1024
"""Candidates that pruning may leave for tighter tests of an altered query, which cost memory and time."""


@dataclass(frozen=True)
class TighterTest:
    """A tighter test of an altered query than its box, for what the box leaves open; an eps for each box."""

    certifier: Certifier
    method: str
    image: Tensor
    eps: Tensor
    k: int

    def row(self, number: int) -> TighterTest:
        """The test for one of the boxes."""
        return TighterTest(self.certifier, self.method, self.image, self.eps[number : number + 1], self.k)

    def alteration(self, vectors: Tensor) -> Alteration:
        """What altering the query can do to the ranking of these candidates."""
        return self.certifier.altered_query(self.eps, self.method, self.image, vectors, [self.k])


@dataclass(frozen=True)
class QueryBounds:
    """A query as certificates need it: its embedding, and the box of its features before normalisation.

    The box is None where the query is not altered; it has one row, or one for each hit.
    """

    embedding: Floats
    box: Box | None
    unit_norm: bool
    tighter: TighterTest | None = None

    def row(self, number: int) -> QueryBounds:
        """The query with one of its boxes."""
        if self.box is None:
            return self
        tighter = None if self.tighter is None else self.tighter.row(number)
        return QueryBounds(self.embedding, self.box.take(slice(number, number + 1)), self.unit_norm, tighter)

    @property
    def moved(self) -> Box:
        """The box of what the query's embedding can become."""
        if self.box is None:
            centre = torch.from_numpy(self.embedding).double()[None]
            return Box(centre, torch.zeros_like(centre))
        return normalised(self.box) if self.unit_norm else self.box


def certify_query(gallery: Gallery, query: QueryBounds, k: int, threat: Threat, name: str = "query") -> Hits:
    """The k nearest candidates with rank intervals that hold under every attack within `threat`, whose eps is given."""
    with gallery.snapshot():
        return Ranking(gallery, query.embedding, k, threat, name).hits(query)


def certify_again(gallery: Gallery, kept: Kept) -> Kept:
    """The kept certificate of a query as it is now; neither its image nor the embedder is needed."""
    box = None
    if kept.centre is not None and kept.radius is not None:
        box = Box(*(torch.from_numpy(half)[None] for half in (kept.centre, kept.radius)))
    query, threat = QueryBounds(kept.embedding, box, kept.unit_norm), Threat.parse(kept.threat)
    with gallery.snapshot():
        generation = gallery.info.generation
        nothing = Hits(kept.query, ())
        found = certify_query(gallery, query, kept.k, threat, kept.query) if len(gallery) else nothing
    return kept_of(query, found, kept.k, threat, generation)


def certify_picture(
    gallery: Gallery, embedder: AnyEmbedder, image: Tensor, kept: Kept, certifier: Certifier | None
) -> Kept:
    """The kept certificate of a query made anew from its picture; `certifier` is None where it is not altered."""
    threat = Threat.parse(kept.threat)
    assert threat.eps is not None
    box = None if certifier is None else certifier.box(image, threat.eps)
    query = QueryBounds(embedder.embed(image).numpy()[0], box, embedder.unit_norm)
    with gallery.snapshot():
        found = certify_query(gallery, query, kept.k, threat, kept.query)
        return kept_of(query, found, kept.k, threat, gallery.info.generation)


def kept_of(query: QueryBounds, found: Hits, k: int, threat: Threat, generation: int) -> Kept:
    """What a gallery keeps of a certified search."""
    said = [hit.to_dict() for hit in found]
    hits = tuple(KeptHit(one["id"], one["best"], one["worst"], one["verdict"]) for one in said)
    box = (None, None) if query.box is None else (query.box.centre[0].numpy(), query.box.radius[0].numpy())
    return Kept(found.query, str(threat), k, generation, hits, query.unit_norm, query.embedding, *box)


class Ranking:
    """The nearest candidates of one query in one state of a gallery, to be certified under one threat.

    Pruning: let D be the largest distance at which a hit can be, and let the query's embedding move by
    at most ρ and that of candidate c by at most ρ_c. Then c is surely farther than every hit if its
    distance now is above D + ρ + ρ_c. Such a candidate is never as near as a hit under any attack, so
    no count of those that can come before a hit, or stay before it, holds it: it is left out, and the
    intervals are those of the whole gallery.
    """

    def __init__(self, gallery: Gallery, embedding: Floats, k: int, threat: Threat, name: str) -> None:
        self._gallery, self._threat, self._k = gallery, threat, k
        stored = threat.who == "query" or gallery.info.embedder.current
        self._reason = "" if stored else of_before(gallery.path)
        self._boxes = None if threat.who == "query" else _stored_size(gallery.info, threat)
        self._scan = gallery.scan(embedding)
        self._found, self.slots = gallery.hits_of(self._scan, k, name=name)

    def certified(self, query: QueryBounds) -> Tensor:
        """Which hits surely stay among the k."""
        bounds, _ = self._ranks(query)
        return ((bounds.worst <= self._k) & bounds.known)[0]

    def hits(self, query: QueryBounds, eps: list[float] | None = None) -> Hits:
        """All hits with their intervals; `eps` is that of each hit, where it is not the threat's: -1 for none."""
        bounds, examined = self._ranks(query)
        best, worst, known = (t[0].tolist() for t in (bounds.best, bounds.worst, bounds.known))
        threat, k, picture = self._threat, self._k, self._gallery.info.embedder.picture
        certificates = []
        for i in range(len(self._found)):
            size = threat.eps if eps is None else eps[i]
            assert size is not None
            sure = worst[i] <= k and known[i] and size >= 0
            verdict = Verdict.CERTIFIED if sure else Verdict.UNKNOWN
            proved = float(size) if size >= 0 else None
            made = RankInterval(
                best[i], worst[i], proved, threat=threat, k=k, verdict=verdict, picture=picture
            )
            certificates.append(made)
        proof = BoundsProof(
            threat=threat,
            k=k,
            picture=picture,
            examined=examined,
            candidates=len(self._gallery),
            sharpened=query.tighter is None or examined <= SHARPENED + len(certificates),
            boxes=self._boxes,
            reason=self._reason,
        )
        return self._found.proved(proof, certificates)

    def survivors(self, query: QueryBounds, hits: Slots) -> Slots:
        """The candidates beside `hits` that pruning leaves, for a query with one box."""
        near = self._gallery.possible(self._scan, self._limit(query, hits), self._boxes)
        return near[~np.isin(near, hits)]

    def _ranks(self, query: QueryBounds) -> tuple[RankBounds, int]:
        """The intervals of all hits, and how many candidates were not left out; each box by itself."""
        if self._threat.who == "candidates":
            query = QueryBounds(query.embedding, None, query.unit_norm)
        rows = 1 if query.box is None else len(query.box)
        each = np.split(np.arange(len(self.slots)), rows)
        parts = [self._ranks_of(query.row(row), places) for row, places in enumerate(each)]
        bounds = [(b.rank, b.best, b.worst, b.known) for b, _ in parts]
        whole = RankBounds(*(torch.cat(column, dim=1) for column in zip(*bounds, strict=True)))
        return whole, max(examined for _, examined in parts)

    def _ranks_of(self, query: QueryBounds, places: Slots) -> tuple[RankBounds, int]:
        """The intervals of some of the hits, for a query with one box."""
        hits, rank, total = self.slots[places], torch.from_numpy(places + 1)[None], len(self._gallery)
        try:
            others = np.empty(0, dtype=np.int64) if self._reason else self.survivors(query, hits)
        except TooManyError as cause:
            self._reason = str(cause)
        if self._reason:
            nothing = torch.zeros_like(rank, dtype=torch.bool)
            return RankBounds(rank, torch.ones_like(rank), torch.full_like(rank, total), nothing), len(hits)
        if self._threat.most is not None:
            clean = self._scan.distances(np.concatenate([hits, others]))
            bounds = few_in_blocks(self._distances, clean, hits, others, rank, self._threat.most, total)
        elif self._boxes is None:
            assert query.box is not None
            bounds = query_ranks(
                query.box,
                self._scan.vectors,
                hits,
                others,
                rank,
                total,
                max_norm=self._gallery.max_norm,
                unit_norm=query.unit_norm,
            )
            if query.tighter is not None and len(others) <= SHARPENED:
                bounds = self._tightened(bounds, query.tighter, hits, others, rank)
        else:
            bounds = ranks_in_blocks(lambda slots: self._altered(query, slots), hits, others, rank, total)
        return bounds, len(hits) + len(others)

    def _tightened(
        self, bounds: RankBounds, tighter: TighterTest, hits: Slots, others: Slots, rank: Tensor
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
        tight = tighter.alteration(vectors).ranks(torch.arange(len(hits))[None], among)
        known, worst = tight.known, torch.where(tight.known, tight.worst, len(self._gallery))
        best = torch.where(known, torch.maximum(bounds.best, tight.best), bounds.best)
        return RankBounds(rank, best, torch.minimum(bounds.worst, worst), bounds.known | known)

    def _altered(self, query: QueryBounds, slots: Slots) -> Alteration:
        if self._threat.who == "both":
            return AlteredBoth(query.moved, self._candidates(slots))
        return AlteredCandidates(self._candidates(slots), query.moved.centre)

    def _distances(self, slots: Slots) -> Distances:
        """Bounds of the distances of altered candidates to the query."""
        centre = torch.from_numpy(self._scan.query).double()[None]
        upper, lower = distance_bounds(self._candidates(slots), centre)
        return upper[:, 0], lower[:, 0]

    def _candidates(self, slots: Slots) -> Box:
        if self._boxes is None:
            centre = torch.from_numpy(self._gallery.vectors_at(slots)).double()
            return Box(centre, torch.zeros_like(centre))
        found = self._gallery.boxes_at(self._boxes, slots)
        return Box(torch.from_numpy(found.centre).double(), torch.from_numpy(found.radius).double())

    def _limit(self, query: QueryBounds, hits: Slots) -> float:
        """Beyond which distance a candidate is left out that stays where it is: D + ρ."""
        moved = query.moved
        far, _ = box_distance_bounds(moved, self._candidates(hits))
        moves = (moved.centre - torch.from_numpy(query.embedding).double()).abs() + moved.radius
        return (float(far.max()) + float(moves.norm())) * _SLACK


def missing_boxes(info: GalleryInfo, threat: Threat) -> str | None:
    """Why altered candidates cannot be certified by what a gallery stores, and what to do; None where they can."""
    assert threat.eps is not None
    if info.boxes and info.boxes[-1] >= threat.eps:
        return None
    has = f"only boxes for {named(*info.boxes)}" if info.boxes else "no boxes of its candidates"
    return (
        f"{info.path} has {has}, so '{threat}' cannot be certified; add them with "
        f"'holdfast index MODEL IMAGES --out {info.path} --boxes linf:{threat.size or threat.eps}'"
    )


def _stored_size(info: GalleryInfo, threat: Threat) -> float:
    """The smallest eps, not below that of the threat, for which the gallery has boxes: a larger box holds all."""
    if lacking := missing_boxes(info, threat):
        raise GalleryError(lacking)
    return next(size for size in info.boxes if threat.eps is not None and size >= threat.eps)
