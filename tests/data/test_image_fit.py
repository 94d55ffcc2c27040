"""Bringing images to a spec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from holdfast.data.fit import fit_arrays, fit_box, fit_image, to_array, to_channels, to_image
from holdfast.data.images import decode
from holdfast.spec import ImageSpec

sides = st.integers(1, 400)


@given(width=sides, height=sides, to_width=sides, to_height=sides)
def test_the_cropped_box_is_inside_centred_and_of_the_right_shape(
    width: int, height: int, to_width: int, to_height: int
) -> None:
    left, top, right, bottom = fit_box(width, height, ImageSpec(1, to_height, to_width))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert (left + right, top + bottom) == pytest.approx((width, height))
    assert (right - left) * to_height == pytest.approx((bottom - top) * to_width, rel=1e-6)
    assert right - left == pytest.approx(width) or bottom - top == pytest.approx(height)


@settings(max_examples=60, deadline=None)
@given(width=sides, height=sides, to=st.integers(1, 64), fit=st.sampled_from(["crop", "squash"]))
def test_any_size_can_be_fitted(width: int, height: int, to: int, fit: Any) -> None:
    image = Image.new("RGB", (width, height), (10, 20, 30))
    found = to_array(fit_image(image, ImageSpec(3, to, to, fit)))
    assert found.shape == (3, to, to)
    assert (found == np.array([10, 20, 30])[:, None, None]).all()


def test_crop_cuts_the_sides_and_squash_keeps_them() -> None:
    image = Image.new("L", (60, 20), 255)
    image.paste(0, (20, 0, 40, 20))
    assert to_array(fit_image(image, ImageSpec(1, 20, 20))).max() == 0
    assert to_array(fit_image(image, ImageSpec(1, 20, 20, "squash")))[0, 10, 1] == 255


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_shrinking_averages_instead_of_sampling(make: Any, kind: str) -> None:
    board = (np.indices((512, 512)).sum(axis=0) % 2 * 255).astype(np.uint8)
    found = decode(make.encoded(board, kind), ImageSpec(1, 16, 16))
    assert np.abs(found.astype(int) - 127).max() <= 3


def test_a_large_jpeg_shrunk_by_its_decoder_looks_like_the_whole(make: Any) -> None:
    board = np.kron(np.indices((40, 56)).sum(axis=0) % 2 * 255, np.ones((16, 16))).astype(np.uint8)
    content = make.encoded(board, "JPEG", quality=95)
    for side in (64, 100, 160):
        spec = ImageSpec(1, side, side)
        whole = to_array(fit_image(Image.fromarray(board), spec))
        assert np.abs(decode(content, spec).astype(int) - whole).mean() <= 6


def test_arrays_turn_grey_as_pillow_does(make: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 9, 7), dtype=np.uint8)
    expected = np.stack([np.asarray(to_image(image).convert("L"))[None] for image in pixels])
    assert np.array_equal(to_channels(pixels, 1), expected)
    assert np.array_equal(to_channels(expected, 3), np.concatenate([expected] * 3, axis=1))
    assert to_channels(pixels, 3) is pixels


@pytest.mark.parametrize("spec", [ImageSpec(3, 9, 7), ImageSpec(1, 12, 12), ImageSpec(3, 4, 6, "squash")])
@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_are_fitted_as_files_are(make: Any, spec: ImageSpec, channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, channels, 9, 7), dtype=np.uint8)
    out = np.empty((4, *spec.shape), dtype=np.uint8)
    fit_arrays(pixels, spec, out)
    for image, found in zip(pixels, out, strict=True):
        assert np.array_equal(found, decode(make.encoded(to_image(image)), spec))
