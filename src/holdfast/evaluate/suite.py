"""The attack suite of ERS and ARS over queries: nine attacks, ten numbers, rows, resumable."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from holdfast.attacks import OBJECTIVES, PUBLISHED, Altered, Attack, Candidates, Settings, objective
from holdfast.attacks.objectives.gtm import GreedyMisrank, PublishedMisrank
from holdfast.data import ImageSet
from holdfast.errors import ConfigError, unknown_name
from holdfast.evaluate.attacked import Scene, late, probe, set_scene
from holdfast.evaluate.cases import Cases, worst_of
from holdfast.evaluate.draw import draw_or_all
from holdfast.evaluate.folder import SUITE, Block, Task
from holdfast.evaluate.scores import SuiteScores, score_suite
from holdfast.evaluate.spread import HERE, Spread
from holdfast.evaluate.trials import (
    ERS,
    Trials,
    damage,
    make_trials,
    measure,
    target_ids,
)
from holdfast.evaluate.validity import check_rows
from holdfast.models import AnyEmbedder, Embedder
from holdfast.rows import ROWS, Finding, Rows, read_rows
from holdfast.threat import Threat

BLOCK = 100
COLUMNS = {
    "optimiser": "str",
    "attack": "str",
    "trial": "int",
    "image": "str",
    "label": "int",
    "target": "str",
    "before": "float",
    "after": "float",
    "recall_before": "int",
    "recall_after": "int",
    "shift": "float",
    "success": "int",
    "gradients": "int",
    "looks": "int",
    "zero_gradient": "int",
    "loss_start": "float",
    "loss_late": "float",
    "loss_end": "float",
}


@dataclasses.dataclass(frozen=True)
class AttackedSuite:
    """A finished suite: its folder, its rows, the numbers computed from them, and what is wrong with them."""

    folder: Path
    rows: Rows
    scores: SuiteScores
    findings: tuple[Finding, ...]


def attack_suite(
    embedder: AnyEmbedder,
    images: ImageSet,
    out: str | Path,
    threat: Threat,
    *,
    attacks: str | Sequence[str] = "ers",
    queries: int | None = None,
    candidates: int | None = None,
    seed: int = 0,
    settings: Settings | None = None,
    check_black_box: int = 0,
    batch_size: int | None = None,
    spread: Spread = HERE,
) -> AttackedSuite:
    """Run the attacks of ERS, or some of them, and write one row for each attack and trial into `out`.

    With `queries` and `candidates` disjoint sets are drawn by `seed`; without them every image is asked
    against all others. Each attack alters queries or candidates as its name says, within `threat`.
    Everything in a row but the losses is measured on the altered images by a fresh `embed`. A stopped
    suite goes on where it was; the batch size changes rows by float rounding only. With
    `check_black_box` NES repeats that many trials of each attack, to show where gradients mislead.
    """
    out = Path(out)
    names = chosen_attacks(attacks)
    kinds = [OBJECTIVES[name] for name in names]
    if settings is not None and settings.optimiser == PUBLISHED and GreedyMisrank in kinds:
        names.append(PublishedMisrank.name)
    by_class = [kind.name for kind in kinds if "labels" in kind.needs]
    for name in by_class:
        images.require_labels(f"the attack {name}")
    settings = (settings or Settings()).named(embedder)
    if threat.who != "query":
        raise ConfigError(
            f"the attacks of the suite say themselves whom they alter; give NORM:EPS, not {threat}"
        )
    asked, found = draw_or_all(images, queries, candidates, seed)
    if images.labels is not None and len(np.unique(images.labels[found])) < 2 and by_class:
        raise ConfigError(
            f"{' and '.join(by_class)} cannot work: all candidates are of one class; give candidates of two"
        )
    rivals = len(found) - bool(np.intersect1d(asked, found).size)
    for kind in kinds:
        if kind.measures == "kept" and rivals <= kind.top:
            raise ConfigError(
                f"{kind.name} looks at the top {kind.top}, and a query has {rivals} candidates; draw more"
            )
    probe(embedder, images, threat, settings)
    assert threat.eps is not None
    runs = [(settings, True, len(asked))]
    check = None
    if check_black_box and settings.optimiser != "nes":
        black = dataclasses.replace(settings, optimiser="nes")
        check = black.config(threat.eps)
        runs.append((black, False, min(check_black_box, len(asked))))
    config = {
        "threat": str(threat),
        "attacks": names,
        "queries": queries,
        "candidates": candidates,
        "seed": seed,
        "search": settings.config(threat.eps),
        "check_black_box": check_black_box,
        "check": check,
    }
    task = Task(out, SUITE, embedder, images, config, spread)
    if task.finished():
        return read_suite(out)
    parts = [((how, shown, name), trials, BLOCK) for how, shown, trials in runs for name in names]
    with task.writing(len(asked), COLUMNS) as writer:
        work = _Suite(embedder, set_scene(task, asked, found), threat, seed, batch_size)
        cases = Cases(out)
        task.fill(writer, "attacking", work, parts, cases)
        rows = writer.read()
        cases.pack(names, images)
        task.finish(writer, score_suite(rows).to_json())
        cases.clear()
    return read_suite(out)


def read_suite(folder: Path) -> AttackedSuite:
    """A finished suite from its folder."""
    rows = read_rows(folder / ROWS)
    return AttackedSuite(folder, rows, score_suite(rows), tuple(check_rows(rows)))


def chosen_attacks(attacks: str | Sequence[str]) -> list[str]:
    """The attacks of `ers`, or of a list such as qa+,gtm, in the suite's order."""
    wanted = attacks.split(",") if isinstance(attacks, str) else list(attacks)
    known = [name for name, kind in OBJECTIVES.items() if kind.in_suites]
    for name in wanted:
        if name not in (*known, "ers"):
            if name == "er-recall":
                raise ConfigError("er-recall is an evaluation of its own; ask for it alone")
            raise ConfigError(unknown_name("attack", name, (*known, "ers", "er-recall")))
    return [name for name in known if name in wanted or (name in ERS and "ers" in wanted)]


@dataclasses.dataclass(frozen=True, eq=False)
class _Suite:
    """What every block of trials needs."""

    embedder: AnyEmbedder
    scene: Scene
    threat: Threat
    seed: int
    batch_size: int | None

    def __call__(self, what: tuple[Settings, bool, str], span: range) -> Block:
        """Some trials of an attack, sought in this way; the worst of them are shown, or not."""
        how, shown, name = what
        scene, embedder = self.scene, self.embedder
        trials = make_trials(scene, self._gallery, name, self.seed, span)
        altered = _run(embedder, scene, trials, how, self.threat, self.seed, self.batch_size)
        on_candidates = OBJECTIVES[name].alters == "candidates"
        embed = embedder.embed_candidates if on_candidates else embedder.embed
        measured = measure(scene, trials, embed(altered.images))
        worst = None
        if shown:
            hurt = damage(name, measured["before"], measured["after"])
            hurt = hurt + 1e-6 * np.asarray(measured["shift"]) * (hurt > 0)
            worst = worst_of(name, span.start, trials.altered.tolist(), hurt, altered.images)
        return Block(_rows(scene, trials, altered, measured, str(how.optimiser)), name, worst)

    @cached_property
    def _gallery(self) -> Candidates:
        return self.scene.gallery


class _Directions(nn.Module):
    """An embedder's vectors at unit length: what embedding shift is measured on."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder = embedder

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.normalize(self.embedder(images), dim=1)


def _run(
    embedder: AnyEmbedder,
    scene: Scene,
    trials: Trials,
    settings: Settings,
    threat: Threat,
    seed: int,
    batch_size: int | None,
) -> Altered:
    assert threat.eps is not None
    kind = OBJECTIVES[trials.attack]
    model: Any = embedder
    if kind.measures == "shift" and not embedder.unit_norm:
        if isinstance(embedder, Embedder):
            model = _Directions(embedder)
        else:
            model = lambda images: nn.functional.normalize(embedder(images), dim=1)  # noqa: E731
    attack = Attack(
        objective(trials.attack, trials.given),
        settings.make(threat.eps),
        dataclasses.replace(threat, who=kind.alters),
    )
    pixels = scene.images.batch(trials.altered)
    return attack.run(model, pixels, seed=seed, numbers=trials.numbers, batch_size=batch_size)


def _rows(
    scene: Scene,
    trials: Trials,
    altered: Altered,
    measured: dict[str, list[Any]],
    optimiser: str,
) -> list[dict[str, Any]]:
    targets, labels = target_ids(scene, trials), scene.images.labels
    start, nearly, end = (part.tolist() for part in late(altered.trajectory))
    return [
        {
            "optimiser": optimiser,
            "attack": trials.attack,
            "trial": trial,
            "image": scene.images.ids[trials.altered[i]],
            "label": -1 if labels is None else int(labels[trials.altered[i]]),
            "target": targets[i],
            **{name: column[i] for name, column in measured.items()},
            "gradients": int(altered.gradients[i]),
            "looks": int(altered.queries[i]),
            "zero_gradient": int(altered.zero_gradient[i]),
            "loss_start": start[i],
            "loss_late": nearly[i],
            "loss_end": end[i],
        }
        for i, trial in enumerate(trials.span)
    ]
