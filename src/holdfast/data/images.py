"""Reading one image file: it is read correctly, or refused with a short reason."""

from __future__ import annotations

import importlib
import io
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile

from holdfast.data.fit import Pixels, draft_size, fit_image, stretch, to_array, to_image
from holdfast.data.modes import flatten
from holdfast.errors import ImageError
from holdfast.spec import ImageSpec

MAX_PIXELS = 64_000_000
MAX_BYTES = 256 * 2**20
MAX_SCANS = 64
"""Of a JPEG: each passes over all pixels, however few bytes it has. Usual are 1 to 12."""

_ENDINGS = "jpg jpeg jpe jfif png gif bmp webp tif tiff ppm pgm pbm pnm avif heic heif"
EXTENSIONS = frozenset(f".{ending}" for ending in _ENDINGS.split())
"""File names that claim to be images; one that cannot be read is reported, not passed over."""

# Only these decoders see untrusted bytes; Pillow has others that start external programs.
_FORMATS = ("Jpeg", "Png", "Gif", "Bmp", "WebP", "Tiff", "Ppm", "Avif")
for _format in _FORMATS:
    with suppress(ImportError):
        importlib.import_module(f"PIL.{_format}ImagePlugin")

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


_TILE_WIDTH, _TILE_HEIGHT = 322, 323  # tags of TIFF


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture as a network takes it, and how far a change of the file's pixels can grow on the way there.

    The file's pixels are those that its decoder gives: upright, in 8 bits, palettes as colours, what is transparent
    laid on white.
    """

    pixels: Pixels
    stretch: float | None = None
    """In ℓ2. None: not known, so that claims are of the network's input only."""


def decode(content: bytes, spec: ImageSpec | None, *, max_pixels: int | None = None) -> Pixels:
    """The pixels of `decode_picture`."""
    return decode_picture(content, spec, max_pixels=max_pixels).pixels


def decode_picture(
    content: bytes,
    spec: ImageSpec | None,
    *,
    max_pixels: int | None = None,
    sized: Callable[[int], None] = lambda pixels: None,
) -> Picture:
    """The image in `content` as C×H×W, upright, brought to `spec` (`None`: its own size and channels, 8 bits).

    Raises ImageError with a short reason for whatever cannot be read whole. At most `max_pixels` (64
    million if it is left out) are decoded; the size is checked before any pixel is, and `sized` is told how many
    there are. Safe to call from several threads.
    """
    if not content:
        raise ImageError("empty file")
    if len(content) > MAX_BYTES:
        raise ImageError(f"too large: {len(content)} bytes")
    with _strict_and_quiet():
        try:
            return _decode(content, spec, MAX_PIXELS if max_pixels is None else max_pixels, sized)
        except ImageError:
            raise
        except Exception as cause:
            # Decoders raise nearly anything on damaged input.
            raise ImageError(_reason(cause)) from cause


def decode_small(
    content: bytes,
    side: int,
    *,
    max_pixels: int | None = None,
    sized: Callable[[int], None] = lambda pixels: None,
) -> NDArray[np.uint8]:
    """The image in `content` in 8 bits, made smaller where a side is above `side`."""
    image = to_image(decode_picture(content, None, max_pixels=max_pixels, sized=sized).pixels)
    image.thumbnail((side, side))
    return to_array(image)


def read_image(path: str | Path, spec: ImageSpec | None = None) -> Pixels:
    """The image file at `path`, as `decode` gives it; the error names the path."""
    return read_picture(path, spec).pixels


def read_picture(path: str | Path, spec: ImageSpec | None = None) -> Picture:
    """The image file at `path`, as `decode_picture` gives it; the error names the path."""
    path = Path(path)
    try:
        if not path.is_file():
            raise ImageError("not a file" if path.exists() else "no such file")
        if path.stat().st_size > MAX_BYTES:
            raise ImageError(f"too large: {path.stat().st_size} bytes")
        return decode_picture(path.read_bytes(), spec)
    except (ImageError, OSError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else str(cause)
        raise ImageError(f"could not read the image {path}: {reason}") from cause


def read_alterable(path: str | Path, spec: ImageSpec) -> NDArray[np.uint8]:
    """The 8-bit pixels that an attacker alters: those of the file where claims are of it, else the network's."""
    return read_image(path, alterable(spec))


def alterable(spec: ImageSpec) -> ImageSpec | None:
    """As what a file is decoded to be altered: in its own size, or as the network sees it."""
    return None if spec.picture == "file" else spec


def fitted(pixels: NDArray[np.uint8], spec: ImageSpec) -> Picture:
    """The picture that `decode_picture` makes of a file with these pixels."""
    return _fitted(to_image(pixels), spec)


def _fitted(image: Image.Image, spec: ImageSpec) -> Picture:
    return Picture(fit_image(image, spec), stretch(*image.size, len(image.getbands()), spec))


def _decode(content: bytes, spec: ImageSpec | None, max_pixels: int, sized: Callable[[int], None]) -> Picture:
    # Two bytes that no coded pixels hold; thumbnails beside them may have a few.
    if content[:2] == b"\xff\xd8" and content.count(b"\xff\xda") > MAX_SCANS:
        raise ImageError("damaged: too many scans")
    if (canvas := _canvas(content)) is not None:
        _check_size(*canvas, max_pixels)
        sized(canvas[0] * canvas[1])
    with _open(content) as image:
        width, height = image.size
        _check_size(width, height, max_pixels)
        tile = _tile(image)
        _check_size(*tile, max_pixels, "a tile of ")
        sized(max(width * height, tile[0] * tile[1]))
        if width * height == 0:
            raise ImageError(f"no pixels: {width}x{height}")
        bicubic = spec if spec is not None and spec.resample == "bicubic" else None
        if bicubic is not None and bicubic.is_of_before:
            # The decoder's own way to shrink is no filter that anything is proved of.
            image.draft(None, draft_size(width, height, bicubic))
        image.load()
        _check_size(*image.size, max_pixels)
        turn = _TURNS.get(_orientation(image))
        flat = flatten(image, None if bicubic is None else bicubic.channels)
    if turn is not None:
        flat = flat.transpose(turn)
    return Picture(to_array(flat)) if spec is None else _fitted(flat, spec)


def _check_size(width: int, height: int, max_pixels: int, what: str = "") -> None:
    if width * height > max_pixels:
        raise ImageError(f"too large: {what}{width}x{height} pixels")


def _canvas(content: bytes) -> tuple[int, int] | None:
    """The size of a WebP picture, for which memory is taken as soon as it is opened; None where it is no WebP."""
    head = content[:30]
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < 25:
        return None
    kind, rest = head[12:16], head[20:].ljust(10, b"\0")
    if kind == b"VP8X":
        return 1 + int.from_bytes(rest[4:7], "little"), 1 + int.from_bytes(rest[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(rest[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(rest[6:8], "little") & 0x3FFF, int.from_bytes(rest[8:10], "little") & 0x3FFF


def _tile(image: ImageFile.ImageFile) -> tuple[int, int]:
    """The size of a TIFF's tiles: each is decoded whole, also where it is larger than the picture."""
    tags = getattr(image, "tag_v2", {})
    width, height = (tags.get(name, 0) for name in (_TILE_WIDTH, _TILE_HEIGHT))
    if not (isinstance(width, int) and isinstance(height, int)):
        raise ImageError("damaged: tiles without a size")
    return width, height


def _open(content: bytes) -> ImageFile.ImageFile:
    """The header only. Image.open would refuse large images itself, without telling their size."""
    for name in _FORMATS:
        if name.upper() not in Image.OPEN:
            continue
        factory, accepts = Image.OPEN[name.upper()]
        if accepts is not None and accepts(content[:16]) is True:
            try:
                return factory(io.BytesIO(content), "")
            except (SyntaxError, IndexError, TypeError, struct.error) as cause:
                raise ImageError("damaged or truncated header") from cause
    raise ImageError("not an image")


def _orientation(image: Image.Image) -> int:
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        return 1  # A damaged EXIF block says nothing about which way is up.
    return found if isinstance(found, int) else 1


def _reason(cause: Exception) -> str:
    text = " ".join(str(cause).split())
    if isinstance(cause, Image.DecompressionBombError):
        return f"too large: more than {MAX_PIXELS} pixels"
    if isinstance(cause, MemoryError):
        return "too large for the memory"
    if isinstance(cause, EOFError) or "truncated" in text.lower():
        return "truncated"
    return f"damaged: {text[:100]}" if text else "damaged"


class _Quiet:
    """How many decodes are running, and what to put back after the last one."""

    lock = threading.Lock()
    running = 0
    warnings: warnings.catch_warnings[None] | None = None
    fill_truncated = False


@contextmanager
def _strict_and_quiet() -> Iterator[None]:
    """Pillow neither warns nor fills in missing data while any thread is inside.

    Both are process-wide settings, so they are changed by the first thread in and put back by the last out.
    """
    with _Quiet.lock:
        if _Quiet.running == 0:
            _Quiet.warnings = warnings.catch_warnings()
            _Quiet.warnings.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")
            _Quiet.fill_truncated = ImageFile.LOAD_TRUNCATED_IMAGES
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        _Quiet.running += 1
    try:
        yield
    finally:
        with _Quiet.lock:
            _Quiet.running -= 1
            if _Quiet.running == 0 and _Quiet.warnings is not None:
                ImageFile.LOAD_TRUNCATED_IMAGES = _Quiet.fill_truncated
                _Quiet.warnings.__exit__(None, None, None)
