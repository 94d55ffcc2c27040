"""The learners by name: ours, and the baselines of the paper through metric-learn (an optional part)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, DataError, MissingExtraError, unknown_name
from holdfast.models.metric import Metric, scale_of
from holdfast.training.metrics.arml import ARML

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Learner = Callable[..., Array]
SPAN = 1e-9
"""Directions with less of the vectors in them, relative to the one with the most, are none."""


def euclidean(vectors: Array, labels: Labels, seed: int) -> Array:
    """No learning at all."""
    return np.eye(vectors.shape[1])


def arml(vectors: Array, labels: Labels, seed: int, **options: Any) -> Array:
    """`holdfast.training.metrics.ARML`."""
    return np.asarray(ARML(random_state=seed, **options).fit(vectors, labels).components_)


def _from_metric_learn(name: str) -> Learner:
    def learn(vectors: Array, labels: Labels, seed: int, **options: Any) -> Array:
        try:
            import metric_learn
        except ImportError:
            raise MissingExtraError(f"the method {name.lower()}", "metric") from None
        _translate(metric_learn._util)
        found = getattr(metric_learn, name)(**_seeded(getattr(metric_learn, name), seed), **options)
        return np.asarray(found.fit(vectors, labels).components_)

    return learn


def _in_span(learner: Learner) -> Learner:
    """The learner on coordinates of the span of the vectors' differences: LFDA divides by scatter, which is 0 outside.

    What the vectors have no part in is not measured by the metric either.
    """

    def learn(vectors: Array, labels: Labels, seed: int, **options: Any) -> Array:
        _, sizes, axes = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
        axes = axes[sizes > SPAN * sizes.max(initial=0.0)]
        if len(axes) == vectors.shape[1]:
            return learner(vectors, labels, seed, **options)
        return np.asarray(learner(vectors @ axes.T, labels, seed, **options) @ axes)

    return learn


def _seeded(kind: Any, seed: int) -> dict[str, Any]:
    return {"random_state": seed} if "random_state" in inspect.signature(kind).parameters else {}


def _translate(module: Any) -> None:
    """metric-learn 0.7 calls scikit-learn's checks by a keyword that scikit-learn 1.8 knows by its new name only."""
    for name in ("check_array", "check_X_y"):
        check = getattr(module, name)
        if "force_all_finite" not in inspect.signature(check).parameters and not hasattr(check, "translated"):

            def translated(*words: Any, _check: Any = check, **named: Any) -> Any:
                if "force_all_finite" in named:
                    named["ensure_all_finite"] = named.pop("force_all_finite")
                return _check(*words, **named)

            translated.translated = True  # type: ignore[attr-defined]
            setattr(module, name, translated)


def _settings(method: str) -> set[str] | None:
    """The settings that a method takes, where they are ours to know."""
    if method == "euclidean":
        return set()
    return set(ARML().get_params()) - {"random_state"} if method == "arml" else None


METHODS: dict[str, Learner] = {
    "arml": arml,
    "euclidean": euclidean,
    "nca": _from_metric_learn("NCA"),
    "lmnn": _from_metric_learn("LMNN"),
    "itml": _from_metric_learn("ITML_Supervised"),
    "lfda": _in_span(_from_metric_learn("LFDA")),
}


def learn(
    vectors: NDArray[Any],
    labels: NDArray[Any],
    method: str = "arml",
    *,
    seed: int = 0,
    scale: bool = True,
    **options: Any,
) -> Metric:
    """A metric learned from labelled vectors, whose features are first scaled to [0, 1] each if `scale`."""
    if method not in METHODS:
        raise ConfigError(unknown_name("method", method, METHODS))
    flat = np.asarray(vectors, dtype=np.float64).reshape(len(vectors), -1)
    if not np.isfinite(flat).all():
        raise DataError("the features contain NaN or infinity; mend or remove those vectors")
    if len(labels) != len(flat):
        raise DataError(f"{len(flat)} vectors need as many labels, found {len(labels)}")
    _, kinds = np.unique(np.asarray(labels), return_inverse=True)
    if kinds.max(initial=0) < 1:
        raise DataError("a metric is learned from at least 2 classes")
    known = _settings(method)
    if known is not None and (wrong := sorted(set(options) - known)):
        raise ConfigError(unknown_name(f"setting of {method}", wrong[0], sorted(known)))
    low, span = scale_of(flat) if scale else (np.zeros(flat.shape[1]), np.ones(flat.shape[1]))
    scaled = (flat - low) / span
    if (np.ptp(flat, axis=0) == 0).all():
        raise DataError("every feature is constant, so there is nothing to learn from")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transform = METHODS[method](scaled, kinds.reshape(-1).astype(np.int64), seed, **options)
    except (ValueError, TypeError, RuntimeError, np.linalg.LinAlgError) as cause:
        why = str(cause).strip().splitlines() or [type(cause).__name__]
        raise ConfigError(f"{method} cannot learn from these features: {why[0]}") from cause
    if not np.isfinite(transform).all() or not transform.any():
        raise ConfigError(
            f"{method} found no usable metric (zero, or not finite); take another method or seed"
        )
    about = {"method": method, "seed": seed, "options": options, "vectors": len(flat)}
    return Metric(np.atleast_2d(transform).astype(np.float64), low, span, about)
