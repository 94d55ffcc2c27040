"""Every kind of image file is read correctly, or refused with a reason."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from holdfast.data import images
from holdfast.data.fit import to_8bit
from holdfast.data.images import decode, read_image
from holdfast.errors import ImageError
from holdfast.spec import ImageSpec

SPEC = ImageSpec(3, 16, 24)


def close(found: Any, expected: Any, within: int = 6) -> bool:
    return int(np.abs(np.asarray(found, int) - np.asarray(expected, int)).max()) <= within


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_come_back_exactly(make: Any, kind: str) -> None:
    picture = make.picture()
    assert np.array_equal(decode(make.encoded(picture, kind), None), picture.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("kind", "options"), [("JPEG", {"quality": 95, "subsampling": 0}), ("WEBP", {"lossless": True})]
)
def test_lossy_formats_come_back_nearly(make: Any, kind: str, options: dict[str, Any]) -> None:
    picture = make.picture()
    assert close(decode(make.encoded(picture, kind, **options), None), picture.transpose(2, 0, 1), 12)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied_once(make: Any, kind: str, orientation: int) -> None:
    upright = make.picture(32, 16)
    # What a camera stores so that a viewer, told `orientation`, shows `upright`.
    stored: dict[int, Callable[[Any], Any]] = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    content = make.encoded(np.ascontiguousarray(stored[orientation](upright)), kind, exif=exif, **options)
    found = decode(content, None)
    assert found.shape == (3, 16, 32)
    assert close(found, upright.transpose(2, 0, 1), 30)
    assert decode(content, ImageSpec(3, 8, 16)).shape == (3, 8, 16)


def test_damaged_exif_leaves_the_image_as_it_is(make: Any) -> None:
    content = make.encoded(make.picture(), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff\x00\x12")
    assert decode(content, None).shape == (3, 16, 24)


def test_grey_stays_grey_or_is_repeated(make: Any) -> None:
    grey = make.picture()[:, :, 0].copy()
    content = make.encoded(grey)
    assert np.array_equal(decode(content, None), grey[None])
    assert np.array_equal(to_8bit(decode(content, SPEC)), np.stack([grey] * 3))


def test_colour_becomes_luma(make: Any) -> None:
    picture = make.picture()
    expected = np.rint(picture @ np.array([0.299, 0.587, 0.114]))
    for resample in ("bilinear", "bicubic"):
        found = decode(make.encoded(picture), ImageSpec(1, 16, 24, resample=resample))
        assert close(to_8bit(found)[0], expected, 1)


def test_one_bit_is_black_and_white(make: Any) -> None:
    mask = make.picture()[:, :, 0] > 128
    assert np.array_equal(decode(make.encoded(Image.fromarray(mask)), None)[0], np.where(mask, 255, 0))


def test_palette_gives_its_colours(make: Any) -> None:
    image = Image.new("P", (24, 16), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    assert decode(make.encoded(image), None)[:, 0, 0].tolist() == [10, 200, 30]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_transparent_palette_entries_show_white(make: Any, kind: str) -> None:
    image = Image.new("P", (24, 16), 0)
    image.putpalette([255, 0, 0, 10, 200, 30])
    image.paste(1, (12, 0, 24, 16))
    found = decode(make.encoded(image, kind, transparency=0), None)
    assert found[:, 0, 0].tolist() == [255, 255, 255]
    assert found[:, 0, 20].tolist() == [10, 200, 30]


def test_palette_with_graded_transparency_is_mixed_with_white(make: Any) -> None:
    image = Image.new("P", (24, 16), 0)
    image.putpalette([200, 0, 0])
    assert close(decode(make.encoded(image, transparency=bytes([128])), None)[:, 0, 0], [227, 127, 127], 1)


def test_alpha_is_composited_on_white(make: Any) -> None:
    image = Image.new("RGBA", (24, 16), (200, 100, 0, 51))
    assert close(decode(make.encoded(image), None)[:, 0, 0], [244, 224, 204], 1)
    assert close(decode(make.encoded(Image.new("LA", (24, 16), (100, 51))), None)[:, 0, 0], [224], 1)


def test_colour_key_transparency_shows_white(make: Any) -> None:
    image = Image.new("RGB", (24, 16), (9, 9, 9))
    assert decode(make.encoded(image, transparency=(9, 9, 9)), None)[:, 0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_is_converted(make: Any, kind: str) -> None:
    image = Image.new("CMYK", (24, 16), (0, 255, 255, 0))
    assert close(decode(make.encoded(image, kind), None)[:, 0, 0], [255, 0, 0], 4)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_grey_is_scaled_by_its_range(make: Any, kind: str) -> None:
    values = np.linspace(0, 65535, 24 * 16).astype(np.uint16).reshape(16, 24)
    found = decode(make.encoded(Image.fromarray(values), kind), None)
    assert close(found[0], np.rint(values / 257), 1)
    dark = decode(make.encoded(Image.fromarray(values // 256), kind), None)
    assert dark.max() <= 1, "a dark image stays dark"


def test_wide_integers_and_fractions_are_scaled(make: Any) -> None:
    integers = np.linspace(-70000, 70000, 384).astype(np.int32).reshape(16, 24)
    found = decode(make.encoded(Image.fromarray(integers), "TIFF"), None)[0]
    assert (found.min(), found.max()) == (0, 255)
    fractions = np.linspace(0, 0.5, 384).astype(np.float32).reshape(16, 24)
    assert decode(make.encoded(Image.fromarray(fractions), "TIFF"), None).max() == 128


def test_pixels_that_are_not_numbers_are_refused(make: Any) -> None:
    values = np.full((16, 24), np.nan, dtype=np.float32)
    with pytest.raises(ImageError, match="not finite"):
        decode(make.encoded(Image.fromarray(values), "TIFF"), None)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_counts(make: Any, kind: str) -> None:
    frames = [Image.new("RGB", (24, 16), colour) for colour in ("red", "lime", "blue")]
    content = make.encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert close(decode(content, None)[:, 0, 0], [255, 0, 0], 4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
@settings(max_examples=40, deadline=None)
@given(share=st.floats(0.0, 0.999))
def test_a_cut_file_is_refused_or_whole(kind: str, share: float) -> None:
    content, whole = CUT[kind]
    try:
        found = decode(content[: int(share * len(content))], None)
    except ImageError:
        return
    assert np.array_equal(found, whole)


def _cut_cases() -> dict[str, Any]:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    cases = {}
    for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"):
        buffer = io.BytesIO()
        noise.save(buffer, kind)
        cases[kind] = (buffer.getvalue(), decode(buffer.getvalue(), None))
    return cases


CUT = _cut_cases()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM"])
def test_half_a_file_is_called_truncated(kind: str) -> None:
    content, _ = CUT[kind]
    with pytest.raises(ImageError, match="truncated"):
        decode(content[: len(content) // 2], None)


def test_truncation_is_reported_even_where_pillow_was_told_to_fill_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    content, _ = CUT["JPEG"]
    with pytest.raises(ImageError, match="truncated"):
        decode(content[: len(content) // 2], None)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True, "what others set is put back"


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(sorted(CUT)),
    places=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1),
)
def test_damaged_bytes_never_raise_anything_but_image_error(
    kind: str, places: list[tuple[float, int]]
) -> None:
    content = bytearray(CUT[kind][0])
    for share, value in places:
        content[int(share * len(content))] = value
    try:
        found = decode(bytes(content), SPEC)
    except ImageError:
        return
    assert found.shape == SPEC.shape


def png_header(width: int, height: int) -> bytes:
    """All of a PNG that is read before its pixels are."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"IDAT" + zlib.compress(bytes(64))
    chunks = (
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in (head, body)
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("side", [8_001, 9_500, 30_000])
def test_a_bomb_is_refused_by_its_size_before_it_is_decoded(make: Any, side: int) -> None:
    with pytest.raises(ImageError, match=f"too large: {side}x{side} pixels"):
        decode(png_header(side, side), SPEC)


def test_the_cap_is_on_pixels(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 24 * 16)
    assert decode(make.encoded(make.picture(24, 16)), None).shape == (3, 16, 24)
    with pytest.raises(ImageError, match="too large: 25x16 pixels"):
        decode(make.encoded(make.picture(25, 16)), None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"hello, I am a text", "not an image"),
        (b"\x00" * 4096, "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (b"\xff\xd8\xff", "damaged or truncated"),
    ],
)
def test_what_is_no_image_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        decode(content, SPEC)


def test_a_file_of_too_many_bytes_is_refused(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 100)
    with pytest.raises(ImageError, match="too large: 101 bytes"):
        decode(bytes(101), None)
    with pytest.raises(ImageError, match="too large"):
        read_image(make.file(tmp_path / "a.png"))


def test_reading_a_path_names_it(make: Any, tmp_path: Path) -> None:
    path = make.file(tmp_path / "a.png")
    assert np.array_equal(read_image(path), make.picture().transpose(2, 0, 1))
    for bad, reason in ((tmp_path / "none.png", "no such file"), (tmp_path, "not a file")):
        with pytest.raises(ImageError, match=f"{bad}: {reason}"):
            read_image(bad)


def test_pillow_warnings_do_not_leak_and_the_filters_are_put_back(make: Any) -> None:
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ImageError):
            decode(png_header(9_500, 9_500), None)
        decode(
            make.encoded(make.picture(), "JPEG", exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x09"), None
        )
    assert caught == []
    assert list(warnings.filters) == before


def test_threads_agree_with_one_and_leave_settings_alone(make: Any) -> None:
    contents = [make.encoded(make.picture(seed=seed), "JPEG") for seed in range(24)]
    alone = [decode(content, SPEC) for content in contents]
    before = list(warnings.filters)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda content: decode(content, SPEC), contents * 6))
    finally:
        sys.setswitchinterval(interval)
    assert all(np.array_equal(found, alone[index % 24]) for index, found in enumerate(together))
    assert list(warnings.filters) == before
    assert threading.active_count() < 20


def test_webp_is_read_in_a_process_that_never_wrote_one(tmp_path: Path) -> None:
    """Pillow loads plugins as they are used; reading must not depend on somebody having saved before."""
    Image.new("RGB", (9, 7), (10, 200, 30)).save(tmp_path / "x.webp", lossless=True)
    program = (
        "import sys, pathlib\nfrom holdfast.data import decode\n"
        "print(decode(pathlib.Path(sys.argv[1]).read_bytes(), None).shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "x.webp"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "(3, 7, 9)"


def test_a_jpeg_of_very_many_scans_is_refused_at_once():
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (90, 20, 200)).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    assert decode(content, None).shape == (3, 64, 64)
    last = content.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="damaged: too many scans"):
        decode(content[:-2] + content[last:-2] * 100 + content[-2:], None)
