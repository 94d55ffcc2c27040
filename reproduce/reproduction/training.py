"""Train the network of a run, or find it finished: what all its measurements are of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import data, models
from holdfast.data import ImageSet
from holdfast.errors import ConfigError
from holdfast.progress import Say
from holdfast.training import held_out, load_data, merge, parse, read_config, train
from holdfast.training.config import differences
from reproduction.experiment import RUN, Home
from reproduction.plan import Job, Plan


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network, the images it is tested on, and its folder."""

    embedder: models.Embedder
    images: ImageSet
    out: Path


def trained(job: Job, plan: Plan, work: Path, say: Say) -> Trained | None:
    """The network of a run, which stays in `work`, where a stopped run goes on; None if it was stopped on the way."""
    out = work / job.name
    table: dict[str, Any] = {**job.config, **_data(job.config)}
    if (out / models.CARD).exists():
        stored = read_config(out)
        if job.start is not None:  # Where the run that it fine-tunes was, it need not be any more.
            table = merge(table, {"defence": {"start": stored.defence.start}})  # type: ignore[attr-defined]
        if unlike := differences(stored, parse(table)):
            raise ConfigError(f"{out} is of another plan: {'; '.join(unlike)}; remove it to train anew")
    else:
        if job.start is not None:
            begin = work / job.start_name
            if not (begin / models.CARD).exists():
                raise ConfigError(
                    f"{job.name} fine-tunes {job.start_name}, which is not in {work}; run it first"
                )
            table = merge(table, {"defence": {"start": str(begin.resolve())}})
        say(f"{job.name}: training")
        if not train(parse(table), out, say=say).outcome.finished:
            return None
    embedder = models.load(out)
    images = held_out(out) if plan.held_out else load_data(parse(_data(job.config))).test
    return Trained(embedder, images, out)


def runs_table(home: Home, plan: Plan) -> str:
    """What was trained, and what it cost."""
    lines = ["## Runs", "", "| run | steps | CPU minutes | commit |", "|---|---|---|---|"]
    for job in plan.jobs():
        record = home.kept(job.name) / RUN
        if record.exists():
            found = json.loads(record.read_text())
            minutes = found["metrics"].get("cpu_seconds", 0) / 60
            steps = found["config"]["train"].get("steps", "")
            lines.append(f"| {job.name} | {steps} | {minutes:.1f} | {found['commit']} |")
    return "\n".join(lines)


def _data(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as far as its data goes, with a path that holds anywhere, and the filter of the committed rows."""
    return {"data": {"resample": "bicubic", **config["data"], "name": data.absolute(config["data"]["name"])}}
