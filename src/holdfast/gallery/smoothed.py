"""Search by a smoothed embedder: hits by noisy copies of the query, each with an ℓ2 radius or an abstention.

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
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.certify import Verdict
from holdfast.certify.files import Way
from holdfast.certify.smoothing import Rule, Smoothing
from holdfast.errors import ConfigError, GalleryError
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.interface import AnyGallery
from holdfast.gallery.rules import RULES, Question
from holdfast.gallery.rules.base import Array
from holdfast.gallery.values import EmbedderInfo, Hit, Hits
from holdfast.models import AnyEmbedder, Embedder, Foreign, Smoothed, to_unit
from holdfast.progress import bar
from holdfast.spec import PictureOf
from holdfast.threat import floored

EARLY = (8, 4, 2)
"""A search for a fixed radius also looks at these parts of its samples, and may end there."""
FINAL = 0.7
"""The last look's part of α where there are early ones, which share the rest."""
FORECASTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class SmoothedHit:
    """A hit, and how far the query may be from where it is in ℓ2 while the hit stays among the first k.

    CERTIFIED: to the radius that was asked for, or to any. UNKNOWN: to a smaller one. ABSTAIN: the samples
    do not settle even that it is among them now.
    """

    hit: Hit
    verdict: Verdict
    radius: float
    pixel: float
    """The same for every pixel by itself (ℓ∞): radius/√d."""
    reason: str = ""
    samples: int | None = None
    """How many samples would probably settle it; None where none that were tried would, or none are needed."""
    share: float | None = None
    """By rule `votes`: how many of the copies voted for it."""


@dataclass(frozen=True)
class SmoothedHits:
    """The hits of one query; all its statements together are wrong with probability at most `alpha`."""

    query: str
    hits: tuple[SmoothedHit, ...]
    sigma: float
    alpha: float
    samples: int
    """That answered; fewer than allowed where the verdicts were settled before."""
    eps: float | None = None
    label: str | None = None
    """The class of the nearest candidate, and to which radius the nearest stays one of this class (by rule `votes`:
    that of most copies)."""
    label_radius: float = 0.0
    seed: int = 0
    """Of this search's noise; the same one gives the same answer again."""
    rule: Rule = "mean"
    picture: PictureOf = "network input"
    """Whose pixels the radii are of: those of the file, or those that the network is given."""

    @property
    def plain(self) -> Hits:
        return Hits(self.query, tuple(entry.hit for entry in self.hits))


def smoothed(base: AnyEmbedder, how: Smoothing) -> Smoothed:
    """`base` as a gallery of smoothed vectors uses it."""
    if not isinstance(base, (Embedder, Foreign)):
        raise ConfigError("a smoothed embedder is not smoothed again")
    return Smoothed(base, how.sigma, how.gallery, seed=how.seed, bound=how.bound, backend=how.backend)


def smoothed_info(embedder: AnyEmbedder, info: EmbedderInfo, how: Smoothing) -> EmbedderInfo:
    """What a gallery keeps of a smoothed embedder: also how it is to be searched, unless told otherwise."""
    search = {"n": how.n, "alpha": how.alpha, "first": how.first, "rule": how.rule}
    return replace(info, card={**info.card, "search": search})


def stored_smoothing(info: EmbedderInfo) -> Smoothing | None:
    """How the vectors of a gallery were smoothed and are searched; None where they are plain."""
    noise = info.card.get("smoothed")
    if noise is None:
        return None
    return Smoothing(
        noise["sigma"],
        gallery=noise["samples"],
        seed=noise["seed"],
        bound=noise["bound"],
        backend=noise["backend"],
        **info.card.get("search", {}),
    )


def smoothed_search(
    gallery: AnyGallery,
    embedder: Smoothed,
    pixels: NDArray[np.uint8],
    k: int,
    name: str = "query",
    *,
    how: Smoothing | None = None,
    eps: float | None = None,
    seed: int | None = None,
    stretch: float | None = None,
) -> SmoothedHits:
    """The k candidates that noisy copies of the query list, each with the radius to which it stays.

    `how` is the gallery's own unless given. With `eps` the question is yes or no for each hit, and sampling
    ends early where it is answered; without, each hit gets the largest radius that its samples prove. The noise
    is that of `seed`; left out, one that nobody can know before, since who knows the noise can search for a
    picture on which it misleads. With `stretch` (`data.Picture`) radii are of the file whose picture this is;
    without, of the picture as the network sees it.
    """
    gallery.check_embedder(embedder_info(embedder))
    how = how or stored_smoothing(gallery.info.embedder)
    if how is None:
        raise GalleryError(f"{gallery.path} does not say how it is searched; give the samples")
    if how.sigma != embedder.sigma:
        raise ConfigError(f"{gallery.path} is smoothed by sigma {embedder.sigma:g}, not {how.sigma:g}")
    if k < 1:
        raise ConfigError(f"k is at least 1, not {k}")
    seed = secrets.randbits(52) if seed is None else seed
    image = to_unit(torch.from_numpy(np.array(pixels))[None])[0]
    way = Way(embedder.spec, stretch)
    largest = math.sqrt(image.numel())  # No two images are farther apart.
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
        return replace(_report(question, name, answer, final, eps, way), seed=seed)


def _report(
    question: Question, name: str, answer: tuple[Array, float], final: float, eps: float | None, way: Way
) -> SmoothedHits:
    """What is said of the hits that the samples list."""
    hits, slots = question.hits(name)
    largest = math.sqrt(math.prod(way.spec.shape))
    places = {int(slot): i for i, slot in enumerate(question.slots)}
    wanted = 0.0 if eps is None else way.at_network(eps)
    forecasts: dict[tuple[float, int], NDArray[np.bool_]] = {}

    def settles(place: int, radius: float, times: int) -> bool:
        if (radius, times) not in forecasts:
            forecasts[radius, times] = question.forecast(radius, final, times)
        return bool(forecasts[radius, times][place])

    entries = []
    for hit, slot, share in zip(hits.hits, slots.tolist(), question.shares(slots), strict=True):
        place = places.get(slot)
        radius = 0.0 if place is None else min(float(answer[0][place]), largest)
        reason, samples = "", None
        if place is None:
            reason = f"not among the first {len(places)} by the samples that choose what is asked"
        elif radius <= wanted:
            # Whether it belongs to the first k at all comes before how far it stays there.
            asked = wanted if radius > 0 else 0.0
            samples = next((question.n * t for t in FORECASTS if settles(place, asked, t)), None)
            close = question.doubt(place) if radius <= 0 else f"proved to {floored(way.of_file(radius))} only"
            reason = f"{close} with {question.n:,} samples; " + (
                f"about {samples:,} might settle it" if samples else "a thousand times as many would not do"
            )
        verdict = Verdict.CERTIFIED if radius > wanted else Verdict.UNKNOWN if radius > 0 else Verdict.ABSTAIN
        said = way.of_file(radius)
        if verdict == Verdict.CERTIFIED and eps is not None:
            said = max(said, eps)  # That is what was proved; on the way back it may be rounded below.
        entries.append(SmoothedHit(hit, verdict, said, way.pixel(radius), reason, samples, share))
    how = question.how
    return SmoothedHits(
        hits.query,
        tuple(entries),
        how.sigma,
        how.alpha,
        question.n,
        eps,
        question.label,
        way.of_file(min(answer[1], largest)),
        rule=how.rule,
        picture=way.picture,
    )
