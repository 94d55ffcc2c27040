"""Proofs by bounds: for every attack within a threat, each hit's rank stays in its interval."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from holdfast.certificate import Effort
from holdfast.certify.certifier import Certifier
from holdfast.certify.crown import PAIRS
from holdfast.certify.largest import STEPS, largest_eps
from holdfast.errors import ConfigError, GalleryError, HoldfastError
from holdfast.gallery.certified import (
    QueryBounds,
    Ranking,
    TighterTest,
    certify_query,
    kept_of,
    missing_boxes,
)
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.provers.base import Cost, Options, Prover, Query
from holdfast.gallery.values import GalleryInfo, Hits, of_before
from holdfast.methods import IN_SEARCH, BoundMethod, bound_method
from holdfast.models import AnyEmbedder, Smoothed, to_unit
from holdfast.threat import Threat


class Bounds(Prover):
    """For every attack within a linf threat: a hit's rank stays between `best` and `worst`.

    With `linf:auto` each hit gets the largest eps at which it surely stays among the k, found by
    bisection, and its interval there. Methods above `interval` try harder for an altered query, where
    the interval test leaves a hit open and pruning leaves at most `certified.SHARPENED` candidates.
    """

    name = "bounds"
    words = "a gallery that is not smoothed"
    options = frozenset({"method", "keep"})

    @classmethod
    def lacks(cls, embedder: AnyEmbedder) -> str | None:
        return "a smoothed embedder has no bounds" if isinstance(embedder, Smoothed) else None

    @cached_property
    def certifier(self) -> Certifier:
        """The embedder as its bounds see it; what cannot be bounded is refused here, before any work."""
        return Certifier(self._embedder)

    @cached_property
    def unbounded(self) -> HoldfastError | None:
        """Why the network has no bounds; None where it has."""
        try:
            self.certifier  # noqa: B018
        except HoldfastError as error:
            return error
        return None

    def threats(self, info: GalleryInfo) -> tuple[str, ...]:
        bounded = self.unbounded is None
        stored = ("candidates:linf", *(["both:linf"] if bounded else [])) if info.boxes else ()
        return (*(["query:linf"] if bounded else []), *stored)

    def methods(self, info: GalleryInfo) -> tuple[str, ...]:
        return IN_SEARCH if self.unbounded is None else IN_SEARCH[:1]

    def refuses(self, threat: Threat, options: Options, info: GalleryInfo) -> HoldfastError | None:
        method = _method(options)
        if threat.norm != "linf" or (threat.eps is None and (threat.who != "query" or options.keep)):
            return ConfigError(
                f"search certifies linf:EPS for the query, the candidates or both, and linf:auto for the query"
                f"{' where it is not kept' if options.keep else ''}, not '{threat}'"
                + ("; l2 is for a smoothed gallery (index --smooth)" if threat.norm == "l2" else "")
            )
        if not method.in_search or (method.needs_network and threat.who != "query"):
            return ConfigError(
                f"method {method.name} is not for '{threat}' in a search: last-layer and crown are for an altered "
                "query; everything else takes interval"
            )
        if options.keep and method.needs_network:
            return ConfigError(
                f"a kept certificate is checked again without the network, which {method.name} needs; "
                "keep one of method interval"
            )
        if options.keep and not info.embedder.current:
            return GalleryError(f"{of_before(info.path)}; until then it keeps no others")
        if threat.who != "query" and (lacking := missing_boxes(info, threat)):
            return GalleryError(lacking)
        return None if threat.who == "candidates" else self.unbounded

    def cost(self, threat: Threat, options: Options, info: GalleryInfo) -> Cost:
        method = _method(options)
        # An interval bound costs about two passes, a pair for CROWN about one with each kind of lines.
        once = (1 if threat.who == "candidates" else 3) + 2 * method.last_layer + 2 * PAIRS * method.linear
        times = STEPS + 3 if threat.eps is None else 1
        return Cost(once * times, threat.eps is None or method.needs_network)

    def prove(self, query: Query, gallery: Gallery, k: int, threat: Threat, options: Options) -> Hits:
        method, image = _method(options), to_unit(torch.from_numpy(np.array(query.picture.pixels))[None])
        embedding = self._embedder.embed(image).numpy()[0]

        def bounded(eps: float | Tensor, method: BoundMethod = method) -> QueryBounds:
            size = torch.as_tensor(eps, dtype=torch.float64).reshape(-1)
            if threat.who == "candidates":
                return QueryBounds(embedding, None, self._embedder.unit_norm)
            tighter, images = None, image.expand(len(size), *image.shape[1:])
            if method.linear or (method.last_layer and self.certifier.split is not None):
                tighter = TighterTest(self.certifier, method.name, image, size, k)
            # On a network that was not trained for intervals their box prunes nothing, and leaves nothing to try.
            box = self.certifier.linear_box if method.linear else self.certifier.box
            return QueryBounds(embedding, box(images, size), self._embedder.unit_norm, tighter)

        if threat.eps is None:
            with gallery.snapshot():
                ranking = Ranking(gallery, embedding, k, threat, query.name)
                eps = largest_eps(lambda e: ranking.certified(bounded(e.clamp(min=0))), len(ranking.slots))
                return ranking.hits(bounded(eps.clamp(min=0)), eps.tolist())
        start = time.perf_counter()
        one = bounded(threat.eps)
        with gallery.snapshot():
            found, generation = certify_query(gallery, one, k, threat, query.name), gallery.info.generation
            if one.tighter is not None:
                seconds, again = time.perf_counter() - start, time.perf_counter()
                plain = certify_query(gallery, bounded(threat.eps, bound_method("interval")), k, threat)
                effort = Effort(found.certified, seconds, plain.certified, time.perf_counter() - again)
                found = replace(found, proof=replace(found.proof, effort=effort))  # type: ignore[type-var]
        if options.keep:
            gallery.keep([kept_of(one, found, k, threat, generation)])
        return found


def _method(options: Options) -> BoundMethod:
    return bound_method(options.method or IN_SEARCH[0])
