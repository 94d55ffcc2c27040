"""Image sets: batches, parts that share pixels, labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from holdfast.data.imageset import ImageSet, Skipped, reading_line
from holdfast.errors import DataError
from holdfast.spec import ImageSpec

SPEC = ImageSpec(3, 4, 5)


@pytest.fixture
def images() -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (10, *SPEC.shape), dtype=np.uint8)
    rows = np.array([9, 0, 3, 4, 7], dtype=np.int64)
    labels = np.array([0, 1, 1, 0, 2], dtype=np.int64)
    return ImageSet("set", tuple("abcde"), labels, ("x", "y", "z"), SPEC, pixels, rows)


@pytest.mark.parametrize(
    "indices",
    [[4, 0, 0, -1], (4, 0, 0, -1), np.array([4, 0, 0, -1], np.int32), torch.tensor([4, 0, 0, -1])],
)
def test_a_batch_holds_the_images_asked_for(images: ImageSet, indices: Any) -> None:
    batch = images.batch(indices)
    assert batch.dtype == torch.uint8
    assert np.array_equal(batch.numpy(), images.pixels[[7, 9, 9, 7]])
    batch.zero_()
    assert images.pixels[9].any(), "a batch is a copy"


def test_empty_batches_masks_and_wrong_indices(images: ImageSet) -> None:
    assert images.batch([]).shape == (0, 3, 4, 5)
    assert np.array_equal(images.batch(images.labels == 1).numpy(), images.pixels[[0, 3]])
    for wrong in ([0.5], [[1, 2]], np.array([True, False])):
        with pytest.raises(TypeError, match="indices are a row of integers"):
            images.batch(wrong)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        images.batch([5])


def test_a_part_shares_the_pixels_and_keeps_ids_and_labels(images: ImageSet) -> None:
    part = images.take([3, 1]).take([1])
    assert part.ids == ("b",)
    assert part.labels is not None
    assert part.labels.tolist() == [1]
    assert part.classes == images.classes
    assert part.pixels is images.pixels
    assert np.array_equal(part.image(0), images.image(1))
    assert np.shares_memory(part.image(0), images.pixels)


def test_a_view_cannot_be_written_to(images: ImageSet) -> None:
    with pytest.raises(ValueError, match="read-only"):
        images.image(0)[:] = 0
    images.pixels[0, 0, 0, 0] = 1


def test_labels_are_required_in_one_line(images: ImageSet) -> None:
    assert images.require_labels("training") is images.labels
    bare = ImageSet("set", images.ids, None, (), SPEC, images.pixels, images.rows)
    assert bare.take([1]).labels is None
    with pytest.raises(DataError, match=r"^training needs labels, and set has none; put the images into"):
        bare.require_labels("training")


def test_a_set_checks_itself(images: ImageSet) -> None:
    with pytest.raises(DataError, match="pixels are uint8 of 3x4x4 each"):
        ImageSet("set", images.ids, None, (), ImageSpec(3, 4, 4), images.pixels, images.rows)
    with pytest.raises(DataError, match="differ in number"):
        ImageSet("set", ("a",), None, (), SPEC, images.pixels, images.rows)
    with pytest.raises(DataError, match="labels run from 0 to 2, but there are 2 classes"):
        ImageSet("set", images.ids, images.labels, ("x", "y"), SPEC, images.pixels, images.rows)


def test_the_reading_line_counts_both_and_names_the_first() -> None:
    assert reading_line(1200, ()) == "read 1,200 images, skipped 0"
    skipped = [Skipped(f"{name}.jpg", "truncated") for name in "abcd"]
    assert reading_line(7, skipped[:1]) == "read 7 images, skipped 1: a.jpg (truncated)"
    assert reading_line(7, skipped).endswith(
        "skipped 4: a.jpg (truncated), b.jpg (truncated), c.jpg (truncated), ..."
    )
