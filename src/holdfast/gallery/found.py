"""One search of an attack on a picture: what it lists, what it promises, and the vector that it went by."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from holdfast.certificate import Verdict
from holdfast.data import Picture
from holdfast.gallery.exact import Floats
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.provers import Options, Provers, Query
from holdfast.gallery.values import Hit, Hits
from holdfast.goals import Place
from holdfast.models import AnyEmbedder
from holdfast.threat import Threat


@dataclass(frozen=True, eq=False)
class Found:
    """The answer of one search, and the vector that it went by."""

    answer: Hits
    vector: Floats
    threat: Threat | None
    """Under which it says how far its hits hold; None where it was not asked."""
    seconds: float

    @property
    def hits(self) -> tuple[Hit, ...]:
        return self.answer.hits

    @property
    def unsure(self) -> bool:
        """Whether it says so itself: a search that abstains promises no list."""
        return any(one.verdict == Verdict.ABSTAIN for one in self.answer.certificates)

    @property
    def may_fail(self) -> bool:
        """Whether what it certifies may be wrong with some probability."""
        return any(one.failure_probability > 0 for one in self.answer.certificates)

    def promised(self, threat: Threat) -> set[str]:
        """The hits that surely stay in the list within the threat."""
        return {hit.id for hit in self.hits if hit.certificate and hit.certificate.promises(threat)}

    def refuted(self, places: Mapping[str, Place]) -> set[str]:
        """The hits that stand where their certificate says they cannot, whichever way ties are settled."""
        return {
            hit.id
            for hit in self.hits
            if hit.certificate and hit.certificate.excludes(places[hit.id].best, places[hit.id].worst)
        }

    def broken(self, ids: Collection[str]) -> Found:
        """The same, those of these hits BROKEN that were UNKNOWN: an attack was shown that removes them."""

        def shown(hit: Hit) -> Hit:
            open_ = hit.certificate is not None and hit.certificate.verdict == Verdict.UNKNOWN
            if hit.id not in ids or not open_ or hit.certificate is None:
                return hit
            return replace(hit, certificate=hit.certificate.broken())

        return replace(self, answer=replace(self.answer, hits=tuple(shown(hit) for hit in self.hits)))


def find(
    gallery: Gallery,
    embedder: AnyEmbedder,
    picture: Picture,
    k: int,
    *,
    threat: Threat | None = None,
    provers: Provers | None = None,
    noise: int | None = None,
) -> Found:
    """Search for a picture as the gallery is searched, and certify the hits under `threat` where that is possible.

    `provers` are the embedder's, where they are at hand. `noise` is the seed of a smoothed search, one that nobody
    can know if left out.
    """
    start, query, info = time.perf_counter(), Query(picture), gallery.info
    provers = Provers(embedder) if provers is None else provers
    options = Options() if provers.usual is None else Options(seed=noise)
    if threat is not None and provers.refuses(threat, options, info) is not None:
        threat = None
    asked = threat or provers.usual
    if asked is None:
        vector = embedder.embed(picture.pixels[None]).numpy()[0]
        answer = gallery.nearest(vector[None], k, names=[query.name])[0]
    else:
        prover = provers.prover(asked, options, info)
        answer = prover.prove(query, gallery, min(k, info.count), asked, options)
        vector = prover.vector(query, gallery, answer)
    return Found(answer, vector, threat, time.perf_counter() - start)
