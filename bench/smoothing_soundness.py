"""How often a smoothed certificate is wrong, against how often it may be: thousands of repetitions, known answers.

h(x) = (cos⟨a, x⟩, sin⟨a, x⟩) with ‖a‖ = 1, so that g(x) = e^(−σ²/2) h(x) exactly: an attack of size r turns the
angle by up to r, and the largest turn at which a candidate stays among the first k (or the nearest stays one of a
class) is known to 1e-3. For votes the share of noisy copies is a normal integral over an arc. Queries are drawn
near places where the order turns, where mistakes are likeliest. Each repetition chooses by samples of its own and
answers with others, as the search does; it fails if its radius is above the true one. The last line is the worst of
failures / (α · repetitions + what chance adds with 1 in 1,000).
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from _common import report

REPETITIONS = 2000
SIGMAS, SAMPLES, ALPHAS, KS = (0.25, 1.0), (50, 400), (0.01, 0.1), (1, 3)
STEP = 1e-3
TURNS = np.arange(0.0, math.pi, STEP)
Array = NDArray[np.float64]


def circle(angles: Array) -> Array:
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def reach(broken: NDArray[np.bool_]) -> float:
    """The first of the turns, either way, at which it is so; infinite if never."""
    either = broken.reshape(2, -1).any(0)
    return float(TURNS[either.argmax()]) if either.any() else math.inf


def around(angles: Array, start: float) -> Array:
    """The distances of all candidates at every turn, one way and then the other."""
    places = np.concatenate([start - TURNS, start + TURNS])
    return np.asarray(2 * np.abs(np.sin((places[:, None] - angles) / 2)))


def votes(angles: Array, samples: Array, k: int) -> NDArray[np.bool_]:
    """Which candidates are among the k nearest of each sample."""
    away = ((samples[:, None] - circle(angles)) ** 2).sum(2)
    return np.asarray(away <= np.partition(away, k - 1, axis=1)[:, k - 1 : k])


def shares(angles: Array, chosen: int, start: float, sigma: float, k: int) -> Array:
    """At every turn, one way and then the other, the exact share of copies that have it among their k nearest.

    They are those on the arc between the middles to its k-th neighbours on either side.
    """
    ring = np.concatenate([angles - 2 * math.pi, angles, angles + 2 * math.pi])
    at = len(angles) + chosen
    low, high = (ring[at - k] + ring[at]) / 2, (ring[at] + ring[at + k]) / 2
    places = np.concatenate([start - TURNS, start + TURNS])[:, None] + 2 * math.pi * np.arange(-3, 4)
    return np.asarray((ndtr((high - places) / sigma) - ndtr((low - places) / sigma)).sum(1))


def failures(sigma: float, n: int, alpha: float, k: int) -> dict[str, int]:
    from holdfast.proofs.smoothing import Answers, candidate_pairs, class_pairs
    from holdfast.proofs.smoothing.confidence import share_below
    from holdfast.proofs.smoothing.radius import vote_radius

    random = np.random.default_rng([int(100 * sigma), n, int(1000 * alpha), k])
    wrong = {"item": 0, "class": 0, "votes": 0}
    for _ in range(REPETITIONS):
        angles = np.sort(random.uniform(-1.5, 1.5, 8))
        same = random.random(8) < 0.5
        same[0], same[-1] = True, False
        gallery = circle(angles)
        # Half a step or so from where two candidates swap.
        pair = int(random.integers(7))
        start = float(angles[pair : pair + 2].mean() + 0.05 * sigma * random.normal())

        def draw(count: int, start: float = start) -> Array:
            return circle(start + sigma * random.normal(size=count))

        first = draw(40)
        chosen = int(np.linalg.norm(gallery - first.mean(0), axis=1).argmin())
        asked = {
            "item": Answers(candidate_pairs(gallery[chosen], np.delete(gallery, chosen, 0)), first, 1.0),
            "class": Answers(class_pairs(first.mean(0), gallery[same], gallery[~same]), first, 1.0),
        }
        samples = draw(n)
        for what, answers in asked.items():
            answers.add(samples)
            radius = answers.top_radius(k, sigma, alpha)
            if radius <= 0:
                continue
            away = around(angles, start)
            ours = away[:, chosen] if what == "item" else away[:, same].min(1)
            rivals = away if what == "item" else away[:, ~same]
            wrong[what] += radius > reach((rivals < ours[:, None]).sum(1) >= k) + STEP
        chosen = int(votes(angles, first, k).sum(0).argmax())
        share = share_below(votes(angles, samples, k)[:, chosen].sum(keepdims=True), n, alpha)
        radius, need = float(vote_radius(share, sigma, k / (k + 1))[0]), k / (k + 1)
        wrong["votes"] += radius > reach(shares(angles, chosen, start, sigma, k) <= need) + STEP
    return wrong


def main() -> None:
    from scipy.stats import binom

    worst = 0.0
    for sigma, n, alpha, k in product(SIGMAS, SAMPLES, ALPHAS, KS):
        allowed = float(binom.ppf(0.999, REPETITIONS, alpha))
        found = failures(sigma, n, alpha, k)
        shown = ", ".join(f"{what} {count}" for what, count in found.items())
        print(
            f"sigma {sigma:g}, n {n}, alpha {alpha:g}, k {k}: wrong {shown} of {REPETITIONS:,}; {allowed:.0f} allowed"
        )
        worst = max(worst, *(count / allowed for count in found.values()))
    report("smoothing_soundness", worst, 1.0, "lower", "the failures that alpha allows")


if __name__ == "__main__":
    main()
