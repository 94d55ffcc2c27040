"""CIFAR-10 in its three layouts, and pickles that try something else."""

from __future__ import annotations

import json
import os
import pickle
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast import data
from holdfast.data.sets.batch_pickle import read_batch
from holdfast.errors import DataError
from holdfast.spec import ImageSpec

NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
COUNT = 4


@pytest.fixture(scope="module")
def batches() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    return {
        name: (
            random.integers(0, 256, (COUNT, 3, 32, 32), dtype=np.uint8),
            random.integers(0, 10, COUNT, dtype=np.uint8),
        )
        for name in NAMES
    }


def write_binary(batches: Any, folder: Path) -> None:
    for name, (images, labels) in batches.items():
        (folder / f"{name}.bin").write_bytes(
            np.concatenate([labels[:, None], images.reshape(COUNT, -1)], 1).tobytes()
        )


def write_python(batches: Any, folder: Path) -> None:
    for name, (images, labels) in batches.items():
        batch = {
            b"data": images.reshape(COUNT, -1),
            b"labels": labels.tolist(),
            b"filenames": [b"x.png"] * COUNT,
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def write_png(batches: Any, folder: Path, make: Any) -> None:
    for name, (images, _) in batches.items():
        (folder / f"{name}.png").write_bytes(
            make.encoded(images.reshape(COUNT, 3, 1024).transpose(0, 2, 1).copy())
        )
    train = [int(label) for name in NAMES[:5] for label in batches[name][1]]
    (folder / "train_lables.json").write_text(json.dumps(train))
    (folder / "test_lables.json").write_text(json.dumps(batches["test_batch"][1].tolist()))


@pytest.mark.parametrize("layout", ["binary", "python", "png"])
@pytest.mark.parametrize("packed", [True, False])
def test_every_layout_gives_the_same_set(
    batches: Any, make: Any, tmp_path: Path, layout: str, packed: bool
) -> None:
    folder = tmp_path / "set" / "inner"
    folder.mkdir(parents=True)
    writers: dict[str, Any] = {"binary": write_binary, "python": write_python}
    write_png(batches, folder, make) if layout == "png" else writers[layout](batches, folder)
    place = make.tar(tmp_path / "set", tmp_path / "set.tar") if packed else tmp_path / "set"
    found = data.load(f"cifar10:{place}")
    assert (found.name, found.split, found.train.spec) == ("cifar10", "closed", ImageSpec(3, 32, 32))
    assert np.array_equal(found.test.batch(range(COUNT)), batches["test_batch"][0])
    assert found.test.require_labels("a test").tolist() == batches["test_batch"][1].tolist()
    assert np.array_equal(found.train.batch(range(COUNT, 2 * COUNT)), batches["data_batch_2"][0])
    assert found.train.require_labels("a test")[-COUNT:].tolist() == batches["data_batch_5"][1].tolist()
    assert found.train.ids[-1] == f"train/{5 * COUNT - 1:05d}"
    assert found.train.classes[3] == "cat"


def test_a_batch_of_the_old_python_is_read() -> None:
    """The official files were pickled by Python 2, where bytes are plain strings."""
    pixels = bytes(range(256)) * 12
    text = (
        b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b"
        b"\x87Rq\x04(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87Rq\x06(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00\x00" + pixels + b"tbU\x06labelsq\x07]q\x08K\x05au."
    )
    images, labels = read_batch(text, "batch")
    assert images.tobytes() == pixels
    assert labels.tolist() == [5]


class Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = (function, arguments)

    def __reduce__(self) -> Any:
        return self.what


def test_a_pickle_cannot_call_anything(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for hostile in (
        Calls(os.mkdir, str(trace)),
        Calls(eval, "1"),
        Calls(np.fromfile, "/etc/passwd"),
        {b"data": Calls(os.mkdir, str(trace)), b"labels": []},
    ):
        for protocol in range(2, 6):
            with pytest.raises(DataError, match="is not a plain CIFAR-10 batch"):
                read_batch(pickle.dumps(hostile, protocol=protocol), "batch")
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"not a pickle",
        pickle.dumps([1, 2], protocol=2),
        pickle.dumps({b"data": 3, b"labels": []}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 9), np.uint8), b"labels": [1, 2]}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.float32), b"labels": [1, 2]}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, protocol=2),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["cat"]}, protocol=2),
    ],
)
def test_what_is_no_batch_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^some/batch "):
        read_batch(content, "some/batch")


def doubled(first: bytes, join: bytes, times: int = 40) -> bytes:
    """A value that holds the one before it twice, `times` over: a few bytes that describe 2^40 values."""
    put = b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + join + b"q" + bytes([n + 1]) for n in range(times))
    return first + b"q\x00" + put


IMAGE = pickle.dumps({b"data": np.zeros((1, 3072), np.uint8)}, protocol=2)
COPIES = b"".join(b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R" for _ in range(300))
HOSTILE = {
    # The memory of pickle grows to the largest number that is written to: 16 GB here.
    "a far place in the memory": b"\x80\x02]r\xff\xff\xff\x7f.",
    "nested labels": IMAGE[:-1] + b"U\x06labels" + doubled(b"K\x01", b"\x86") + b"s.",
    "nested labels with a list inside": IMAGE[:-1] + b"U\x06labels" + doubled(b"]", b"\x86") + b"s.",
    "a nested name": b"\x80\x02}" + doubled(b"K\x01", b"\x86") + b"K\x01s.",
    "nested text": b"\x80\x02c_codecs\nencode\n" + doubled(b"K\x01", b"\x86") + b"\x85R.",
    "text many times over": b"\x80\x02X\x00\x00\x10\x00" + b"a" * 2**20 + b"q\x00(" + COPIES + b"l.",
    "very many values": b"\x80\x02(" + b"]" * 300_000 + b"l.",
    "a set": b"\x80\x04\x8f(" + doubled(b"K\x01", b"\x86") + b"\x90.",
    "marks": b"\x80\x02" + b"(" * 300_000 + b".",
    "deeply nested": b"\x80\x02]" + b"\x85" * 190_000 + b".",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_few_bytes_take_little_time_and_memory(kind: str) -> None:
    start = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"^some/batch "):
            read_batch(HOSTILE[kind], "some/batch")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20
    assert time.process_time() - start < 10


def test_a_file_larger_than_any_batch_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        with open(tmp_path / name, "wb") as file:
            file.truncate(2**40)
    with pytest.raises(DataError, match=r"data_batch_1 in .* is larger than any CIFAR-10 batch"):
        data.load(f"cifar10:{tmp_path}")


def test_deeply_nested_labels_beside_pictures_are_refused(batches: Any, make: Any, tmp_path: Path) -> None:
    write_png(batches, tmp_path, make)
    (tmp_path / "train_lables.json").write_text("[" * 200_000)
    with pytest.raises(DataError, match="is not a list of labels"):
        data.load(f"cifar10:{tmp_path}")


def test_damaged_layouts_are_refused(batches: Any, make: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no CIFAR-10 batches"):
        data.load(f"cifar10:{tmp_path}")
    write_png(batches, tmp_path, make)
    (tmp_path / "test_lables.json").write_text("[1, 2]")
    with pytest.raises(DataError, match="holds 4 test images and 2 labels"):
        data.load(f"cifar10:{tmp_path}")
    (tmp_path / "test_lables.json").write_text("[1, 2, 3, 10]")
    with pytest.raises(DataError, match="label 10, but there are 10 classes"):
        data.load(f"cifar10:{tmp_path}")
    (tmp_path / "test_batch.png").write_bytes(make.encoded(make.picture()))
    with pytest.raises(DataError, match="is not 1024 colour pixels wide"):
        data.load(f"cifar10:{tmp_path}")
    write_binary(batches, tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(bytes(3074))
    with pytest.raises(DataError, match=r"data_batch_3.bin in .* is cut short"):
        data.load(f"cifar10:{tmp_path}")
