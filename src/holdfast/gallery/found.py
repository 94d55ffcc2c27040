"""What a search found for a picture, whichever kind of search its gallery has.

The three kinds of results meet here and nowhere else on the way of an attack.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from holdfast.certify import Verdict
from holdfast.data import Picture
from holdfast.gallery.bounding import Bounder
from holdfast.gallery.certified import CertifiedHits, certified_search
from holdfast.gallery.exact import Floats
from holdfast.gallery.interface import AnyGallery
from holdfast.gallery.smoothed import SmoothedHits, smoothed_search, stored_smoothing
from holdfast.gallery.values import Hit, Hits
from holdfast.goals import Place
from holdfast.models import AnyEmbedder, Smoothed, to_unit
from holdfast.threat import Threat

BROKEN = "An attack within the threat pushed it out of the list."


@dataclass(frozen=True, eq=False)
class Found:
    """The answer of one search, and the vector that it went by."""

    answer: Hits | CertifiedHits | SmoothedHits
    vector: Floats
    threat: Threat | None
    """Under which it says how far its hits hold; None where it was not asked."""
    seconds: float

    @property
    def hits(self) -> tuple[Hit, ...]:
        if isinstance(self.answer, Hits):
            return self.answer.hits
        return tuple(entry.hit for entry in self.answer.hits)

    @property
    def verdicts(self) -> tuple[Verdict | None, ...]:
        """Of each hit; None where the search was not asked."""
        if isinstance(self.answer, Hits) or self.threat is None:
            return (None,) * len(self.hits)
        return tuple(entry.verdict for entry in self.answer.hits)

    @property
    def unsure(self) -> bool:
        """Whether it says so itself: a smoothed search that abstains promises no list."""
        return isinstance(self.answer, SmoothedHits) and Verdict.ABSTAIN in self._given

    @property
    def smoothed(self) -> bool:
        return isinstance(self.answer, SmoothedHits)

    def promised(self, threat: Threat) -> set[str]:
        """The hits that surely stay in the list within the threat: a radius may be shorter than that."""
        if isinstance(self.answer, Hits) or threat.eps is None:
            return set()
        if isinstance(self.answer, CertifiedHits):
            return {entry.hit.id for entry in self.answer.hits if entry.verdict == Verdict.CERTIFIED}
        reach = {"l2": "radius", "linf": "pixel"}[threat.norm]
        return {
            entry.hit.id
            for entry in self.answer.hits
            if entry.verdict == Verdict.CERTIFIED and getattr(entry, reach) >= threat.eps
        }

    def refuted(self, places: Mapping[str, Place]) -> set[str]:
        """The hits that stand where their rank interval says they cannot, whichever way ties are settled."""
        if not isinstance(self.answer, CertifiedHits):
            return set()
        return {
            entry.hit.id
            for entry in self.answer.hits
            if places[entry.hit.id].best > entry.worst or places[entry.hit.id].worst < entry.best
        }

    def broken(self, ids: Collection[str]) -> Found:
        """The same, those of these hits BROKEN that were UNKNOWN: an attack was shown that removes them."""
        answer = self.answer
        if isinstance(answer, Hits):
            return self
        open_ = [entry.hit.id in ids and entry.verdict == Verdict.UNKNOWN for entry in answer.hits]
        if isinstance(answer, CertifiedHits):
            proved = (
                replace(e, verdict=Verdict.BROKEN) if o else e
                for e, o in zip(answer.hits, open_, strict=True)
            )
            return replace(self, answer=replace(answer, hits=tuple(proved)))
        estimated = (
            replace(e, verdict=Verdict.BROKEN, reason=BROKEN) if o else e
            for e, o in zip(answer.hits, open_, strict=True)
        )
        return replace(self, answer=replace(answer, hits=tuple(estimated)))

    @property
    def _given(self) -> tuple[Verdict, ...]:
        return () if isinstance(self.answer, Hits) else tuple(entry.verdict for entry in self.answer.hits)


def find(
    gallery: AnyGallery,
    embedder: AnyEmbedder,
    picture: Picture,
    k: int,
    *,
    threat: Threat | None = None,
    bounder: Bounder | None = None,
    noise: int | None = None,
) -> Found:
    """Search for a picture as the gallery is searched, and certify the hits under `threat` where that is possible.

    Bounds need their `bounder`; `noise` is the seed of a smoothed search, one that nobody can know if left out.
    """
    start, k = time.perf_counter(), min(k, len(gallery))
    answer: Hits | CertifiedHits | SmoothedHits
    if isinstance(embedder, Smoothed):
        asked = threat if threat is not None and threat.norm == "l2" else None
        eps = None if asked is None else asked.eps
        answer = smoothed_search(
            gallery, embedder, picture.pixels, k, eps=eps, seed=noise, stretch=picture.stretch
        )
        vector = _mean(gallery, embedder, picture, answer)
        return Found(answer, vector, asked, time.perf_counter() - start)
    vector = embedder.embed(picture.pixels[None]).numpy()[0]
    if threat is not None and threat.norm == "linf" and bounder is not None:
        answer = certified_search(gallery, embedder, picture.pixels, k, threat, bounder=bounder)
        return Found(answer, vector, threat, time.perf_counter() - start)
    answer = gallery.search(vector[None], k, names=["query"])[0]
    return Found(answer, vector, None, time.perf_counter() - start)


def _mean(gallery: AnyGallery, embedder: Smoothed, picture: Picture, answer: SmoothedHits) -> Floats:
    """The mean vector of the noisy copies that answered."""
    how = stored_smoothing(gallery.info.embedder)
    assert how is not None
    image = to_unit(torch.from_numpy(np.array(picture.pixels))[None])[0]
    total = np.zeros(embedder.dim)
    for part in embedder.sample(image, how.first, how.first + answer.samples, seed=answer.seed):
        total += part.double().numpy().sum(0)
    return (total / answer.samples).astype(np.float32)
