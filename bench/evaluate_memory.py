"""The peak memory of `evaluate` on 10,000 queries × 10,000 candidates, above what the vectors take."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from pathlib import Path

from _common import report

COUNT = 10_000


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    import numpy as np

    from holdfast import models
    from holdfast.data import ImageSet
    from holdfast.evaluation import evaluate
    from holdfast.spec import ImageSpec

    spec = ImageSpec(1, 28, 28)
    random = np.random.default_rng(0)
    images = ImageSet(
        name="random",
        ids=tuple(f"{i:05d}" for i in range(2 * COUNT)),
        labels=np.arange(2 * COUNT) % 100,
        classes=tuple(str(i) for i in range(100)),
        spec=spec,
        pixels=random.integers(0, 256, (2 * COUNT, 1, 28, 28), dtype=np.uint8),
        rows=np.arange(2 * COUNT),
    )
    embedder = models.build("small", spec=spec)
    embedder.embed(images.take(range(512)))
    with tempfile.TemporaryDirectory() as folder:
        evaluate(embedder, images.take(range(600)), Path(folder))  # everything imported and warm

    before, peak, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        evaluate(embedder, images, Path(folder), queries=COUNT, candidates=COUNT)
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    vectors = 2 * COUNT * embedder.dim * 4
    above = (peak - before - vectors) / 2**30
    print(
        f"{COUNT:,} x {COUNT:,} in {seconds:.1f} s on {os.cpu_count()} cores; vectors {vectors / 2**20:.0f} MiB"
    )
    report("evaluate_memory", above, 1.0, "lower", "GiB above the vectors themselves")


if __name__ == "__main__":
    main()
