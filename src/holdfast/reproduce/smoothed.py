"""Figures of smoothed searches: Recall@K against the radius, rule by rule, of one trained network at each noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import data, models
from holdfast.certify.smoothing.confidence import printed_slack
from holdfast.certify.smoothing.radius import printed_radius
from holdfast.errors import ConfigError
from holdfast.evaluate.folder import ROWS
from holdfast.evaluate.rows import Rows, read_header, read_rows
from holdfast.evaluate.smoothing import Line, certify_smoothed, smoothed_tables
from holdfast.files import atomic_write
from holdfast.metrics import bootstrap
from holdfast.reproduce.plan import Job, Plan, SmoothPlan

LIKE = "smoothed"
"""What stands for the threat in a cell of a smoothed search; its eps is the noise."""
PROJECTED = 100_000
"""Samples of the paper, to which its form is projected where it was not run with so many."""
Where = Callable[[Path, str, Job], Path]
Number = tuple[float, float | None, float | None, int, int]


def run_smoothed(
    embedder: models.Embedder,
    images: data.ImageSet,
    out: Path,
    kept: Path,
    job: Job,
    plan: SmoothPlan,
    sigma: float,
) -> None:
    """Certify one network's smoothed search at one noise, and keep its rows."""
    done = certify_smoothed(
        embedder,
        images,
        out / "certifications" / f"smoothed-{sigma:g}",
        plan.noise(sigma),
        queries=plan.queries,
        candidates=plan.candidates,
        seed=job.seed,
        ks=(1, 5),
        marks=plan.marks,
        attacks=[share * sigma for share in plan.attacks],
    )
    atomic_write(_rows(kept, sigma), (done.folder / ROWS).read_bytes())


def smoothed_is_done(kept: Path, job: Job, plan: SmoothPlan, sigma: float) -> bool:
    """Whether the rows are there; those of other settings are an error."""
    path = _rows(kept, sigma)
    if not path.exists():
        return False
    config, noise = read_header(path)["config"], plan.noise(sigma)
    found = [config[name] for name in ("queries", "candidates", "marks", "seed", "attacks")]
    marks, attacks = sorted(set(plan.marks)), [share * sigma for share in plan.attacks]
    wanted = [plan.queries, plan.candidates, marks, job.seed, attacks]
    unlike = [name for name, value in config["noise"].items() if getattr(noise, name) != value]
    if unlike or found != wanted:
        raise ConfigError(f"{path} is of other settings than the plan's; remove it to run it anew")
    return True


def smoothed_cells(folder: Path, preset: str, plan: Plan, where: Where) -> dict[tuple[Any, ...], Number]:
    """Every number of every figure: the mean radius and Recall@K(r) of each rule at each number of samples."""
    found: dict[tuple[Any, ...], list[Line]] = {}
    for job, sigma, rows in _all(folder, preset, plan, where):
        for table in job.tables.values():
            for line in smoothed_tables(rows)[0]:
                key = (table, job.dataset, job.model, job.method, LIKE, f"{sigma:g}", line.k)
                found.setdefault((*key, f"{line.rule}, n = {line.n}"), []).append(line)
    out: dict[tuple[Any, ...], Number] = {}
    for (*place, name), lines in found.items():
        n, seeds = sum(line.queries for line in lines), len(lines)
        low, high = np.mean([line.interval for line in lines], axis=0).tolist()
        mean = float(np.mean([line.mean_radius for line in lines]))
        out[(*place, f"mean radius: {name}")] = (mean, low, high, n, seeds)
        for i, r in enumerate(lines[0].radii):
            at = float(np.mean([line.recall_at[i] for line in lines]))
            out[(*place, f"recall at r > {r:g}: {name}")] = (at, None, None, n, seeds)
    return out


def smoothed_part(folder: Path, preset: str, plan: Plan, where: Where) -> str:
    """The tables of the page: certified recall for K = 1, how radii grow with the samples, and attacks."""
    curves: dict[str, list[str]] = {}
    samples: list[str] = []
    attacked: list[str] = []
    for job, sigma, rows in _all(folder, preset, plan, where):
        table, attacks = smoothed_tables(rows)
        n = rows.header["config"]["noise"]["n"]
        named = f"| {job.dataset} | {job.method} | {sigma:g}"
        mine = [line for line in table if line.n == n and line.k == 1]
        lines = [_curve(f"{named} | {line.rule}", line) for line in mine]
        lines[1:1] = [_projected(named, rows, mine[0])] if mine else []
        for figure in dict.fromkeys(job.tables.values()):
            curves.setdefault(figure, []).extend(lines)
        if rows.header["config"]["marks"]:
            samples += [
                f"{named} | {line.rule} | {line.n:,} | {line.certified:.2f} | {line.rejected:.2f} | "
                f"{line.mean_radius:.4f} ({line.interval[0]:.4f} to {line.interval[1]:.4f}) |"
                for line in sorted(table, key=lambda line: (line.rule, line.n))
                if line.k == 1
            ]
        attacked += [
            f"{named} | {line.eps:g} | {line.queries} | {line.recall:.2f} | {line.attacked:.2f} | "
            f"{line.certified:.2f} | {line.forced:.2f} | {line.contradicted} |"
            for line in attacks
        ]
    parts = []
    for figure, lines in sorted(curves.items()):
        head = (
            "| data set | method | σ | rule | queries | recall | r > 0 | > .1σ | > .25σ | > .5σ | > σ | > 1.5σ | > 2σ "
            "| mean radius |"
        )
        parts.append(_section(f"{figure.capitalize()}: Recall@1(r)", head, list(dict.fromkeys(lines))))
    if samples:
        head = "| data set | method | σ | rule | samples | certified | rejected | mean radius |"
        parts.append(_section("Radius against the number of samples", head, list(dict.fromkeys(samples))))
    if attacked:
        head = (
            "| data set | method | σ | ℓ2 size | queries | recall | attacked | certified | abstention forced "
            "| contradicted |"
        )
        parts.append(_section("Attacked and certified", head, list(dict.fromkeys(attacked))))
    return "\n\n".join(parts)


def _all(folder: Path, preset: str, plan: Plan, where: Where) -> Iterator[tuple[Job, float, Rows]]:
    """The rows that there are, place by place and noise by noise."""
    for job in plan.places():
        if plan.smoothing_of(job) is not None:
            for sigma in plan.methods[job.method].sigmas:
                path = _rows(where(folder, preset, job), sigma)
                if path.exists():
                    yield job, sigma, read_rows(path)


def _curve(named: str, line: Line) -> str:
    shares = " | ".join(f"{share:.2f}" for share in line.recall_at)
    low, high = line.interval
    radius = f"{line.mean_radius:.4f} ({low:.4f} to {high:.4f})"
    return f"{named} | {line.queries} | {line.recall:.2f} | {shares} | {radius} |"


def _projected(named: str, rows: Rows, line: Line) -> str:
    """The printed form with the margin that was measured and the slack of 100,000 samples: no certificate."""
    config = rows.header["config"]
    noise, some = config["noise"], rows.columns["answerable"] > 0
    bound = 1.0 if noise["bound"] is None else noise["bound"]
    slack = printed_slack(PROJECTED, noise["alpha"], config["dim"], bound)
    radius = printed_radius(rows.columns["margin"][some] - slack, noise["sigma"], bound)
    shares = " | ".join(f"{(radius > r).mean():.2f}" for r in line.radii)
    low, high = bootstrap(radius)
    return (
        f"{named} | paper, projected to n = 100,000 | {line.queries} | {line.recall:.2f} | {shares} | "
        f"{radius.mean():.4f} ({low:.4f} to {high:.4f}) |"
    )


def _section(title: str, head: str, lines: list[str]) -> str:
    rule = "|---" * head.count("| ") + "|"
    return "\n".join([f"## {title}", "", head, rule, *lines])


def _rows(kept: Path, sigma: float) -> Path:
    return kept / f"smoothed-{sigma:g}.csv.gz"
