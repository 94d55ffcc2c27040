"""Files made by the version before fingerprints and galleries had a version: read, and the same verdicts come out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import load
from holdfast.data import read_image
from holdfast.gallery.certified import certified_search
from holdfast.gallery.made_by import open_with_embedder
from holdfast.gallery.smoothed import smoothed_search
from holdfast.models import Smoothed
from holdfast.threat import Threat

BEFORE = Path(__file__).parents[1] / "fixtures" / "v1"
VERDICTS: dict[str, Any] = json.loads((BEFORE / "verdicts.json").read_text())


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A copy, so that nothing written beside the files stays."""
    return Path(shutil.copytree(BEFORE, tmp_path / "v1"))


def ranks(before: Path, threat: str, method: Any = "interval") -> dict[str, list[list[Any]]]:
    gallery, embedder = open_with_embedder(before / "boxes.gallery", before / "run")
    with gallery:
        found = {
            path.name: certified_search(
                gallery,
                embedder,
                read_image(path, embedder.spec),
                5,
                Threat.parse(threat),
                path.name,
                method=method,
            )
            for path in sorted((before / "queries").glob("*.png"))
        }
    return {
        name: [[hit.hit.id, hit.best, hit.worst, hit.verdict] for hit in result.hits]
        for name, result in found.items()
    }


@pytest.mark.parametrize(("name", "method"), [("query", "interval"), ("crown", "crown")])
def test_verdicts_of_altered_queries_are_those_of_before(before: Path, name: str, method: str) -> None:
    assert ranks(before, "linf:0.02", method) == VERDICTS[name]


def test_verdicts_of_altered_candidates_are_those_of_before(before: Path) -> None:
    assert ranks(before, "candidates:linf:0.02:m=3") == VERDICTS["candidates"]


def test_smoothed_radii_are_those_of_before(before: Path) -> None:
    gallery, embedder = open_with_embedder(before / "smooth.gallery", before / "plain")
    assert isinstance(embedder, Smoothed)
    with gallery:
        for name, wanted in sorted(VERDICTS["smoothed"].items())[:10]:
            pixels = read_image(before / "queries" / name, embedder.spec)
            found = smoothed_search(gallery, embedder, pixels, 5, name, seed=7)
            for hit, (id, verdict, radius) in zip(found.hits, wanted, strict=True):
                assert (hit.hit.id, hit.verdict) == (id, verdict)
                assert hit.radius == pytest.approx(radius, abs=1e-3)


def test_kept_certificates_are_those_of_before(before: Path) -> None:
    gallery, _ = open_with_embedder(before / "boxes.gallery", before / "run")
    with gallery:
        kept = gallery.certificates()
    assert [
        [Path(one.query).name, one.threat, [[h.id, h.best, h.worst, h.verdict] for h in one.hits]]
        for one in kept
    ] == VERDICTS["kept"]


def test_the_checkpoint_and_the_run_of_before_load(before: Path) -> None:
    embedder = load(before / "run")
    assert (embedder.dim, embedder.spec.shape) == (16, (1, 14, 14))
    assert load(before / "plain").unit_norm


def test_rows_of_before_are_read_back(before: Path) -> None:
    (rows,) = before.glob("run/certifications/*/rows.csv.gz")
    written = rows.read_bytes()
    words = f"certify {before / 'run'} --threat query:linf:0.02 --queries 50 --candidates 1000 --k 1,10"
    done = subprocess.run([sys.executable, "-m", "holdfast", *words.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert rows.read_bytes() == written
