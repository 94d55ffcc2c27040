"""Pictures are decoded in other processes: the same pixels, and files made to do harm end nothing but those."""

from __future__ import annotations

import importlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast.data.decode_pool import DecodePool
from holdfast.data.decode_worker import Budget
from holdfast.data.images import decode_picture, decode_small
from holdfast.deadline import Deadline, running
from holdfast.errors import DecoderError, ImageError, OutOfTimeError
from holdfast.spec import ImageSpec

SPEC = ImageSpec(3, 24, 24)


@pytest.fixture(scope="module")
def pool():
    made = DecodePool(1)
    yield made
    made.close()


def encoded(kind: str, side: int = 40, mode: str = "RGB", **options) -> bytes:
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def hostile(monkeypatch):
    """Files made to do harm, as the benchmark has them."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    return importlib.import_module("_hostile")


def pid(pool: DecodePool) -> int:
    with pool._worker() as worker:
        return worker._process.pid


@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "RGBA"), ("JPEG", "L"), ("WEBP", "RGB"), ("GIF", "P"), ("TIFF", "CMYK")]
)
@pytest.mark.parametrize("spec", [SPEC, ImageSpec(1, 50, 30, resample="bicubic"), None])
def test_the_pixels_are_those_that_are_decoded_here(pool, kind, mode, spec):
    content = encoded(kind, mode=mode)
    here, there = decode_picture(content, spec), pool.picture(content, spec)
    assert there.pixels.dtype == here.pixels.dtype
    assert np.array_equal(there.pixels, here.pixels)
    assert there.stretch == here.stretch
    assert np.array_equal(pool.small(content, 16), decode_small(content, 16))


def test_what_cannot_be_read_is_said_and_the_process_stays(pool, hostile):
    before = pid(pool)
    for content, says in [
        (b"", "empty file"),
        (b"hello", "not an image"),
        (encoded("PNG")[:60], "truncated"),
        (encoded("PNG", 2000, "1"), "too large: 2000x2000 pixels"),
        (hostile.tiled(30_000, whole=False), "too large: a tile of 30000x30000 pixels"),
        (hostile.webp(16383, 16383), "too large: 16383x16383 pixels"),
    ]:
        with pytest.raises(ImageError, match=says):
            pool.picture(content, SPEC, max_pixels=1_000_000)
    assert pid(pool) == before


def test_too_much_memory_or_time_ends_the_process_and_not_this_one():
    content = encoded("PNG", 1500, compress_level=1)
    small = DecodePool(1, Budget(memory=2**22, memory_per_pixel=1))
    first = pid(small)
    with pytest.raises(ImageError, match="too large: it takes too much memory to decode"):
        small.picture(content, SPEC)
    assert pid(small) != first
    small.close()
    slow = DecodePool(1, Budget(seconds=0.01, seconds_per_pixel=0))
    first = pid(slow)
    with pytest.raises(ImageError, match="too large: it takes too much processor time to decode"):
        slow.picture(content, SPEC)
    assert pid(slow) != first
    slow.close()


def test_what_is_larger_inside_than_it_says_stays_within_its_budget(pool, hostile):
    small = DecodePool(1, Budget(memory=2**22))
    with pytest.raises(ImageError):
        small.picture(hostile.avif(3000, 8), SPEC)
    for kind in ("GIF", "WEBP"):
        assert small.picture(hostile.animated(kind, 30, 20), SPEC).pixels.shape == SPEC.shape
    small.close()
    with pytest.raises(ImageError):
        pool.picture(hostile.scans(200, 2_000), SPEC)


def test_deadlines_hold_while_a_process_decodes(pool):
    content, first = encoded("PNG"), pid(pool)
    os.kill(first, signal.SIGSTOP)  # As if it took for ever.
    with running(Deadline(0.2)), pytest.raises(OutOfTimeError):
        pool.picture(content, SPEC)
    assert pid(pool) != first
    gone = Deadline(60)
    threading.Timer(0.1, gone.cancel).start()
    start = time.monotonic()
    with running(gone), pytest.raises(OutOfTimeError), pool._worker():
        pool.picture(content, SPEC)  # Waits for the one process, which is taken.
    assert time.monotonic() - start < 5


def test_a_process_that_dies_is_replaced(pool):
    os.kill(pid(pool), signal.SIGKILL)
    time.sleep(0.05)
    assert pool.picture(encoded("PNG"), SPEC).pixels.shape == SPEC.shape
    content, number = encoded("PNG"), pid(pool)
    os.kill(number, signal.SIGSTOP)
    threading.Timer(0.1, os.kill, (number, signal.SIGKILL)).start()
    with pytest.raises(ImageError, match="the decoder failed on it"):
        pool.picture(content, SPEC)
    assert pool.picture(encoded("PNG"), SPEC).pixels.shape == SPEC.shape


def test_threads_share_the_processes():
    pool, content, errors = DecodePool(2), encoded("JPEG", 300), []
    expected = decode_picture(content, SPEC).pixels

    def work():
        for _ in range(10):
            if not np.array_equal(pool.picture(content, SPEC).pixels, expected):
                errors.append("other pixels")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert errors == []
    with pytest.raises(DecoderError, match="ending"):
        pool.picture(content, SPEC)


def test_a_process_that_decodes_loads_little_and_is_told_no_secrets(pool, monkeypatch):
    program = "import sys, holdfast.data.decode_worker; print('torch' in sys.modules, 'faiss' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    fresh = DecodePool(1)
    with open(f"/proc/{pid(fresh)}/environ") as file:
        assert "s3cret" not in file.read()
    fresh.close()
