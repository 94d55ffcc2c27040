"""Attempts against certified claims through the doors that users take: files, and the HTTP service.

A query file is altered at its own size by whole levels of its 8-bit pixels, saved, decoded, resized and searched for.
An attempt breaks a claim if a certified hit leaves the first k, or a hit leaves its rank interval.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from _attempts import Tally
from _serving import ask, served
from holdfast import models, wrap
from holdfast.api import index
from holdfast.attacks import as_access
from holdfast.attacks.resized import Resized
from holdfast.data import decode, read_image
from holdfast.data.fit import to_image
from holdfast.gallery import Gallery, Hits
from holdfast.gallery.building import open_and_index
from holdfast.gallery.searching import search
from holdfast.methods import IN_SEARCH
from holdfast.models import Embedder
from holdfast.spec import ImageSpec
from holdfast.threat import Threat

Bytes = NDArray[np.uint8]
SIZES = ((41, 33), (9, 21), (12, 12), (64, 48), (96, 96), (5, 30))
FITS = ("crop", "squash")
CANDIDATES, K = 24, 8
_PROGRAM = """
import sys
sys.path.insert(0, {bench!r})
from _doors import colour_network
net = colour_network()
"""


def try_files(attempts: int) -> Tally:
    """Attempts on altered query files, on networks of both fits, grey and colour."""
    tally = Tally()
    turns = [(fit, channels) for fit in FITS for channels in (1, 3)]
    for number, (fit, channels) in enumerate(turns):
        with tempfile.TemporaryDirectory() as name:
            embedder = _network(ImageSpec(channels, 12, 12, fit), number)  # type: ignore[arg-type]
            with index(embedder, str(_photos(Path(name))), Path(name) / "shop.gallery") as gallery:
                tally.add(_tried(gallery, embedder, Path(name), attempts // len(turns), number))
    return tally


def try_service(attempts: int) -> Tally:
    """Attempts by HTTP: an altered picture is uploaded, and its answer held against the certified one."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net.py").write_text(_PROGRAM.format(bench=str(Path(__file__).parent)))
        made_by = folder / "net.py:net"
        embedder = models.find(made_by)
        assert isinstance(embedder, Embedder)
        gallery, _ = open_and_index(embedder, str(_photos(folder)), folder / "shop.gallery")
        with gallery:
            vectors = gallery.vectors(list(gallery.ids()))
        with (
            served(folder, "--model", str(made_by)) as (address, _),
            httpx.Client(base_url=address, timeout=60) as client,
        ):
            for place, size in enumerate(SIZES):
                levels = 1 + place % 3
                clean = np.asarray(_picture(size, 3 + place)).transpose(2, 0, 1)
                fields = {"threat": f"linf:{levels}/255", "method": IN_SEARCH[place % 3]}
                proved = ask(client, _file(clean), "search/certified", **fields)
                kept = {hit["id"] for hit in proved["hits"] if hit["verdict"] == "CERTIFIED"}  # type: ignore[attr-defined]
                tally.claimed += len(kept)
                tally.comparisons += K
                share = attempts * (place + 1) // len(SIZES) - attempts * place // len(SIZES)
                for altered in _altered(embedder, clean, vectors, levels, share, place):
                    found = {hit["id"] for hit in ask(client, _file(altered))["hits"]}  # type: ignore[attr-defined]
                    tally.attempts += 1
                    tally.violations += not kept <= found
    return tally


def _tried(gallery: Gallery, embedder: Embedder, folder: Path, attempts: int, seed: int) -> Tally:
    tally, each = Tally(), attempts // len(SIZES)
    ids = list(gallery.ids())
    vectors = gallery.vectors(ids).astype(np.float64)
    for place, size in enumerate(SIZES):
        levels = 1 + place % 3
        file = folder / "query.png"
        _picture(size, 3 + place + 100 * seed).save(file)
        clean = read_image(file)
        claims = [
            search(
                gallery,
                embedder,
                read_image(file, embedder.spec),
                K,
                certify=Threat.parse(f"linf:{levels}/255"),
                method=method,
            )
            for method in IN_SEARCH
        ]
        for claim in claims:
            tally.comparisons += len(claim.hits)
            tally.claimed += claim.certified
        for altered in _altered(embedder, clean, vectors, levels, each, seed + place):
            seen = embedder.embed(decode(_file(altered), embedder.spec)[None]).double().numpy()
            away = dict(zip(ids, np.linalg.norm(vectors - seen, axis=1), strict=True))
            tally.attempts += 1
            tally.violations += any(_broken(claim, away) for claim in claims)
    return tally


def _broken(claim: Hits, away: dict[str, float]) -> bool:
    every = np.array(list(away.values()))
    for entry in claim.to_dict()["hits"]:
        own = away[entry["id"]]
        best, worst = 1 + int((every < own).sum()), int((every <= own).sum())
        lost = entry["verdict"] == "CERTIFIED" and worst > K
        if lost or best < entry["best"] or worst > entry["worst"]:
            return True
    return False


def _altered(
    embedder: Embedder, clean: Bytes, vectors: NDArray[np.floating], levels: int, count: int, seed: int
) -> Iterator[Bytes]:
    """Files within so many levels of `clean`: corners along gradients through the resize, points, random corners."""
    chance = np.random.default_rng(seed)
    access = Resized(as_access(embedder), clean.shape, embedder.spec)
    x = torch.from_numpy(clean / 255).float()[None]
    for number in range(count):
        kind = number % 4
        if kind == 0:
            change = chance.choice([-levels, levels], clean.shape)
        elif kind == 1:
            change = chance.integers(-levels, levels + 1, clean.shape)
        else:
            one, other = vectors[chance.integers(len(vectors), size=2)]
            way = torch.from_numpy(one - other).float()
            start = (x + levels / 255 * (2 * torch.rand_like(x) - 1) * (kind - 2)).clamp(0, 1)
            with access.ready():
                start.requires_grad_()
                (slope,) = torch.autograd.grad(access.embed(start)[0] @ way, start)
            change = levels * np.sign(slope[0].numpy()).astype(np.int64)
        yield np.clip(clean + change, 0, 255).astype(np.uint8)


def colour_network() -> Embedder:
    """The network of the service."""
    return _network(ImageSpec(3, 12, 12), 0)


def _network(spec: ImageSpec, seed: int) -> Embedder:
    torch.manual_seed(seed)
    parts = spec.channels * 9
    return wrap(
        nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(parts, 24), nn.ReLU(), nn.Linear(24, 6)), spec
    )


def _photos(folder: Path) -> Path:
    photos = folder / "photos"
    photos.mkdir()
    for number in range(CANDIDATES):
        _picture(SIZES[number % len(SIZES)], number).save(photos / f"{number:02d}.png")
    return photos


def _picture(size: tuple[int, int], seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(10, 246, (3, 3, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR)


def _file(pixels: Bytes) -> bytes:
    buffer = io.BytesIO()
    to_image(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
