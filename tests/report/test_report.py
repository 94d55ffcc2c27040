"""The page holds what the rows say, needs nothing from outside, and cannot be injected into."""

from __future__ import annotations

import csv
import gzip
import io
import re

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.certificate import BoundsProof, RankInterval, Verdict
from holdfast.data import ImageSet
from holdfast.errors import DataError
from holdfast.evaluate import evaluate
from holdfast.evaluate.certify import certify, read_certification
from holdfast.evaluate.curve import certified_curve, proofs, read_curve
from holdfast.gallery import Hit, Hits
from holdfast.models import wrap
from holdfast.report import hits_page, thumbnail, write_report
from holdfast.spec import ImageSpec
from holdfast.threat import Threat, floored

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


def certified_hits(threat: str) -> Hits:
    asked = {"threat": Threat.parse(threat), "k": 2}
    sure = RankInterval(1, 2, 0.125, verdict=Verdict.CERTIFIED, **asked)
    unsure = RankInterval(1, 9, verdict=Verdict.UNKNOWN, **asked)
    hits = Hits("photo.png", (Hit(1, EVIL, 0.5, "shoe"), Hit(2, "b", 0.6)))
    return hits.proved(BoundsProof(**asked, examined=7, candidates=40), [sure, unsure])


def test_hits_page_with_certificates_says_what_they_mean():
    page = hits_page([certified_hits("linf:0.1")], [None], lambda path: None, "shop.gallery")
    assert '<figure class="certified">' in page
    assert '<figure class="hit">' in page
    for text in ("rank 1–2", "rank 1–9", "CERTIFIED", "UNKNOWN", "altered by up to 0.1", "first 2"):
        assert text in page
    assert "ε 0.1250" not in page
    assert EVIL not in page
    auto = hits_page([certified_hits("linf:auto")], [None], lambda path: None, "shop.gallery")
    assert "to ε 0.1250" in auto
    assert "to no ε" in auto
    assert "CERTIFIED" not in hits_page([Hits("q", ())], [None], lambda path: None, "shop.gallery")


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """A run's folder with a certification and a curve, of a linear map whose bounds are exact."""
    out = tmp_path_factory.mktemp("certified")
    rng = np.random.default_rng(1)
    labels = np.arange(60) % 3
    pixels = rng.integers(0, 40, (60, 1, 4, 4), dtype=np.uint8)
    pixels[np.arange(60), 0, labels, labels] += 150
    images = ImageSet(
        name="made",
        ids=tuple(f"{EVIL}{i}" for i in range(60)),
        labels=labels,
        classes=("first", f"second {EVIL}", "third"),
        spec=ImageSpec(1, 4, 4),
        pixels=pixels,
        rows=np.arange(60),
    )
    torch.manual_seed(0)
    embedder = wrap(nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), images.spec)
    settings = {"queries": 20, "candidates": 40, "ks": (1, 10)}
    threats = [Threat.parse("query:linf:0.01"), Threat.parse("candidates:linf:0.01:m=2")]
    certify(embedder, images, out / "certifications" / "given", threats, **settings)
    certified_curve(embedder, images, out / "certifications" / "auto", **settings)
    return out


def test_page_shows_certified_numbers_and_the_weakest_proofs(certified):
    page = write_report(certified).read_text()
    body = page[page.index("<body>") :]
    assert EVIL not in body
    for line in read_certification(certified / "certifications" / "given").table:
        for value in (line.recall, line.cr_recall, line.cr_recall_one_sided, line.certified_hit_rate):
            assert f"<td>{value:.3f}" in body
    assert "at most 2 candidates, each pixel by at most 0.01" in body
    assert "Certified hit rate against" in body
    curve = read_curve(certified / "certifications" / "auto")
    columns, shown = curve.rows.columns, proofs(curve.rows)
    for name in ("weakest", "strongest"):
        part = body[body.index(f"The {name} proofs") :]
        largest = columns["eps_10"][shown[name][0]]
        assert part.index(f"proved to ε\N{NO-BREAK SPACE}{floored(largest, 3)}") < part.index("</figure>")
    assert body.count("<figure") == sum(map(len, shown.values())) * 11
    assert body.count("data:image/") == body.count("<figure")
    assert re.search(r"rank \d+–\d+<br>stays to ε\s0\.\d{3}", body)
    assert "the certificate is wrong" not in body


def test_certified_above_clean_is_marked(certified, tmp_path):
    """Rows in which a query without a right hit is certified: the page says that something is wrong."""
    for name, wrong in (("given", "hit_1"), ("auto", "eps_1")):
        folder = tmp_path / name
        source = certified / "certifications" / name / "rows.csv.gz"
        head, names, *records = gzip.decompress(source.read_bytes()).decode().splitlines()
        place, clean = names.split(",").index(wrong), names.split(",").index("recall_1")
        cells = [next(csv.reader([record])) for record in records]
        for cell in cells:
            cell[place], cell[clean] = "1", "0"
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(cells)
        folder.mkdir()
        lines = "\n".join([head, names, text.getvalue()])
        (folder / "rows.csv.gz").write_bytes(gzip.compress(lines.encode()))
        assert "the certificate is wrong" in write_report(folder).read_text()


def test_thumbnail_of_nonsense_is_none():
    assert thumbnail(b"nonsense") is None
    assert thumbnail(None) is None
