"""A service in a thread of the test's own process, asked over a real connection."""

from __future__ import annotations

import atexit
import io
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from holdfast.data.decode_pool import DecodePool
from holdfast.service.address import listen
from holdfast.service.app import create_app
from holdfast.service.connections import Listener
from holdfast.service.desk import Desk
from holdfast.service.engine import Engine
from holdfast.service.limits import Limits
from holdfast.service.pictures import QueryStore
from holdfast.service.server import Server

DECODER = DecodePool()
"""Of all services here: its processes start once."""
atexit.register(DECODER.close)


@dataclass(frozen=True)
class Shop:
    """Real pictures, a linear embedder of them, and a gallery with boxes."""

    folder: Path
    pictures: Path
    gallery: Path
    model: str

    def picture(self, number: int = 0) -> bytes:
        return sorted(self.pictures.rglob("*.png"))[number].read_bytes()


def png(height: int = 28, width: int = 28, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def bomb(side: int) -> bytes:
    """A picture of many pixels in few bytes."""
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


@contextmanager
def running(app, desk):
    """A client of `app`, which is served on a free port until the block ends."""
    listener = listen("127.0.0.1", 0, Listener)
    server = Server(app, desk)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
    assert not thread.is_alive()


@contextmanager
def serving(shop, folder, *, galleries=None, keys=None, writable=False, limits=None, hosts=None):
    """A client of a service of the shop's gallery, and its desk."""
    limits = limits or Limits()
    engine = Engine.open(galleries or [str(shop.gallery)], [shop.model], writable=writable)
    desk = Desk(engine, limits, QueryStore(Path(folder) / "queries", limits.cache), DECODER)
    options = {} if hosts is None else {"hosts": hosts}
    with running(create_app(desk, keys, **options), desk) as client:
        yield client, desk


def ask(client, content, *, path="search", name="q.png", headers=None, **fields):
    """A search for an uploaded picture."""
    files = None if content is None else {"image": (name, content)}
    if files is None:
        files = {key: (None, str(value)) for key, value in fields.items()}
        fields = {}
    return client.post(f"/api/v1/{path}", files=files, data=fields, headers=headers)


def problem(answer, status, says):
    """The answer is a problem of this status whose sentence says so."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert set(body) == {"type", "title", "status", "detail"}
    assert body["status"] == status
    assert says in body["detail"], body
    return body
