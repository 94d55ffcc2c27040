"""Learners of metrics by name: ARML, and the paper's baselines through metric-learn (an optional part)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, DataError, MissingExtraError, unknown_name
from holdfast.models.metric import Metric, scale_of
from holdfast.neighbours.arml import ARML
from holdfast.neighbours.features import Features

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Learner = Callable[..., Array]
SPAN = 1e-9
"""Directions in which the vectors vary by less than this share of their widest one are left out."""


def euclidean(vectors: Array, labels: Labels, seed: int) -> Array:
    """The Euclidean distance: nothing is learned."""
    return np.eye(vectors.shape[1])


def arml(vectors: Array, labels: Labels, seed: int, **options: Any) -> Array:
    """`holdfast.neighbours.ARML`."""
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
    """Run the learner in the span of the vectors' differences; the metric ignores all other directions.

    LFDA divides by scatter, which is 0 outside that span.
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
    """Let metric-learn 0.7 use a keyword of scikit-learn's checks that scikit-learn 1.8 has renamed."""
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
    """The settings that a method takes; None for the learners of metric-learn, which check their own."""
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


def learn_from(features: Features, method: str = "arml", *, seed: int = 0, **options: Any) -> Metric:
    """A metric learned from the training part of a file of features; it remembers the file and its embedder."""
    made = learn(features.train, features.train_labels, method, seed=seed, **options)
    made.about.update(features=str(features.path), digest=features.digest, split_seed=seed)
    if features.embedder is not None:
        made.about["embedder"] = features.embedder
    return made
