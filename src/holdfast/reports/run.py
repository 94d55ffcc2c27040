"""The report of a run: rows in, one offline HTML page out. Nothing is recomputed from a model."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation import ROWS, Evaluation, load_pictures, read_evaluation, read_header, sheet
from holdfast.evaluation.certify import read_certification
from holdfast.evaluation.curve import read_curve
from holdfast.evaluation.er_recall import read_er_recall
from holdfast.evaluation.folder import CERTIFICATION, CURVE, ER_RECALL, RETRIEVAL, SMOOTHED, SUITE
from holdfast.evaluation.smoothing import read_smoothed
from holdfast.evaluation.suite import read_suite
from holdfast.files import atomic_write
from holdfast.metrics import bootstrap
from holdfast.models import CARD
from holdfast.models.sides import side_of
from holdfast.reports import figures
from holdfast.reports.attacks import er_part, suite_part
from holdfast.reports.certificates import certification_part, curve_part
from holdfast.reports.page import Picture, provenance, render
from holdfast.reports.smoothing import smoothed_part
from holdfast.training import LOG
from holdfast.training.log import read_log

REPORT = "report.html"
CLASSES = 20


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of the run, or of the single evaluation, in `folder`; the page's path."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"no folder at {folder}; a report is made of a run's folder")
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.rglob(ROWS)):
        found[read_header(path)["config"]["kind"]].append(path.parent)
    log = read_log(folder / LOG)
    if not found and not log:
        raise DataError(
            f"nothing to report in {folder}: no rows and no training log; run 'holdfast evaluate' first"
        )
    card = _card(folder / CARD)
    page = render(
        "run.html.j2",
        title=f"Holdfast report: {folder.resolve().name}",
        subtitle=_subtitle(card),
        plotly=figures.plotly_script(),
        training=figures.training_curves(log),
        warnings=[record["warning"] for record in log if "warning" in record],
        evaluations=[_evaluation(read_evaluation(path), folder) for path in found[RETRIEVAL]],
        certifications=[
            certification_part(read_certification(path), folder) for path in found[CERTIFICATION]
        ],
        attacked=[
            *(suite_part(read_suite(path), folder) for path in found[SUITE]),
            *(er_part(read_er_recall(path), folder) for path in found[ER_RECALL]),
        ],
        smoothed=[smoothed_part(read_smoothed(path), folder) for path in found[SMOOTHED]],
        curves=[curve_part(read_curve(path), folder) for path in found[CURVE]],
    )
    out = folder / REPORT if out is None else Path(out)
    atomic_write(out, page)
    return out


def _card(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        card: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); train again or remove it") from None
    return card


def _subtitle(card: dict[str, Any]) -> str:
    if not card:
        return "no checkpoint in this folder"
    config = card.get("config", {})
    defence = config.get("defence", {}).get("name", "?")
    side = card.get("candidate_side")
    said = "" if side is None else f"; {side_of(side).says}"
    return (
        f"{card['architecture']['name']}, {card['dim']} dimensions, trained on {card['data']} "
        f"with the defence '{defence}', seed {card['seed']}{said}"
    )


def _evaluation(evaluation: Evaluation, folder: Path) -> dict[str, Any]:
    summary, rows = evaluation.summary, evaluation.rows
    config = rows.header["config"]
    first = rows.columns["first_rank"]
    answerable = first[first > 0]
    asked = f"{summary.queries:,} queries"
    against = f"{config['candidates']:,} candidates" if config["candidates"] else "all other images"
    left_out = (
        f" {summary.unanswerable} have nothing to find and are in no mean." if summary.unanswerable else ""
    )
    intervals = [bootstrap(answerable <= k) for k in summary.hit_rate]
    classes = _classes(evaluation)
    return {
        "name": f"Retrieval on {config['data']}",
        "sentence": f"{asked} against {against}; ties count against the search.{left_out}",
        "ks": list(summary.hit_rate),
        "hit_rate": [_number(v) for v in summary.hit_rate.values()],
        "chance": [_number(v) for v in summary.chance.values()],
        "interval": [f"{low:.3f}–{high:.3f}" for low, high in intervals],
        "recall": [_number(v) for v in summary.recall.values()],
        "scores": {
            "mAP": _number(summary.map),
            "mAP@R": _number(summary.map_at_r),
            "R-precision": _number(summary.r_precision),
            "NMI": _number(summary.nmi),
        },
        "figures": [figures.recall_curve(rows), figures.distance_histogram(rows)],
        "classes": classes[:CLASSES],
        "more_classes": max(0, len(classes) - CLASSES),
        "sheet": _sheet(evaluation),
        **provenance(rows.header, evaluation.folder / ROWS, folder),
    }


def _classes(evaluation: Evaluation) -> list[tuple[str, ...]]:
    columns, names = evaluation.rows.columns, evaluation.rows.header["classes"]
    lines = []
    for label in np.unique(columns["label"]):
        mine = np.flatnonzero((columns["label"] == label) & (columns["relevant"] > 0))
        if len(mine) == 0:
            continue
        rate = float((columns["first_rank"][mine] == 1).mean())
        wrong = Counter(columns["hit_labels"][i][0] for i in mine if columns["hit_labels"][i][0] != label)
        taken = ", ".join(names[other] for other, _ in wrong.most_common(2))
        precision = float(columns["average_precision"][mine].mean())
        lines.append((rate, (names[label], f"{len(mine)}", _number(rate), _number(precision), taken)))
    return [line for _, line in sorted(lines, key=lambda entry: entry[0])]


def _sheet(evaluation: Evaluation) -> list[dict[str, Any]]:
    rows, pictures = evaluation.rows, load_pictures(evaluation.folder)
    names = rows.header["classes"]
    parts = []
    for name, chosen in sheet(rows).items():
        lines = []
        for i in chosen:
            column = {key: values[i] for key, values in rows.columns.items()}
            rank = column["first_rank"]
            entries = [
                Picture(
                    "query",
                    f"query {column['query']}",
                    (names[column["label"]], f"first right hit: rank {rank}" if rank else "nothing to find"),
                    pictures.get(column["query"]),
                    "query",
                )
            ]
            found = zip(column["hits"], column["hit_labels"], column["hit_distances"], strict=True)
            for place, (hit, label, distance) in enumerate(found, 1):
                same = label == column["label"]
                entries.append(
                    Picture(
                        "same" if same else "other",
                        f"hit {place}: {hit}",
                        (names[label], f"{distance:.3f}"),
                        pictures.get(hit),
                        f"{place} {'✓' if same else '✗'}",
                    )
                )
            lines.append(entries)
        parts.append({"name": name, "rows": lines})
    return parts


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
