"""Names, paths and where sets are looked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import data
from holdfast.data import settings
from holdfast.data.locate import find, resolve
from holdfast.data.registry import DATASETS
from holdfast.errors import DataError


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def test_official_layouts_and_their_subsets_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {
        "cub": "cub_200_2011_s96.tar",
        "cub-40x30": "cub200_sub40x30_s256.tar",
        "cars": "cars196_s80.tar",
        "cars-40x30": "cars196_sub40x30_s256.tar",
        "clothing-small": "clothing_small_s128.tar",
    }
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    for name, file in expected.items():
        assert find(DATASETS[name]) is None
        put(tmp_path, file)
    for name, file in expected.items():
        assert find(DATASETS[name]) == tmp_path / file
    for name, file in expected.items():
        (tmp_path / file).unlink()
        assert find(DATASETS[name]) is None, "no other set's file is taken for it"
        put(tmp_path, file)


@pytest.mark.parametrize(
    ("name", "files", "place"),
    [
        ("mnist", ["mnist/train-images-idx3-ubyte.gz"], "mnist"),
        ("mnist", ["MNIST/raw/train-images.idx3-ubyte"], "MNIST"),
        ("fashion-mnist", ["fashion-mnist/train-images-idx3-ubyte"], "fashion-mnist"),
        ("cifar10", ["cifar-10-batches-bin/data_batch_1.bin"], "cifar-10-batches-bin"),
        ("cifar10", ["cifar10/package/data_batch_1.png"], "cifar10"),
        ("cub", ["CUB_200_2011/images.txt"], "CUB_200_2011"),
        ("cars", ["cars196/cars_annos.mat"], "cars196"),
        ("sop", ["Stanford_Online_Products/Ebay_train.txt"], "Stanford_Online_Products"),
        ("clothing-small", ["clothing-small/train/a.jpg"], "clothing-small"),
    ],
)
def test_a_folder_counts_if_it_holds_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: list[str], place: str
) -> None:
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    (tmp_path / place).mkdir()
    assert find(DATASETS[name]) is None, "an empty folder is not the set"
    put(tmp_path, *files)
    assert find(DATASETS[name]) == tmp_path / place


def test_folders_are_looked_through_in_order(
    tmp_path: Path, own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("HOLDFAST_DATA", os.pathsep.join([str(first), str(second)]))
    file = "mnist/train-images-idx3-ubyte.gz"
    for folder in (settings.DEBIAN, own_places / "data", second, first):
        put(folder, file)
        assert find(DATASETS["mnist"]) == folder / "mnist"


def test_a_name_wins_over_a_folder_and_a_path_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("fashion-mnist-mini", "photos", "a:b"):
        (tmp_path / name).mkdir()
    assert resolve("fashion-mnist-mini")[1].parent == settings.BUNDLED
    assert resolve("./fashion-mnist-mini") == (None, Path("fashion-mnist-mini"))
    assert resolve("photos") == (None, Path("photos"))
    assert resolve("a:b") == (None, Path("a:b"))
    assert resolve("cub:photos") == (DATASETS["cub"], Path("photos"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nope", "unknown data set 'nope'; known: cars, cars-40x30, cifar10"),
        ("", "unknown data set ''"),
        ("no/such/folder", "there is no folder or tar at no/such/folder"),
        ("none.tar", "there is no folder or tar at none.tar"),
        ("cub:", "there is nothing at '' for cub"),
        ("cub:none", "there is nothing at 'none' for cub"),
        ("nope:none", "unknown data set 'nope:none'"),
        ("sop", r"sop is not on this machine; get Stanford_Online_Products.zip .* HOLDFAST_DATA"),
        ("cifar10", "cifar10 is not on this machine; run 'holdfast data fetch cifar10', or get"),
    ],
)
def test_what_cannot_be_found_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=reason) as caught:
        data.load(text)
    assert "\n" not in str(caught.value)


def test_every_set_describes_itself() -> None:
    rows = data.describe_all()
    assert [row["name"] for row in rows] == list(DATASETS)
    for row in rows:
        assert (row["found"] is None) != (row["how_to_get"] is None)
        assert row == data.describe(row["name"])
    assert data.describe("fashion-mnist-mini")["found"] == str(settings.BUNDLED / "fashion-mnist-mini")
    assert data.describe("cub")["how_to_get"].startswith("get CUB_200_2011.tgz")
    assert data.describe("cub")["split"] == "open"


def test_a_path_describes_itself_without_reading_images(make: Any, tmp_path: Path) -> None:
    put(tmp_path, "shop/hat/a.png", "shop/hat/b.jpg", "shop/shoe/c.png", "shop/notes.txt")
    found = data.describe(str(tmp_path / "shop"))
    assert (found["images"], found["classes"], found["split"], found["licence"]) == (3, 2, "closed", None)
    named = data.describe(f"cub:{tmp_path / 'shop'}")
    assert (named["name"], named["found"]) == ("cub", str(tmp_path / "shop"))
    with pytest.raises(DataError, match="unknown data set 'nope'"):
        data.describe("nope")
