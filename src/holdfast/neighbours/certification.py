"""Certify and attack the nearest neighbours of feature vectors: two radii for every test point, as resumable rows.

No move shorter than a row's `lower` makes its class lose the majority of K. After a move of length `attacked` another
class has as many votes; that move is kept beside the rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.bounds.neighbours import Array, Neighbours, votes_needed
from holdfast.bounds.projection import Limits
from holdfast.certify.mahalanobis import exact_radius, knn_radius
from holdfast.errors import ConfigError, DataError
from holdfast.files import atomic_path, atomic_write, storage_error
from holdfast.metrics import bootstrap
from holdfast.models.metric import Metric
from holdfast.neighbours.features import Features, load_features
from holdfast.neighbours.moves import smallest_move
from holdfast.progress import bar
from holdfast.rows import ROWS, SUMMARY, Finding, Rows, config_hash, is_finished, pending, read_rows, writing

KIND = "certified neighbours"
BLOCK = 20
SHARES = (0.25, 0.5, 0.75)
FARTHEST = float(np.finfo(np.float64).max)
"""Stands for infinity in a row: no move makes the class lose."""
MOVES = "moves.npz"
"""The moves that were found, in scaled features: `point` (row of the test part), `label`, `move`."""


@dataclass(frozen=True)
class RobustError:
    """The share of test points that are wrong, or could be made wrong, at a radius."""

    radius: float
    certified: float
    """Points that are not proved right at this radius: no attack makes more of them wrong."""
    attacked: float | None
    """Points that are wrong at this radius under the attack that was found; None if none was made."""
    interval: tuple[float, float]


@dataclass(frozen=True)
class CertifiedNeighbours:
    """A finished certification of a metric's neighbours."""

    folder: Path
    rows: Rows
    table: tuple[RobustError, ...]


def certify_metric(
    metric: Metric,
    features: Features,
    out: str | Path,
    *,
    k: int = 1,
    exact: bool = False,
    points: int | None = 1000,
    seed: int = 0,
    positives: int | None = None,
    radii: Sequence[float] = (),
    attack: bool = True,
    box: tuple[float, float] | None = None,
) -> CertifiedNeighbours:
    """How far each test point may move, in scaled features and ℓ2, with its K-NN class the same.

    The points are drawn at random. With `exact` (K = 1) each has a lower bound by duality and a move that flips it.
    With `attack` a short move that makes the vote wrong is sought for each, for any K. `box` says that an attacker
    keeps scaled features in [low, high]: attacks and the exact answer stay inside. For a point outside, the box is
    stretched to where it is. The certificate is about feature vectors, not about the pixels they may come from.
    """
    if box is not None and not -np.inf < box[0] < box[1] < np.inf:
        raise ConfigError(f"a box is LOW,HIGH with LOW below HIGH, not {box[0]:g},{box[1]:g}")
    votes_needed(k)
    if k > len(features.train):
        raise ConfigError(f"there are {len(features.train)} training vectors, fewer than {k} neighbours")
    if not all(0 <= radius < np.inf for radius in radii):
        raise ConfigError("a radius is 0 or more")
    if exact and k != 1:
        raise ConfigError(f"exact answers are there for K = 1, not {k}", option="exact")
    counts = np.bincount(features.train_labels)
    if k > 1 and (counts[counts > 0] == 1).any():
        raise ConfigError(
            f"a class with a single training vector can never win among {k} neighbours; take K = 1"
        )
    folder = Path(out)
    chosen = np.random.default_rng(seed).permutation(len(features.test))[:points]
    config = {
        "kind": KIND,
        "metric": config_hash(
            {"transform": metric.transform.tolist(), "low": metric.low.tolist(), "span": metric.span.tolist()}
        ),
        # Where the features lay is no part of what was certified: they count by their digest.
        "about": {key: value for key, value in metric.about.items() if key != "features"},
        "features": features.digest,
        "k": k,
        "exact": exact,
        "points": len(chosen),
        "seed": seed,
        "positives": positives,
        "attack": attack,
        "box": None if box is None else list(box),
    }
    if is_finished(folder, config):
        return read_neighbours(folder, radii)
    known = Neighbours(metric.scaled(features.train), features.train_labels, metric.transform)
    asked = metric.scaled(features.test[chosen])
    columns = {
        "point": "int",
        "label": "int",
        "lower": "float",
        "upper": "float",
        "attacked": "float",
        "solved": "int",
    }
    with writing(folder, config, columns, n=len(chosen), classes=list(features.classes)) as writer:
        moves = _Moves(folder, metric.features, writer.done)
        with bar("certifying", len(chosen), writer.done) as advance:
            for _, span in pending([(None, len(chosen), BLOCK)], writer.done):
                rows: list[dict[str, Any]] = []
                found: list[Array] = []
                for i in span:
                    label = int(features.test_labels[chosen[i]])
                    limits = None if box is None else Limits.around(asked[i], *box)
                    row, move = _examined(asked[i], label, known, k, exact, attack, positives, limits)
                    row |= {"point": int(chosen[i]), "label": label}
                    rows.append({key: _finite(value) for key, value in row.items()})
                    found.append(move)
                    advance()
                moves.append(found)
                writer.append(rows)
        if attack or exact:
            moves.finish(chosen, features.test_labels[chosen])
        table = _table(writer.read(), radii)
        atomic_write(folder / SUMMARY, json.dumps([asdict(line) for line in table], indent=2) + "\n")
        writer.finish()
        moves.drop()
    return read_neighbours(folder, radii)


def certify_learned(
    metric: Path,
    features: Path | None = None,
    out: Path | None = None,
    *,
    k: int = 1,
    exact: bool = False,
    points: int = 1000,
    seed: int = 0,
    radii: Sequence[float] = (),
    attack: bool = True,
    box: tuple[float, float] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> CertifiedNeighbours:
    """Certify the metric in a file by the features it was learned from.

    `features` says where they are, if they have moved since; `out` is a folder beside the metric if left out. `say`
    gets a line about test points outside the box.
    """
    made = Metric.load(metric)
    found = load_features(features or Path(made.about.get("features", "")), made.about.get("split_seed", 0))
    if made.about.get("digest") not in (None, found.digest):
        raise DataError(
            f"{found.path} is not what {metric} was learned from; its certificates would be of another metric"
        )
    marks = [f"k{k}", *["exact"] * exact, *["plain"] * (not attack)]
    if box is not None:
        marks.append(f"box{box[0]:g},{box[1]:g}")
        scaled = made.scaled(found.test)
        if outside := int(((scaled < box[0]) | (scaled > box[1])).any(1).sum()):
            say(
                f"{outside:,} of {len(scaled):,} test points are outside the box; theirs is stretched to where they are"
            )
    return certify_metric(
        made,
        found,
        out or metric.with_name("-".join([metric.name, *marks, f"p{points}", f"s{seed}"])),
        k=k,
        exact=exact,
        points=points,
        seed=seed,
        radii=radii,
        attack=attack,
        box=box,
    )


def _examined(
    point: Array,
    label: int,
    known: Neighbours,
    k: int,
    exact: bool,
    attack: bool,
    positives: int | None,
    limits: Limits | None,
) -> tuple[dict[str, Any], Array]:
    """The numbers of one row, and the move that the attacked radius is the length of."""
    row: dict[str, Any] = {"upper": -1.0, "attacked": -1.0, "solved": 0}
    if exact:
        found = exact_radius(point, label, known, limits)
        row |= {"lower": found.lower, "upper": found.upper, "solved": found.solved}
        # Where the two ends meet there is nothing shorter to look for.
        if not attack or found.gap <= 1e-6:
            return row | {"attacked": found.upper}, found.move
        starts = [found.move] if found.upper < np.inf else []
    else:
        row["lower"] = knn_radius(point, label, known, k, positives)
        starts = []
    if not attack:
        return row, np.zeros_like(point)
    moved = smallest_move(point, label, known, k, starts=starts, limits=limits)
    return row | {"attacked": moved.length}, moved.move


class _Moves:
    """Keeps the moves of the rows written so far in a file beside them, for a run that is stopped."""

    def __init__(self, folder: Path, features: int, done: int) -> None:
        self._part, self._path, self._features = folder / "moves.part", folder / MOVES, features
        try:
            kept = self._part.read_bytes()[: 8 * features * done] if self._part.exists() else b""
            if len(kept) != 8 * features * done:
                raise DataError(
                    f"{self._part} lacks moves of rows that are there; remove {folder} to begin anew"
                )
            # Rows and moves are written one after the other: the moves may be ahead, never behind.
            self._part.write_bytes(kept)
        except OSError as cause:
            raise storage_error(self._part, cause) from cause

    def append(self, moves: Sequence[Array]) -> None:
        try:
            with open(self._part, "ab") as handle:
                handle.write(np.stack(moves).astype("<f8").tobytes())
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as cause:
            raise storage_error(self._part, cause) from cause

    def finish(self, points: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        moves = np.frombuffer(self._part.read_bytes(), dtype="<f8").reshape(-1, self._features)
        with atomic_path(self._path) as temporary, open(temporary, "wb") as handle:
            np.savez_compressed(handle, point=points, label=labels, move=moves)

    def drop(self) -> None:
        self._part.unlink(missing_ok=True)


def contradictions(rows: Rows) -> list[Finding]:
    """An error where a move was found that a certificate says cannot be."""
    lower, attacked = rows.columns["lower"], rows.columns.get("attacked")
    if attacked is None:
        return []
    wrong = np.flatnonzero((attacked >= 0) & (lower > attacked))
    if not len(wrong):
        return []
    first = int(wrong[0])
    return [
        Finding(
            "error",
            f"{len(wrong)} of {len(rows)} points are attacked within their certified radius, first point "
            f"{rows.columns['point'][first]} ({attacked[first]:g} < {lower[first]:g}): the certificate is wrong",
        )
    ]


def read_neighbours(folder: Path, radii: Sequence[float] = ()) -> CertifiedNeighbours:
    """A finished certification from its folder."""
    rows = read_rows(folder / ROWS)
    return CertifiedNeighbours(folder, rows, _table(rows, radii))


def robust_error(rows: Rows, radius: float) -> RobustError:
    """The certified and, where there are attacks, the attacked error at one radius.

    At 0 the attacked one is the plain error; of the certified one for K > 1 also points whose class leads without
    a majority are part.
    A move as long as the radius itself may tie, so it is not proved against.
    """
    open_ = within(rows.columns["lower"], radius)
    reached = attacked_radii(rows)
    attacked = None if reached is None else float(within(reached, radius).mean())
    return RobustError(radius, float(open_.mean()), attacked, bootstrap(open_))


def within(radii: NDArray[np.float64], radius: float) -> NDArray[np.bool_]:
    """Which of the radii a move of this length reaches; never one that stands for infinity."""
    return np.asarray((radii <= radius) & (radii < FARTHEST))


def attacked_radii(rows: Rows) -> NDArray[np.float64] | None:
    """The lengths of the moves that were found; None if none were sought."""
    found = rows.columns.get("attacked", rows.columns.get("upper"))
    return None if found is None or (found < 0).any() else np.asarray(found, dtype=np.float64)


def _table(rows: Rows, radii: Sequence[float]) -> tuple[RobustError, ...]:
    """At 0 and at the radii that were asked for; else where a quarter, half and three quarters are not proved."""
    lower: NDArray[np.float64] = rows.columns["lower"]
    quantiles = np.quantile(lower, SHARES, method="inverted_cdf").tolist()
    own = [round(radius, 4) for radius in quantiles if radius < FARTHEST]
    return tuple(robust_error(rows, radius) for radius in sorted({0.0, *(radii or own)}))


def _finite(value: Any) -> Any:
    """Infinity (nothing can go wrong) as the largest number there is: rows hold finite ones."""
    return FARTHEST if isinstance(value, float) and value == np.inf else value
