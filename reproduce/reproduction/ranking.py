"""Certified rankings and ER-Recall: recall of one trained network, certified and attacked, at each eps and K."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from holdfast import models
from holdfast.attacks import PAPER, Settings
from holdfast.evaluation.certify import certify
from holdfast.evaluation.er_recall import er_recall
from holdfast.files import atomic_write
from holdfast.metrics import bootstrap, chance_of_draw
from holdfast.progress import Say
from holdfast.provenance import commit, versions
from holdfast.rows import ROWS, config_hash, read_header, read_rows
from reproduction.cells import ATTACKED, CHANCE, SMOOTHED, SUITE, Cell, Key, Number
from reproduction.experiment import RUN, Experiment
from reproduction.page import digits, heading
from reproduction.plan import THREATS, AttackPlan, Job, Plan, SuiteAttack
from reproduction.training import Trained

METRICS = {
    ("paper", "recall"): "recall",
    ("paper", "cr"): "cr_recall",
    ("tight", "cr"): "cr_recall_tight",
    ("tight", "one_sided"): "cr_recall_one_sided",
    ("tight", "hit"): "certified_hit_rate",
}
"""By file of rows and column: `cr_recall` is the paper's number under the paper's test."""
_TITLES = {
    "recall": "Recall@K",
    "er_recall": "ER-Recall@K, under attack: our search, and the published one of the printed numbers",
    "robust_recall": "Robust recall: a right hit before and under the attack",
    "cr_recall": "CR-Recall@K, the paper's test (box not clipped, Eq. 17 and 18, two-sided)",
    "cr_recall_tight": "CR-Recall@K, our test (two-sided)",
    "cr_recall_one_sided": "One-sided: a same-class hit of the top K stays in the top K, our test",
    "certified_hit_rate": "Certified hit rate: the top K surely hold the right class, our test",
}
_WHO = {"none": "no attack", "query": "query attack", "candidates": "candidate attack"}
Values = dict[Key, dict[int, NDArray[np.float64]]]
"""The values, one a query, of each cell for each training seed."""


class Certificates(Experiment[Plan, Job, Trained]):
    """Certified recall by each test of the plan, and the record that says that a run is finished."""

    name = "run"

    def planned(self, job: Job) -> dict[Path, str]:
        plan, tests = self.plan, {name: test.model_dump() for name, test in self.plan.tests.items()}
        drawn = [plan.queries, plan.candidates, plan.ks]
        settings: dict[str, Any] = {
            "config": job.config,
            "start": job.start,
            "eps": job.eps,
            "tests": tests,
            "drawn": drawn,
        }
        # Only certificates are named by this hash; where there are none, rows of before the switch keep theirs.
        settings |= {"held_out": True} if plan.held_out and tests else {}
        return {self.home.kept(job.name) / RUN: config_hash(settings)}

    def settings(self, file: Path) -> str:
        return str(json.loads(file.read_text())["hash"])

    def run(self, job: Job, made: Trained, files: Sequence[Path], say: Say) -> None:
        """Every test's rows, and last the record that says they are all there."""
        (file,) = files
        for name, test in self.plan.tests.items():
            say(f"{job.name}: certifying, {name} test")
            done = certify(
                made.embedder,
                made.images,
                made.out / "certifications" / name,
                job.threats,
                queries=self.plan.queries,
                candidates=self.plan.candidates,
                seed=job.seed,
                ks=self.plan.ks,
                method=test.method,
                clip=test.clip,
                rounding=test.rounding,
                listed=0,
            )
            atomic_write(file.with_name(f"{name}.csv.gz"), (done.folder / ROWS).read_bytes())
        card = json.loads((made.out / models.CARD).read_text())
        record = {
            "hash": self.planned(job)[file],
            "config": job.config,
            "metrics": card["metrics"],
            "trained": card["created"],
            "training_versions": card["versions"],
            "versions": versions(),
            "commit": commit(),
        }
        # Last, because a folder with this file is a finished run.
        atomic_write(file, json.dumps(record, indent=2) + "\n")

    def numbers(self, printed: dict[Key, float]) -> dict[Key, Number]:
        found: Values = {}
        for job in self.plan.places():
            record = self.home.kept(job.name) / RUN
            for test in self.plan.tests if record.exists() else ():
                columns = read_rows(record.with_name(f"{test}.csv.gz")).columns
                metrics = {column: metric for (of, column), metric in METRICS.items() if of == test}
                labels = columns["label"][columns["threat"] == columns["threat"][0]]
                for key, values in _values(columns, metrics, job, self.plan.ks):
                    found.setdefault(key, {})[job.seed] = values
                    if key[7] == "recall":
                        level = chance_of_draw(labels, self.plan.candidates, key[6])
                        by_chance = found.setdefault((*key[:3], CHANCE, *key[4:]), {})
                        by_chance[job.seed] = np.full(len(values), level)
        return _means(found)

    def opening(self, cells: Sequence[Cell]) -> list[str]:
        return [first_hit(cells, self.plan), _against_best(cells)]

    def shows(self, cell: Cell) -> bool:
        return cell.threat not in (SUITE, SMOOTHED)

    def table(self, number: str, cells: Sequence[Cell]) -> str:
        return recall_table(number, cells, self.plan)


class Attacks(Experiment[Plan, Job, Trained]):
    """ER-Recall, on the draw of the certificates; its numbers stand in their tables."""

    name = "attacks"

    def planned(self, job: Job) -> dict[Path, str]:
        how = self.plan.attacks_of(job)
        if how is None:
            return {}
        drawn = {
            "queries": self.plan.queries,
            "candidates": self.plan.candidates,
            "seed": job.seed,
            "ks": sorted(set(self.plan.ks)),
            "threats": [str(threat) for threat in job.threats],
            "ca_queries": how.ca_queries,
            "sources": how.sources,
        }
        files = {by: self.home.kept(job.name) / er_rows(by) for by in how.by}
        return {
            file: config_hash(
                {**drawn, "steps": _search(by, how).config(1.0)["steps"], **self._network(file)}
            )
            for by, file in files.items()
        }

    def settings(self, file: Path) -> str:
        config = read_header(file)["config"]
        alike = (
            "queries",
            "candidates",
            "seed",
            "ks",
            "threats",
            "ca_queries",
            "sources",
            *self._network(file),
        )
        return config_hash({name: config[name] for name in alike} | {"steps": config["search"][0]["steps"]})

    def _network(self, file: Path) -> dict[str, str]:
        """Which network and images were certified, for rows of the same run must be of the same."""
        tested = file.with_name(f"{next(iter(self.plan.tests), '')}.csv.gz")
        if not tested.exists():
            return {}
        config = read_header(tested)["config"]
        return {name: config[name] for name in ("embedder", "images")}

    def run(self, job: Job, made: Trained, files: Sequence[Path], say: Say) -> None:
        how = self.plan.attacks_of(job)
        assert how is not None
        for by in how.by:
            file = self.home.kept(job.name) / er_rows(by)
            if file not in files:
                continue
            say(f"{job.name}: attacking, {by}")
            attacked = er_recall(
                made.embedder,
                made.images,
                made.out / er_rows(by).removesuffix(".csv.gz"),
                job.threats,
                queries=self.plan.queries,
                candidates=self.plan.candidates,
                ca_queries=how.ca_queries,
                sources=how.sources,
                seed=job.seed,
                ks=self.plan.ks,
                settings=_search(by, how),
            )
            atomic_write(file, (attacked.folder / ROWS).read_bytes())

    def numbers(self, printed: dict[Key, float]) -> dict[Key, Number]:
        found: Values = {}
        for job, by in product(self.plan.places(), get_args(SuiteAttack)):
            file = self.home.kept(job.name) / er_rows(by)
            if file.exists():
                columns = read_rows(file).columns
                for named, values in _values(columns, ATTACKED, job, self.plan.ks):
                    key = (*named, by)
                    found.setdefault(key, {})[job.seed] = values
        return _means(found)


def er_rows(by: SuiteAttack) -> str:
    """The file of the rows of ER-Recall."""
    return "er-recall.csv.gz" if by == "ours" else f"er-recall-{by}.csv.gz"


def _search(by: SuiteAttack, attacks: AttackPlan) -> Settings:
    return Settings(steps=attacks.steps) if by == "ours" else Settings(PAPER)


def _means(found: Values) -> dict[Key, Number]:
    """The mean over training seeds, with an interval over queries."""
    out = {}
    for key, by_seed in found.items():
        runs = list(by_seed.values())
        low, high = bootstrap(np.mean(runs, axis=0))
        out[key] = Number(float(np.mean(runs)), low, high, sum(map(len, runs)), len(runs))
    return out


def _values(
    columns: dict[str, NDArray[Any]], metrics: Mapping[str, str], job: Job, ks: Sequence[int]
) -> list[tuple[Key, NDArray[np.float64]]]:
    """The values, one a query, of every cell that one file of rows speaks of; `metrics` is by column."""
    out = []
    for column, metric in metrics.items():
        for eps, table in job.tables.items():
            clean = metric == "recall"
            if clean != (eps not in job.eps):
                continue
            for who in THREATS[:1] if clean else THREATS:
                # Without an attack every threat's rows say the same.
                size = job.eps[0] if clean else eps
                rows = columns["threat"] == f"{who}:linf:{size}"
                threat = "none" if clean else who
                for k in ks:
                    key = (table, job.dataset, job.model, job.method, threat, eps, k, metric)
                    out.append((key, columns[f"{column}_{k}"][rows].astype(np.float64)))
    return out


def recall_table(number: str, cells: Sequence[Cell], plan: Plan) -> str:
    """A table for each metric and network: a row for each method and attack, a column for each K."""
    parts = [heading(number)]
    for model in sorted({cell.model for cell in cells}):
        for metric in _TITLES:
            mine = [cell for cell in cells if cell.metric == metric and cell.model == model]
            if not any(cell.ours is not None for cell in mine):
                continue
            ks = sorted({cell.k for cell in mine})
            lines = [
                f"### {_TITLES[metric]}, {model}",
                "| data set | method | attack | seeds | " + " | ".join(f"@{k}" for k in ks) + " |",
                "|---" * (4 + len(ks)) + "|",
            ]
            for key, group in _grouped(mine):
                by_k = {cell.k: cell for cell in group}
                seeds = max(cell.seeds for cell in group)
                numbers = " | ".join(_pair(by_k.get(k)) for k in ks)
                name = called(key[1], plan)
                lines.append(f"| {key[0]} | {name} | {key[2]} | {seeds or '–'} | {numbers} |")
            parts.append(lines[0] + "\n\n" + "\n".join(lines[1:]))
    return "\n\n".join(parts) if len(parts) > 1 else ""


def called(method: str, plan: Plan) -> str:
    """A method by its name, with what must be said of it."""
    said = plan.says(method)
    return f"{method} ({said})" if said else method


def first_hit(cells: Sequence[Cell], plan: Plan) -> str:
    """What a user reads first: whether the nearest is of the right class, without an attack, attacked and proved."""
    columns = {
        "chance": ("recall", "none"),
        "Recall@1": ("recall", "none"),
        "attacked, query": ("er_recall", "query"),
        "attacked, candidates": ("er_recall", "candidates"),
        "certified, query": ("certified_hit_rate", "query"),
        "certified, candidates": ("certified_hit_rate", "candidates"),
    }
    first = {
        (c.dataset, c.model, c.method, c.metric, c.threat, c.eps): c
        for c in cells
        if c.k == 1 and c.ours is not None and c.attack != "published"
    }
    lines = []
    for dataset, model, method, metric, threat, eps in first:
        if (metric, threat) != ("certified_hit_rate", "query"):
            continue
        shown = []
        for title, (of, who) in columns.items():
            clean = who == "none"
            by = CHANCE if title == "chance" else method
            found = [
                cell
                for key, cell in first.items()
                if key[:5] == (dataset, model, by, of, who) and (clean or key[5] == eps)
            ]
            shown.append(digits(found[0].ours) if found else "–")
        seeds = first[dataset, model, method, metric, threat, eps].seeds
        name = called(method, plan)
        lines.append(f"| {dataset} | {model} | {eps} | {name} | {seeds} | " + " | ".join(shown) + " |")
    if not lines:
        return ""
    head = "| data set | network | eps | method | seeds | " + " | ".join(columns) + " |"
    return (
        "## The first hit\n\nShare of queries whose nearest candidate is of the right class: in a random order, "
        "without an attack, under our attack, and whatever an attacker does (certified hit rate at 1, our test).\n\n"
        + "\n".join([head, "|---" * (5 + len(columns)) + "|", *sorted(lines)])
    )


def _against_best(cells: Sequence[Cell]) -> str:
    """How the methods of ours stand against the best printed number of each cell."""
    best: dict[tuple[object, ...], float] = {}
    for cell in cells:
        if cell.paper is not None and cell.metric == "cr_recall":
            place = (cell.table, cell.dataset, cell.model, cell.threat, cell.eps, cell.k)
            best[place] = max(best.get(place, 0.0), cell.paper)
    lines = []
    for method in sorted({c.method for c in cells if c.ours is not None}):
        for metric in ("cr_recall", "cr_recall_tight"):
            for dataset in sorted({c.dataset for c in cells}):
                mine = [
                    (round(c.ours, 2), best[place])
                    for c in cells
                    if (c.method, c.metric, c.dataset) == (method, metric, dataset) and c.ours is not None
                    if (place := (c.table, c.dataset, c.model, c.threat, c.eps, c.k)) in best
                ]
                if mine:
                    least = min(ours - paper for ours, paper in mine)
                    reached = sum(ours >= paper for ours, paper in mine)
                    test = "the paper's" if metric == "cr_recall" else "ours"
                    lines.append(
                        f"| {method} | {dataset} | {test} | {reached} of {len(mine)} | {least:+.2f} |"
                    )
    if not lines:
        return ""
    head = "| trained with | data set | test | cells at or above the best printed | smallest difference |"
    return "## CR-Recall against the best printed cell\n\n" + "\n".join(
        [head, "|---|---|---|---|---|", *lines]
    )


def _grouped(cells: Iterable[Cell]) -> list[tuple[tuple[str, str, str], list[Cell]]]:
    found: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        size = "" if cell.threat == "none" else f", {cell.eps}"
        by = f", {cell.attack}" if cell.attack else ""
        found.setdefault((cell.dataset, cell.method, _WHO[cell.threat] + size + by), []).append(cell)
    return list(found.items())


def _pair(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    return f"{digits(cell.paper)} / {digits(cell.ours)}"
