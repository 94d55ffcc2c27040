"""Files made by the version before fingerprints and galleries had a version: read, and the same verdicts come out."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from holdfast import load
from holdfast.cli import main
from holdfast.data import read_image
from holdfast.errors import GalleryError
from holdfast.gallery import Gallery, verify_file
from holdfast.gallery.made_by import open_with_embedder
from holdfast.gallery.searching import search
from holdfast.gallery.upgrading import upgrade
from holdfast.models import Embedder, Smoothed
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
            path.name: search(
                gallery,
                embedder,
                read_image(path, embedder.spec),
                5,
                certify=Threat.parse(threat),
                name=path.name,
                method=method,
            )
            for path in sorted((before / "queries").glob("*.png"))
        }
    return {
        name: [
            [hit.id, hit.certificate.best, hit.certificate.worst, hit.certificate.verdict] for hit in result
        ]
        for name, result in found.items()
    }


def test_verdicts_of_altered_queries_are_those_of_before(before: Path) -> None:
    assert ranks(before, "linf:0.02") == VERDICTS["query"]


def test_crown_proves_what_it_proved_before_and_more(before: Path) -> None:
    now, more = ranks(before, "linf:0.02", "crown"), 0
    assert now.keys() == VERDICTS["crown"].keys()
    for name, hits in VERDICTS["crown"].items():
        for (id, low, high, verdict), (was, best, worst, said) in zip(now[name], hits, strict=True):
            assert id == was
            assert best <= low <= high <= worst
            assert verdict == said or (said, verdict) == ("UNKNOWN", "CERTIFIED")
            more += (low, high) != (best, worst)
    assert more


UPGRADE = "'holdfast gallery upgrade "


def test_altered_candidates_are_unknown_until_the_upgrade_and_then_as_before(
    before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threat = "candidates:linf:0.02:m=3"
    assert {hit[3] for hits in ranks(before, threat).values() for hit in hits} == {"UNKNOWN"}
    path = next((before / "queries").glob("*.png"))
    gallery, embedder = open_with_embedder(before / "boxes.gallery", before / "run")
    with gallery:
        pixels = read_image(path, embedder.spec)
        assert UPGRADE in search(gallery, embedder, pixels, 5, certify=Threat.parse(threat)).proof.reason
    upgraded(before, monkeypatch)
    assert ranks(before, threat) == VERDICTS["candidates"]
    assert ranks(before, "linf:0.02") == VERDICTS["query"]


def kept_in(before: Path) -> list[list[Any]]:
    gallery, _ = open_with_embedder(before / "boxes.gallery", before / "run")
    with gallery:
        return [
            [Path(one.query).name, one.threat, [[h.id, h.best, h.worst, h.verdict] for h in one.hits]]
            for one in gallery.certificates()
        ]


def holdfast(words: str) -> dict[str, Any]:
    """What a command prints with --json, run in the current folder."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", ["holdfast", *words.split(), "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def upgraded(
    before: Path, monkeypatch: pytest.MonkeyPatch, more: str = "--images pictures"
) -> dict[str, Any]:
    monkeypatch.chdir(before)
    return holdfast(f"gallery upgrade boxes.gallery --model run {more}")


def test_smoothed_radii_are_those_of_before(before: Path) -> None:
    gallery, embedder = open_with_embedder(before / "smooth.gallery", before / "plain")
    assert isinstance(embedder, Smoothed)
    with gallery:
        for name, wanted in sorted(VERDICTS["smoothed"].items())[:10]:
            pixels = read_image(before / "queries" / name, embedder.spec)
            found = search(gallery, embedder, pixels, 5, name=name, seed=7)
            for hit, (id, verdict, radius) in zip(found.hits, wanted, strict=True):
                assert (hit.id, hit.certificate.verdict) == (id, verdict)
                assert hit.certificate.radius == pytest.approx(radius, abs=1e-3)


def test_kept_certificates_prove_nothing_until_the_upgrade_and_then_as_before(
    before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = kept_in(before)
    assert [one[:2] for one in found] == [one[:2] for one in VERDICTS["kept"]]
    assert {tuple(hit[1:]) for one in found for hit in one[2]} == {(1, 60, "UNKNOWN")}
    with pytest.raises(GalleryError, match=UPGRADE):
        keep(before)
    said = upgraded(before, monkeypatch)
    assert (said["images"], said["agreed"], said["embedded"], said["unchecked"]) == (60, 60, 0, [])
    assert (said["proved"], said["forgotten"], said["boxes"]) == (12, [], [0.02])
    assert kept_in(before) == VERDICTS["kept"]
    assert verify_file(before / "boxes.gallery") == []
    assert holdfast("gallery info boxes.gallery")["embedder"].startswith("2:")
    assert upgraded(before, monkeypatch)["current"]
    keep(before)


def keep(before: Path) -> None:
    gallery, embedder = open_with_embedder(before / "boxes.gallery", before / "run", readonly=False)
    with gallery:
        pixels = read_image(next((before / "queries").glob("*.png")), embedder.spec)
        search(gallery, embedder, pixels, 5, certify=Threat.parse("linf:0.02"), keep=True)


def test_what_the_upgrade_cannot_check_loses_its_boxes(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for lost in (before / "pictures" / "Bag").iterdir():
        lost.unlink()
    (before / "queries" / "Bag-test-00101.png").unlink()
    plain = ranks(before, "linf:0.02")
    said = upgraded(before, monkeypatch)
    assert (said["agreed"], len(said["unchecked"])) == (54, 6)
    assert (said["proved"], [line.split()[0] for line in said["forgotten"]]) == (
        10,
        ["queries/Bag-test-00101.png"] * 2,
    )
    assert verify_file("boxes.gallery") == []
    now = ranks(before, "linf:0.02")
    assert now == {name: plain[name] for name in now}
    for name, hits in ranks(before, "candidates:linf:0.02:m=3").items():
        for hit, was in zip(hits, VERDICTS["candidates"][name], strict=True):
            assert hit[1] <= was[1] <= was[2] <= hit[2]


def test_without_any_picture_the_upgrade_drops_the_boxes(
    before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = upgraded(before, monkeypatch, "")
    assert (len(said["unchecked"]), said["boxes"], said["dropped"]) == (60, [], [0.02])
    assert (said["proved"], len(said["forgotten"])) == (6, 6)  # those of an altered query need no boxes
    with pytest.raises(GalleryError, match="no boxes of its candidates"):
        ranks(before, "candidates:linf:0.02:m=3")
    assert verify_file("boxes.gallery") == []


def test_a_model_whose_settings_differ_is_not_taken_by_the_upgrade(before: Path) -> None:
    """Of one fingerprint by the rule of before: the same weights behind another layer setting."""
    gallery, embedder = open_with_embedder(before / "boxes.gallery", before / "run", readonly=False)
    assert isinstance(embedder, Embedder)
    assert isinstance(gallery, Gallery)
    for parent in list(embedder.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.ReLU):
                setattr(parent, name, nn.LeakyReLU(0.3))
    was = (before / "boxes.gallery").read_bytes()
    with gallery, pytest.raises(GalleryError, match="another vector for every one of 60 pictures"):
        upgrade(gallery, embedder, images=before / "pictures")
    assert (before / "boxes.gallery").read_bytes() == was


def test_a_killed_upgrade_leaves_the_old_gallery(before: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from holdfast.gallery.stores.sqlite import rewriting
from holdfast.gallery.made_by import open_with_embedder
from holdfast.gallery.upgrading import upgrade
rewriting.Rewriting.keep_only = lambda *_: os.kill(os.getpid(), 9)
gallery, embedder = open_with_embedder("boxes.gallery", Path("run"), readonly=False)
upgrade(gallery, embedder, images=Path("pictures"))
"""
    wanted = kept_in(before)
    done = subprocess.run([sys.executable, "-c", script], cwd=before, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert (kept_in(before), verify_file(before / "boxes.gallery")) == (wanted, [])
    with Gallery.open(before / "boxes.gallery") as gallery:
        assert not gallery.info.embedder.current


def test_a_smoothed_gallery_is_upgraded_too(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(before)
    said = holdfast("gallery upgrade smooth.gallery --model plain --images pictures")
    assert (said["agreed"], said["unchecked"]) == (60, [])
    test_smoothed_radii_are_those_of_before(before)


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
