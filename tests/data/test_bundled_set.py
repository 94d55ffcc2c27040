"""The part of Fashion-MNIST that comes with the package."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast import data
from holdfast.data.settings import BUNDLED
from holdfast.files import sha256_file

FOLDER = BUNDLED / "fashion-mnist-mini"
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_bundled.py"
SUMS = {
    "t10k-images-idx3-ubyte.gz": "a0589176e4033600ca06de9ac0794c88e620723ee2634f5994b83d70b4a5d5dc",
    "t10k-labels-idx1-ubyte.gz": "f556c480f5fa887dbfffa4271095c95b39e8039bac4f08289b581b3caff94aa6",
    "train-images-idx3-ubyte.gz": "c50c429c6eb394acef29e955d21f1d914bd98c36f901486b9b1aca78a4b529a4",
    "train-labels-idx1-ubyte.gz": "b81c8a8456d744d229a5ff5a9849fa77e0390ce5eaaeea834cc2511c140daaa4",
}


def test_the_files_are_the_ones_that_were_made() -> None:
    assert {path.name: sha256_file(path) for path in FOLDER.glob("*.gz")} == SUMS


def test_the_licence_comes_with_them() -> None:
    notice = (FOLDER / "NOTICE").read_text()
    assert "Copyright © 2017 Zalando SE" in notice
    assert "Permission is hereby granted, free of charge" in notice


def test_it_loads_with_nothing_else_on_the_machine() -> None:
    found = data.load("fashion-mnist-mini")
    assert (len(found.train), len(found.test), found.split) == (8000, 2000, "closed")
    assert np.bincount(found.train.require_labels("a test")).tolist() == [800] * 10
    assert np.bincount(found.test.require_labels("a test")).tolist() == [200] * 10
    assert 60 < float(found.train.batch(range(8000)).float().mean()) < 85
    assert data.fetch("fashion-mnist-mini") == FOLDER


def script() -> Any:
    found = importlib.util.spec_from_file_location("make_bundled", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_draw_takes_as_many_of_each_class(make: Any) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 500)
    rows = script().drawn(labels, 5, 1)
    assert (np.diff(rows) > 0).all()
    assert np.bincount(labels[rows]).tolist() == [5] * 10
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert script().packed(array) == script().packed(array.copy())


def test_the_script_makes_these_images_from_the_whole_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path("/usr/share/datasets/fashion-mnist")
    if not whole.is_dir():
        pytest.skip("the Debian package dataset-fashion-mnist is not installed")
    module = script()
    shutil.copytree(FOLDER, tmp_path / "fashion-mnist-mini", ignore=shutil.ignore_patterns("*.gz"))
    monkeypatch.setattr(module, "BUNDLED", tmp_path)
    monkeypatch.setattr("sys.argv", ["make_bundled.py", str(whole)])
    module.main()
    made, here = (
        data.load(f"fashion-mnist:{folder}") for folder in (tmp_path / "fashion-mnist-mini", FOLDER)
    )
    assert np.array_equal(made.train.pixels, here.train.pixels)
    assert np.array_equal(made.train.require_labels("a test"), here.train.require_labels("a test"))
