"""Search by a smoothed embedder: hits by the mean of noisy copies, each with an ℓ2 radius or an abstention.

The gallery's vectors are frozen numbers; only the query's mean g(x) is estimated. A first few samples choose
what is asked: a shortlist of candidates, and the class of the nearest. Samples of their own answer it, so that
nothing is chosen by what proves it.

What is deployed is what is certified. If a hit has radius r, it is among the first k by g(x + δ) for every
‖δ‖₂ < r. A search for x + δ lists k candidates by its own estimate; if the hit is not among them, one that is
listed does not belong to the first k by g(x + δ), and that one comes with an abstention: the hit is there, or
the search says that it is not sure (each of the two searches is wrong with probability at most α). Forcing such
an abstention is all that an attacker can do, as long as the noise of a search is not known before it: each search
draws a seed of its own, and reports it.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.certify import Verdict
from holdfast.certify.smoothing import Answers, Pairs, Smoothing, candidate_pairs, check_samples, class_pairs
from holdfast.certify.smoothing.confidence import mean_below
from holdfast.certify.smoothing.radius import half_space_radius
from holdfast.errors import ConfigError, GalleryError
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.interface import AnyGallery
from holdfast.gallery.values import EmbedderInfo, Hit, Hits
from holdfast.models import AnyEmbedder, Embedder, Foreign, Smoothed, to_unit
from holdfast.progress import bar
from holdfast.threat import floored

Array = NDArray[np.float64]
NEAR = 2048
"""Candidates whose projections are looked at in full; of those farther away only the mean, which is looser."""
PAIRS = 2**17
"""Pairs that are looked at in full, at most: with a long list fewer candidates of each."""
MOST_LISTED = math.isqrt(4 * PAIRS)
"""A longer list is refused: each of it is compared with all of it, and the memory grows with the square."""
LOOKS = 4
"""How often a search for a fixed radius may look at its samples; each look has its share of α."""
FORECASTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ROWS = 2**16


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


@dataclass(frozen=True)
class SmoothedHits:
    """The hits of one query by g; all its statements together are wrong with probability at most `alpha`."""

    query: str
    hits: tuple[SmoothedHit, ...]
    sigma: float
    alpha: float
    samples: int
    """That answered; fewer than allowed where the verdicts were settled before."""
    eps: float | None = None
    label: str | None = None
    """The class of the nearest candidate, and to which radius the nearest stays one of this class."""
    label_radius: float = 0.0
    seed: int = 0
    """Of this search's noise; the same one gives the same answer again."""

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
    search = {"n": how.n, "alpha": how.alpha, "first": how.first}
    return EmbedderInfo(embedder.fingerprint(), {**info.card, "search": search}, info.location)


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
) -> SmoothedHits:
    """The k candidates nearest to the query's smoothed vector, each with the radius to which it stays.

    `how` is the gallery's own unless given. With `eps` the question is yes or no for each hit, and sampling
    ends early where it is answered; without, each hit gets the largest radius that its samples prove. The noise
    is that of `seed`; left out, one that nobody can know before, since who knows the noise can search for a
    picture on which it misleads.
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
    if eps is not None and not 0 < eps < math.sqrt(image.numel()):
        raise ConfigError(f"an l2 radius lies between 0 and {math.sqrt(image.numel()):.1f} here, not {eps}")
    stops = [how.n] if eps is None else sorted({max(1, how.n >> shift) for shift in range(LOOKS)})
    if min(2 * k, len(gallery)) > MOST_LISTED:
        raise ConfigError(f"k is at most {MOST_LISTED // 2} in a smoothed gallery of this size, not {k}")
    check_samples(how, k * (2 * k + 1) * len(stops))
    first = torch.cat(list(embedder.sample(image, 0, how.first, seed=seed))).double().numpy()
    with gallery.snapshot():
        question = _Question(gallery, first, k, how, embedder.bound)
        with bar("sampling", how.n) as advance:
            for stop in stops:
                for part in embedder.sample(image, how.first + question.n, how.first + stop, seed=seed):
                    question.add(part.double().numpy())
                    advance(len(part))
                answer = question.answer(len(stops))
                if eps is not None and question.settled(answer, eps, how.n, len(stops)):
                    break
        hits, slots = gallery.hits_of(gallery.scan(question.mean), k, name=name)
        return replace(question.report(hits, slots, answer, len(stops), eps, image.numel()), seed=seed)


class _Question:
    """What is asked about one query: a shortlist against all others, and the nearest's class against others."""

    def __init__(self, gallery: AnyGallery, first: Array, k: int, how: Smoothing, bound: float) -> None:
        self.k, self.how, self.bound = k, how, bound
        centre = first.mean(0)
        self._all: Floats = gallery.all_vectors()
        self.listed = min(2 * k, len(self._all))
        near_by = max(self.listed, min(NEAR, PAIRS // self.listed))
        self.slots = gallery.search_arrays(centre, near_by)[1][0]
        near = self._all[self.slots].astype(np.float64)
        self._far = np.setdiff1d(np.arange(len(self._all)), self.slots) if len(near) < len(self._all) else ()
        parts = [candidate_pairs(near[i], near) for i in range(self.listed)]
        labels = [item.label for item in gallery.items(self.slots)]
        self.label = labels[0]
        same = np.array([label is not None and label == self.label for label in labels])
        self.has_class = bool(same.any() and not same.all())
        if self.has_class:
            rivals = class_pairs(centre, near[same], near[~same])
            parts.append(rivals)
        self._answers = Answers(Pairs.joined(parts), first, bound)
        # Which pairs are about which of the shortlist, none where one meets itself; and which about the class.
        self._listed = np.full(len(self._answers.pairs), -1)
        self._listed[: self.listed * len(near)] = np.repeat(np.arange(self.listed), len(near))
        self._listed[np.arange(self.listed) * (len(near) + 1)] = -1
        self._rivals = np.full(len(self._answers.pairs), -1)
        self._rivals[self.listed * len(near) :] = 0
        self._sum = np.zeros(self._all.shape[1])

    @property
    def statements(self) -> int:
        """Among how many statements α is divided: one for each of the shortlist, one for the class."""
        return self.listed + self.has_class

    @property
    def n(self) -> int:
        return self._answers.n

    @property
    def mean(self) -> Floats:
        return (self._sum / self.n).astype(np.float32)

    def add(self, vectors: Array) -> None:
        self._answers.add(vectors)
        self._sum += vectors.sum(0)

    def answer(self, looks: int) -> tuple[Array, float]:
        """The radius of each of the shortlist, and that of the class."""
        alpha, sigma = self.how.alpha / looks / self.statements, self.how.sigma
        beyond = self._beyond(alpha / self.k, 1)
        hits = self._answers.kth_radii(self._listed, self.k, sigma, alpha / self.k, others=beyond)
        if not self.has_class:
            return hits, 0.0
        # Candidates that were not looked at may be of any class: as if none were of the right one.
        beyond = self._beyond(alpha, 1)[:1]
        return hits, float(self._answers.kth_radii(self._rivals, 1, sigma, alpha, others=beyond)[0])

    def forecast(self, radius: float, looks: int, times: int) -> NDArray[np.bool_]:
        """Which of the shortlist would have more than this radius, with `times` as many samples like these."""
        alpha = self.how.alpha / looks / self.statements / self.k
        held = self._answers.hold(radius, self.how.sigma, alpha, times)
        failing = np.bincount(self._listed[~held & (self._listed >= 0)], minlength=self.listed)
        failing += (self._beyond(alpha, times) <= radius).sum(1)
        return np.asarray(failing < self.k)

    def settled(self, answer: tuple[Array, float], eps: float, most: int, looks: int) -> bool:
        """Whether more samples would change nothing: every hit is sure to `eps`, or would not become so."""
        hopeful = self.forecast(eps, looks, max(1, most // self.n))
        return bool((answer[0] > eps)[hopeful].all())

    def report(
        self,
        hits: Hits,
        slots: Slots,
        answer: tuple[Array, float],
        looks: int,
        eps: float | None,
        pixels: int,
    ) -> SmoothedHits:
        """What is said of the hits by the samples' mean."""
        largest = math.sqrt(pixels)  # No two images are farther apart.
        places = {int(slot): i for i, slot in enumerate(self.slots[: self.listed])}
        entries = []
        forecasts: dict[int, NDArray[np.bool_]] = {}

        def settles(place: int, times: int) -> bool:
            if times not in forecasts:
                forecasts[times] = self.forecast(wanted, looks, times)
            return bool(forecasts[times][place])

        wanted = 0.0 if eps is None else eps
        for hit, slot in zip(hits.hits, slots.tolist(), strict=True):
            place = places.get(slot)
            radius = 0.0 if place is None else min(float(answer[0][place]), largest)
            reason, samples = "", None
            if place is None:
                reason = f"not among the first {self.listed} by the samples that choose what is asked"
            elif radius <= wanted:
                samples = next((self.n * t for t in FORECASTS if settles(place, t)), None)
                close = "too close to call" if radius <= 0 else f"proved to {floored(radius)} only"
                reason = f"{close} with {self.n:,} samples; " + (
                    f"about {samples:,} would settle it"
                    if samples
                    else "a thousand times as many would not do"
                )
            verdict = (
                Verdict.CERTIFIED if radius > wanted else Verdict.UNKNOWN if radius > 0 else Verdict.ABSTAIN
            )
            entries.append(SmoothedHit(hit, verdict, radius, radius / largest, reason, samples))
        return SmoothedHits(
            hits.query,
            tuple(entries),
            self.how.sigma,
            self.how.alpha,
            self.n,
            eps,
            self.label if self.has_class else None,
            min(answer[1], largest),
        )

    def _beyond(self, alpha: float, times: int) -> Array:
        """For each of the shortlist, the k smallest half-space radii against all that are not near."""
        if not len(self._far):
            return np.empty((self.listed, 0))
        mean = self._sum / self.n
        chosen = self._all[self.slots[: self.listed]].astype(np.float64)
        best = np.full((self.listed, self.k), np.inf)
        for start in range(0, len(self._far), _ROWS):
            others = self._all[self._far[start : start + _ROWS]].astype(np.float64)
            squares = (chosen**2).sum(1)[:, None] - (others**2).sum(1)
            apart = np.sqrt(np.maximum(_squared(chosen, others), 0.0))
            apart = np.where(apart > 1e-6, apart, np.nan)  # As good as equal: never told apart.
            seen = ((chosen @ mean)[:, None] - others @ mean) / apart
            low = mean_below(seen, self.n * times, alpha, self.bound)
            radii = half_space_radius(low, squares / (2 * apart), self.how.sigma, self.bound)
            both = np.concatenate([best, np.nan_to_num(radii, nan=0.0, posinf=np.inf)], axis=1)
            best = np.partition(both, self.k - 1, axis=1)[:, : self.k]
        return best


def _squared(a: Array, b: Array) -> Array:
    return np.asarray((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T)
