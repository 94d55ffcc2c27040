"""The page holds what the rows say, needs nothing from outside, and cannot be injected into."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.data import ImageSet
from holdfast.errors import DataError
from holdfast.evaluate import evaluate
from holdfast.gallery import Hit, Hits
from holdfast.models import wrap
from holdfast.report import hits_page, thumbnail, write_report
from holdfast.spec import ImageSpec

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    images = ImageSet(
        name="made",
        ids=tuple(f"{EVIL}{i}" for i in range(40)),
        labels=np.arange(40) % 3,
        classes=("first", f"second {EVIL}", "third"),
        spec=ImageSpec(3, 8, 8),
        pixels=rng.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8),
        rows=np.arange(40),
    )
    torch.manual_seed(0)
    evaluate(
        wrap(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), images.spec), images, out / "evaluations" / "one"
    )
    (out / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0, "hit_rate_1": 0.5}\n')
    return out


def test_page_holds_numbers_figures_and_pictures(folder):
    page = write_report(folder).read_text()
    body = page[page.index("<body>") :]
    for text in ("hit rate (the papers' Recall@K)", "true recall", "mAP@R", "NMI", "95 % interval", "worst"):
        assert text in body
    assert body.count('<div class="figure">') == 4
    assert body.count("data:image/") >= 18 * 11 - 1
    assert "first right hit: rank" in body


def test_page_is_offline_and_escaped(folder):
    page = write_report(folder).read_text()
    body = page[page.index("<body>") :]
    assert EVIL not in body
    outside_script = page[: page.index("<script>")] + body
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=[\"'](?!data:)", outside_script)


def test_summary_in_page_is_the_rows(folder):
    from holdfast.evaluate import read_evaluation

    summary = read_evaluation(folder / "evaluations" / "one").summary
    body = write_report(folder, folder / "other.html").read_text()
    for value in summary.hit_rate.values():
        assert f"<td>{value:.3f}</td>" in body


def test_nothing_to_report(tmp_path):
    with pytest.raises(DataError, match="nothing to report"):
        write_report(tmp_path)
    with pytest.raises(DataError, match="no folder"):
        write_report(tmp_path / "none")


def test_hits_page_shows_ties_and_missing_pictures():
    hits = Hits(EVIL, (Hit(1, "a", 0.5, "shoe", None, True), Hit(2, "b", 0.5, None, "x", True)))
    page = hits_page([hits], [None], lambda path: None, "shop.gallery")
    assert page.count("(tied)") == 2
    assert "shoe" in page
    assert EVIL not in page


def test_thumbnail_of_nonsense_is_none():
    assert thumbnail(b"nonsense") is None
    assert thumbnail(None) is None
