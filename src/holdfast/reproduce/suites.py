"""Tables of attack suites: clean retrieval, every attack of ERS, and the scores, of one trained network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from holdfast import data, models
from holdfast.attacks import PUBLISHED, Settings
from holdfast.errors import ConfigError
from holdfast.evaluate import evaluate
from holdfast.evaluate.scores import Estimate, score_suite
from holdfast.evaluate.suite import attack_suite
from holdfast.files import atomic_write
from holdfast.metrics import bootstrap, summarise
from holdfast.reproduce.plan import Job, SuiteAttack, SuitePlan
from holdfast.rows import ROWS, Rows, read_header, read_rows
from holdfast.training import LOG

RETRIEVAL_ROWS, SUITE_ROWS = "retrieval.csv.gz", "suite.csv.gz"
LOG_ROWS = "log.jsonl"
CLEAN = ("R@1", "R@2", "mAP", "NMI")
Value = tuple[float, float, float]
"""A number and its 95 % interval."""


def run_suite(
    embedder: models.Embedder, images: data.ImageSet, out: Path, kept: Path, job: Job, plan: SuitePlan
) -> None:
    """Measure a network without an attack and under every attack of ERS; the suite's rows come last."""
    drawn: dict[str, Any] = {"candidates": plan.candidates, "seed": job.seed}
    clean = evaluate(embedder, images, out / "retrieval", ks=(1, 2), queries=plan.clean_queries, **drawn)
    made = {LOG_ROWS: out / LOG, RETRIEVAL_ROWS: clean.folder / ROWS}
    for by in plan.attacks:
        attacked = attack_suite(
            embedder,
            images,
            out / suite_rows(by).removesuffix(".csv.gz"),
            job.suite_threat,
            settings=_settings(by, plan),
            queries=plan.queries,
            **drawn,
        )
        made[suite_rows(by)] = attacked.folder / ROWS
    for name, source in made.items():
        atomic_write(kept / name, source.read_bytes())


def suite_rows(by: SuiteAttack) -> str:
    """The file of the rows of a suite."""
    return SUITE_ROWS if by == "ours" else f"suite-{by}.csv.gz"


def _settings(by: SuiteAttack, plan: SuitePlan) -> Settings:
    return Settings(steps=plan.steps) if by == "ours" else Settings(PUBLISHED)


def suite_is_done(kept: Path, job: Job, plan: SuitePlan) -> bool:
    """Whether the rows are there; those of other settings are an error."""
    paths = [kept / suite_rows(by) for by in plan.attacks]
    if not all(path.exists() for path in paths):
        return False
    clean = read_header(kept / RETRIEVAL_ROWS)["config"]
    fits = (clean["queries"], clean["candidates"]) == (plan.clean_queries, plan.candidates)
    for by, path in zip(plan.attacks, paths, strict=True):
        config, steps = read_header(path)["config"], _settings(by, plan).steps
        found = config["threat"], config["search"]["steps"], config["queries"], config["candidates"]
        if not fits or found != (str(job.suite_threat), steps, plan.queries, plan.candidates):
            raise ConfigError(f"{path} is of other settings than the plan's; remove it to run it anew")
    return True


def suite_values(kept: Path, by: SuiteAttack = "ours") -> dict[tuple[str, str], Value]:
    """Every number of one run, by score (`ers` or `ars`) and column as the papers' tables name them."""
    clean, attacked = read_rows(kept / RETRIEVAL_ROWS), read_rows(kept / suite_rows(by))
    scores = score_suite(attacked)
    out: dict[tuple[str, str], Value] = {}
    for score in ("ers", "ars"):
        for name, number in _clean_values(clean).items():
            out[score, name] = number
    for name, reached in scores.reached.items():
        out["ers", name] = (reached, *scores.interval[name])
    wholes: tuple[tuple[str, str, Estimate | None], ...] = (
        ("ers", "ERS", scores.ers),
        ("ers", "ERS (GTM mended)", scores.ers_gtm_mended),
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


def _clean_values(rows: Rows) -> dict[str, Value]:
    """The columns without an attack, in percent; NMI is a number of the whole and has no interval."""
    some = rows.columns["relevant"] > 0
    if not some.any():
        return {}
    first = rows.columns["first_rank"][some]
    each = {"R@1": first <= 1, "R@2": first <= 2, "mAP": rows.columns["average_precision"][some]}
    values: dict[str, Value] = {}
    for name, column in each.items():
        low, high = bootstrap(column)
        values[name] = (100 * float(column.mean()), 100 * low, 100 * high)
    together = summarise(rows.columns, ()).nmi
    if together is not None:
        values["NMI"] = (100 * together, float("nan"), float("nan"))
    return values


def mean_value(values: list[Value]) -> Value:
    """The mean over training seeds; its interval is the mean of theirs, which is wider than that of the mean."""
    first, low, high = np.array(values, dtype=np.float64).mean(0).tolist()
    return first, low, high
