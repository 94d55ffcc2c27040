"""`holdfast attack` and `holdfast evaluate --attacks`, as a user would run them."""

from __future__ import annotations

import json

import numpy as np
from command import here, holdfast
from PIL import Image

from holdfast.evaluation import read_rows

MODEL = """
import torch
import holdfast
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5))
embedder = holdfast.wrap(net, (3, 8, 8))
def function(images):
    return net(images).detach().numpy()
"""


def refused(*words, says, cwd=None):
    done = here(*words, cwd=cwd)
    lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert (done.code, len(lines)) == (2, 1), (done.code, done.out, done.err)
    assert says in lines[0]


FEW = ("--queries", 12, "--candidates", 40, "--steps", 2)


def test_attack_writes_a_picture_that_attacks(shop, tmp_path):
    query = sorted(shop.pictures.rglob("*.png"))[0]
    found = json.loads(here("search", shop.gallery, query, "-k", 40, "--json").out)[0]["hits"]
    item = found[30]["id"]
    out, page = tmp_path / "altered.png", tmp_path / "page.html"
    words = (
        "attack",
        shop.gallery,
        query,
        "--goal",
        f"pull-in:{item}",
        "--threat",
        "linf:77/255",
        "--out",
        out,
    )
    done = holdfast(*words, "--steps", 20, "--html", page)
    assert done.code == 0, done.err
    assert f"rank of {item}" in done.out
    assert "JPEG 75" in done.out
    assert f"Goal pull-in ({item}): " in done.out
    assert page.read_text().count("data:image/") >= 5
    before, after = (np.asarray(Image.open(path)).astype(int) for path in (query, out))
    assert 0 < np.abs(after - before).max() <= 77
    again = json.loads(here("search", shop.gallery, out, "-k", 40, "--json").out)[0]["hits"]
    rank = next(hit["rank"] for hit in again if hit["id"] == item)
    line = next(line for line in done.out.splitlines() if line.startswith("PNG"))
    assert int(line.split()[1]) == rank < 31


def test_attack_refuses_in_one_line_and_writes_nothing(shop, tmp_path):
    query, out = next(shop.pictures.rglob("*.png")), tmp_path / "altered.png"
    words = ("attack", shop.gallery, query, "--out", out)
    refused(*words, "--goal", "pull-in:nothing", "--threat", "linf:0.1", says="no item 'nothing'")
    refused(
        *words, "--goal", "destroy", "--threat", "linf:0.1", says="unknown goal 'destroy'; known: misrank"
    )
    refused(*words, "--goal", "shift", "--threat", "linf:3", says="eps lies between 0 and 1")
    refused(*words[:3], "--out", tmp_path / "a.jpg", "--goal", "shift", "--threat", "linf:0.1", says=".png")
    assert list(tmp_path.iterdir()) == []


def test_a_suite_from_the_command_line(shop, tmp_path):
    words = (
        "evaluate",
        shop.run,
        "--attacks",
        "ers",
        "--threat",
        "linf:77/255",
        *FEW,
        *("--check-black-box", "1", "--budget", "30"),
        "--out",
        tmp_path / "s",
    )
    done = here(*words)
    assert done.code == 0, done.err
    for text in ("CA+", "ES:R", "GTT", "ERS ", "ARS (ratio)", "under every attack"):
        assert text in done.out
    again = json.loads(here(*words, "--json").out)
    assert 0 <= again["ers"]["value"] <= 100
    assert f"ERS {again['ers']['value']:.1f}" in done.out
    assert len(read_rows(tmp_path / "s" / "rows.csv.gz")) == 9 * (12 + 1)
    refused(*words[:3], "quick", *words[4:], says="unknown attack 'quick'")
    refused(
        "evaluate",
        shop.run,
        "--threat",
        "linf:8/255",
        says="a threat is for attacks: say which",
    )


def test_er_recall_beside_certificates_and_a_contradiction_exits_with_1(shop):
    """Both sides by default; a certificate that claims too much is an error in the table and in the report."""
    drawn = ("--queries", 12, "--candidates", 150, "--k", "1,5")
    assert here("certify", shop.run, "--threat", "query:linf:0.1", *drawn).code == 0
    words = ("evaluate", shop.run, "--attacks", "er-recall", "--threat", "linf:0.1", *drawn)
    words += ("--steps", 5, "--ca-queries", 2)
    done = here(*words, "--json")
    assert done.code == 0, done.err
    table = json.loads(done.out)["table"]
    assert [line["threat"] for line in table] == ["query:linf:0.1"] * 2 + ["candidates:linf:0.1"] * 2
    assert [line["queries"] for line in table] == [12, 12, 2, 2]
    assert all(line["robust_recall"] <= line["recall"] for line in table)

    rows = next((shop.run / "certifications").rglob("rows.csv.gz"))
    kept = rows.read_bytes()
    _claim_everything(rows)
    try:
        wrong = here(*words)
        assert wrong.code == 1
        assert "ERROR: certified > attacked" in wrong.out
        assert here("report", shop.run).code == 0
        page = (shop.run / "report.html").read_text()
        assert "ERROR: certified &gt; attacked" in page
        assert "Clean, attacked and certified recall of the same queries" in page
        assert "difference ×" in page
    finally:
        rows.write_bytes(kept)


def _claim_everything(path):
    import csv
    import gzip
    import io

    first, names, *lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    columns = names.strip().split(",")
    out = io.StringIO()
    for record in csv.reader(lines):
        changed = [
            "1" if name.startswith("hit_") else cell for name, cell in zip(columns, record, strict=True)
        ]
        csv.writer(out, lineterminator="\n").writerow(changed)
    path.write_bytes(gzip.compress((first + names + out.getvalue()).encode(), mtime=0))


def test_a_model_and_pictures_of_ones_own(tmp_path):
    (tmp_path / "my_model.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    for i in range(24):
        path = tmp_path / "folder" / "abc"[i % 3] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    words = ("--images", "folder", "--attacks", "qa+,gtm", "--threat", "linf:0.1")
    done = here("evaluate", "my_model.py:embedder", *words, "--steps", 3, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "24 trials" in done.out
    assert next((tmp_path / "runs" / "my_model-embedder").rglob("rows.csv.gz"))
    black = here(
        "evaluate", "my_model.py:function", *words, "--budget", 60, "--image-size", 8, "--json", cwd=tmp_path
    )
    assert black.code == 0, black.err
    assert "attacks are black-box (nes, 60 queries each)" in black.err
    assert json.loads(black.out)["optimiser"] == "nes"
    plain = here("evaluate", "my_model.py:function", "--images", "folder", "--image-size", 8, cwd=tmp_path)
    assert plain.code == 0, plain.err
    assert "24 queries" in plain.out
    refused("evaluate", "my_model.py:function", *words, cwd=tmp_path, says="?size=224")
    refused(
        "evaluate", "my_model.py:function", *words, "--image-size", 8, "--optimiser", "pgd",
        cwd=tmp_path, says="use nes or spsa",
    )  # fmt: skip
    refused(
        "evaluate",
        "my_model.py:embedder",
        cwd=tmp_path,
        says="name a data set, or a folder of images (--data)",
    )
    refused("evaluate", "net.onnx", "--images", "folder", cwd=tmp_path, says="net.onnx")
    made = here("index", "my_model.py:embedder", "folder", "--out", "g.gallery", cwd=tmp_path)
    assert made.code == 0, made.err
    photo = tmp_path / "folder" / "a" / "0.png"
    refused("search", "g.gallery", photo, cwd=tmp_path, says="name it (--model)")
    found = here("search", "g.gallery", photo, "--model", "my_model.py:embedder", cwd=tmp_path)
    assert "a/0.png" in found.out
