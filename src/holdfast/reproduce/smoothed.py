"""Figures of smoothed searches: Recall@K against the radius, rule by rule, of one trained network at each noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast import data, models
from holdfast.certify.smoothing.confidence import printed_slack
from holdfast.certify.smoothing.radius import printed_radius
from holdfast.errors import ConfigError
from holdfast.evaluate.smoothed_tables import Line, radii_of, smoothed_tables
from holdfast.evaluate.smoothing import certify_smoothed
from holdfast.files import atomic_write
from holdfast.metrics import bootstrap
from holdfast.reproduce.plan import Job, Plan, SmoothPlan
from holdfast.rows import ROWS, Rows, read_header, read_rows

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
        alphas=plan.alphas,
        attacks=[share * sigma for share in plan.attacks],
    )
    atomic_write(smoothed_rows(kept, sigma), (done.folder / ROWS).read_bytes())


def smoothed_is_done(kept: Path, job: Job, plan: SmoothPlan, sigma: float) -> bool:
    """Whether the rows are there; those of other settings are an error."""
    path = smoothed_rows(kept, sigma)
    if not path.exists():
        return False
    config, noise = read_header(path)["config"], plan.noise(sigma)
    found = [config[name] for name in ("queries", "candidates", "marks", "seed", "attacks")]
    marks, attacks = sorted(set(plan.marks)), [share * sigma for share in plan.attacks]
    wanted = [plan.queries, plan.candidates, marks, job.seed, attacks]
    found.append(config.get("alphas", []))
    wanted.append(sorted({*plan.alphas} - {noise.alpha}))
    unlike = [name for name, value in config["noise"].items() if getattr(noise, name) != value]
    if unlike or found != wanted:
        raise ConfigError(f"{path} is of other settings than the plan's; remove it to run it anew")
    return True


def smoothed_cells(folder: Path, preset: str, plan: Plan, where: Where) -> dict[tuple[Any, ...], Number]:
    """Every number of every figure: the mean radius and Recall@K(r) of each rule at each number of samples."""
    out: dict[tuple[Any, ...], Number] = {}
    for found in _all(folder, preset, plan, where):
        alpha = found.rows.header["config"]["noise"]["alpha"]
        for table, line in product(found.figures, smoothed_tables(found.rows)[0]):
            place = (table, found.dataset, found.model, found.method, LIKE, f"{found.sigma:g}", line.k)
            name = f"{line.rule}, n = {line.n}" + (f", alpha = {line.alpha:g}" if line.alpha != alpha else "")
            size = (line.queries, found.seeds)
            out[(*place, f"mean radius: {name}")] = (line.mean_radius, *line.interval, *size)
            for r, share in zip(line.radii, line.recall_at, strict=True):
                out[(*place, f"recall at r > {r:g}: {name}")] = (share, None, None, *size)
    return out


def smoothed_part(folder: Path, preset: str, plan: Plan, where: Where) -> str:
    """The tables of the page: certified recall for K = 1, how radii grow with the samples and α, and attacks."""
    curves: dict[str, list[str]] = {}
    samples: list[str] = []
    chances: list[str] = []
    attacked: list[str] = []
    for found in _all(folder, preset, plan, where):
        table, attacks = smoothed_tables(found.rows)
        config = found.rows.header["config"]
        n, alpha = config["noise"]["n"], config["noise"]["alpha"]
        named = f"| {found.dataset} | {found.method} | {found.sigma:g}"
        ours = sorted(
            (line for line in table if line.k == 1), key=lambda line: (line.rule, line.n, line.alpha)
        )
        # In the order of the rules.
        mine = [line for line in table if (line.k, line.n, line.alpha) == (1, n, alpha)]
        lines = [_curve(f"{named} | {line.rule}", line) for line in mine]
        lines[1:1] = [_projected_line(named, found.rows, mine[0])] if mine and n != PROJECTED else []
        for figure in found.figures:
            curves.setdefault(figure, []).extend(lines)
        if config["marks"]:
            samples += [
                f"{named} | {line.rule} | {line.n:,} | {line.certified:.2f} | {line.rejected:.2f} | {_radius(line)} |"
                for line in ours
                if line.alpha == alpha
            ]
        if config.get("alphas"):
            chances += [
                f"{named} | {line.rule} | {line.n:,} | {line.alpha:g} | {line.certified:.2f} | {_radius(line)} |"
                for line in ours
                if line.n == n
            ]
        attacked += [
            f"{named} | {line.eps:g} | {line.queries} | {line.recall:.2f} | {line.attacked:.2f} | "
            f"{line.certified:.2f} | {line.forced:.2f} | {line.contradicted} |"
            for line in attacks
        ]
    head = (
        "| data set | method | σ | rule | queries | recall | r > 0 | > .1σ | > .25σ | > .5σ | > σ | > 1.5σ | > 2σ "
        "| mean radius |"
    )
    parts = [
        "## A hundredth of the samples: mean radius, K = 1\n\n" + few_samples(folder, preset, plan, where)
    ]
    parts += [
        _section(f"{figure.capitalize()}: Recall@1(r)", head, lines)
        for figure, lines in sorted(curves.items())
    ]
    if samples:
        head = "| data set | method | σ | rule | samples | certified | rejected | mean radius |"
        parts.append(_section("Radius against the number of samples", head, samples))
    if chances:
        head = "| data set | method | σ | rule | samples | α | certified | mean radius |"
        parts.append(_section("Radius against the failure probability", head, chances))
    if attacked:
        head = (
            "| data set | method | σ | ℓ2 size | queries | recall | attacked | certified | abstention forced "
            "| contradicted |"
        )
        parts.append(_section("Attacked and certified", head, attacked))
    return "\n\n".join(parts)


def few_samples(folder: Path, preset: str, plan: Plan, where: Where) -> str:
    """The tight form with 1,000 samples beside the printed one with 100,000, on the same queries, as a table."""
    head = "| data set | method | σ | queries | cdf, n = 1,000 | paper, n = 100,000 | | ratio |"
    lines = [head, "|---" * head.count("| ") + "|"]
    for found in _all(folder, preset, plan, where):
        config = found.rows.header["config"]
        n, most = PROJECTED // 100, config["noise"]["n"] == PROJECTED
        if n in (config["noise"]["n"], *config["marks"]):
            ours = radii_of(found.rows, "cdf", 1, n)[1]
            projected = _projected(found.rows, n)
            printed = radii_of(found.rows, "paper", 1)[1] if most else projected
            how = f"drawn (projected: {projected.mean():.4f})" if most else "projected"
            ratio = f"{ours.mean() / printed.mean():.1f}" if printed.any() else "–"
            lines.append(
                f"| {found.dataset} | {found.method} | {found.sigma:g} | {len(ours)} | {ours.mean():.4f} | "
                f"{printed.mean():.4f} | {how} | {ratio} |"
            )
    return "\n".join(lines)


@dataclass(frozen=True)
class _Found:
    """The rows of one way of training on one data set at one noise, of all its seeds together."""

    dataset: str
    model: str
    method: str
    sigma: float
    figures: tuple[str, ...]
    rows: Rows
    seeds: int


def _all(folder: Path, preset: str, plan: Plan, where: Where) -> Iterator[_Found]:
    """What rows there are, method by method and noise by noise; every seed has drawn queries of its own."""
    figures: dict[tuple[str, str, str, float], dict[str, None]] = {}
    rows: dict[tuple[str, str, str, float], dict[int, Rows]] = {}
    for job in plan.places():
        if plan.smoothing_of(job) is not None:
            for sigma in plan.methods[job.method].sigmas:
                path = smoothed_rows(where(folder, preset, job), sigma)
                if path.exists():
                    key = (job.dataset, job.model, job.method, sigma)
                    figures.setdefault(key, {}).update(dict.fromkeys(job.tables.values()))
                    if job.seed not in rows.setdefault(key, {}):
                        rows[key][job.seed] = read_rows(path)
    for key, seeds in rows.items():
        yield _Found(*key, tuple(figures[key]), _pooled(list(seeds.values())), len(seeds))


def _pooled(runs: Sequence[Rows]) -> Rows:
    """The rows of several seeds one after another; those of different settings are not mixed."""
    settings = [{**run.header["config"], "seed": None, "embedder": None} for run in runs]
    if any(one != settings[0] for one in settings):
        name = runs[0].header["config"]["data"]
        raise ConfigError(f"the smoothed rows of seeds on {name} are of different settings; run them anew")
    columns = {name: np.concatenate([run.columns[name] for run in runs]) for name in runs[0].columns}
    return Rows(runs[0].header, columns)


def _curve(named: str, line: Line) -> str:
    shares = " | ".join(f"{share:.2f}" for share in line.recall_at)
    return f"{named} | {line.queries} | {line.recall:.2f} | {shares} | {_radius(line)} |"


def _radius(line: Line) -> str:
    low, high = line.interval
    return f"{line.mean_radius:.4f} ({low:.4f} to {high:.4f})"


def _projected(rows: Rows, n: int | None = None) -> NDArray[np.float64]:
    """The printed radii with the margin that n samples measured and the slack of 100,000: no certificate."""
    config = rows.header["config"]
    noise, some = config["noise"], rows.columns["answerable"] > 0
    fewer = "" if n in (None, noise["n"]) else f"_n{n}"
    bound = 1.0 if noise["bound"] is None else noise["bound"]
    slack = printed_slack(PROJECTED, noise["alpha"], config["dim"], bound)
    return printed_radius(rows.columns[f"margin{fewer}"][some] - slack, noise["sigma"], bound)


def _projected_line(named: str, rows: Rows, line: Line) -> str:
    radius = _projected(rows)
    shares = " | ".join(f"{(radius > r).mean():.2f}" for r in line.radii)
    low, high = bootstrap(radius)
    return (
        f"{named} | paper, projected to n = 100,000 | {line.queries} | {line.recall:.2f} | {shares} | "
        f"{radius.mean():.4f} ({low:.4f} to {high:.4f}) |"
    )


def _section(title: str, head: str, lines: list[str]) -> str:
    rule = "|---" * head.count("| ") + "|"
    return "\n".join([f"## {title}", "", head, rule, *lines])


def smoothed_rows(kept: Path, sigma: float) -> Path:
    """The file of the rows of a smoothed search."""
    return kept / f"smoothed-{sigma:g}.csv.gz"
