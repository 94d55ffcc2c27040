"""The page of a reproduction: every table with the printed number and ours side by side, from the cells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import stdev
from typing import Any

from scipy.stats import t

from holdfast.evaluate.scores import MENDED, ars_difference
from holdfast.files import atomic_write
from holdfast.metrics.robustness import ERS_PARTS
from holdfast.reproduce.cells import CHANCE, Cell
from holdfast.reproduce.plan import Plan, SuiteAttack
from holdfast.reproduce.run import RUN, rows_folder
from holdfast.reproduce.side_by_side import side_by_side
from holdfast.reproduce.smoothed import LIKE, smoothed_part
from holdfast.reproduce.suites import CLEAN, LOG_ROWS, suite_rows
from holdfast.rows import read_rows
from holdfast.training.log import read_log

PAGE = "results.md"
_TITLES = {
    "recall": "Recall@K",
    "er_recall": "ER-Recall@K, under attack: our search, and the published one of the printed numbers",
    "robust_recall": "Robust recall: a right hit before and under the attack",
    "cr_recall": "CR-Recall@K, the paper's test (box not clipped, Eq. 17 and 18, two-sided)",
    "cr_recall_tight": "CR-Recall@K, our test (two-sided)",
    "cr_recall_one_sided": "One-sided: a same-class hit of the top K stays in the top K, our test",
    "certified_hit_rate": "Certified hit rate: the top K surely hold the right class, our test",
}
_COLUMNS = (*CLEAN, *ERS_PARTS, MENDED, "ERS", "ERS (GTM mended)", "ARS", "ARS (by trial)")
_WHO = {"none": "no attack", "query": "query attack", "candidates": "candidate attack"}


def write_page(folder: Path, plans: Mapping[str, Plan], cells: Sequence[Cell]) -> Path:
    """Write the Markdown page beside the cells; several presets stand one after the other."""
    parts = [_head(folder, plans)]
    for preset, plan in plans.items():
        if len(plans) > 1:
            parts.append(f"# Preset `{preset}`\n\n{_drawn(plan).capitalize()}.")
        parts += _sections(folder, preset, plan, [cell for cell in cells if cell.preset == preset])
    path = folder / PAGE
    atomic_write(path, "\n\n".join(part for part in parts if part) + "\n")
    return path


def _sections(folder: Path, preset: str, plan: Plan, cells: Sequence[Cell]) -> list[str]:
    parts = [first_hit(cells, plan), _against_best(cells)]
    if plan.suite is not None:
        parts.append(_differences(folder, preset, plan))
    if plan.smoothing is not None:
        if plan.tests:
            parts.append(side_by_side(folder, preset, plan, cells))
        else:
            parts.append(smoothed_part(folder, preset, plan, rows_folder))
    tables = sorted({cell.table for cell in cells})
    parts += [_table(number, [cell for cell in cells if cell.table == number], plan) for number in tables]
    if plan.suite is not None:
        parts.append(_telemetry(folder, preset, plan))
    return [*parts, runs_table(folder, preset, plan)]


def _head(folder: Path, plans: Mapping[str, Plan]) -> str:
    about = folder / "about.md"
    text = about.read_text().strip() if about.exists() else f"# Reproduction of {folder.name}"
    preset, plan = next(iter(plans.items()))
    made = f"This page is generated from the rows by `holdfast reproduce {folder.name} --preset {preset}`"
    if plan.smoothing is not None:
        return f"{text}\n\n{made}; `cells.json` has every number with a 95 % interval over queries."
    drawn = f" at {_drawn(plan)}" if len(plans) == 1 else ""
    return (
        f"{text}\n\n{made}. In every cell the printed number comes first, then ours: the mean over training seeds"
        f"{drawn}, as far as the paper prints it. A dash stands for what is not printed or was not run. `cells.json` "
        "has every cell, with a 95 % interval where it is a mean over queries."
    )


def _drawn(plan: Plan) -> str:
    """How many queries are asked of how many images."""
    if plan.suite is None:
        return f"{plan.queries:,} queries against {plan.candidates:,} candidates"
    found = "all other" if plan.suite.candidates is None else f"{plan.suite.candidates:,}"
    return (
        f"{plan.suite.queries:,} attacked queries ({plan.suite.clean_queries:,} in the columns without an "
        f"attack; a data set or a table may say otherwise) against {found} images"
    )


def _called(method: str, plan: Plan) -> str:
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
            shown.append(_number(found[0].ours) if found else "–")
        seeds = first[dataset, model, method, metric, threat, eps].seeds
        name = _called(method, plan)
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


def _differences(folder: Path, preset: str, plan: Plan) -> str:
    """By how much one way of training resists more than another, on the same queries and seeds."""
    assert plan.suite is not None
    kept: dict[tuple[str, str, str, SuiteAttack], dict[int, Path]] = {}
    for job, by in product(plan.jobs(), plan.suite.attacks):
        path = rows_folder(folder, preset, job) / suite_rows(by)
        if path.exists():
            kept.setdefault((job.dataset, job.model, job.method, by), {})[job.seed] = path
    lines = []
    for one, other in plan.suite.compare:
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


def _telemetry(folder: Path, preset: str, plan: Plan) -> str:
    """How far apart embeddings are on the way, and how far the adversary moves them (CA-TRIDE, Figures 4 and 5)."""
    lines = []
    for job in plan.jobs():
        log = read_log(rows_folder(folder, preset, job) / LOG_ROWS)
        steps = [record for record in log if "loss" in record]
        if not steps:
            continue
        at = [steps[round(share * (len(steps) - 1))] for share in (0.25, 0.5, 0.75, 1.0)]
        said = "; ".join(record["warning"].split(":")[1].strip() for record in log if "warning" in record)
        cells = [
            " ".join(_number(record["mean_distance"]) for record in at),
            " ".join(_number(record.get("separability")) for record in at),
            " ".join(_number(_share(record)) for record in at),
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


def _share(record: dict[str, Any]) -> float | None:
    return record["shift"] / record["mean_distance"] if record.get("shift") is not None else None


def _table(number: str, cells: Sequence[Cell], plan: Plan) -> str:
    cells = [cell for cell in cells if cell.threat != LIKE]
    parts = [f"## Table {number}" if number.isdigit() else f"## {number.capitalize()}"]
    if any(cell.threat == "suite" for cell in cells):
        return parts[0] + "\n\n" + _suite_table(cells)
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
                name = _called(key[1], plan)
                lines.append(f"| {key[0]} | {name} | {key[2]} | {seeds or '–'} | {numbers} |")
            parts.append(lines[0] + "\n\n" + "\n".join(lines[1:]))
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _suite_table(cells: Sequence[Cell]) -> str:
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
    return f"{_number(cell.paper)} / {_number(cell.ours)}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".removeprefix("0")


def runs_table(folder: Path, preset: str, plan: Plan) -> str:
    """What was trained, and what it cost."""
    lines = ["## Runs", "", "| run | steps | CPU minutes | commit |", "|---|---|---|---|"]
    for job in plan.jobs():
        record = rows_folder(folder, preset, job) / RUN
        if record.exists():
            found = json.loads(record.read_text())
            minutes = found["metrics"].get("cpu_seconds", 0) / 60
            steps = found["config"]["train"].get("steps", "")
            lines.append(f"| {job.name} | {steps} | {minutes:.1f} | {found['commit']} |")
    return "\n".join(lines)
