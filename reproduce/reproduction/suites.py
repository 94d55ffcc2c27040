"""Tables of attack suites: clean retrieval, every attack of ERS, and the scores, of one trained network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
from scipy.stats import t

from holdfast.attacks import PUBLISHED, Settings
from holdfast.evaluation import evaluate
from holdfast.evaluation.scores import MENDED, Estimate, ars_difference, score_suite
from holdfast.evaluation.suite import attack_suite
from holdfast.files import atomic_write
from holdfast.metrics import bootstrap, summarise
from holdfast.metrics.robustness import ERS_PARTS
from holdfast.progress import Say
from holdfast.rows import ROWS, Rows, config_hash, read_header, read_rows
from holdfast.training import LOG
from holdfast.training.log import read_log
from reproduction.cells import CLEAN, SUITE, Cell, Key, Number
from reproduction.experiment import Experiment
from reproduction.page import digits, heading
from reproduction.plan import Job, Plan, SuiteAttack, SuitePlan
from reproduction.training import Trained

RETRIEVAL_ROWS, SUITE_ROWS = "retrieval.csv.gz", "suite.csv.gz"
LOG_ROWS = "log.jsonl"
_COLUMNS = (*CLEAN, *ERS_PARTS, MENDED, "ERS", "ERS (GTM mended)", "ARS", "ARS (by trial)")
Value = tuple[float, float, float]
"""A number and its 95 % interval."""


class Suites(Experiment[Plan, Job, Trained]):
    """A network without an attack and under every attack of ERS, by our search and by the published one."""

    name = "suite"

    def planned(self, job: Job) -> dict[Path, str]:
        suite = self.plan.suite_of(job)
        if suite is None:
            return {}
        drawn = [suite.queries, suite.candidates]
        return {
            self.home.kept(job.name) / suite_rows(by): _hash(
                [suite.clean_queries, suite.candidates],
                str(job.suite_threat),
                drawn,
                _settings(by, suite).steps,
            )
            for by in suite.attacks
        }

    def settings(self, file: Path) -> str:
        clean, config = (read_header(one)["config"] for one in (file.with_name(RETRIEVAL_ROWS), file))
        drawn = ([one["queries"], one["candidates"]] for one in (clean, config))
        return _hash(next(drawn), config["threat"], next(drawn), config["search"]["steps"])

    def run(self, job: Job, made: Trained, files: Sequence[Path], say: Say) -> None:
        """The rows without an attack come first, those of the suites last."""
        suite = self.plan.suite_of(job)
        assert suite is not None
        say(f"{job.name}: attacking")
        drawn: dict[str, Any] = {"candidates": suite.candidates, "seed": job.seed}
        place = made.out / "retrieval"
        clean = evaluate(made.embedder, made.images, place, ks=(1, 2), queries=suite.clean_queries, **drawn)
        rows = {LOG_ROWS: made.out / LOG, RETRIEVAL_ROWS: clean.folder / ROWS}
        for by in suite.attacks:
            attacked = attack_suite(
                made.embedder,
                made.images,
                made.out / suite_rows(by).removesuffix(".csv.gz"),
                job.suite_threat,
                settings=_settings(by, suite),
                queries=suite.queries,
                **drawn,
            )
            rows[suite_rows(by)] = attacked.folder / ROWS
        for name, source in rows.items():
            atomic_write(self.home.kept(job.name) / name, source.read_bytes())

    def numbers(self, printed: dict[Key, float]) -> dict[Key, Number]:
        """`k` is 0, `metric` the column of the paper's table, and no cell mixes attacks."""
        if self.plan.suite is None:
            return {}
        found: dict[Key, dict[int, Value]] = {}
        trials: dict[Key, int] = {}
        scores = self.plan.suite.scores
        for job, by in product(self.plan.places(), self.plan.suite.attacks):
            kept, own, rows = self.home.kept(job.name), job.tables[job.eps[0]], suite_rows(by)
            if not (kept / rows).exists():
                continue
            asked = {name: read_header(kept / name)["n"] for name in (RETRIEVAL_ROWS, rows)}
            for (score, column), value in suite_values(kept, by).items():
                if own not in scores.values() and score == "ers" and not column.startswith("ERS"):
                    continue
                table = scores[score] if own in scores.values() else own
                clean = column in CLEAN
                named = (table, job.dataset, job.model, job.method, SUITE, job.eps[0], 0, column)
                key = named if clean else (*named, by)
                if job.seed not in found.setdefault(key, {}):
                    trials[key] = trials.get(key, 0) + asked[RETRIEVAL_ROWS if clean else rows]
                found[key][job.seed] = value
        out = {}
        for key, values in found.items():
            ours, low, high = mean_value(list(values.values()))
            ends = (None if np.isnan(low) else low, None if np.isnan(high) else high)
            out[key] = Number(ours, *ends, trials[key], len(values))
        return out

    def printed_as(self, key: Key) -> Key:
        method = self.plan.methods.get(key[3])
        return (*key[:3], (method and method.printed) or key[3], *key[4:])

    def opening(self, cells: Sequence[Cell]) -> list[str]:
        return [] if self.plan.suite is None else [self._differences(self.plan.suite)]

    def shows(self, cell: Cell) -> bool:
        return cell.threat == SUITE

    def table(self, number: str, cells: Sequence[Cell]) -> str:
        return f"{heading(number)}\n\n{_table(cells)}" if cells else ""

    def closing(self) -> list[str]:
        return [] if self.plan.suite is None else [self._telemetry()]

    def _differences(self, suite: SuitePlan) -> str:
        """By how much one way of training resists more than another, on the same queries and seeds."""
        kept: dict[tuple[str, str, str, SuiteAttack], dict[int, Path]] = {}
        for job, by in product(self.plan.jobs(), suite.attacks):
            path = self.home.kept(job.name) / suite_rows(by)
            if path.exists():
                kept.setdefault((job.dataset, job.model, job.method, by), {})[job.seed] = path
        lines = []
        for one, other in suite.compare:
            for dataset, model, method, by in kept:
                if method != one or (dataset, model, other, by) not in kept:
                    continue
                ours, theirs = kept[dataset, model, one, by], kept[dataset, model, other, by]
                seeds = sorted({*ours} & {*theirs})
                if not seeds:
                    continue
                gaps, (low, high) = ars_difference(
                    [read_rows(ours[seed]) for seed in seeds], [read_rows(theirs[seed]) for seed in seeds]
                )
                gap, each = sum(gaps) / len(gaps), ", ".join(f"{value:+.1f}" for value in gaps)
                over_seeds = "–"
                if len(gaps) > 1:
                    half = float(t.ppf(0.975, len(gaps) - 1)) * stdev(gaps) / len(gaps) ** 0.5
                    over_seeds = f"{gap - half:+.1f} to {gap + half:+.1f}"
                lines.append(
                    f"| {dataset}, {model} | {by} | {one} − {other} | {gap:+.1f} | {low:+.1f} to {high:+.1f} | "
                    f"{over_seeds} | {each} |"
                )
        if not lines:
            return ""
        head = "| data set | attacked by | difference | ARS | 95 % over queries | over training seeds (t) | by seed |"
        return "## Differences in ARS\n\n" + "\n".join([head, "|---" * 7 + "|", *lines])

    def _telemetry(self) -> str:
        """How far apart embeddings are on the way, and how far the adversary moves them (CA-TRIDE, Figures 4 and 5)."""
        lines = []
        for job in self.plan.jobs():
            log = read_log(self.home.kept(job.name) / LOG_ROWS)
            steps = [record for record in log if "loss" in record]
            if not steps:
                continue
            at = [steps[round(share * (len(steps) - 1))] for share in (0.25, 0.5, 0.75, 1.0)]
            said = "; ".join(record["warning"].split(":")[1].strip() for record in log if "warning" in record)
            cells = [
                " ".join(digits(record["mean_distance"]) for record in at),
                " ".join(digits(record.get("separability")) for record in at),
                " ".join(digits(_share(record)) for record in at),
                said or "–",
            ]
            lines.append(f"| {job.name} | " + " | ".join(cells) + " |")
        if not lines:
            return ""
        head = "| run | mean distance | separability | shift / distance | said |\n|---|---|---|---|---|"
        return (
            "## On the way\n\nAt a quarter, half, three quarters and the end of each run; the shift is that of the "
            "images that the adversary moves.\n\n" + "\n".join([head, *lines])
        )


def suite_rows(by: SuiteAttack) -> str:
    """The file of the rows of a suite."""
    return SUITE_ROWS if by == "ours" else f"suite-{by}.csv.gz"


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


def _settings(by: SuiteAttack, plan: SuitePlan) -> Settings:
    return Settings(steps=plan.steps) if by == "ours" else Settings(PUBLISHED)


def _hash(clean: list[int | None], threat: str, drawn: list[int | None], steps: int) -> str:
    return config_hash({"clean": clean, "threat": threat, "drawn": drawn, "steps": steps})


def _share(record: dict[str, Any]) -> float | None:
    return record["shift"] / record["mean_distance"] if record.get("shift") is not None else None


def _table(cells: Sequence[Cell]) -> str:
    """A row for each method on a data set and each search for attacks, a column for each attack and score."""
    columns = list(dict.fromkeys(cell.metric for cell in sorted(cells, key=lambda c: _place(c.metric))))
    lines = [
        "| data set | network | method | attacked by | seeds | " + " | ".join(columns) + " |",
        "|---" * (5 + len(columns)) + "|",
    ]
    rows: dict[tuple[str, str, str], dict[str, dict[str, Cell]]] = {}
    for cell in cells:
        of_method = rows.setdefault((cell.dataset, cell.method, cell.model), {})
        of_method.setdefault(cell.attack, {})[cell.metric] = cell
    # The printed row of a method stands above ours with another network.
    for (dataset, method, model), by_attack in sorted(rows.items()):
        clean = by_attack.pop("", {})
        for attack, attacked in sorted(by_attack.items(), reverse=True) or [("–", {})]:
            mine = {**clean, **attacked}
            # The attack of the printed numbers is named also where they are all there is.
            seeds = max((cell.seeds for cell in attacked.values()), default=0)
            shown = " | ".join(_percent(mine.get(column)) for column in columns)
            lines.append(f"| {dataset} | {model} | {method} | {attack} | {seeds or '–'} | {shown} |")
    return "\n".join(lines)


def _place(column: str) -> int:
    return _COLUMNS.index(column) if column in _COLUMNS else len(_COLUMNS)


def _percent(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    one, other = ("–" if value is None else f"{value:.1f}" for value in (cell.paper, cell.ours))
    return f"{one} / {other}"
