"""ER-Recall of 400 queries on a local Ray, two workers against one, one thread each; Ray is started before.

The two take turns, and the rows must be equal byte for byte. `--queries 200` takes half of the time.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

from _common import alternate, report

GOAL = 1.6
STEPS, CANDIDATES, REPEATS = 100, 500, 3


def main() -> None:
    import torch

    from holdfast import data, models
    from holdfast.attacks import Settings
    from holdfast.evaluate.cluster import RaySpread
    from holdfast.evaluate.er_recall import er_recall
    from holdfast.spec import ImageSpec
    from holdfast.threat import Threat

    options = argparse.ArgumentParser()
    options.add_argument("--queries", type=int, default=400)
    queries = options.parse_args().queries
    torch.set_num_threads(1)
    torch.manual_seed(0)
    embedder = models.build("c2f2", spec=ImageSpec(1, 28, 28)).eval()
    images = data.load("fashion-mnist-mini").test
    threats = [Threat.parse("query:linf:0.1")]
    # The Ray of the first is used by the second too, which gives it one block at a time.
    two, one = RaySpread("ray", 2), RaySpread("ray", 1)
    with tempfile.TemporaryDirectory() as scratch:
        numbers, rows = itertools.count(), set()

        def run(spread: RaySpread) -> None:
            done = er_recall(
                embedder,
                images,
                Path(scratch) / str(next(numbers)),
                threats,
                queries=queries,
                candidates=CANDIDATES,
                settings=Settings(steps=STEPS),
                spread=spread,
            )
            rows.add((done.folder / "rows.csv.gz").read_bytes())

        try:
            two.ready()
            seconds = alternate({"one": lambda: run(one), "two": lambda: run(two)}, REPEATS)
        finally:
            two.close()
    assert len(rows) == 1, "the rows depend on who computed them"
    print(
        f"{queries} queries of {STEPS} steps: one worker {seconds['one']:.1f} s, two {seconds['two']:.1f} s"
    )
    report("ray_evaluate", seconds["one"] / seconds["two"], GOAL, "higher", "one worker")


if __name__ == "__main__":
    main()
