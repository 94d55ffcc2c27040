"""Claims about a file hold for the file: it is altered at its own size, saved, decoded, resized and searched."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from holdfast import wrap
from holdfast.attacks import as_access
from holdfast.attacks.resized import Resized
from holdfast.certificate import Verdict
from holdfast.certify.files import Way, at_network
from holdfast.certify.smoothing import parse_smoothing
from holdfast.data import decode, fitted, read_image, read_picture
from holdfast.data.fit import to_image
from holdfast.gallery.searching import search
from holdfast.gallery.smoothed import smoothed
from holdfast.models import Embedder
from holdfast.spec import ImageSpec
from holdfast.threat import Threat
from holdfast.workflow import index

SIZES = [(40, 30), (9, 21), (12, 12), (64, 64)]
"""Width and height of the files: larger than the network's input, smaller, equal."""
LEVELS = 1


def small_net(resample: str = "bilinear", seed: int = 0) -> Embedder:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(27, 24), nn.ReLU(), nn.Linear(24, 6))
    return wrap(network, ImageSpec(3, 12, 12, resample=resample))


def picture(size: tuple[int, int], seed: int) -> Image.Image:
    """A few smooth colours: pictures of noise all look alike once they are small."""
    coarse = np.random.default_rng(seed).integers(20, 236, (3, 3, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(16):
        picture(SIZES[number % 4], number).save(folder / f"{number:02d}.png")
    return folder


def file_of(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    to_image(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def altered_files(embedder: Embedder, pixels: np.ndarray, away: np.ndarray, levels: int) -> list[np.ndarray]:
    """8-bit pictures within `levels` of a file's: corners along gradients through the resize, and at random."""
    access = Resized(as_access(embedder), pixels.shape, embedder.spec)
    chance, found = np.random.default_rng(0), []
    x = torch.from_numpy(pixels / 255).float()[None].requires_grad_()
    with access.ready():
        for way in torch.from_numpy(away).float():
            (slope,) = torch.autograd.grad((access.embed(x)[0] @ way), x)
            found.append(slope.sign()[0].numpy())
    found += [chance.choice([-1, 1], pixels.shape) for _ in range(5)]
    return [np.clip(pixels + levels * signs, 0, 255).astype(np.uint8) for signs in found]


@pytest.mark.parametrize("method", ["interval", "crown"])
@pytest.mark.parametrize("size", SIZES)
def test_certified_hits_stay_however_the_file_is_altered(photos, tmp_path, size, method):
    embedder, k = small_net(), 8
    file = tmp_path / "query.png"
    picture(size, 3).save(file)
    with index(embedder, str(photos), tmp_path / "shop.gallery") as gallery:
        threat = Threat.parse(f"linf:{LEVELS}/255")
        found = search(gallery, embedder, read_image(file, embedder.spec), k, certify=threat, method=method)
        certified = {entry.id for entry in found.hits if entry.certificate.verdict == Verdict.CERTIFIED}
        assert certified, "nothing is at stake"
        assert found.proof.picture == "file"
        vectors = gallery.vectors(list(gallery.ids()))
        ways = np.concatenate([vectors - vectors[0], vectors[0] - vectors])
        for pixels in altered_files(embedder, read_image(file), ways, LEVELS):
            file.write_bytes(file_of(pixels))
            hits = search(gallery, embedder, file, len(gallery)).hits
            assert certified <= {hit.id for hit in hits[:k]}
            ranks = {hit.id: hit.rank for hit in hits}
            assert all(
                entry.certificate.best <= ranks[entry.id] <= entry.certificate.worst for entry in found.hits
            )


def test_altered_candidate_files_stay_in_their_boxes(photos, tmp_path):
    embedder, eps = small_net(), LEVELS / 255
    with index(embedder, str(photos), tmp_path / "shop.gallery", boxes=eps) as gallery:
        threat = Threat.parse(f"candidates:linf:{LEVELS}/255:m=16")
        query = photos / "03.png"
        found = search(gallery, embedder, read_image(query, embedder.spec), 3, certify=threat)
        vector = embedder.embed(read_image(query, embedder.spec)[None]).numpy()[0]
        for sign in (1, -1):
            away = {}
            for file in sorted(photos.glob("*.png")):
                own = gallery.vectors([file.name])[0]
                (pixels, *_) = altered_files(embedder, read_image(file), sign * (own - vector)[None], LEVELS)
                moved = embedder.embed(decode(file_of(pixels), embedder.spec)[None]).numpy()[0]
                away[file.name] = float(np.linalg.norm(moved.astype(float) - vector))
            for entry in found.hits:
                rank = 1 + sum(d < away[entry.id] for d in away.values())
                assert entry.certificate.best <= rank <= entry.certificate.worst


def test_bicubic_files_move_farther_than_their_pixels_and_no_claim_is_made_of_them(photos, tmp_path):
    """The finding: negative weights. Its claims are of the network's input, and say so."""
    embedder = small_net("bicubic")
    board = np.where(np.indices((30, 40)).sum(0) % 5 < 2, 90, 160).astype(np.uint8)
    pixels = np.stack([board] * 3)
    before = fitted(pixels, embedder.spec).pixels.astype(int)
    moved = 0
    for seed in range(40):
        signs = np.random.default_rng(seed).choice([-1, 1], (3, 10, 10)).repeat(3, 1).repeat(4, 2)
        after = fitted((pixels + LEVELS * signs).astype(np.uint8), embedder.spec).pixels.astype(int)
        moved = max(moved, np.abs(after - before).max())
    assert moved > LEVELS
    with index(embedder, str(photos), tmp_path / "shop.gallery") as gallery:
        shown = fitted(pixels, embedder.spec).pixels
        found = search(gallery, embedder, shown, 3, certify=Threat.parse("linf:1/255"))
        assert (found.proof.picture, gallery.info.embedder.picture) == ("network input", "network input")


def test_a_gallery_says_which_filter_made_it_and_keeps_it(photos, tmp_path):
    path = tmp_path / "shop.gallery"
    with index(small_net(), str(photos), path, resample="bicubic") as gallery:
        assert gallery.info.embedder.resample == "bicubic"
    with index(small_net("bicubic"), str(photos), path) as gallery:
        assert len(gallery) == 16


def test_smoothed_radii_of_a_file_are_divided_by_its_stretch(photos, tmp_path):
    how = parse_smoothing("sigma=0.5,n=200,first=50,gallery=20,bound=100")
    embedder = smoothed(small_net(), how)
    with index(small_net(), str(photos), tmp_path / "soft.gallery", smooth=how) as gallery:
        for size in ((6, 6), (48, 48)):
            pixels = read_image(photos / "02.png")
            file = tmp_path / "query.png"
            to_image(pixels).resize(size).save(file)
            seen = read_picture(file, embedder.spec)
            of_file = search(gallery, embedder, seen, 1, seed=3)[0].certificate
            of_input = search(gallery, embedder, seen.pixels, 1, seed=3)[0].certificate
            # Enlarged twofold, a pixel counts in four places; shrunk fourfold in a sixteenth of one, but for borders.
            grown = 2.0 if size == (6, 6) else 9 / 32
            assert of_file.radius == pytest.approx(of_input.radius / grown, rel=2e-3)
            assert of_file.pixel == pytest.approx(of_input.pixel, rel=1e-3)


@pytest.mark.parametrize("eps", [1e-9, 1 / 255, 0.3, 1.0])
def test_eps_at_the_network_covers_rounding_and_no_more(eps):
    file, bicubic = ImageSpec(3, 12, 12), ImageSpec(3, 12, 12, resample="bicubic")
    assert at_network(eps, bicubic) == eps
    assert min(1.0, eps + 2.0**-22) <= at_network(eps, file) <= min(1.0, eps + 2.0**-20)
    assert at_network(0.0, file) == 0
    many = torch.tensor([0.0, eps], dtype=torch.float64)
    assert at_network(many, file).tolist() == [0, at_network(eps, file)]


@pytest.mark.parametrize("stretch", [0.25, 1.0, 4.0])
def test_radii_come_back_no_larger_than_they_went(stretch):
    way = Way(ImageSpec(3, 12, 12), stretch)
    for radius in (1e-6, 0.01, 1.0):
        assert way.of_file(way.at_network(radius)) <= radius * (1 + 1e-15)
        assert way.of_file(radius) <= radius / stretch
        assert way.pixel(radius) <= radius / math.sqrt(432)
    assert way.of_file(5e-6) == 0
