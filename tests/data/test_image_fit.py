"""Bringing images to a spec."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from holdfast.data.fit import fit_arrays, fit_box, fit_image, stretch, to_8bit, to_channels, to_image, weights
from holdfast.data.images import decode
from holdfast.errors import ConfigError
from holdfast.spec import ImageSpec

sides = st.integers(1, 400)
FILTERS = st.sampled_from(["bilinear", "bicubic"])


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
@given(
    width=sides,
    height=sides,
    to=st.integers(1, 64),
    fit=st.sampled_from(["crop", "squash"]),
    resample=FILTERS,
)
def test_any_size_can_be_fitted(width: int, height: int, to: int, fit: Any, resample: Any) -> None:
    image = Image.new("RGB", (width, height), (10, 20, 30))
    found = to_8bit(fit_image(image, ImageSpec(3, to, to, fit, resample)))
    assert found.shape == (3, to, to)
    assert (found == np.array([10, 20, 30])[:, None, None]).all()


def test_crop_cuts_the_sides_and_squash_keeps_them() -> None:
    image = Image.new("L", (60, 20), 255)
    image.paste(0, (20, 0, 40, 20))
    for resample in ("bilinear", "bicubic"):
        assert to_8bit(fit_image(image, ImageSpec(1, 20, 20, "crop", resample))).max() == 0
        assert to_8bit(fit_image(image, ImageSpec(1, 20, 20, "squash", resample)))[0, 10, 1] == 255


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_shrinking_averages_instead_of_sampling(make: Any, kind: str) -> None:
    board = (np.indices((512, 512)).sum(axis=0) % 2 * 255).astype(np.uint8)
    for resample in ("bilinear", "bicubic"):
        found = to_8bit(decode(make.encoded(board, kind), ImageSpec(1, 16, 16, resample=resample)))
        assert np.abs(found.astype(int) - 127).max() <= 3


def test_a_large_jpeg_shrunk_by_its_decoder_looks_like_the_whole(make: Any) -> None:
    board = np.kron(np.indices((40, 56)).sum(axis=0) % 2 * 255, np.ones((16, 16))).astype(np.uint8)
    content = make.encoded(board, "JPEG", quality=95)
    for side in (64, 100, 160):
        spec = ImageSpec(1, side, side, resample="bicubic")
        whole = fit_image(Image.fromarray(board), spec)
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
        assert np.array_equal(found, to_8bit(decode(make.encoded(to_image(image)), spec)))


@settings(max_examples=60, deadline=None)
@given(
    width=sides,
    height=sides,
    to=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    fit=st.sampled_from(["crop", "squash"]),
    channels=st.sampled_from([(1, 1), (1, 3), (3, 1), (3, 3)]),
    seed=st.integers(0, 999),
)
def test_bilinear_is_the_linear_map_of_its_weights(
    width: int, height: int, to: tuple[int, int], fit: Any, channels: tuple[int, int], seed: int
) -> None:
    own, wanted = channels
    picture = np.random.default_rng(seed).integers(0, 256, (own, height, width), dtype=np.uint8)
    spec = ImageSpec(wanted, *to, fit)
    rows, columns = (one.dense() for one in weights(width, height, spec))
    for matrix in (rows, columns):
        assert matrix.min() >= 0
        assert matrix.sum(1) == pytest.approx(1, abs=1e-12)
    colour = {(3, 1): [[0.299, 0.587, 0.114]], (1, 3): [[1]] * 3}.get(channels, np.eye(own))
    expected = np.einsum("cd,dhw->chw", np.array(colour), rows @ (picture / 255) @ columns.T)
    found = fit_image(to_image(picture), spec)
    assert found.dtype == np.float32
    assert found == pytest.approx(expected, abs=2.0**-23 if channels != (3, 1) else 1e-5)


@pytest.mark.parametrize(
    ("size", "channels", "expected"),
    [
        ((16, 16), (1, 1), 4.0),  # Enlarged fourfold, each pixel counts in 16 places.
        ((64, 64), (3, 3), 1.0),
        ((64, 64), (1, 3), 3**0.5),
        ((256, 256), (3, 3), 9 / 32),  # The borders, where weights are shared by fewer.
        ((64, 64), (3, 1), 0.6687),
    ],
)
def test_the_stretch_of_known_sizes(
    size: tuple[int, int], channels: tuple[int, int], expected: float
) -> None:
    found = stretch(*size, channels[0], ImageSpec(channels[1], 64, 64))
    assert found == pytest.approx(expected, rel=1e-3)


def test_bicubic_says_nothing_of_the_file() -> None:
    assert stretch(10, 10, 3, ImageSpec(3, 5, 5, resample="bicubic")) is None


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)), to=st.integers(1, 40), seed=st.integers(0, 999)
)
def test_no_change_of_the_file_grows(size: tuple[int, int], to: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    spec = ImageSpec(3, to, to)
    own = chance.integers(0, 256, (3, size[1], size[0]))
    levels = int(chance.integers(1, 9))
    signs = chance.choice([-1, 1], own.shape) if seed % 2 else np.full(own.shape, 1)
    altered = np.clip(own + levels * signs, 0, 255)
    before, after = (fit_image(to_image(p.astype(np.uint8)), spec).astype(np.float64) for p in (own, altered))
    assert np.abs(after - before).max() <= levels / 255 + 2.0**-22
    moved = np.linalg.norm((altered - own) / 255)
    grown = stretch(*size, 3, spec)
    assert grown is not None
    assert np.linalg.norm(after - before) <= grown * moved + before.size**0.5 * 2.0**-22


def test_known_changes_of_a_file_do_not_grow() -> None:
    """18 columns to 6: up by 4 levels where a wide filter is positive, down where bicubic's is negative.

    Bicubic turns that into more than 4 levels; and what a mean is, it stays, also between two levels.
    """
    spec = ImageSpec(1, 6, 6)
    centre = np.abs(np.arange(18) + 0.5 - 7.5) < 3
    own = np.full((1, 18, 18), 128, dtype=np.uint8)
    altered = own.astype(np.int64)
    altered += np.where(centre[:, None] == centre[None], 4, -4)
    for resample, grows in (("bilinear", False), ("bicubic", True)):
        before, after = (
            fit_image(to_image(p.astype(np.uint8)), replace(spec, resample=resample)) for p in (own, altered)
        )
        scale = 255 if before.dtype == np.float32 else 1
        levels = np.abs(after.astype(np.float64) - before.astype(np.float64)).max() * scale
        assert (levels > 4 + 255 * 2.0**-22) == grows, resample
    corner = np.array([[[0, 1], [1, 1]]], dtype=np.uint8)
    assert fit_image(to_image(corner), ImageSpec(1, 1, 1)).item() == pytest.approx(0.75 / 255, abs=2.0**-23)


@settings(max_examples=60, deadline=None)
@given(width=sides, height=sides, to=st.integers(1, 40), more=st.integers(0, 20), shorter=st.booleans())
def test_resizing_before_the_cut_is_one_step(
    width: int, height: int, to: int, more: int, shorter: bool
) -> None:
    """The same numbers as Pillow's, which resizes to whole pixels and cuts whole pixels out."""
    resize = to + more if shorter else (to + more, to)
    spec = ImageSpec(1, to, to, resize=resize)
    pixels = np.random.default_rng(width * 401 + height).integers(0, 256, (height, width), dtype=np.uint8)
    image = Image.fromarray(pixels)
    rows, columns = (to + more, to)
    if shorter:
        long = int((to + more) * max(width, height) / min(width, height))
        rows, columns = (long, to + more) if width <= height else (to + more, long)
    whole = image.convert("F").resize((columns, rows), Image.Resampling.BILINEAR)
    top, left = (rows - to) // 2, (columns - to) // 2
    wanted = np.asarray(whole.crop((left, top, left + to, top + to))) / 255
    found = fit_image(image, spec)
    assert np.abs(found[0] - wanted).max() < 2e-4  # The part of a picture is kept in float32.
    by_rows, by_columns = (one.dense() for one in weights(width, height, spec))
    assert np.abs(by_rows @ (pixels / 255) @ by_columns.T - found[0]).max() < 1e-6


def test_a_cut_that_does_not_fit_is_refused() -> None:
    for resize in (31, (32, 31), (32, 32, 32), 5000):
        with pytest.raises(ConfigError, match="resized to at least the 32x32"):
            ImageSpec(3, 32, 32, resize=resize)  # type: ignore[arg-type]


def test_a_spec_of_before_is_described_as_it_was() -> None:
    assert "resize" not in ImageSpec(3, 32, 32).describe()
    described = ImageSpec(3, 32, 32, resize=(40, 36)).describe()
    assert ImageSpec(**json.loads(json.dumps(described))) == ImageSpec(3, 32, 32, resize=(40, 36))
    assert not ImageSpec(3, 32, 32, resample="bicubic", resize=32).is_of_before
