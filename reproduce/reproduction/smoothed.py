"""Figures of smoothed searches: Recall@K against the radius, rule by rule, of one trained network at each noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.evaluation.smoothed_tables import Line, radii_of, smoothed_tables
from holdfast.evaluation.smoothing import certify_smoothed
from holdfast.files import atomic_write
from holdfast.metrics import bootstrap
from holdfast.progress import Say
from holdfast.proofs.smoothing import Smoothing
from holdfast.proofs.smoothing.confidence import printed_slack
from holdfast.proofs.smoothing.radius import printed_radius
from holdfast.rows import ROWS, Rows, config_hash, read_header, read_rows
from reproduction.cells import SMOOTHED, Cell, Key, Number
from reproduction.experiment import Experiment
from reproduction.plan import Job, Plan
from reproduction.training import Trained

PROJECTED = 100_000
"""Samples of the paper, to which its form is projected where it was not run with so many."""


class SmoothedSearches(Experiment[Plan, Job, Trained]):
    """The certified smoothed search of a network, at each noise that its method names."""

    name = "smoothed search"

    def file(self, job: Job, sigma: float) -> Path:
        """The rows of a run's search at a noise."""
        return self.home.kept(job.name) / f"smoothed-{sigma:g}.csv.gz"

    def _settings(self, job: Job, sigma: float) -> dict[str, Any]:
        """How a run's search at a noise is certified."""
        how = self.plan.smoothing_of(job)
        assert how is not None
        noise = how.noise(sigma)
        return {
            "noise": asdict(noise),
            "queries": how.queries,
            "candidates": how.candidates,
            "seed": job.seed,
            "marks": sorted(set(how.marks)),
            "alphas": sorted({*how.alphas} - {noise.alpha}),
            "attacks": [share * sigma for share in how.attacks],
        }

    def planned(self, job: Job) -> dict[Path, str]:
        if self.plan.smoothing_of(job) is None:
            return {}
        sigmas = self.plan.methods[job.method].sigmas
        return {self.file(job, sigma): config_hash(self._settings(job, sigma)) for sigma in sigmas}

    def settings(self, file: Path) -> str:
        config = read_header(file)["config"]
        alike = {name: config[name] for name in ("queries", "candidates", "seed", "marks", "attacks")}
        # Settings that rows of before do not name had their defaults.
        noise = asdict(Smoothing(**config["noise"]))
        return config_hash({**alike, "alphas": config.get("alphas", []), "noise": noise})

    def run(self, job: Job, made: Trained, files: Sequence[Path], say: Say) -> None:
        for sigma in self.plan.methods[job.method].sigmas:
            if (file := self.file(job, sigma)) in files:
                say(f"{job.name}: smoothed search, sigma {sigma:g}")
                settings = self._settings(job, sigma)
                noise = Smoothing(**settings.pop("noise"))
                place = made.out / "certifications" / f"smoothed-{sigma:g}"
                done = certify_smoothed(made.embedder, made.images, place, noise, ks=(1, 5), **settings)
                atomic_write(file, (done.folder / ROWS).read_bytes())

    def numbers(self, printed: dict[Key, float]) -> dict[Key, Number]:
        """Every number of every figure: the mean radius and Recall@K(r) of each rule at each number of samples."""
        out: dict[Key, Number] = {}
        for found in self._found():
            alpha = found.rows.header["config"]["noise"]["alpha"]
            for table, line in product(found.figures, smoothed_tables(found.rows)[0]):
                place = (
                    table,
                    found.dataset,
                    found.model,
                    found.method,
                    SMOOTHED,
                    f"{found.sigma:g}",
                    line.k,
                )
                name = f"{line.rule}, n = {line.n}" + (
                    f", alpha = {line.alpha:g}" if line.alpha != alpha else ""
                )
                size = (line.queries, found.seeds)
                out[(*place, f"mean radius: {name}")] = Number(line.mean_radius, *line.interval, *size)
                for r, share in zip(line.radii, line.recall_at, strict=True):
                    out[(*place, f"recall at r > {r:g}: {name}")] = Number(share, None, None, *size)
        return out

    def opening(self, cells: Sequence[Cell]) -> list[str]:
        from reproduction.side_by_side import side_by_side

        if self.plan.smoothing is None:
            return []
        return [side_by_side(self, cells) if self.plan.tests else self._part()]

    def _part(self) -> str:
        """The tables of the page: certified recall for K = 1, how radii grow with the samples and α, and attacks."""
        curves: dict[str, list[str]] = {}
        samples: list[str] = []
        chances: list[str] = []
        attacked: list[str] = []
        for found in self._found():
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
                    f"{named} | {line.rule} | {line.n:,} | {line.certified:.2f} | {line.rejected:.2f} | "
                    f"{_radius(line)} |"
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
        parts = ["## A hundredth of the samples: mean radius, K = 1\n\n" + self.few_samples()]
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

    def few_samples(self) -> str:
        """The tight form with 1,000 samples beside the printed one with 100,000, on the same queries, as a table."""
        head = "| data set | method | σ | queries | cdf, n = 1,000 | paper, n = 100,000 | | ratio |"
        lines = [head, "|---" * head.count("| ") + "|"]
        for found in self._found():
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

    def _found(self) -> Iterator[_Found]:
        """What rows there are, method by method and noise by noise; every seed has drawn queries of its own."""
        figures: dict[tuple[str, str, str, float], dict[str, None]] = {}
        rows: dict[tuple[str, str, str, float], dict[int, Rows]] = {}
        for job in self.plan.places():
            if self.plan.smoothing_of(job) is not None:
                for sigma in self.plan.methods[job.method].sigmas:
                    path = self.file(job, sigma)
                    if path.exists():
                        key = (job.dataset, job.model, job.method, sigma)
                        figures.setdefault(key, {}).update(dict.fromkeys(job.tables.values()))
                        if job.seed not in rows.setdefault(key, {}):
                            rows[key][job.seed] = read_rows(path)
        for key, seeds in rows.items():
            yield _Found(*key, tuple(figures[key]), _pooled(list(seeds.values())), len(seeds))


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
