"""Proofs by noisy copies: each hit of a smoothed search stays among the first k to an ℓ2 radius, or it abstains.

The gallery's vectors are frozen numbers; only what the query's copies say is estimated. A first few samples choose
what is asked: a shortlist of candidates, and the class of the nearest. Samples of their own answer it, so that
nothing is chosen by what proves it. How copies list candidates is a rule (`holdfast.gallery.rules`): by their mean
vector, or by their votes.

What is deployed is what is certified. If a hit has radius r, it belongs to the first k by that rule at x + δ for
every ‖δ‖₂ < r; a search for x + δ that does not list it lists one that does not belong there, and that one comes
with an abstention: the hit is there, or the search says that it is not sure (each of the two searches is wrong with
probability at most α). Forcing such an abstention is all that an attacker can do, as long as the noise of a search
is not known before it: each search draws a seed of its own, and reports it.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.certificate import Radius, SamplingProof, Verdict
from holdfast.certify.files import Way
from holdfast.certify.smoothing import Smoothing
from holdfast.errors import ConfigError, GalleryError, HoldfastError
from holdfast.gallery.exact import Floats
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.provers.base import Cost, Options, Prover, Query
from holdfast.gallery.rules import RULES, Question
from holdfast.gallery.rules.base import Array
from holdfast.gallery.smoothed import stored_smoothing
from holdfast.gallery.values import GalleryInfo, Hits
from holdfast.models import AnyEmbedder, Smoothed, to_unit
from holdfast.progress import bar
from holdfast.threat import Threat, floored

EARLY = (8, 4, 2)
"""A search for a fixed radius also looks at these parts of its samples, and may end there."""
FINAL = 0.7
"""The last look's part of α where there are early ones, which share the rest."""
FORECASTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Sampling(Prover):
    """For every query closer than its radius in ℓ2, a hit is among the first k of a smoothed gallery.

    All radii of one search together are wrong with probability at most alpha. With an eps the question is yes or
    no for each hit, and sampling ends early where it is answered; with `auto` each hit gets the largest radius that
    its samples prove. The noise is that of the option `seed`; left out, one that nobody can know before, since who
    knows the noise can search for a picture on which it misleads.
    """

    name = "sampling"
    words = "a smoothed gallery"
    options = frozenset({"samples", "rule", "seed"})
    usual: ClassVar[Threat] = Threat.parse("l2:auto")

    @classmethod
    def lacks(cls, embedder: AnyEmbedder) -> str | None:
        return None if isinstance(embedder, Smoothed) else "the embedder is not smoothed"

    def __init__(self, embedder: AnyEmbedder) -> None:
        assert isinstance(embedder, Smoothed)
        self._embedder: Smoothed = embedder

    def threats(self, info: GalleryInfo) -> tuple[str, ...]:
        return ("query:l2",)

    def refuses(self, threat: Threat, options: Options, info: GalleryInfo) -> HoldfastError | None:
        if threat.norm != "l2" or threat.who != "query":
            return ConfigError(
                f"a smoothed gallery certifies an altered query in l2 (l2:auto or l2:EPS), not '{threat}'; for "
                "bounds, index without --smooth"
            )
        how = stored_smoothing(info.embedder)
        if how is None:
            return GalleryError(f"{info.path} is not smoothed")
        if how.sigma != self._embedder.sigma:
            return ConfigError(
                f"{info.path} is smoothed by sigma {how.sigma:g}, not {self._embedder.sigma:g}"
            )
        return None

    def cost(self, threat: Threat, options: Options, info: GalleryInfo) -> Cost:
        how = searched(info, options)
        return Cost(how.first + how.n, is_expensive=True)

    def vector(self, query: Query, gallery: Gallery, found: Hits) -> Floats:
        """The mean of the noisy copies that answered."""
        how, proof = searched(gallery.info), found.proof
        assert isinstance(proof, SamplingProof)
        image = to_unit(torch.from_numpy(np.array(query.picture.pixels))[None])[0]
        copies = self._embedder.sample(image, how.first, how.first + proof.samples, seed=proof.seed)
        total = np.zeros(self._embedder.dim)
        for part in copies:
            total += part.double().numpy().sum(0)
        return (total / proof.samples).astype(np.float32)

    def prove(self, query: Query, gallery: Gallery, k: int, threat: Threat, options: Options) -> Hits:
        how = searched(gallery.info, options)
        return smoothed_search(gallery, self._embedder, query, k, how, threat=threat, seed=options.seed)


def searched(info: GalleryInfo, options: Options | None = None) -> Smoothing:
    """How a smoothed gallery is searched, unless the options say otherwise."""
    how = stored_smoothing(info.embedder)
    if how is None:
        raise GalleryError(f"{info.path} does not say how it is searched; give the samples")
    chosen: dict[str, Any] = {} if options is None else {"n": options.samples, "rule": options.rule}
    return replace(how, **{name: value for name, value in chosen.items() if value is not None})


def smoothed_search(
    gallery: Gallery,
    embedder: Smoothed,
    query: Query,
    k: int,
    how: Smoothing,
    *,
    threat: Threat | None = None,
    seed: int | None = None,
) -> Hits:
    """The k candidates that noisy copies of the query list, each with the radius to which it stays.

    Where the query knows its `stretch`, radii are of the file whose picture it is; else of the picture as the
    network sees it.
    """
    if how.sigma != embedder.sigma:
        raise ConfigError(f"{gallery.path} is smoothed by sigma {embedder.sigma:g}, not {how.sigma:g}")
    if k < 1:
        raise ConfigError(f"k is at least 1, not {k}")
    threat = threat or Sampling.usual
    seed = secrets.randbits(52) if seed is None else seed
    image = to_unit(torch.from_numpy(np.array(query.picture.pixels))[None])[0]
    way = Way(embedder.spec, query.picture.stretch)
    largest = math.sqrt(image.numel())  # No two images are farther apart.
    eps = threat.eps
    if eps is not None and not (eps > 0 and way.at_network(eps) < largest):
        raise ConfigError(f"an l2 radius is above 0 and below {way.of_file(largest):.1f} here, not {eps}")
    early = [] if eps is None else sorted({max(1, how.n // part) for part in EARLY} - {how.n})
    final = FINAL if early else 1.0
    parts = {stop: (1 - final) / len(early) for stop in early} | {how.n: final}
    rule = RULES[how.rule]
    rule.check(gallery, how, k, final)
    first = torch.cat(list(embedder.sample(image, 0, how.first, seed=seed))).double().numpy()
    with gallery.snapshot():
        question = rule(gallery, first, k, how, embedder.bound)
        with bar("sampling", how.n) as advance:
            for stop, part_of_alpha in parts.items():
                for part in embedder.sample(image, how.first + question.n, how.first + stop, seed=seed):
                    question.add(part.double().numpy())
                    advance(len(part))
                answer = question.answer(part_of_alpha)
                if eps is not None and question.settled(answer, way.at_network(eps), final):
                    break
        said = _Said(question, answer[0], final, threat, way)
        hits, slots = question.hits(query.name)
        shares = question.shares(slots)
        certificates = [said.of(slot, share) for slot, share in zip(slots.tolist(), shares, strict=True)]
        proof = SamplingProof(
            threat=threat,
            k=len(hits),
            picture=way.picture,
            sigma=how.sigma,
            alpha=how.alpha,
            samples=question.n,
            rule=how.rule,
            seed=seed,
            label=question.label,
            label_radius=way.of_file(min(answer[1], largest)),
        )
        return hits.proved(proof, certificates)


class _Said:
    """What the samples say of each hit that they list."""

    def __init__(self, question: Question, radii: Array, final: float, threat: Threat, way: Way) -> None:
        self._question, self._radii, self._final, self._way = question, radii, final, way
        self._threat = threat
        self._wanted = 0.0 if threat.eps is None else way.at_network(threat.eps)
        self._places = {int(slot): place for place, slot in enumerate(question.slots)}
        self._forecasts: dict[tuple[float, int], NDArray[np.bool_]] = {}

    def of(self, slot: int, share: float | None) -> Radius:
        """The certificate of the hit in this slot, for which this share of the copies voted."""
        place, way, wanted = self._places.get(slot), self._way, self._wanted
        largest = math.sqrt(math.prod(way.spec.shape))
        radius = 0.0 if place is None else min(float(self._radii[place]), largest)
        verdict = Verdict.CERTIFIED if radius > wanted else Verdict.UNKNOWN if radius > 0 else Verdict.ABSTAIN
        reason, samples = ("", None) if radius > wanted else self._open(place, radius)
        said = way.of_file(radius)
        if verdict == Verdict.CERTIFIED and self._threat.eps is not None:
            said = max(
                said, self._threat.eps
            )  # That is what was proved; on the way back it may be rounded below.
        return Radius(
            said,
            way.pixel(radius),
            self._question.how.alpha,
            samples,
            share,
            threat=self._threat,
            k=min(self._question.k, len(self._question.gallery)),
            verdict=verdict,
            picture=way.picture,
            reason=reason,
        )

    def _open(self, place: int | None, radius: float) -> tuple[str, int | None]:
        """Why a hit is not certified, and how many samples might settle it."""
        if place is None:
            return f"not among the first {len(self._places)} by the samples that choose what is asked", None
        question = self._question
        # Whether it belongs to the first k at all comes before how far it stays there.
        asked = self._wanted if radius > 0 else 0.0
        samples = next(
            (question.n * times for times in FORECASTS if self._settles(place, asked, times)), None
        )
        close = (
            f"proved to {floored(self._way.of_file(radius))} only" if radius > 0 else question.doubt(place)
        )
        more = f"about {samples:,} might settle it" if samples else "a thousand times as many would not do"
        return f"{close} with {question.n:,} samples; {more}", samples

    def _settles(self, place: int, radius: float, times: int) -> bool:
        if (radius, times) not in self._forecasts:
            self._forecasts[radius, times] = self._question.forecast(radius, self._final, times)
        return bool(self._forecasts[radius, times][place])
