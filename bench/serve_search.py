"""Plain search through HTTP over 1,000,000 × 128 vectors, 16 clients, against decoding, embedding and bare FAISS.

The bare side does the same pictures in this process, 16 at a time as the clients come, without ids, labels, checks
or HTTP; both sides take turns and the medians are compared. The clients' own work is on the service's side.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from _common import report

# isort: split
import faiss
import numpy as np
import torch

import _serving
from holdfast.data import decode

CLIENTS = 16


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=1_000_000)
    options.add_argument("--requests", type=int, default=160)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    contents = _serving.pictures(200)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        embedder = _serving.trained(folder)
        index = faiss.IndexFlatL2(embedder.dim)
        index.add(_serving.filled(folder, embedder, chosen.count))

        def bare() -> float:
            start = time.perf_counter()
            for first in range(0, chosen.requests, CLIENTS):
                part = [
                    contents[i % len(contents)] for i in range(first, min(first + CLIENTS, chosen.requests))
                ]
                pixels = np.stack([decode(content, embedder.spec) for content in part])
                index.search(embedder.embed(pixels).numpy(), _serving.K)
            return time.perf_counter() - start

        with _serving.served(folder) as (address, _):
            ours, floor = [], []
            for round_ in range(chosen.rounds + 1):
                seconds, _ = _serving.load(address, contents, CLIENTS, chosen.requests)
                least = bare()
                if round_:
                    ours.append(chosen.requests / seconds)
                    floor.append(chosen.requests / least)
    rate, best = statistics.median(ours), statistics.median(floor)
    print(f"{chosen.count:,} vectors: {rate:.1f} searches a second over HTTP, {best:.1f} bare")
    against = "decode + embed + faiss.IndexFlatL2.search, 16 at a time, in the same run"
    return 0 if report("serve_search", rate / best, 0.8, "higher", against) else 1


if __name__ == "__main__":
    sys.exit(main())
