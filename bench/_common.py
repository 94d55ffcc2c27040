"""What all benchmarks share: fair timing, and the line that a program reads."""

from __future__ import annotations

import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Literal

from holdfast.memory import give_back, keep_freed_memory

# Threads that spin while they wait take the cores from each other; read when OpenMP is first loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
keep_freed_memory()


def alternate(
    functions: Mapping[str, Callable[[], object]], repeats: int, *, fresh: bool = False
) -> dict[str, float]:
    """The median seconds of each function; all run in turn, so that a busy moment hits all of them.

    One round before the first counts for nothing: it warms caches and threads. With `fresh` each call begins
    without the memory that earlier calls have freed, as in a program that calls the function once.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(repeats + 1):
        for name, function in functions.items():
            gc.collect()
            if fresh:
                give_back()
            start = time.perf_counter()
            result = function()
            elapsed = time.perf_counter() - start
            del result
            if round_:
                times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def report(name: str, value: float, goal: float, better: Literal["lower", "higher"], against: str) -> bool:
    """Print the outcome as the last line, one JSON object, and say whether the goal is reached."""
    ok = value <= goal if better == "lower" else value >= goal
    outcome = {"name": name, "value": round(value, 4), "goal": goal, "better": better, "ok": ok}
    print(json.dumps({**outcome, "against": against}), flush=True)
    return ok
