"""Search whose every hit carries a proof: where it can stand if the query was altered within a threat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.bounds import Box, image_box, interval_bounds, normalised, trace
from holdfast.certify import QueryAttack, Verdict
from holdfast.errors import ConfigError
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.values import Hit
from holdfast.models import Embedder, to_unit
from holdfast.threat import Threat

_SLACK = 1 + 2.0**-30


@dataclass(frozen=True)
class CertifiedHit:
    """A hit, and the ranks that it keeps under every attack within the threat.

    CERTIFIED: it surely stays among the k that were asked for. UNKNOWN: the bounds leave it open.
    """

    hit: Hit
    best: int
    worst: int
    verdict: Verdict


@dataclass(frozen=True)
class CertifiedHits:
    """The certified hits of one query; `examined` candidates needed the exact test, of `candidates` in all."""

    query: str
    threat: Threat
    hits: tuple[CertifiedHit, ...]
    examined: int
    candidates: int


def certified_search(
    gallery: Gallery,
    embedder: Embedder,
    pixels: NDArray[np.uint8],
    k: int,
    threat: Threat,
    name: str = "query",
) -> CertifiedHits:
    """The k nearest candidates with rank intervals that hold for every query within `threat` of this one.

    Every z in the query's box lies within ρ of its embedding, so a candidate more than 2ρ farther than
    the k-th hit is surely farther than all of them: one range search leaves the candidates that
    need the exact test.
    """
    if threat.who != "query" or threat.norm != "linf" or threat.eps is None:
        raise ConfigError(
            f"search certifies altered queries within linf:EPS, not '{threat}'; see 'holdfast certify'"
        )
    gallery.check_embedder(embedder_info(embedder))
    image = to_unit(torch.from_numpy(np.array(pixels))[None])
    embedding = embedder.embed(image).double()
    box = _box(embedder, image, threat.eps)
    moved = normalised(box) if embedder.unit_norm else box
    reach = float(((moved.centre - embedding).abs() + moved.radius).norm()) * _SLACK
    with gallery.snapshot():
        found = gallery.search(embedding.numpy().astype(np.float32), k, names=[name])[0]
        radius = (found.hits[-1].distance + 2 * reach) * _SLACK
        near = gallery.range_search(
            embedding.numpy().astype(np.float32)[0], radius if np.isfinite(radius) else np.inf
        )
        ids = [hit.id for hit in near.hits]
        vectors = torch.from_numpy(gallery.vectors(ids)).double()
        total = len(gallery)
    place = {id: i for i, id in enumerate(ids)}
    attack = QueryAttack(box, vectors, unit_norm=embedder.unit_norm)
    bounds = attack.ranks(torch.tensor([[place[hit.id] for hit in found.hits]]))
    hits = []
    for column, hit in enumerate(found.hits):
        known = bool(bounds.known[0, column])
        best, worst = (int(bounds.best[0, column]), int(bounds.worst[0, column])) if known else (1, total)
        verdict = Verdict.CERTIFIED if worst <= k else Verdict.UNKNOWN
        hits.append(CertifiedHit(hit, best, worst, verdict))
    return CertifiedHits(name, threat, tuple(hits), len(ids), total)


def _box(embedder: Embedder, image: torch.Tensor, eps: float) -> Box:
    """The box of the query's unnormalised features, with the rounding of inference inside."""
    with torch.no_grad():
        return interval_bounds(trace(embedder), image_box(image.double(), eps, rounding=True), rounding=True)
