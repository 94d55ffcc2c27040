"""Certified top-10 search of one query over 1,000,000 × 128 vectors, against the plain exact search.

The vectors are a trained network's embeddings, repeated with jitter; the query is a real image with its
real box. How many candidates survive pruning depends on the box, so beside the real one at --eps the same
box is scaled until about 1 %, 10 % and 100 % survive. The goal is for at most 1 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _common import alternate, report

# isort: split
import numpy as np
import torch
from numpy.typing import NDArray

from holdfast import data, models
from holdfast.bounds import Box
from holdfast.gallery import Gallery
from holdfast.gallery.bounding import Bounder
from holdfast.gallery.certified import Asked, Ranking, certified_search, certify_query
from holdfast.gallery.indexing import embedder_info
from holdfast.models import Embedder, to_unit
from holdfast.threat import Threat
from holdfast.training import parse, train

K = 10
JITTER = 0.05
"""Of each coordinate's spread over the data set."""

CONFIG: dict[str, dict[str, object]] = {
    "data": {"name": "fashion-mnist-mini", "validation": 0},
    "model": {"name": "small", "dim": 128},
    "defence": {
        "name": "certified-rank",
        "eps": 0.1,
        "ramp_start": 0.0,
        "ramp_end": 0.7,
        "boxes": 64,
        "first_temperature": 0.5,
    },
    "train": {"batch": 160, "lr": 0.003, "clip": 10},
}


def trained(folder: Path, steps: int) -> Embedder:
    settings = {**CONFIG, "train": {**CONFIG["train"], "steps": steps}}
    return train(parse(settings), folder / "run", say=lambda line: None).embedder


def repeated(vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """`count` vectors: the given ones in turn, each time moved a little."""
    rng = np.random.default_rng(0)
    out = vectors[np.arange(count) % len(vectors)]
    spread = (JITTER * vectors.std(axis=0)).astype(np.float32)
    for first in range(0, count, 100_000):
        part = out[first : first + 100_000]
        part += spread * rng.standard_normal(part.shape, dtype=np.float32)
    return out


def filled(path: Path, embedder: Embedder, vectors: NDArray[np.float32]) -> Gallery:
    gallery = Gallery.create(path, dim=embedder.dim, embedder=embedder_info(embedder))
    for first in range(0, len(vectors), 100_000):
        part = vectors[first : first + 100_000]
        gallery.add([f"image-{first + row:07d}" for row in range(len(part))], part)
    return gallery


def scaled(most: float, survivors: Callable[[float], int]) -> float:
    """The largest factor, of those that bisection tries, for the box to leave at most so many candidates."""
    low, high = 0.0, 16.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if survivors(middle) <= most else (low, middle)
    return low


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--run", type=Path, help="a run's folder; without it a network is trained")
    options.add_argument("--steps", type=int, default=800)
    options.add_argument("--count", type=int, default=1_000_000)
    options.add_argument("--eps", default="0.1")
    options.add_argument("--repeats", type=int, default=7)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    photos = data.load("fashion-mnist-mini")
    threat = Threat.parse(f"query:linf:{chosen.eps}")
    with tempfile.TemporaryDirectory() as folder:
        embedder = models.load(chosen.run) if chosen.run else trained(Path(folder), chosen.steps)
        pixels = photos.test.image(0)
        image = to_unit(torch.from_numpy(pixels.copy())[None])
        embedding = embedder.embed(image).numpy()
        box = Bounder(embedder).features(image, threat.eps or 0.0)
        with torch.no_grad():
            features = embedder.features(image).double()
        vectors = repeated(embedder.embed(photos.train).numpy(), chosen.count)
        with filled(Path(folder) / "g", embedder, vectors) as gallery:
            del vectors
            ranking = Ranking(gallery, embedding[0], K, threat, "query")

            def asked(scale: float) -> Asked:
                centre = torch.lerp(features, box.centre, scale)
                return Asked(embedding[0], Box(centre, box.radius * scale), embedder.unit_norm)

            def run(scale: float) -> int:
                return certify_query(gallery, asked(scale), K, threat).examined

            def survivors(scale: float) -> int:
                return K + len(ranking.survivors(asked(scale), ranking.slots))

            def whole() -> object:
                return certified_search(gallery, embedder, pixels, K, threat)

            seconds = alternate(
                {"plain": lambda: gallery.search(embedding, K), "whole": whole}, chosen.repeats
            )
            examined = run(1.0)
            print(
                f"real box at eps {chosen.eps}: {examined / chosen.count:.2%} survive, "
                f"{seconds['whole'] / seconds['plain']:.2f} × plain (image to certificate)"
            )
            value = seconds["whole"] / seconds["plain"] if examined <= 0.01 * chosen.count else 0.0
            for share, repeats in ((0.01, chosen.repeats), (0.1, chosen.repeats), (1.0, 2)):
                scale = scaled(share * chosen.count, survivors)
                survive = run(scale) / chosen.count
                seconds = alternate(
                    {"plain": lambda: gallery.search(embedding, K), "certified": lambda s=scale: run(s)},  # type: ignore[misc]
                    repeats,
                )
                ratio = seconds["certified"] / seconds["plain"]
                print(
                    f"box × {scale:.3g}: {survive:.2%} survive; plain {seconds['plain'] * 1e3:.0f} ms, "
                    f"certified {seconds['certified'] * 1e3:.0f} ms, ratio {ratio:.2f}"
                )
                value = max(value, ratio) if share == 0.01 else value
    against = "gallery.search in the same run, where at most 1 % of the candidates survive"
    return 0 if report("certified_search", value, 2.0, "lower", against) else 1


if __name__ == "__main__":
    sys.exit(main())
