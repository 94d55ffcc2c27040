"""Files made to do harm: small ones that decode to much, ones that say one size and hold another, and damaged ones."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image


def tiled(tile: int, picture: int = 64, *, whole: bool = True) -> bytes:
    """A small TIFF with one tile, which may be much larger than the picture: `tile`² bytes of zeros if it is whole."""
    packer, block = zlib.compressobj(1), bytes(2**20)
    blocks = 1 + (tile * tile >> 20) if whole else 1
    payload = b"".join(packer.compress(block) for _ in range(blocks)) + packer.flush()
    tags = [(256, picture), (257, picture), (258, 8), (259, 8), (262, 1), (277, 1), (284, 1), (322, tile)]
    tags += [(323, tile), (324, 8 + 2 + 12 * 11 + 4), (325, len(payload))]
    lines = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + lines + bytes(4) + payload


def webp(width: int, height: int) -> bytes:
    """34 bytes that announce a picture."""
    body = b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + bytes(9)
    return b"RIFF" + struct.pack("<I", 26) + b"WEBPVP8L" + struct.pack("<I", len(body)) + body


def avif(side: int, claimed: int) -> bytes:
    """A frame of `side` × `side` pixels in a box that says `claimed`."""
    content = bytearray(encoded(Image.new("L", (side, side)), "AVIF", speed=10, quality=1))
    place = content.index(b"ispe") + 8
    content[place : place + 8] = struct.pack(">II", claimed, claimed)
    return bytes(content)


def scans(side: int, count: int) -> bytes:
    """A TIFF whose JPEG strip has its last scan many times over: each passes over all pixels."""
    found = encoded(Image.new("L", (side, side), 90), "JPEG", progressive=True, quality=20)
    last = found.rindex(b"\xff\xda")
    strip = found[:last] + found[last:-2] * count + b"\xff\xd9"
    tags = [(256, side), (257, side), (258, 8), (259, 7), (262, 1), (273, 8 + 2 + 12 * 9 + 4), (277, 1)]
    tags += [(278, side), (279, len(strip))]
    lines = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + lines + bytes(4) + strip


def animated(kind: str, side: int, frames: int) -> bytes:
    """Many frames, of which a search needs one."""
    pictures = [Image.new("L", (side, side), number % 256) for number in range(frames)]
    return encoded(pictures[0], kind, save_all=True, append_images=pictures[1:])


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def crafted() -> dict[str, bytes]:
    """One of each trick, by its name."""
    return {
        "TIFF with a tile of 530 million pixels": tiled(23_000),
        "TIFF with a tile of 36 million pixels": tiled(6_000),
        "TIFF with 90 JPEG scans": scans(5_000, 90),
        "TIFF with 2,000 JPEG scans": scans(5_000, 2_000),
        "WebP of 268 million pixels in 34 bytes": webp(16_383, 16_383),
        "WebP of 39 million pixels in 34 bytes": webp(16_383, 2_400),
        "AVIF frame of 25 million pixels in a box of 64 x 64": avif(5_000, 64),
        "PNG of 39 million pixels in few bytes": encoded(Image.new("1", (6_250, 6_250)), "PNG"),
        "PNG of 100 million pixels in few bytes": encoded(Image.new("1", (10_000, 10_000)), "PNG"),
        "GIF of 500 frames": animated("GIF", 400, 500),
        "WebP of 100 frames": animated("WEBP", 400, 100),
    }


def damaged(count: int, seed: int = 0) -> Iterator[bytes]:
    """Pictures of all formats with bytes changed, cut off or repeated."""
    rng = np.random.default_rng(seed)
    noise = Image.fromarray(rng.integers(0, 256, (60, 60, 3), dtype=np.uint8))
    kinds = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF")
    whole = [encoded(noise, kind) for kind in kinds]
    whole += [encoded(noise, "TIFF", compression=how) for how in ("jpeg", "tiff_lzw", "tiff_deflate")]
    for number in range(count):
        content = bytearray(whole[number % len(whole)])
        for _ in range(int(rng.integers(1, 12))):
            # Most of the harm can be done near the beginning, where sizes and offsets are.
            most = len(content) if rng.random() < 0.3 else min(300, len(content))
            content[int(rng.integers(0, most))] = int(rng.integers(0, 256))
        if rng.random() < 0.2:
            del content[int(rng.integers(1, len(content))) :]
        yield bytes(content)
