"""Search whose every hit carries a proof: where it can stand if the query was altered within a threat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.bounds import Box, Graph, image_box, interval_bounds, normalised, trace
from holdfast.certify import QueryAttack, Verdict, largest_eps
from holdfast.errors import ConfigError
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.values import Hit, Hits
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
    eps: float
    """The eps of the threat, or for `auto` the largest found at which the hit stays; -1 if there is none."""


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

    With `linf:auto` each hit gets the largest eps at which it surely stays among the k, found by
    bisection, and its interval there.

    Every z in the query's box lies within ρ of its embedding, so a candidate more than 2ρ farther than
    the k-th hit is surely farther than all of them: one range search leaves the candidates that
    need the exact test.
    """
    if threat.who != "query" or threat.norm != "linf":
        raise ConfigError(
            f"search certifies altered queries within linf:EPS, not '{threat}'; see 'holdfast certify'"
        )
    gallery.check_embedder(embedder_info(embedder))
    image = to_unit(torch.from_numpy(np.array(pixels))[None])
    graph = trace(embedder)
    embedding = embedder.embed(image).numpy()
    with gallery.snapshot():
        found = gallery.search(embedding, k, names=[name])[0]
        if threat.eps is None:
            eps = _largest(gallery, embedder, graph, image, embedding, found)
        else:
            eps = [threat.eps] * len(found)
        hits, examined = _at(gallery, embedder, graph, image, embedding, found, k, eps)
        return CertifiedHits(name, threat, hits, examined, len(gallery))


def _at(
    gallery: Gallery,
    embedder: Embedder,
    graph: Graph,
    image: torch.Tensor,
    embedding: NDArray[np.float32],
    found: Hits,
    k: int,
    eps: Sequence[float],
) -> tuple[tuple[CertifiedHit, ...], int]:
    """The hits with their intervals, each at its own eps, and how many candidates were examined."""
    sizes = torch.tensor([max(value, 0.0) for value in eps], dtype=torch.float64)
    box = _boxes(graph, image, sizes)
    ids, vectors = _near(gallery, embedder, box, embedding, found)
    place = {id: i for i, id in enumerate(ids)}
    attack = QueryAttack(box, vectors, unit_norm=embedder.unit_norm)
    rank = torch.tensor([[hit.rank] for hit in found.hits])
    bounds = attack.ranks(torch.tensor([[place[hit.id]] for hit in found.hits]), rank)
    made = []
    for row, hit in enumerate(found.hits):
        known = bool(bounds.known[row, 0])
        best, worst = (int(bounds.best[row, 0]), int(bounds.worst[row, 0])) if known else (1, len(gallery))
        sure = worst <= k and eps[row] >= 0
        made.append(
            CertifiedHit(hit, best, worst, Verdict.CERTIFIED if sure else Verdict.UNKNOWN, float(eps[row]))
        )
    return tuple(made), len(ids)


def _largest(
    gallery: Gallery,
    embedder: Embedder,
    graph: Graph,
    image: torch.Tensor,
    embedding: NDArray[np.float32],
    found: Hits,
) -> list[float]:
    """For each hit the largest eps at which it surely stays among the hits."""

    def certified(eps: torch.Tensor) -> torch.Tensor:
        hits, _ = _at(gallery, embedder, graph, image, embedding, found, len(found), eps.tolist())
        return torch.tensor([hit.verdict == Verdict.CERTIFIED for hit in hits])

    found_eps: list[float] = largest_eps(certified, len(found)).tolist()
    return found_eps


def _near(
    gallery: Gallery, embedder: Embedder, box: Box, embedding: NDArray[np.float32], found: Hits
) -> tuple[list[str], torch.Tensor]:
    """The candidates that some point of some box could rank before the last hit, and their vectors."""
    moved = normalised(box) if embedder.unit_norm else box
    reach = ((moved.centre - torch.from_numpy(embedding).double()).abs() + moved.radius).norm(dim=1).max()
    radius = (found.hits[-1].distance + 2 * float(reach) * _SLACK) * _SLACK
    near = gallery.range_search(embedding[0], radius if np.isfinite(radius) else np.inf)
    ids = [hit.id for hit in near.hits]
    return ids, torch.from_numpy(gallery.vectors(ids)).double()


def _boxes(graph: Graph, image: torch.Tensor, eps: torch.Tensor) -> Box:
    """The box of the query's unnormalised features for each eps, with the rounding of inference inside."""
    same = bool((eps == eps[0]).all())
    sizes = eps[:1] if same else eps
    images = image.double().expand(len(sizes), *image.shape[1:])
    with torch.no_grad():
        box = interval_bounds(graph, image_box(images, sizes, rounding=True), rounding=True)
    return Box(box.centre.expand(len(eps), -1), box.radius.expand(len(eps), -1)) if same else box
