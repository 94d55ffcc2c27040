"""Learning a metric on USPS: 100 iterations of ARML against 100 of metric-learn's LMNN, one thread each.

An iteration uses every training point once. Early stops are off for both. LMNN's time grows evenly with its
iterations, so a smaller --iterations gives the same ratio sooner. Processor time, because others may be at work.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable

from _common import report

# isort: split
import torch

from holdfast.data.settings import data_folders
from holdfast.models.metric import scale_of
from holdfast.neighbours import METHODS
from holdfast.neighbours.features import load_features


def seconds(function: Callable[[], object]) -> float:
    begun = time.process_time()
    function()
    return time.process_time() - begun


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--iterations", type=int, default=100)
    options.add_argument("--repeats", type=int, default=1)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    path = next(
        (folder / "uci" / "usps.npz" for folder in data_folders() if (folder / "uci/usps.npz").is_file()),
        None,
    )
    if path is None:
        print("uci/usps.npz is in no data folder; name one that has it with HOLDFAST_DATA")
        return 2
    found = load_features(path)
    low, span = scale_of(found.train)
    vectors, labels, n = (found.train - low) / span, found.train_labels, chosen.iterations
    learners: dict[str, Callable[[], object]] = {
        "arml": lambda: METHODS["arml"](vectors, labels, 0, iterations=n, patience=n),
        "arml, random pairs": lambda: METHODS["arml"](
            vectors, labels, 0, iterations=n, patience=n, pairs="random"
        ),
        "lmnn": lambda: METHODS["lmnn"](vectors, labels, 0, n_neighbors=3, max_iter=n, convergence_tol=0.0),
    }
    times: dict[str, list[float]] = {name: [] for name in learners}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(chosen.repeats):
            for name, learner in learners.items():
                times[name].append(seconds(learner))
                print(f"{name}: {times[name][-1]:.1f} s for {n} iterations", flush=True)
    value = min(times["arml"]) / min(times["lmnn"])
    return 0 if report("arml_training", value, 0.25, "lower", "metric-learn's LMNN in the same run") else 1


if __name__ == "__main__":
    sys.exit(main())
