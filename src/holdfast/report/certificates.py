"""The certified part of a report: numbers by threat, how far the proofs reach, the weakest and strongest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.evaluate import ROWS, Rows, load_pictures
from holdfast.evaluate.certify import Certification
from holdfast.evaluate.curve import Curve, proofs, shown_k
from holdfast.methods import bound_method
from holdfast.report import figures
from holdfast.report.page import Picture, provenance
from holdfast.spec import CLAIM
from holdfast.threat import Threat, floored

ABOVE = "above the clean hit rate: this cannot be, the certificate is wrong"


def certification_part(done: Certification, folder: Path) -> dict[str, Any]:
    """What the template needs of one certification."""
    config = done.rows.header["config"]
    lines = []
    for line in done.table:
        proved = (line.cr_recall, line.cr_recall_one_sided, line.certified_hit_rate)
        spans = (line.interval[name] for name in ("cr", "one_sided", "hit"))
        lines.append(
            {
                "threat": _altered(Threat.parse(line.threat)),
                "k": line.k,
                "chance": f"{line.chance:.3f}",
                "recall": f"{line.recall:.3f}",
                "cells": [
                    (f"{value:.3f}", f"{low:.3f}–{high:.3f}")
                    for value, (low, high) in zip(proved, spans, strict=True)
                ],
                "error": ABOVE if max(proved) > line.recall else "",
            }
        )
    return {
        "name": f"Certified numbers on {config['data']}",
        "sentence": _sentence(config),
        "lines": lines,
        **provenance(done.rows.header, done.folder / ROWS, folder),
    }


def curve_part(curve: Curve, folder: Path) -> dict[str, Any]:
    """What the template needs of one search for the largest eps."""
    config = curve.rows.header["config"]
    k = shown_k(curve.rows)
    column = _shown_eps(curve, k)
    return {
        "name": f"How far the proofs reach on {config['data']}",
        "sentence": _sentence(config),
        "figure": figures.certified_curve(curve.rows),
        "eps": [f"{eps:g}" for eps in config["grid"]],
        "lines": [
            {
                "k": line.k,
                "clean": f"{line.clean:.3f}",
                "cells": [
                    (f"{rate:.3f}", f"{low:.3f}–{high:.3f}")
                    for rate, (low, high) in zip(line.certified, line.interval, strict=True)
                ],
                "median": _eps(line.median),
                "error": ABOVE if max(line.certified) > line.clean else "",
            }
            for line in curve.table
        ],
        "k": k,
        "listed": len(curve.rows.columns["hits"][0]),
        "at": f"{config['grid'][column]:g}",
        "sheet": _sheet(curve.rows, load_pictures(curve.folder), k, column),
        **provenance(curve.rows.header, curve.folder / ROWS, folder),
    }


def _altered(threat: Threat) -> str:
    return f"{threat.altered()}, each pixel by at most {threat.size}"


def _sentence(config: dict[str, Any]) -> str:
    box = (
        "Altered images stay inside [0, 1]."
        if config["clip"]
        else "Altered images may leave [0, 1], as in the paper."
    )
    method = bound_method(config["method"])
    return (
        f"{config['queries']:,} queries against {config['candidates']:,} candidates, drawn by seed "
        f"{config['seed']}. Proved by {method.proves} (method {method.name}). "
        f"{box} {CLAIM['network input']}"
    )


def _shown_eps(curve: Curve, k: int) -> int:
    """Which eps of the grid the sheet's rank intervals are at: the last that half of the queries reach, not 0."""
    (median,) = (line.median for line in curve.table if line.k == k)
    grid: list[float] = curve.rows.header["config"]["grid"]
    return max(1, sum(eps <= median for eps in grid) - 1)


def _sheet(rows: Rows, pictures: dict[str, bytes], k: int, at: int) -> list[dict[str, Any]]:
    names = rows.header["classes"]
    parts = []
    for name, chosen in proofs(rows).items():
        lines = []
        for i in chosen:
            row = {key: values[i] for key, values in rows.columns.items()}
            reach = (names[row["label"]], f"right one in the top {k} proved to {_eps(row[f'eps_{k}'])}")
            entries = [Picture("query", f"query {row['query']}", reach, pictures.get(row["query"]), "query")]
            hits = zip(
                row["hits"], row["hit_labels"], row["hit_eps"], row["best"][at], row["worst"][at], strict=True
            )
            for place, (hit, label, eps, best, worst) in enumerate(hits, 1):
                same = label == row["label"]
                entries.append(
                    Picture(
                        "same" if same else "other",
                        f"hit {place}: {hit}",
                        (names[label], f"rank {best}–{worst}", f"stays to {_eps(eps)}"),
                        pictures.get(hit),
                        f"{place} {'✓' if same else '✗'}",
                    )
                )
            lines.append(entries)
        parts.append({"name": name, "rows": lines})
    return parts


def _eps(value: float) -> str:
    return "no ε" if value < 0 else f"ε\N{NO-BREAK SPACE}{floored(value, 3)}"
