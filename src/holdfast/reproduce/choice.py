"""The page of a plan that chooses settings, on held-out training images: what runs cost, resist and prove."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.files import atomic_write
from holdfast.reproduce.cells import Cell
from holdfast.reproduce.page import first_hit, runs_table
from holdfast.reproduce.plan import Experiment, Job, Plan, SuiteAttack, SuitePlan
from holdfast.reproduce.run import RUN, rows_folder
from holdfast.reproduce.suites import LOG_ROWS, RETRIEVAL_ROWS, Value, suite_rows, suite_values
from holdfast.rows import read_header
from holdfast.training import parse
from holdfast.training.defences import build_defence
from holdfast.training.log import read_log

_NAMED = ("name", "attack_steps", "step", "start", "eps_ramp", "steps_ramp", "eps")
"""Settings of the defence that have columns of their own, or follow from those that have."""
_LENGTH = ("steps", "gradients", "epochs")
_COLUMNS = ("R@1", "mAP", "ERS", "ARS")
_MEASURES = (
    "An image gradient is an image through the network and back, in the adversary's search or in the loss. In brackets "
    "a 95 % interval over queries. ARS a minute is ARS under our attack for each minute of a processor in training. "
    "The runs that resist most stand first."
)


@dataclass(frozen=True)
class Outcome:
    """One run: what it was trained with, what that cost and what it reached."""

    job: Job
    gradients: float
    """Planned, in all: an early stop may save some."""
    seconds: float
    """Of a processor, for the training."""
    values: Mapping[SuiteAttack, Mapping[str, Value]]
    asked: int

    @property
    def per_minute(self) -> float:
        """ARS for each minute of a processor, under our search where there is one."""
        return next(iter(self.values.values()))["ARS"][0] / (self.seconds / 60)


def write_choice(folder: Path, preset: str, plan: Plan, cells: Sequence[Cell]) -> Path:
    """Write the page of the plan, `PRESET.md`, from the rows there are."""
    parts = [
        first_hit(cells, plan),
        *([] if plan.suite is None else _resisted(folder, preset, plan, plan.suite)),
    ]
    found = [part for part in parts if part]
    found = [*found, runs_table(folder, preset, plan)] if found else ["There are no rows yet."]
    path = folder / f"{preset}.md"
    atomic_write(path, "\n\n".join([_head(folder, preset), *found]) + "\n")
    return path


def _resisted(folder: Path, preset: str, plan: Plan, suite: SuitePlan) -> list[str]:
    """A table for each comparison under attack."""
    by_table: dict[str, list[Experiment]] = {}
    for experiment in plan.experiments:
        for table in experiment.tables.values():
            by_table.setdefault(table, []).append(experiment)
    parts = []
    for table, experiments in by_table.items():
        found = [
            outcome
            for job in plan.jobs(table)
            if (outcome := outcome_of(rows_folder(folder, preset, job), job, suite.attacks)) is not None
        ]
        about = next((experiment.about for experiment in experiments if experiment.about), "")
        if found:
            parts.append(_section(table, about, found))
    if parts:
        parts.insert(0, _MEASURES)
    return parts


def outcome_of(kept: Path, job: Job, attacks: Sequence[SuiteAttack]) -> Outcome | None:
    """A run from its rows; None where they are not all there."""
    if not all((kept / name).exists() for name in (RUN, RETRIEVAL_ROWS, *map(suite_rows, attacks))):
        return None
    values: dict[SuiteAttack, dict[str, Value]] = {}
    for by in attacks:
        found = suite_values(kept, by)
        # Each attack has a value in ERS and another one, resisted, in ARS; these four columns have one.
        values[by] = {column: value for (_, column), value in found.items() if column in _COLUMNS}
    seconds = json.loads((kept / RUN).read_text())["metrics"]["cpu_seconds"]
    asked = read_header(kept / suite_rows(attacks[0]))["n"]
    return Outcome(job, gradients_of(job.config, kept / LOG_ROWS), seconds, values, asked)


def gradients_of(config: Mapping[str, Any], log: Path) -> float:
    """The image gradients of a run: those of a step, times the steps that its log counts."""
    settings = parse(config)
    steps = max(int(record["step"]) for record in read_log(log))
    return steps * build_defence(settings.defence, 2).gradients(settings.train.batch)


def _head(folder: Path, preset: str) -> str:
    return (
        f"# Settings chosen for `{folder.name}`\n\n"
        f"Generated from the rows by `holdfast reproduce {folder.name} --preset {preset} --page`. Every run is judged "
        "on training images that it did not train on, never on test images, and none of these numbers is a cell of "
        "the paper's tables."
    )


def _section(table: str, about: str, found: Sequence[Outcome]) -> str:
    attacks = list(found[0].values)
    found = sorted(found, key=lambda outcome: -outcome.values[attacks[0]]["ARS"][0])
    varying = _varying([outcome.job.config for outcome in found])
    columns = [
        "run",
        "defence",
        "PGD steps",
        "start",
        "ramp of eps",
        "of steps",
        "else",
        "gradients",
        "CPU s",
    ]
    columns += ["R@1", "mAP"]
    columns += [f"{score}, {by}" for by in attacks for score in ("ERS", "ARS")] + ["ARS a minute"]
    sizes = sorted({outcome.asked for outcome in found})
    asked = f"{' or '.join(map(str, sizes))} attacked queries; data set, network and eps: "
    places = dict.fromkeys(f"{o.job.dataset}, {o.job.model}, {o.job.eps[0]}" for o in found)
    lines = [
        f"## {table.capitalize()}",
        "",
        *([about.strip(), ""] if about else []),
        asked + "; ".join(places) + ".",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(_line(outcome, varying) for outcome in found),
    ]
    return "\n".join(lines)


def _line(outcome: Outcome, varying: Sequence[str]) -> str:
    defence = parse(outcome.job.config).defence.model_dump()
    settings = _flat(outcome.job.config)
    own = ", ".join(f"{key} {_said(settings[key])}" for key in varying if key in settings)
    first = next(iter(outcome.values.values()))
    cells = [
        f"{outcome.job.method}-s{outcome.job.seed}",
        defence["name"],
        *(_said(defence.get(key)) for key in ("attack_steps", "start", "eps_ramp", "steps_ramp")),
        own or "–",
        f"{outcome.gradients / 1e6:.2f} M",
        f"{outcome.seconds:.0f}",
        *(f"{first[column][0]:.1f}" for column in ("R@1", "mAP")),
    ]
    for values in outcome.values.values():
        for score in ("ERS", "ARS"):
            value, low, high = values[score]
            cells.append(f"{value:.1f} ({low:.1f} to {high:.1f})")
    return f"| {' | '.join([*cells, f'{outcome.per_minute:.1f}'])} |"


def _varying(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings, without those of other columns, in which the runs differ, in alphabetical order."""
    flat = [_flat(config) for config in configs]
    keys = sorted({key for one in flat for key in one})
    return [key for key in keys if any(one.get(key) != flat[0].get(key) for one in flat)]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by their names, without those that say how long a run is, or have a column."""
    out = {key: value for key, value in config["defence"].items() if key not in _NAMED}
    out |= {key: value for key, value in config["train"].items() if key not in _LENGTH}
    return out


def _said(value: Any) -> str:
    if value is None or value == 0:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
