"""CUB-200-2011, CARS-196 and Stanford Online Products, on small sets in their official layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from holdfast import data
from holdfast.data.fit import to_8bit
from holdfast.errors import DataError
from holdfast.spec import ImageSpec

SPEC = ImageSpec(3, 8, 8)


@pytest.fixture
def birds(make: Any, tmp_path: Path) -> Path:
    """Five classes whose official order is not the alphabet's, three images each."""
    top = tmp_path / "CUB_200_2011"
    classes = ["001.Wren", "002.Auk", "003.Tern", "004.Crow", "005.Swift"]
    paths = [f"{name}/{name}_{index}.jpg" for name in classes for index in range(3)]
    for seed, path in enumerate(paths):
        make.file(top / "images" / path, seed=seed, kind="JPEG")
    numbered = list(enumerate(paths, 1))
    (top / "images.txt").write_text("".join(f"{number} {path}\n" for number, path in numbered))
    (top / "image_class_labels.txt").write_text(
        "".join(f"{number} {(number + 2) // 3}\n" for number, _ in numbered)
    )
    (top / "train_test_split.txt").write_text("".join(f"{number} {number % 2}\n" for number, _ in numbered))
    (top / "classes.txt").write_text("".join(f"{number} {name}\n" for number, name in enumerate(classes, 1)))
    return top


def test_cub_is_split_by_class_unless_asked(birds: Path, make: Any, tmp_path: Path) -> None:
    for place in (birds, birds.parent, make.tar(birds, tmp_path / "birds.tar", "CUB_200_2011")):
        found = data.load(f"cub:{place}", spec=SPEC)
        assert (found.split, found.read) == ("open", 15)
        assert set(found.train.require_labels("a test")) == {0, 1, 2}
        assert set(found.test.require_labels("a test")) == {3, 4}
        assert found.test.ids[0] == "images/004.Crow/004.Crow_0.jpg"
        assert np.array_equal(found.test.image(0), to_8bit(data.read_image(birds / found.test.ids[0], SPEC)))
    by_image = data.load(f"cub:{birds}", spec=SPEC, split="closed")
    assert (len(by_image.train), len(by_image.test)) == (8, 7)
    assert by_image.test.ids[0].endswith("Wren_1.jpg")


def test_missing_birds_are_named(birds: Path) -> None:
    (birds / "images" / "001.Wren" / "001.Wren_1.jpg").unlink()
    found = data.load(f"cub:{birds}", spec=SPEC, split="closed")
    assert found.skipped == (data.Skipped("images/001.Wren/001.Wren_1.jpg", "missing"),)
    assert found.read == 14
    assert len(found.test) == 6
    for images in (found.train, found.test):
        shown = [images.classes[label] for label in images.require_labels("a test")]
        assert shown == [name.split("/")[1] for name in images.ids]


def test_tables_that_disagree_are_refused(birds: Path) -> None:
    (birds / "image_class_labels.txt").write_text("1 1\n")
    with pytest.raises(DataError, match="disagree about number '2'"):
        data.load(f"cub:{birds}")
    (birds / "image_class_labels.txt").write_text("1\n")
    with pytest.raises(DataError, match="a line without a number and a value"):
        data.load(f"cub:{birds}")
    (birds / "classes.txt").unlink()
    with pytest.raises(DataError, match="is not CUB-200-2011: it should hold"):
        data.load(f"cub:{birds}")


@pytest.fixture
def cars(make: Any, tmp_path: Path) -> Path:
    """Three classes in an order that is not the alphabet's; one of its six images is not there."""
    top = tmp_path / "cars196"
    paths = [f"car_ims/{index:06d}.jpg" for index in range(1, 7)]
    for seed, path in enumerate(paths[:5]):
        make.file(top / path, seed=seed, kind="JPEG")
    kinds: Any = [("relative_im_path", "O"), ("class", "O"), ("test", "O")]
    rows = [(path, index // 2 + 1, index % 2) for index, path in enumerate(paths)]
    names = np.array(["Zonda", "Acura", "Mini"], dtype=object)
    savemat(top / "cars_annos.mat", {"annotations": np.array(rows, dtype=kinds), "class_names": names})
    return top


def test_cars_keep_the_class_order_of_the_file(cars: Path, make: Any, tmp_path: Path) -> None:
    for place in (cars, make.tar(cars, tmp_path / "cars.tar", "cars196")):
        found = data.load(f"cars:{place}", spec=SPEC)
        assert found.train.classes == ("Zonda", "Acura", "Mini")
        assert found.train.require_labels("a test").tolist() == [0, 0, 1, 1]
        assert found.test.ids == ("car_ims/000005.jpg",)
        assert found.skipped == (data.Skipped("car_ims/000006.jpg", "missing"),)
        assert (found.split, found.read) == ("open", 5)
    by_image = data.load(f"cars:{cars}", spec=SPEC, split="closed")
    assert by_image.test.ids == ("car_ims/000002.jpg", "car_ims/000004.jpg")


def test_a_damaged_annotation_file_is_refused(cars: Path) -> None:
    whole = (cars / "cars_annos.mat").read_bytes()
    for content in (whole[:200], b"", b"hello" * 100):
        (cars / "cars_annos.mat").write_bytes(content)
        with pytest.raises(DataError, match=r"could not read cars_annos.mat"):
            data.load(f"cars:{cars}")
    (cars / "cars_annos.mat").unlink()
    with pytest.raises(DataError, match="is not CARS-196"):
        data.load(f"cars:{cars}")


@pytest.fixture
def products(make: Any, tmp_path: Path) -> Path:
    """Five products, of which the official split trains two: not the half that our own rule would."""
    top = tmp_path / "Stanford_Online_Products"
    rows = [(index + 1, index // 2 + 1, 1, f"chair_final/{index}_0.JPG") for index in range(10)]
    for seed, row in enumerate(rows):
        make.file(top / row[3], seed=seed, kind="JPEG")
    for name, part in (("Ebay_train.txt", rows[:4]), ("Ebay_test.txt", rows[4:])):
        lines = ["image_id class_id super_class_id path", *(" ".join(map(str, row)) for row in part)]
        (top / name).write_text("\n".join(lines) + "\n")
    return top


def test_products_follow_the_official_split_by_class(products: Path, make: Any, tmp_path: Path) -> None:
    for place in (products, make.tar(products, tmp_path / "sop.tar", "Stanford_Online_Products")):
        found = data.load(f"sop:{place}", spec=SPEC)
        assert (found.split, len(found.train), len(found.test)) == ("open", 4, 6)
        assert found.train.classes == ("1", "2", "3", "4", "5")
        assert set(found.train.require_labels("a test")) == {0, 1}
        assert set(found.test.require_labels("a test")) == {2, 3, 4}
        assert found.test.ids[0] == "chair_final/4_0.JPG"
    assert data.load(f"sop:{products}", spec=SPEC, split="closed").test.ids != found.test.ids


def test_product_tables_that_are_wrong_are_refused(products: Path) -> None:
    table = products / "Ebay_test.txt"
    whole = table.read_text()
    table.write_text(whole + "11 1 1 chair_final/0_0.JPG\n")
    with pytest.raises(DataError, match="class 1 is in both tables"):
        data.load(f"sop:{products}")
    table.write_text(whole + "11 9\n")
    with pytest.raises(DataError, match="not of 4 columns"):
        data.load(f"sop:{products}")
    table.unlink()
    with pytest.raises(DataError, match="is not Stanford Online Products"):
        data.load(f"sop:{products}")
