"""The page of `holdfast metric certify`: robust error against the radius, one metric beside another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.evaluate import ROWS
from holdfast.files import atomic_write, refuse_other
from holdfast.neighbours.certification import (
    CertifiedNeighbours,
    RobustError,
    attacked_radii,
    contradictions,
    robust_error,
)
from holdfast.report import figures
from holdfast.report.page import render


def write_neighbours(
    done: Mapping[str, CertifiedNeighbours], out: str | Path, radii: Sequence[float] = ()
) -> Path:
    """Write one offline page about certifications by name; all are shown at the same radii, and in one plot.

    The radii are those of the first one's table where none are given.
    """
    out = Path(out)
    refuse_other(out, b"<!doctype html>", "page")
    at = list(radii) or [line.radius for line in next(iter(done.values())).table]
    atomic_write(
        out,
        render(
            "neighbours.html.j2",
            title="Certified nearest neighbours",
            subtitle=", ".join(done),
            plotly=figures.plotly_script(),
            figure=figures.robust_error_curve({name: entry.rows for name, entry in done.items()}),
            radii=[f"{radius:g}" for radius in at],
            parts=[_part(name, entry, at) for name, entry in done.items()],
        ),
    )
    return out


def _part(name: str, done: CertifiedNeighbours, radii: Sequence[float]) -> dict[str, Any]:
    header = done.rows.header
    config = header["config"]
    lines: list[RobustError] = [robust_error(done.rows, radius) for radius in radii]
    inside = (
        ""
        if config.get("box") is None
        else f", features kept in [{config['box'][0]:g}, {config['box'][1]:g}]"
    )
    attacked = attacked_radii(done.rows) is not None
    return {
        "name": name,
        "sentence": f"{config['k']}-NN{' exact' if config['exact'] else ''}, {len(done.rows):,} test points, "
        f"{config['about'].get('method', 'a metric')}{inside}",
        "certified": [
            (f"{line.certified:.3f}", f"{line.interval[0]:.3f}–{line.interval[1]:.3f}") for line in lines
        ],
        "attacked": [f"{line.attacked:.3f}" for line in lines] if attacked else [],
        "findings": [finding.text for finding in contradictions(done.rows)],
        "rows": done.folder / ROWS,
        "seed": header["seed"],
        "hash": header["hash"],
        "commit": header["commit"] or "unknown",
        "versions": ", ".join(f"{key} {value}" for key, value in header["versions"].items()),
    }
