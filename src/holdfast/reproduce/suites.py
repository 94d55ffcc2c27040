"""Tables of attack suites: clean retrieval, every attack of ERS, and the scores, of one trained network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from holdfast import data, models
from holdfast.errors import ConfigError
from holdfast.evaluate import evaluate
from holdfast.evaluate.attacked import Settings
from holdfast.evaluate.folder import ROWS
from holdfast.evaluate.rows import read_header, read_rows
from holdfast.evaluate.scores import Estimate, score_suite
from holdfast.evaluate.suite import attack_suite
from holdfast.files import atomic_write
from holdfast.metrics import summarise
from holdfast.reproduce.plan import Job, SuitePlan

RETRIEVAL_ROWS, SUITE_ROWS = "retrieval.csv.gz", "suite.csv.gz"
CLEAN = ("R@1", "R@2", "mAP", "NMI")
Value = tuple[float, float, float]
"""A number and its 95 % interval."""


def run_suite(
    embedder: models.Embedder, images: data.ImageSet, out: Path, kept: Path, job: Job, plan: SuitePlan
) -> None:
    """Measure a network without an attack and under every attack of ERS; the suite's rows come last."""
    drawn: dict[str, Any] = {"queries": plan.queries, "candidates": plan.candidates, "seed": job.seed}
    clean = evaluate(embedder, images, out / "retrieval", ks=(1, 2), **drawn)
    attacked = attack_suite(
        embedder,
        images,
        out / "suite",
        job.suite_threat,
        settings=Settings(steps=plan.steps),
        **drawn,
    )
    for done, name in ((clean.folder, RETRIEVAL_ROWS), (attacked.folder, SUITE_ROWS)):
        atomic_write(kept / name, (done / ROWS).read_bytes())


def suite_is_done(kept: Path, job: Job, plan: SuitePlan) -> bool:
    """Whether the rows are there; those of other settings are an error."""
    path = kept / SUITE_ROWS
    if not path.exists():
        return False
    config = read_header(path)["config"]
    found = config["threat"], config["search"]["steps"], config["queries"], config["candidates"]
    if found != (str(job.suite_threat), plan.steps, plan.queries, plan.candidates):
        raise ConfigError(f"{path} is of other settings than the plan's; remove it to run it anew")
    return True


def suite_values(kept: Path) -> dict[tuple[str, str], Value]:
    """Every number of one run, by score (`ers` or `ars`) and column as the papers' tables name them."""
    clean, attacked = read_rows(kept / RETRIEVAL_ROWS), read_rows(kept / SUITE_ROWS)
    summary = summarise(clean.columns, clean.header["config"]["ks"])
    scores = score_suite(attacked)
    found = (summary.hit_rate[1], summary.hit_rate[2], summary.map, summary.nmi)
    plain = {name: 100 * value for name, value in zip(CLEAN, found, strict=True) if value is not None}
    out: dict[tuple[str, str], Value] = {}
    for score in ("ers", "ars"):
        for name, number in plain.items():
            out[score, name] = (number, float("nan"), float("nan"))
    for name, reached in scores.reached.items():
        out["ers", name] = (reached, *scores.interval[name])
    wholes: tuple[tuple[str, str, Estimate | None], ...] = (
        ("ers", "ERS", scores.ers),
        ("ars", "ARS", scores.ars_ratio),
        ("ars", "ARS (by trial)", scores.ars_trial),
    )
    for score, name, whole in wholes:
        if whole is not None:
            out[score, name] = (whole.value, *whole.interval)
    if scores.ars_ratio is not None:
        for name, part in scores.ars_ratio.parts.items():
            out["ars", name] = (part, float("nan"), float("nan"))
    return out


def mean_value(values: list[Value]) -> Value:
    """The mean over training seeds; its interval is the mean of theirs, which is wider than that of the mean."""
    first, low, high = np.array(values, dtype=np.float64).mean(0).tolist()
    return first, low, high
