"""Certified ℓ2 radii of a small network on feature vectors, as rows beside those of metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from holdfast.models.metric import scale_of
from holdfast.neighbours.features import Features
from holdfast.neighbours.perceptron import crown_radii, layers_of, smoothing_radii, train_perceptron
from holdfast.progress import bar
from holdfast.randomness import generator
from holdfast.rows import ROWS, Rows, is_finished, pending, read_rows, writing

KIND = "certified network on features"
BLOCK = 50
FIRST = 100


def certify_perceptron(
    features: Features,
    out: Path,
    *,
    way: Literal["crown", "smoothing"],
    scale: bool = True,
    sigma: float = 0.0,
    n: int = 1000,
    alpha: float = 0.01,
    epochs: int = 30,
    points: int = 1000,
    seed: int = 0,
) -> Rows:
    """Train a network on the features and certify test points: `lower` of a row is the radius, in scaled features.

    By `crown` a radius is certain; by `smoothing` it is wrong with probability at most `alpha`, and the network is
    trained with the noise that smooths it. The points are those that `certify_metric` draws with seed 0.
    """
    config = {
        "kind": KIND,
        "way": way,
        "sigma": sigma,
        "n": n,
        "alpha": alpha,
        "epochs": epochs,
        "exact": False,
    }
    config |= {
        "points": min(points, len(features.test)),
        "seed": seed,
        "features": features.digest,
        "scale": scale,
    }
    if is_finished(out, config):
        return read_rows(out / ROWS)
    low, span = scale_of(features.train) if scale else (0.0, 1.0)
    chosen = np.random.default_rng(0).permutation(len(features.test))[:points]
    network = train_perceptron(
        (features.train - low) / span,
        features.train_labels,
        len(features.classes),
        epochs=epochs,
        noise=sigma,
        seed=seed,
    )
    asked = torch.from_numpy((features.test[chosen] - low) / span)
    kinds = torch.from_numpy(features.test_labels[chosen])
    most = float(np.linalg.norm(np.ptp((features.train - low) / span, axis=0)))
    columns = {"point": "int", "label": "int", "lower": "float"}
    with writing(out, config, columns, n=len(chosen)) as writer:
        with bar("certifying", len(chosen), writer.done) as advance, torch.no_grad():
            for _, span_ in pending([(None, len(chosen), BLOCK)], writer.done):
                rows = slice(span_.start, span_.stop)
                if way == "crown":
                    radii = crown_radii(layers_of(network), asked[rows], kinds[rows], most)
                else:
                    radii = smoothing_radii(
                        lambda some: network(some).argmax(1),
                        asked[rows],
                        kinds[rows],
                        sigma=sigma,
                        n=n,
                        first=FIRST,
                        alpha=alpha,
                        chance=generator(seed, "smoothing", span_.start),
                    )
                found = zip(chosen[rows].tolist(), kinds[rows].tolist(), radii.tolist(), strict=True)
                writer.append([{"point": p, "label": y, "lower": r} for p, y, r in found])
                advance(len(radii))
        writer.finish()
    return read_rows(out / ROWS)
