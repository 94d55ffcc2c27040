"""The decode pass: memory cap, mapped files, reuse, and what a full disk leaves behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast import data
from holdfast.data import decoding
from holdfast.data.settings import memory_cap, parse_size
from holdfast.errors import ConfigError, StorageError
from holdfast.spec import ImageSpec

SPEC = ImageSpec(3, 8, 8)


@pytest.fixture
def shop(make: Any, tmp_path: Path) -> Path:
    for index in range(70):
        make.file(tmp_path / "shop" / ("hat", "shoe")[index % 2] / f"{index:02d}.png", seed=index)
    (tmp_path / "shop" / "hat" / "bad.png").write_bytes(b"")
    return tmp_path / "shop"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every image that is decoded."""
    calls: list[int] = []
    original = decoding.decode

    def counting(content: bytes, spec: ImageSpec | None) -> Any:
        calls.append(1)
        return original(content, spec)

    monkeypatch.setattr(decoding, "decode", counting)
    return calls


def is_mapped(images: data.ImageSet) -> bool:
    base: Any = images.pixels
    while isinstance(base, np.ndarray) and base.base is not None:
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return isinstance(base, np.memmap) or not isinstance(base, np.ndarray)


def test_beyond_the_cap_pixels_are_mapped_equal_and_reused(
    shop: Path, decoded: list[int], own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = data.load(str(shop), spec=SPEC)
    assert not is_mapped(in_memory.train)
    assert not own_places.exists(), "what fits leaves nothing behind"
    assert len(decoded) == 71

    monkeypatch.setenv("HOLDFAST_MEMORY", "10KiB")
    for _ in range(2):
        mapped = data.load(str(shop), spec=SPEC)
        assert is_mapped(mapped.train)
        assert mapped.train.ids == in_memory.train.ids
        assert mapped.skipped == in_memory.skipped == (data.Skipped("hat/bad.png", "empty file"),)
        everything = range(len(mapped.train))
        assert np.array_equal(mapped.train.batch(everything), in_memory.train.batch(everything))
        assert len(decoded) == 142, "the second load decodes nothing"
    assert len(list((own_places / "decoded").iterdir())) == 2


def test_a_changed_file_or_spec_is_decoded_anew(
    shop: Path, make: Any, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MEMORY", "1K")
    data.load(str(shop), spec=SPEC)
    make.file(shop / "hat" / "bad.png", seed=99)
    changed = data.load(str(shop), spec=SPEC)
    assert len(decoded) == 142
    assert (changed.read, changed.skipped) == (71, ())
    data.load(str(shop), spec=ImageSpec(3, 8, 8, "squash"))
    assert len(decoded) == 213


@pytest.mark.parametrize("damage", ["cut", "notes"])
def test_a_damaged_cache_is_made_again(
    shop: Path, decoded: list[int], own_places: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("HOLDFAST_MEMORY", "1K")
    before = data.load(str(shop), spec=SPEC)
    pixels, notes = (next((own_places / "decoded").glob(kind)) for kind in ("*.npy", "*.json"))
    whole = before.train.batch(range(len(before.train)))
    if damage == "cut":
        pixels.write_bytes(pixels.read_bytes()[:500])
    else:
        notes.write_text("[1")
    after = data.load(str(shop), spec=SPEC)
    assert len(decoded) == 142
    assert np.array_equal(after.train.batch(range(len(after.train))), whole)


def test_a_full_disk_is_one_line_and_leaves_nothing(
    shop: Path, own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("HOLDFAST_MEMORY", "1K")
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="the disk is full"):
        data.load(str(shop), spec=SPEC)
    assert list((own_places / "decoded").iterdir()) == []


def test_an_interrupted_pass_leaves_nothing(
    shop: Path, own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(content: bytes, spec: ImageSpec | None) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setenv("HOLDFAST_MEMORY", "1K")
    monkeypatch.setattr(decoding, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.load(str(shop), spec=SPEC)
    assert list((own_places / "decoded").iterdir()) == []


def test_arrays_brought_to_another_shape_respect_the_cap(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"mnist:{make.idx_set(tmp_path / 'set')}"
    plain = data.load(place, spec=ImageSpec(3, 32, 32))
    monkeypatch.setenv("HOLDFAST_MEMORY", "1K")
    mapped = data.load(place, spec=ImageSpec(3, 32, 32))
    assert is_mapped(mapped.test)
    assert not is_mapped(plain.test)
    assert np.array_equal(mapped.test.batch(range(20)), plain.test.batch(range(20)))


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("2GiB", 2**31), ("500 MB", 500 * 2**20), ("1.5g", 3 * 2**29), ("7B", 7), ("1k", 1024)],
)
def test_sizes_are_understood(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["lots", "-1G", "2XB", "G"])
def test_what_is_no_size_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MEMORY", text)
    with pytest.raises(ConfigError, match=f"HOLDFAST_MEMORY is '{text}'"):
        memory_cap()


def test_the_cap_is_four_gibibytes_unless_said() -> None:
    assert memory_cap() == 4 * 2**30
