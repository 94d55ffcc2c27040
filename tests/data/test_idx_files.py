"""The idx files of MNIST and its like."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from holdfast import data
from holdfast.data.sets.idx import parse_idx
from holdfast.errors import DataError
from holdfast.spec import ImageSpec


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0)), packed=st.booleans())
def test_arrays_come_back_as_they_were(make: Any, array: np.ndarray, packed: bool) -> None:
    found = parse_idx(make.idx(array, packed), "a")
    assert found.shape == array.shape
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cut short"),
        (b"\x00\x00\x08", "cut short"),
        (b"hello, world", "not an idx file"),
        (struct.pack(">HBBI", 0, 0x0D, 1, 4) + bytes(16), "not an idx file"),
        (struct.pack(">HBBI", 0, 8, 1, 5) + bytes(4), "promises 5 bytes and holds only 4"),
        (struct.pack(">HBBI", 0, 8, 1, 5) + bytes(6), "promises 5 bytes and holds more"),
        (struct.pack(">HBB4I", 0, 8, 4, *[2**31] * 4), "claims to hold"),
        (gzip.compress(struct.pack(">HBBI", 0, 8, 1, 500) + bytes(500), mtime=0)[:-9], "cut short"),
        (b"\x1f\x8b" + bytes(50), "cut short or damaged"),
    ],
)
def test_damaged_files_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        parse_idx(content, "some-file")


def test_a_set_has_stable_ids_and_the_official_split(make: Any, tmp_path: Path) -> None:
    found = data.load(f"fashion-mnist:{make.idx_set(tmp_path)}")
    assert (found.name, found.split, found.read) == ("fashion-mnist", "closed", 50)
    assert found.train.spec == ImageSpec(1, 28, 28)
    assert found.test.ids[3] == "test/00003"
    assert found.train.take([7]).ids == ("train/00007",)
    assert found.train.classes[9] == "Ankle boot"
    assert found.train.require_labels("a test")[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_the_open_split_pools_both_parts(make: Any, tmp_path: Path) -> None:
    found = data.load(f"mnist:{make.idx_set(tmp_path)}", split="open")
    assert set(found.train.require_labels("a test")) == {0, 1, 2, 3, 4}
    assert set(found.test.require_labels("a test")) == {5, 6, 7, 8, 9}
    assert {name.split("/")[0] for name in found.test.ids} == {"train", "test"}


@pytest.mark.parametrize("dotted", [True, False])
@pytest.mark.parametrize("where", ["", "raw/"])
def test_plain_dotted_and_nested_names_and_tars_are_read(
    make: Any, tmp_path: Path, dotted: bool, where: str
) -> None:
    packed = make.idx_set(tmp_path / "packed")
    plain = tmp_path / "plain" / where
    plain.mkdir(parents=True)
    for path in packed.iterdir():
        name = path.name.removesuffix(".gz")
        (plain / (name.replace("-idx", ".idx") if dotted else name)).write_bytes(
            gzip.decompress(path.read_bytes())
        )
    expected = data.load(f"mnist:{packed}").train.batch(range(30))
    assert np.array_equal(data.load(f"mnist:{tmp_path / 'plain'}").train.batch(range(30)), expected)
    archive = make.tar(tmp_path / "plain", tmp_path / "set.tar", "wrapped")
    assert np.array_equal(data.load(f"mnist:{archive}").train.batch(range(30)), expected)


def test_other_specs_are_honoured(make: Any, tmp_path: Path) -> None:
    place = f"mnist:{make.idx_set(tmp_path)}"
    grey = data.load(place).test
    colour = data.load(place, spec=ImageSpec(3, 28, 28)).test
    assert np.array_equal(colour.batch([4])[0].numpy(), np.repeat(grey.batch([4])[0].numpy(), 3, axis=0))
    larger = data.load(place, spec=ImageSpec(3, 32, 32)).test
    assert larger.batch([0]).shape == (1, 3, 32, 32)
    assert larger.ids == grey.ids


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("train-labels-idx1-ubyte.gz", np.zeros(29, np.uint8), "30 images and 29 labels"),
        ("train-labels-idx1-ubyte.gz", np.full(30, 10, np.uint8), "label 10, but there are 10 classes"),
        ("t10k-images-idx3-ubyte.gz", np.zeros((20, 14, 14), np.uint8), "differ in size"),
        ("t10k-images-idx3-ubyte.gz", np.zeros((20, 14), np.uint8), "has 2 axes, not 3"),
        ("t10k-images-idx3-ubyte.gz", None, "there is no t10k-images-idx3-ubyte"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    make: Any, tmp_path: Path, name: str, array: np.ndarray | None, reason: str
) -> None:
    make.idx_set(tmp_path)
    (tmp_path / name).unlink()
    if array is not None:
        (tmp_path / name).write_bytes(make.idx(array))
    with pytest.raises(DataError, match=reason):
        data.load(f"mnist:{tmp_path}")
