"""The page about attacks says what the code can do, and its example runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import holdfast
from holdfast import models
from holdfast.attacks import OBJECTIVES, OPTIMISERS, objective_rows, optimiser_rows
from holdfast.goals import GOALS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/attacks.md").read_text()


def test_tables_are_current():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from make_attack_docs import page
    finally:
        sys.path.pop(0)
    assert page() == PAGE, "run scripts/make_attack_docs.py"
    assert PAGE.count("| `gtm` | put the nearest") == 1
    for name in (*OBJECTIVES, *OPTIMISERS, *(goal.usage for goal in GOALS.values())):
        assert f"| `{name}` |" in PAGE


def test_rows_say_what_is_needed():
    rows = {row["attack"]: row for row in objective_rows()}
    assert rows["`es`"]["gallery vectors"] == "–"
    assert rows["`gtm`"]["labels"] == "yes"
    assert rows["`ca+`"]["works on lists of hits"] == "–"
    ways = {row["optimiser"]: row for row in optimiser_rows()}
    assert ways["`pgd`"]["callable (vectors)"] == "–"
    assert ways["`nes`"]["lists of hits"] == "yes"
    assert ways["`universal`"]["one perturbation for all"] == "yes"


def test_example_runs():
    program, _ = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    embedder = models.build("small", spec=(1, 8, 8), dim=4)
    names = {
        "embedder": embedder,
        "vectors": embedder.embed(torch.rand(12, 1, 8, 8)),
        "labels": torch.arange(12) % 3,
        "query_labels": torch.tensor([0, 1]),
        "own": torch.tensor([-1, -1]),
        "images": torch.rand(2, 1, 8, 8),
    }
    exec(program, names)
    assert names["altered"].success.shape == (2,)


def test_the_example_of_one_picture_runs(tmp_path, monkeypatch):
    _, program = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    embedder = models.build("small", spec=(1, 8, 8), dim=4)
    for i in range(12):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    Image.open(tmp_path / "3.png").save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    holdfast.index(embedder, tmp_path, tmp_path / "shop.gallery").close()
    names = {"embedder": embedder}
    exec(program, names)
    assert names["done"].held
    names["gallery"].close()
    assert (tmp_path / "altered.png").is_file()
