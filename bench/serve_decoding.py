"""What it costs one client that pictures are decoded in another process: searches through HTTP, with and without it.

Both services run in this process over the same gallery, one decoding in processes of its own (as `holdfast serve`
does), the other in its threads; they take turns. Small pictures, and photographs of 640 × 480 pixels. Medians
are compared; the fastest tenth is printed beside them, because on a busy machine a change of process waits for a core.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from _common import report

# isort: split
import httpx
import numpy as np
import torch
from PIL import Image

import _serving
from holdfast.data.decode_pool import DecodePool
from holdfast.data.images import Picture, decode_picture
from holdfast.service.address import listen
from holdfast.service.app import create_app
from holdfast.service.connections import Listener
from holdfast.service.desk import Desk
from holdfast.service.engine import Engine
from holdfast.service.limits import Limits
from holdfast.service.pictures import QueryStore
from holdfast.service.server import Server
from holdfast.spec import ImageSpec


class Here(DecodePool):
    """Decodes in the thread that asks."""

    def picture(self, content: bytes, spec: ImageSpec | None, *, max_pixels: int | None = None) -> Picture:
        return decode_picture(content, spec, max_pixels=max_pixels)


@contextmanager
def running(folder: Path, decoder: DecodePool, name: str) -> Iterator[httpx.Client]:
    """A client of a service in a thread."""
    limits = Limits()
    engine = Engine.open([str(folder / "shop.gallery")])
    desk = Desk(engine, limits, QueryStore(folder / name, limits.cache), decoder)
    listener = listen("127.0.0.1", 0, Listener)
    server = Server(create_app(desk), desk)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
        decoder.close()


def photographs(count: int) -> list[bytes]:
    """Smooth pictures with some noise, as JPEG files of about 100 kB."""
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        large = np.asarray(small.resize((640, 480), Image.Resampling.BICUBIC), dtype=np.float32)
        noisy = np.clip(large + rng.normal(0, 8, large.shape), 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noisy).save(buffer, "JPEG", quality=90)
        found.append(buffer.getvalue())
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--repeats", type=int, default=150)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    ratios = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        _serving.filled(folder, _serving.trained(folder), chosen.count)
        pool = DecodePool()
        pool.warm()
        there = stack.enter_context(running(folder, pool, "there"))
        here = stack.enter_context(running(folder, Here(), "here"))
        for kind, contents in (("small", _serving.pictures(50)), ("photographs", photographs(20))):
            seconds: dict[str, list[float]] = {"there": [], "here": []}
            for number in range(chosen.repeats + 5):
                for where, client in (("there", there), ("here", here)):
                    start = time.perf_counter()
                    _serving.ask(client, contents[number % len(contents)])
                    if number >= 5:
                        seconds[where].append(time.perf_counter() - start)
            child, own = (statistics.median(seconds[where]) for where in ("there", "here"))
            fast = [statistics.quantiles(seconds[where], n=10)[0] for where in ("there", "here")]
            ratios.append(child / own)
            print(
                f"{kind}: {child * 1e3:.2f} ms in another process, {own * 1e3:.2f} ms here, ratio {ratios[-1]:.3f} "
                f"(fastest tenth {fast[0] * 1e3:.2f} and {fast[1] * 1e3:.2f} ms)"
            )
    against = (
        "the same searches with decoding in the service's own threads; the worse of two kinds of pictures"
    )
    return 0 if report("serve_decoding", max(ratios), 1.15, "lower", against) else 1


if __name__ == "__main__":
    sys.exit(main())
