"""Attacks on nearest neighbours of feature vectors: a small move after which K neighbours outvote a point's class.

What is sought is a pair (N, E): negatives N that come before every positive but those in E, |N| + |E| = K. The least
move for such a pair is a projection onto a polyhedron. At the point it leads to the K nearest say which pair is the
one to project onto next, and the move cannot get longer; then single members are exchanged. Every move that is
returned was tried, in float64 and against all vectors; ties count for the attacker, as they do against a certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.bounds.neighbours import Array, Labels, Neighbours, outvoted, pair_distances, votes_needed
from holdfast.bounds.projection import Limits, least_move

FEW = 8
"""Constraints to add at once."""
NEAR = 64
"""Nearest vectors of each side that a first choice is made from."""
CLASSES = 3
"""Other classes that are tried as the one to win."""
DESCENTS = 20
EXCHANGES = 24
"""Exchanges of one member that are tried after each descent."""
WALKS, STOPS, HALVINGS = 8, 8, 12
"""Straight ways that are always tried, places looked at on each, and bisections from the first that works."""
LOOSE = 1e-7
"""What a distance estimated from a slope may be off, relative to all that is in it: far more than rounding."""
BEYOND = (0.0, 1e-11, 1e-9, 1e-7, 1e-5, 1e-3)
"""How far beyond the boundary, relative to its length, a move may have to go for rounding's sake."""


@dataclass(frozen=True)
class Moved:
    """The shortest move that was found; infinitely long if none was."""

    length: float
    move: Array


@dataclass(frozen=True)
class _Pair:
    """Negatives that are to come before every positive but the spared ones."""

    negatives: Labels
    spared: Labels


class _Search:
    """One point under attack: what is known of its surroundings, and the shortest move so far."""

    def __init__(self, point: Array, label: int, known: Neighbours, k: int, limits: Limits | None) -> None:
        self.point, self.label, self.known, self.k, self.limits = point, label, known, k, limits
        self.votes = votes_needed(k)
        self.squared = known.squared(point)
        self.best, self.move = np.inf, np.zeros_like(point)
        order = np.argsort(self.squared, kind="stable")
        own = known.labels[order] == label
        self.ours, self.others = order[own], order[~own]
        self.reach = float(np.sqrt(self.squared[order[min(k, len(order)) - 1]]))
        self.pool = order
        """Vectors that can be among the K nearest after a move shorter than the best one, nearest first."""
        self.pulls = known.u[order]
        """Mx of each of them."""

    def consider(self, move: Array) -> bool:
        """Take a move that works and is shorter than the best."""
        length = float(np.linalg.norm(move))
        if not length < self.best:
            return False
        rows, squared = self.nearest(move)
        if outvoted(squared, self.known.labels[rows], self.label, self.k) is None:
            return False
        self.best, self.move = length, move
        # The K-th distance now, and what both ends can gain on each other.
        far = (self.reach + 2 * self.known.stretch * length) * (1 + 1e-9)
        inside = np.sqrt(self.squared[self.pool]) <= far
        if not inside.all():
            self.pool, self.pulls = self.pool[inside], self.pulls[inside]
        return True

    def after(self, move: Array) -> Array:
        """Squared distances of the pool after a move, but for what is the same for all: exact enough to look at."""
        return np.asarray(self.squared[self.pool] - 2 * (self.pulls @ move))

    def nearest(self, move: Array) -> tuple[Labels, Array]:
        """The vectors that can be among the K nearest after a move, and their squared distances, exact."""
        rows = self.pool
        if self.k < len(rows):
            after = self.after(move)
            farthest = np.partition(after, self.k - 1)[self.k - 1]
            length = float(np.linalg.norm(move))
            size = self.squared[rows[-1]] + 2 * length * np.sqrt(self.known.size.max())
            rows = rows[after <= farthest + LOOSE * size + 4 * length * self.known.noise_u]
        return rows, self.known.squared(self.point + move, rows)

    def within(self, move: Array) -> Array:
        """The move, kept inside the limits."""
        return move if self.limits is None else self.limits.clip(move)

    def along(self, way: Array) -> Callable[[float], bool]:
        """Whether so much of a way makes the class lose, if that is not longer than the best move.

        But for what is the same for all, a squared distance falls by 2(Mx)·δ: exact enough to say where to look.
        """
        squared, labels, pulls = self.squared[self.pool], self.known.labels[self.pool], self.pulls
        slope = 2 * (pulls @ way)

        def works(factor: float) -> bool:
            gained = factor * slope if self.limits is None else 2 * (pulls @ self.within(factor * way))
            return outvoted(squared - gained, labels, self.label, self.k) is not None

        return works

    def pair_at(self, move: Array) -> _Pair | None:
        """The K nearest of a moved point, ties resolved for the class that outvotes; None if none does."""
        rows, squared = self.nearest(move)
        labels = self.known.labels[rows]
        winner = outvoted(squared, labels, self.label, self.k)
        if winner is None:
            return None
        last = np.where(labels == winner, 0, np.where(labels == self.label, 2, 1))
        nearest = rows[np.lexsort((last, squared))[: self.k]]
        own = self.known.labels[nearest] == self.label
        return _Pair(nearest[~own], nearest[own])

    def project(self, pair: _Pair) -> tuple[Array | None, Labels, Labels]:
        """The least move for a pair, and the negatives and positives that are tight there; None if it is no gain."""
        known, negatives = self.known, pair.negatives
        held = self.pool[(known.labels[self.pool] == self.label)]
        held = held[~np.isin(held, pair.spared)]
        if not len(held) or not len(negatives):
            return None, negatives[:0], held[:0]
        ahead, behind = known.u[negatives], known.u[held]

        def worst(move: Array) -> tuple[Labels, Array, Array]:
            front = self.squared[negatives] - 2 * (ahead @ move)
            back = self.squared[held] - 2 * (behind @ move)
            most, least = min(FEW, len(front)), min(FEW, len(back))
            j = np.argpartition(-front, most - 1)[:most]
            i = np.argpartition(back, least - 1)[:least]
            j, i = (grid.ravel() for grid in np.meshgrid(j, i, indexing="ij"))
            rows, gap = 2 * (ahead[j] - behind[i]), self.squared[negatives[j]] - self.squared[held[i]]
            length = np.linalg.norm(rows, axis=1)
            told = length**2 > 4 * known.blur
            j, i, rows, gap, length = j[told], i[told], rows[told], gap[told], length[told]
            rows, gap = rows / length[:, None], gap / length
            chosen = np.argsort(rows @ move - gap, kind="stable")[:FEW]
            return j[chosen] * len(held) + i[chosen], rows[chosen], gap[chosen]

        found = least_move(worst, len(self.point), self.best, self.limits)
        if found.move is None:
            return None, negatives[:0], held[:0]
        size = float(np.linalg.norm(found.move))
        tight = found.rows @ found.move - found.needed <= 1e-9 * size
        j, i = np.divmod(found.keys[tight], len(held))
        for beyond in BEYOND:
            move = found.again(beyond * size, self.limits) if beyond else found.move
            if move is not None and self.consider(move):
                break
        return found.move, negatives[np.unique(j)], held[np.unique(i)]

    def descend(self, move: Array) -> None:
        """Project, look which pair is there, and again, while the move gets shorter."""
        for _ in range(DESCENTS):
            pair = self.pair_at(move)
            before = self.best
            if pair is None:
                return
            self.project(pair)
            if self.best > before * (1 - 1e-9):
                return
            move = self.move

    def exchange(self) -> None:
        """Exchange one member of the best pair for another, as long as one of the first few tried is a gain."""
        improved = True
        while improved and 0 < self.best < np.inf:
            pair, before = self.pair_at(self.move), self.best
            if pair is None:
                return
            _, negatives, positives = self.project(pair)
            for number, other in enumerate(self._exchanges(pair, negatives, positives)):
                if number == EXCHANGES:
                    break
                self.project(other)
                if self.best < before * (1 - 1e-9):
                    self.descend(self.move)
                    break
            improved = self.best < before * (1 - 1e-9)

    def _exchanges(self, pair: _Pair, negatives: Labels, positives: Labels) -> Iterator[_Pair]:
        """Pairs that differ in one member: a positive that is in the way is spared, a negative that lags is left."""
        for way in positives:
            for spared in range(len(pair.spared)):
                yield _Pair(pair.negatives, np.append(np.delete(pair.spared, spared), way))
        after = self.after(self.move)
        out = (self.known.labels[self.pool] != self.label) & ~np.isin(self.pool, pair.negatives)
        fresh = self.pool[out][np.argsort(after[out], kind="stable")[:4]]
        for lag in negatives:
            kept = pair.negatives[pair.negatives != lag]
            for new in fresh:
                yield _Pair(np.append(kept, new), pair.spared)


def smallest_move(
    point: Array,
    label: int,
    known: Neighbours,
    k: int = 1,
    *,
    starts: Iterable[Array] = (),
    limits: Limits | None = None,
) -> Moved:
    """The shortest move found, within `limits`, after which another class has as many of the K nearest as `label`.

    `starts` are moves to begin with, besides those found here: toward other classes, and onto the pairs that the
    K-NN bound points at. A move of length 0 means that the class loses as it is.
    """
    search = _Search(point, label, known, k, limits)
    if search.consider(search.move):
        return Moved(0.0, search.move)
    if not len(search.others):
        return Moved(np.inf, search.move)
    for start in starts:
        if search.consider(start):
            search.descend(search.move)
    for pair in _first_pairs(search):
        _from_pair(search, pair)
    _walk(search)
    search.exchange()
    return Moved(search.best, search.move)


def smallest_moves(
    points: Array, labels: Labels, known: Neighbours, k: int = 1, *, limits: Sequence[Limits] | None = None
) -> list[Moved]:
    """`smallest_move` of every point."""
    each: Sequence[Limits | None] = limits or [None] * len(points)
    return [
        smallest_move(x, int(y), known, k, limits=room)
        for x, y, room in zip(points, labels, each, strict=True)
    ]


def _first_pairs(search: _Search) -> Iterator[_Pair]:
    """For the nearest classes the negatives that the bound asks least for; positives near them are spared."""
    s, known = search.votes, search.known
    ours = search.ours[: max(NEAR, s)]
    tried = 0
    labels = known.labels[search.others]
    for kind in dict.fromkeys(labels.tolist()):
        theirs = search.others[labels == kind][:NEAR]
        if len(theirs) < s or tried == CLASSES:
            continue
        tried += 1
        reach = pair_distances(search.squared, known, known.noise(search.point), ours, theirs)
        place = max(0, len(ours) - s)
        asked = np.partition(reach, place, axis=0)[place]
        for negatives in (theirs[np.argsort(asked, kind="stable")[:s]], theirs[:s]):
            centre = known.vectors[negatives].mean(0)
            near = search.ours[np.argsort(known.squared(centre, search.ours), kind="stable")]
            yield _Pair(negatives, near[: s - 1])


def _from_pair(search: _Search, pair: _Pair) -> None:
    before = search.best
    move, _, _ = search.project(pair)
    if search.best < before:
        search.descend(search.move)
    elif move is not None:
        # Another class is in the way, or only a majority is lost: the same direction, farther.
        _along(search, move, (1.02, 1.1, 1.3, 1.7))


def _walk(search: _Search) -> None:
    """Straight toward vectors of other classes, the nearest first: a pocket of theirs may lie on the way.

    All of those near are tried as long as nothing works.
    """
    for number, target in enumerate(search.others[:NEAR]):
        if number >= WALKS and search.best < np.inf:
            return
        way = search.known.vectors[target] - search.point
        length = float(np.linalg.norm(way))
        farthest = min(1.0, search.best / length) if length else 0.0
        _along(search, way, farthest * np.arange(1, STOPS + 1) / STOPS)


def _along(search: _Search, way: Array, factors: Iterable[float]) -> None:
    """Look at some places along a way; from the first where it works, bisect back and descend."""
    low, works = 0.0, search.along(way)
    for factor in factors:
        if works(factor):
            high = factor
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                low, high = (low, middle) if works(middle) else (middle, high)
            move = search.within(high * way)
            # Also a longer move may lead to a pair with a shorter one.
            search.consider(move)
            search.descend(move)
            return
        low = factor
