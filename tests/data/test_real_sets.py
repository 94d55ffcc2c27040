"""The real data sets, where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast import data
from holdfast.data.fit import to_8bit
from holdfast.data.locate import find
from holdfast.data.registry import DATASETS, dataset_info
from holdfast.data.source import open_source
from holdfast.spec import ImageSpec

SPEC = ImageSpec(3, 16, 16)


@pytest.fixture(autouse=True)
def real(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATA", str(shared_data))


def place_of(name: str) -> Path:
    found = find(DATASETS[name])
    if found is None:
        pytest.skip(f"{name} is not in the folder of real data sets")
    return found


def test_mnist() -> None:
    place_of("mnist")
    found = data.load("mnist")
    assert (len(found.train), len(found.test), found.split) == (60_000, 10_000, "closed")
    assert found.train.require_labels("a test")[:5].tolist() == [5, 0, 4, 1, 9]
    assert found.test.require_labels("a test")[:5].tolist() == [7, 2, 1, 0, 4]
    assert float(found.train.batch(range(60_000)).float().mean()) / 255 == pytest.approx(0.1307, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "images", "training_classes", "first_test", "training"),
    [
        ("cub", 11_788, 100, "images/101.White_Pelican/White_Pelican_0003_96691.jpg", 5_864),
        ("cars", 16_170, 98, "car_ims/008055.jpg", None),
    ],
)
def test_the_official_sets_open_split(
    name: str, images: int, training_classes: int, first_test: str, training: int | None
) -> None:
    """Only the listing and a few images: the whole would take most of the time these tests have."""
    with open_source(place_of(name)) as source:
        listing = dataset_info(name).read(source)
    assert len(listing.ids) == images
    assert len(set(listing.ids)) == images
    tests = listing.tests("open", name)
    assert listing.labels is not None
    assert set(listing.labels[~tests]) == set(range(training_classes))
    assert set(listing.labels[tests]) == set(range(training_classes, 2 * training_classes))
    assert listing.ids[int(np.argmax(tests))] == first_test
    if training is not None:
        assert int((~tests).sum()) == training


def test_clothing_is_read_whole() -> None:
    place_of("clothing-small")
    found = data.load("clothing-small", spec=SPEC)
    assert (len(found.train), len(found.test), found.split) == (3_068 + 341, 372, "given")
    assert (found.read, found.skipped) == (3_781, ())
    assert len(found.train.classes) == 10
    assert "dress" in found.train.classes


@pytest.mark.parametrize("name", ["cub-40x30", "cars-40x30"])
def test_subsets_keep_classes_apart(name: str) -> None:
    with open_source(place_of(name)) as source:
        listing = dataset_info(name).read(source)
    tests = listing.tests("given", name)
    assert listing.labels is not None
    assert (len(listing.ids), int(tests.sum()), len(listing.classes)) == (1_200, 600, 40)
    assert not set(listing.labels[tests]) & set(listing.labels[~tests])


def test_real_photographs_are_decoded_in_their_place() -> None:
    place = place_of("cub-40x30")
    found = data.load(f"cub-40x30:{place}", spec=SPEC)
    with open_source(place) as source:
        content = source.read(f"sub40x30_s256/{found.test.ids[123]}")
    assert np.array_equal(found.test.image(123), to_8bit(data.decode(content, SPEC)))
