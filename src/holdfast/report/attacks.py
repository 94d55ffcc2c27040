"""The attacked part of a report: scores, clean, attacked and certified recall side by side, the worst cases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.attacks import OBJECTIVES
from holdfast.evaluate import ROWS, Rows, load_pictures
from holdfast.evaluate.cases import difference, shown_cases
from holdfast.evaluate.er_recall import Attacked, ErRecall
from holdfast.evaluate.pictures import encode
from holdfast.evaluate.scores import shown as value
from holdfast.evaluate.suite import AttackedSuite
from holdfast.evaluate.validity import certificates_in, certified_beside, cross_check
from holdfast.gallery.attacking import AttackedPicture
from holdfast.gallery.found import Found
from holdfast.report.hits import shown_hit
from holdfast.report.page import Picture, provenance, render
from holdfast.threat import Threat


def suite_part(done: AttackedSuite, folder: Path) -> dict[str, Any]:
    """What the template needs of one attack suite."""
    scores, config = done.scores, done.rows.header["config"]
    lines = []
    for part, reached in scores.reached.items():
        low, high = scores.interval[part]
        lines.append(
            {
                "part": part,
                "before": value(part, scores.before[part]),
                "cells": [(value(part, reached), f"{value(part, low)}–{value(part, high)}")],
                "shares": [
                    f"{score.parts[part]:.1f}" if part in score.parts else "–"
                    for score in scores.estimates.values()
                ],
            }
        )
    drawn = f"{config['candidates']:,} candidates" if config["candidates"] else "all other images"
    return {
        "name": f"Attacked on {config['data']}",
        "sentence": f"{scores.trials:,} trials of each attack against {drawn}, altering "
        f"{_size(Threat.parse(scores.threat))}, by {scores.optimiser}.",
        "columns": ["before", "after", *(f"{name} part" for name in scores.estimates)],
        "lines": lines,
        "scores": {
            name: (f"{score.value:.1f}", f"{score.interval[0]:.1f}–{score.interval[1]:.1f}")
            for name, score in scores.estimates.items()
        },
        "beside": _suite_beside(done, folder),
        **_shared(done.rows, done.folder, folder, done.findings),
        "cases": _suite_cases(done),
    }


def er_part(done: ErRecall, folder: Path) -> dict[str, Any]:
    """What the template needs of one evaluation of ER-Recall."""
    config = done.rows.header["config"]
    certificates = certificates_in(folder, config["embedder"])
    return {
        "name": f"ER-Recall on {config['data']}",
        "sentence": f"Up to {config['queries']:,} queries against {config['candidates']:,} candidates, by "
        f"{config['search'][0]['optimiser']}.",
        "columns": [],
        "lines": [],
        "scores": {},
        "beside": [_beside(done.rows, line, certificates) for line in done.table],
        **_shared(done.rows, done.folder, folder, done.findings),
        "cases": _er_cases(done),
    }


def _shared(rows: Rows, where: Path, folder: Path, findings: Any) -> dict[str, Any]:
    found = [*findings, *cross_check(rows, folder)]
    return {
        "findings": [(finding.level, finding.text) for finding in found],
        **provenance(rows.header, where / ROWS, folder),
    }


def _size(threat: Threat) -> str:
    return (
        f"each pixel by at most {threat.size}" if threat.norm == "linf" else f"by at most {threat.size} in ℓ2"
    )


def _beside(rows: Rows, line: Attacked, certificates: list[Rows]) -> dict[str, Any]:
    threat = Threat.parse(line.threat)
    mine = rows.columns["threat"] == line.threat
    altered = int(rows.columns["altered"][mine].max(initial=0))
    proved = certified_beside(
        rows, certificates, threat, altered, line.k, rows.columns["query"][mine].tolist()
    )
    some = threat.altered() if threat.who == "query" else f"{altered} candidates"
    return {
        "altered": f"{some}, {_size(threat)}",
        "k": line.k,
        "queries": line.queries,
        "cells": [
            _cell(line.recall, line.interval["recall"]),
            _cell(line.er_recall, line.interval["er_recall"]),
            _cell(line.robust_recall, line.interval["robust_recall"]),
        ],
        "certified": "–" if proved is None else f"{proved:.3f}",
    }


def _suite_beside(done: AttackedSuite, folder: Path) -> list[dict[str, Any]]:
    """Recall@1 without an attack, under the strongest attack on each query, and proved."""
    rows, scores = done.rows, done.scores
    if scores.clean_recall is None or scores.attacked_recall_all is None or scores.robust_recall_all is None:
        return []
    threat = Threat.parse(scores.threat)
    certificates = certificates_in(folder, rows.header["config"]["embedder"])
    known = rows.columns["recall_before"] >= 0
    queries = list(dict.fromkeys(rows.columns["image"][known]))
    proved = certified_beside(rows, certificates, threat, 1, 1, queries)
    numbers = {
        "clean": scores.clean_recall,
        "attacked": scores.attacked_recall_all,
        "robust": scores.robust_recall_all,
    }
    return [
        {
            "altered": f"the query, {_size(threat)}, the worst of all attacks on it",
            "k": 1,
            "queries": len(queries),
            "cells": [
                _cell(value / 100, (low / 100, high / 100))
                for name, value in numbers.items()
                for low, high in [scores.recall_interval[name]]
            ],
            "certified": "–" if proved is None else f"{proved:.3f}",
        }
    ]


def _cell(value: float, interval: tuple[float, float]) -> tuple[str, str]:
    return f"{value:.3f}", f"{interval[0]:.3f}–{interval[1]:.3f}"


def _suite_cases(done: AttackedSuite) -> list[list[Picture]]:
    columns, shown = done.rows.columns, []
    main = columns["optimiser"] == done.scores.optimiser
    for (attack, trial), pictures in shown_cases(load_pictures(done.folder)).items():
        row = int(np.flatnonzero(main & (columns["attack"] == attack) & (columns["trial"] == trial))[0])
        before, after = columns["before"][row], columns["after"][row]
        kind = OBJECTIVES[attack]
        told = [f"{attack}: {kind.wants}", " → ".join(value(kind.number(), v) for v in (before, after))]
        if columns["target"][row]:
            told.append(f"target {columns['target'][row]}")
        label = done.rows.header["classes"][columns["label"][row]]
        shown.append(_case(columns["image"][row], label, told, pictures))
    return shown


def _er_cases(done: ErRecall) -> list[list[Picture]]:
    columns, shown = done.rows.columns, []
    threats = done.rows.header["config"]["threats"]
    for (group, trial), pictures in shown_cases(load_pictures(done.folder)).items():
        threat = threats[int(group.split()[1])]
        row = int(np.flatnonzero((columns["threat"] == threat) & (columns["trial"] == trial))[0])
        told = [
            f"first right hit: rank {columns['rank_before'][row]} → {columns['rank_after'][row]}",
            f"target {columns['target'][row]}",
        ]
        label = done.rows.header["classes"][columns["label"][row]]
        shown.append(_case(columns["query"][row], label, told, pictures))
    return shown


def _case(image: str, label: str, told: list[str], pictures: dict[str, bytes]) -> list[Picture]:
    entries = []
    for name, content in pictures.items():
        lines = {"clean": (label, image), "altered": tuple(told)}.get(name, ())
        kind = {"clean": "query", "altered": "other"}.get(name, "hit")
        entries.append(Picture(kind, f"{name}: {image}", lines, content, name))
    return entries


def attack_page(
    done: AttackedPicture, name: str, picture: Callable[[str | None], bytes | None], gallery: str
) -> str:
    """The page that `holdfast attack --html` writes: the pictures, their difference, and the hits of both."""
    change, factor = difference(done.clean, done.altered)
    shown = [
        ("query", "clean", done.clean, done.forms[0]),
        ("other", "altered", done.altered, done.forms[1]),
    ]
    rows = [
        [
            *(
                Picture(
                    kind, f"{word} picture", (f"{done.followed}: rank {form.rank}",), encode(pixels), word
                )
                for kind, word, pixels, form in shown
            ),
            Picture("hit", "difference", (), encode(change), f"difference ×{factor:.0f}"),
        ],
        _hits(done.before, done.clean, "clean", picture),
        _hits(done.after, done.altered, "altered", picture),
    ]
    about = "" if done.target is None else f" ({done.target})"
    told = [f"{name}, altered within {done.threat} to {done.goal.words}{about}. {' '.join(done.sentences())}"]
    if kept := "; ".join(f"after {form.form} rank {form.rank}" for form in done.forms[2:]):
        told.append(f"The same picture saved as JPEG: {kept}.")
    return render(
        "hits.html.j2", title="An altered query", subtitle=f"against {gallery}", sentences=told, rows=rows
    )


def _hits(
    found: Found, pixels: Any, name: str, picture: Callable[[str | None], bytes | None]
) -> list[Picture]:
    row = [Picture("query", f"{name} picture", (), encode(pixels), f"{name}: hits")]
    return row + [shown_hit(hit, picture) for hit in found.answer]
