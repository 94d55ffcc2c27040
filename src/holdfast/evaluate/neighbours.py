"""Certified nearest neighbours of feature vectors: a radius for every test point, as rows; resumable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.certify.mahalanobis import Neighbours, exact_radius, knn_radius
from holdfast.certify.mahalanobis.bound import votes_needed
from holdfast.data.features import Features
from holdfast.errors import ConfigError
from holdfast.evaluate.folder import ROWS, SUMMARY
from holdfast.evaluate.rows import Rows, RowWriter, config_hash, read_header, read_rows
from holdfast.evaluate.vectors import pending
from holdfast.files import atomic_write, exclusive
from holdfast.metrics import bootstrap
from holdfast.models.metric import Metric
from holdfast.progress import bar
from holdfast.provenance import commit, versions

KIND = "certified neighbours"
BLOCK = 20
SHARES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class RobustError:
    """The share of test points that are wrong, or could be made wrong, at a radius."""

    radius: float
    certified: float
    """Points that are not proved right at this radius: no attack makes more of them wrong."""
    attacked: float | None
    """Points that are wrong at this radius under the attack that was found; only with `exact`."""
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
) -> CertifiedNeighbours:
    """How far each test point may move, in scaled features and ℓ2, with its K-NN class the same.

    Points that are drawn at random; with `exact` (K = 1) each has a lower bound by duality and a move that flips
    it. The certificate is about feature vectors.
    """
    votes_needed(k)
    if k > len(features.train):
        raise ConfigError(f"there are {len(features.train)} training vectors, fewer than {k} neighbours")
    if not all(0 <= radius < np.inf for radius in radii):
        raise ConfigError("a radius is 0 or more")
    if exact and k != 1:
        raise ConfigError(f"exact answers are there for K = 1, not {k}; leave --exact out")
    counts = np.bincount(features.train_labels)
    if k > 1 and (counts[counts > 0] == 1).any():
        raise ConfigError(
            f"a class with a single training vector can never win among {k} neighbours; take K = 1"
        )
    folder = Path(out)
    chosen = np.random.default_rng(seed).permutation(len(features.test))[:points]
    config = {
        "kind": KIND,
        "metric": config_hash({"transform": metric.transform.tolist(), "low": metric.low.tolist()}),
        "about": metric.about,
        "features": features.digest,
        "k": k,
        "exact": exact,
        "points": len(chosen),
        "seed": seed,
        "positives": positives,
    }
    if (folder / ROWS).exists():
        if read_header(folder / ROWS)["hash"] != config_hash(config):
            raise ConfigError(
                f"{folder} holds a certification of another metric or setting; choose another --out"
            )
        return read_neighbours(folder, radii)
    known = Neighbours(metric.scaled(features.train), features.train_labels, metric.transform)
    asked = metric.scaled(features.test[chosen])
    header = {
        "config": config,
        "hash": config_hash(config),
        "seed": seed,
        "n": len(chosen),
        "classes": list(features.classes),
        "versions": versions(),
        "commit": commit(),
    }
    columns = {"point": "int", "label": "int", "lower": "float", "upper": "float", "solved": "int"}
    with exclusive(folder, KIND):
        writer = RowWriter(folder / ROWS, header, columns)
        with bar("certifying", len(chosen), writer.done) as advance:
            for _, span in pending([(None, len(chosen), BLOCK)], writer.done):
                rows: list[dict[str, Any]] = []
                for i in span:
                    label = int(features.test_labels[chosen[i]])
                    row: dict[str, Any] = {
                        "point": int(chosen[i]),
                        "label": label,
                        "upper": -1.0,
                        "solved": 0,
                    }
                    if exact:
                        found = exact_radius(asked[i], label, known)
                        row |= {"lower": found.lower, "upper": found.upper, "solved": found.solved}
                    else:
                        row["lower"] = knn_radius(asked[i], label, known, k, positives)
                    rows.append({key: _finite(value) for key, value in row.items()})
                    advance()
                writer.append(rows)
        table = _table(writer.read(), radii)
        atomic_write(folder / SUMMARY, json.dumps([asdict(line) for line in table], indent=2) + "\n")
        writer.finish()
    return read_neighbours(folder, radii)


def read_neighbours(folder: Path, radii: Sequence[float] = ()) -> CertifiedNeighbours:
    """A finished certification from its folder."""
    rows = read_rows(folder / ROWS)
    return CertifiedNeighbours(folder, rows, _table(rows, radii))


def robust_error(rows: Rows, radius: float) -> RobustError:
    """The certified and, where there are attacks, the attacked error at one radius.

    At 0 it is the plain error for K = 1; for larger K also points whose class leads without a majority count.
    A move as long as the radius itself may tie, so it is not proved against.
    """
    lower, upper = rows.columns["lower"], rows.columns["upper"]
    open_ = lower <= radius
    attacked = float((upper <= radius).mean()) if rows.header["config"]["exact"] else None
    return RobustError(radius, float(open_.mean()), attacked, bootstrap(open_))


def _table(rows: Rows, radii: Sequence[float]) -> tuple[RobustError, ...]:
    """At 0 and at the radii that were asked for; else where a quarter, half and three quarters are not proved."""
    lower: NDArray[np.float64] = rows.columns["lower"]
    own = np.quantile(lower, SHARES).round(4).tolist()
    return tuple(robust_error(rows, radius) for radius in sorted({0.0, *(radii or own)}))


def _finite(value: Any) -> Any:
    """Infinity (nothing can go wrong) as the largest number there is: rows hold finite ones."""
    return np.finfo(np.float64).max if isinstance(value, float) and value == np.inf else value
