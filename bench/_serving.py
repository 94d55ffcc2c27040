"""A gallery of many vectors and a real service of it, for the benchmarks of the service."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from holdfast import data
from holdfast.gallery import Gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.models import Embedder
from holdfast.training import parse, train

K = 10
DIM = 128
JITTER = 0.05


def trained(folder: Path, steps: int = 60) -> Embedder:
    """A small network of 128 numbers, trained for a moment with its bounds in view."""
    settings = {
        "data": {"name": "fashion-mnist-mini", "validation": 0},
        "model": {"name": "small", "dim": DIM},
        "defence": {"name": "certified-rank", "eps": 0.05, "ramp_start": 0.0, "ramp_end": 0.5, "boxes": 64},
        "train": {"batch": 160, "lr": 0.003, "clip": 10, "steps": steps},
    }
    return train(parse(settings), folder / "run", say=lambda line: None).embedder


def filled(folder: Path, embedder: Embedder, count: int) -> NDArray[np.float32]:
    """A gallery of `count` vectors at folder/shop.gallery: real embeddings, repeated with jitter. Gives them too."""
    own = embedder.embed(data.load("fashion-mnist-mini").train).numpy()
    rng = np.random.default_rng(0)
    vectors = own[np.arange(count) % len(own)]
    spread = (JITTER * own.std(axis=0)).astype(np.float32)
    info = embedder_info(embedder)
    with Gallery.create(folder / "shop.gallery", dim=embedder.dim, embedder=info) as gallery:
        for first in range(0, count, 100_000):
            part = vectors[first : first + 100_000]
            part += spread * rng.standard_normal(part.shape, dtype=np.float32)
            gallery.add([f"image-{first + row:07d}" for row in range(len(part))], part)
    return vectors


def pictures(count: int) -> list[bytes]:
    """Real pictures as PNG files."""
    images = data.load("fashion-mnist-mini").test
    out = []
    for number in range(count):
        buffer = io.BytesIO()
        Image.fromarray(np.asarray(images.image(number))[0]).save(buffer, "PNG")
        out.append(buffer.getvalue())
    return out


@contextmanager
def served(
    folder: Path, *options: str, files: int | None = None, lines: list[str] | None = None
) -> Iterator[tuple[str, int]]:
    """The address of a service of that gallery in a process of its own, and the process's id.

    `files` is how many it may open; what it logs is added to `lines`.
    """
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "serve"]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    process = subprocess.Popen(
        [*command, str(folder / "shop.gallery"), "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    try:
        assert process.stderr is not None
        address = ""
        for line in process.stderr:
            said = json.loads(line)
            address = said.get("address", address)
            if said["event"] == "ready":
                break
        else:
            raise SystemExit("the service did not start")
        # Its log is read, and forgotten unless it is wanted, so that the pipe does not fill.
        kept: list[str] | deque[str] = deque(maxlen=0) if lines is None else lines
        reading = threading.Thread(target=lambda: kept.extend(process.stderr or ()), daemon=True)
        reading.start()
        try:
            yield address, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            reading.join(60)
            process.stderr.close()
    finally:
        process.send_signal(signal.SIGTERM)
        if process.wait(60) != 0:
            print(f"the service ended with {process.returncode}", file=sys.stderr)


def ask(client: httpx.Client, content: bytes, path: str = "search", **fields: str) -> dict[str, object]:
    """One search; anything but an answer ends the benchmark."""
    files = {"image": ("q.png", content)}
    answer = client.post(f"/api/v1/{path}", files=files, data={"k": str(K), **fields})
    if answer.status_code != 200:
        raise SystemExit(f"{path}: {answer.status_code} {answer.text}")
    return dict(answer.json())


def load(address: str, contents: Sequence[bytes], clients: int, requests: int) -> tuple[float, list[float]]:
    """`requests` searches by so many clients at once: the seconds for all, and for each."""
    each: list[float] = []
    left = iter(range(requests))
    lock = threading.Lock()

    def work() -> None:
        with httpx.Client(base_url=address, timeout=120) as client:
            while True:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                start = time.perf_counter()
                ask(client, contents[number % len(contents)])
                with lock:
                    each.append(time.perf_counter() - start)

    start = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start, each
