"""Any folder or tar of images, and what is skipped in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast import data
from holdfast.data.fit import to_8bit
from holdfast.errors import DataError
from holdfast.spec import ImageSpec

SPEC = ImageSpec(3, 8, 8)


@pytest.fixture
def shop(make: Any, tmp_path: Path) -> Path:
    for index in range(30):
        make.file(tmp_path / "shop" / ("hat", "shoe", "dress")[index % 3] / f"{index:02d}.png", seed=index)
    return tmp_path / "shop"


@pytest.fixture
def parted(make: Any, tmp_path: Path) -> Path:
    for part, count in (("train", 6), ("validation", 4), ("test", 2)):
        for index in range(count):
            make.file(
                tmp_path / "parted" / part / ("hat", "shoe")[index % 2] / f"{part}{index}.png", seed=index
            )
    return tmp_path / "parted"


def test_one_folder_per_class(shop: Path, make: Any) -> None:
    found = data.load(str(shop), spec=SPEC)
    assert (found.name, found.split, found.read, found.skipped) == ("shop", "closed", 30, ())
    assert found.train.classes == ("dress", "hat", "shoe")
    assert len(found.train) + len(found.test) == 30
    assert np.bincount(found.test.require_labels("a test")).min() >= 1
    assert np.bincount(found.train.require_labels("a test")).min() >= 1
    assert not set(found.train.ids) & set(found.test.ids)
    for images in (found.train, found.test):
        for index, name in enumerate(images.ids):
            assert images.classes[images.require_labels("a test")[index]] == name.split("/")[0]
            expected = to_8bit(data.read_image(shop / name, SPEC))
            assert np.array_equal(images.batch([index])[0].numpy(), expected)


def test_the_same_images_test_every_time_even_when_one_breaks(shop: Path) -> None:
    before = data.load(str(shop), spec=SPEC)
    (shop / before.train.ids[0]).write_bytes(b"")
    after = data.load(str(shop), spec=SPEC)
    assert after.test.ids == before.test.ids
    assert after.train.ids == before.train.ids[1:]
    assert after.skipped == (data.Skipped(before.train.ids[0], "empty file"),)
    assert after.read == 29


@pytest.mark.parametrize("inside", ["", "wrapper", "two/wrappers"])
def test_a_tar_gives_what_its_folder_gives_whatever_wraps_it(
    shop: Path, make: Any, tmp_path: Path, inside: str
) -> None:
    packed = data.load(str(make.tar(shop, tmp_path / "shop.tar", inside)), spec=SPEC)
    plain = data.load(str(shop), spec=SPEC)
    assert packed.train.ids == plain.train.ids
    assert packed.test.ids == plain.test.ids
    everyone = range(len(plain.train))
    assert np.array_equal(packed.train.batch(everyone), plain.train.batch(everyone))


def test_a_flat_folder_has_no_labels(make: Any, tmp_path: Path) -> None:
    for index in range(10):
        make.file(tmp_path / "flat" / f"{index}.png", seed=index)
    for place in (tmp_path / "flat", make.tar(tmp_path / "flat", tmp_path / "flat.tar", "flat")):
        found = data.load(str(place), spec=SPEC)
        assert (found.train.labels, found.train.classes) == (None, ())
        assert len(found.train) + len(found.test) == 10
        assert len(found.train) > len(found.test) > 0
        assert "/" not in found.train.ids[0]
        with pytest.raises(DataError, match="the open split is by class, and flat has no classes"):
            data.load(str(place), spec=SPEC, split="open")


def test_train_and_test_folders_are_the_given_split(parted: Path) -> None:
    found = data.load(str(parted), spec=SPEC)
    assert found.split == "given"
    assert (len(found.train), len(found.test)) == (10, 2)
    assert {name.split("/")[0] for name in found.train.ids} == {"train", "validation"}
    assert found.train.classes == ("hat", "shoe")
    assert found.test.ids == ("test/hat/test0.png", "test/shoe/test1.png")


def test_validation_tests_where_there_is_no_test(parted: Path) -> None:
    for path in (parted / "test").rglob("*.png"):
        path.unlink()
    found = data.load(str(parted), spec=SPEC)
    assert (found.split, len(found.train), len(found.test)) == ("given", 6, 4)


def test_other_splits_pool_the_given_parts(parted: Path) -> None:
    by_class = data.load(str(parted), spec=SPEC, split="open")
    assert set(by_class.train.require_labels("a test")) == {0}
    assert set(by_class.test.require_labels("a test")) == {1}
    assert data.load(str(parted), spec=SPEC, split="closed").read == 12


def test_a_split_that_is_not_there_or_not_known_is_refused(shop: Path, make: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="shop has no train and test folders of its own"):
        data.load(str(shop), split="given")
    with pytest.raises(DataError, match="unknown split 'half'; known: closed, given, open"):
        data.load(str(shop), split="half")  # type: ignore[arg-type]
    make.file(tmp_path / "one" / "hat" / "a.png")
    with pytest.raises(DataError, match="needs 2 classes, and one has 1"):
        data.load(str(tmp_path / "one"), split="open")


def test_the_class_of_an_image_is_the_deepest_folder_or_the_one_at_the_top(make: Any, tmp_path: Path) -> None:
    for name in ("hat/red/a.png", "hat/b.png", "shoe/old/left/c.png"):
        make.file(tmp_path / "deep" / name)
    found = data.load(str(tmp_path / "deep"), spec=SPEC)
    assert found.train.classes == ("hat", "hat/red", "shoe/old/left")
    assert found.read == 3
    assert data.load(str(tmp_path / "deep"), spec=SPEC, labels="top").train.classes == ("hat", "shoe")
    assert data.load_images(tmp_path / "deep", spec=SPEC)[0].classes == found.train.classes


def test_folders_of_one_name_below_others_are_classes_of_their_own(make: Any, tmp_path: Path) -> None:
    for name in ("train/Fruit/Apple/a.png", "train/Juice/Apple/b.png", "test/Fruit/Apple/c.png"):
        make.file(tmp_path / "shop" / name)
    found = data.load(str(tmp_path / "shop"), spec=SPEC)
    assert (found.split, found.train.classes) == ("given", ("Fruit/Apple", "Juice/Apple"))
    assert found.test.require_labels("a test").tolist() == [0]


def test_other_files_are_passed_over_and_bad_images_are_named(shop: Path, make: Any) -> None:
    for name in (
        "LICENSE",
        "hat/notes.txt",
        ".hidden.png",
        "hat/._00.png",
        ".git/x.png",
        "__MACOSX/hat/y.png",
    ):
        (shop / name).parent.mkdir(exist_ok=True, parents=True)
        (shop / name).write_bytes(b"nothing")
    whole = (shop / "hat" / "00.png").read_bytes()
    bad = {
        "hat/cut.jpg": (make.encoded(make.picture(200, 200), "JPEG")[:900], "truncated"),
        "hat/empty.png": (b"", "empty file"),
        "hat/text.webp": (b"hello there", "not an image"),
        "shoe/phone.heic": (b"\0\0\0\x18ftypheic" + bytes(30), "not an image"),
        "loose.png": (whole, "outside any class folder"),
    }
    for name, (content, _) in bad.items():
        (shop / name).write_bytes(content)
    (shop / "shoe" / "gone.jpg").symlink_to(shop / "nowhere")
    found = data.load(str(shop), spec=SPEC)
    expected = {name: reason for name, (_, reason) in bad.items()} | {
        "shoe/gone.jpg": "No such file or directory"
    }
    assert {entry.id: entry.reason for entry in found.skipped} == expected
    assert found.read == 30
    assert found.reading.startswith("read 30 images, skipped 6: loose.png (outside any class folder), ")


def test_images_outside_train_and_test_are_named(parted: Path, make: Any) -> None:
    make.file(parted / "extra" / "hat" / "a.png")
    make.file(parted / "b.png")
    reasons = {entry.id: entry.reason for entry in data.load(str(parted), spec=SPEC).skipped}
    assert reasons == dict.fromkeys(("extra/hat/a.png", "b.png"), "outside the train and test folders")


def test_nothing_readable_is_the_only_fatal_case(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"there are no images in .*empty"):
        data.load(str(tmp_path / "empty"))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"none of the 1 images in .*bad could be read \(first: a.png: empty file\)"
    ):
        data.load(str(tmp_path / "bad"))


def test_names_that_are_not_text_become_ids_that_are(make: Any, tmp_path: Path) -> None:
    make.file(tmp_path / "odd" / "hat" / "ok.png")
    (tmp_path / "odd" / "hat" / "ok.png").rename(tmp_path / "odd" / "hat" / "caf\udce9.png")
    images, skipped = data.load_images(tmp_path / "odd", spec=SPEC)
    assert images.ids == ("hat/caf\\xe9.png",)
    assert skipped == ()


def test_all_images_of_a_folder_keep_their_whole_names(shop: Path, parted: Path, make: Any) -> None:
    images, _ = data.load_images(shop.parent, spec=SPEC)
    assert len(images) == 42
    assert images.ids[0] == "parted/test/hat/test0.png"
    assert "parted/test/hat" in images.classes
    images, _ = data.load_images(shop.parent, spec=SPEC, labels="top")
    assert images.classes == ("parted", "shop")
    images, _ = data.load_images(parted, spec=SPEC)
    assert images.classes == ("hat", "shoe"), "train and test are no classes"
    make.file(shop / "loose.png")
    loose, _ = data.load_images(str(shop), spec=SPEC)
    assert loose.labels is None
    assert len(loose) == 31
    assert loose.spec == SPEC
    assert data.load_images(shop)[0].spec == data.NATURAL
