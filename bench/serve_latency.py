"""Latencies through HTTP over 1,000,000 × 128 vectors: certified against plain, and the slowest under load.

One client first, plain and certified searches (linf:EPS, interval) in turn; then 16 clients at once, plain. The
value is the worse of both ratios, each divided by its goal: certified ≤ 2 × plain, p99 ≤ 5 × p50.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from _common import alternate, report

# isort: split
import httpx
import numpy as np
import torch

import _serving

CLIENTS = 16


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=1_000_000)
    options.add_argument("--requests", type=int, default=400)
    options.add_argument("--repeats", type=int, default=15)
    options.add_argument("--eps", default="0.5/255")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    contents = _serving.pictures(200)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _serving.filled(folder, _serving.trained(folder, steps=200), chosen.count)
        with _serving.served(folder) as (address, _), httpx.Client(base_url=address, timeout=120) as client:
            threat, shares, ratios = f"linf:{chosen.eps}", [], []
            for content in contents[:5]:
                answer = _serving.ask(client, content, "search/certified", threat=threat)
                shares.append(float(str(answer["examined"])) / chosen.count)
                seconds = alternate(
                    {
                        "plain": lambda content=content: _serving.ask(client, content),  # type: ignore[misc]
                        "certified": lambda content=content: _serving.ask(  # type: ignore[misc]
                            client, content, "search/certified", threat=threat
                        ),
                    },
                    chosen.repeats,
                )
                ratios.append(seconds["certified"] / seconds["plain"])
                print(
                    f"plain {seconds['plain'] * 1e3:.1f} ms, certified {seconds['certified'] * 1e3:.1f} ms, ratio "
                    f"{ratios[-1]:.2f} ({shares[-1]:.2%} of the candidates needed the exact test)"
                )
            certified = statistics.median(ratios)
            _serving.load(address, contents, CLIENTS, 4 * CLIENTS)
            _, each = _serving.load(address, contents, CLIENTS, chosen.requests)
    middle, slow = np.quantile(each, [0.5, 0.99])
    print(f"{CLIENTS} clients: p50 {middle * 1e3:.0f} ms, p99 {slow * 1e3:.0f} ms, ratio {slow / middle:.2f}")
    value = max(certified / 2, slow / middle / 5)
    against = "the worse of certified/plain over its goal of 2 and p99/p50 at 16 clients over its goal of 5"
    return 0 if report("serve_latency", value, 1.0, "lower", against) else 1


if __name__ == "__main__":
    sys.exit(main())
