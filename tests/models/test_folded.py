"""A metric as an embedder's last layer: its distances, bounds that hold under it, galleries that open again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from holdfast import wrap
from holdfast.bounds import image_box, interval_bounds, linear_box, trace
from holdfast.errors import CheckpointError, GalleryError, ModelError
from holdfast.gallery import Gallery
from holdfast.gallery.building import open_and_index
from holdfast.gallery.indexing import as_stored, embedder_info
from holdfast.gallery.searching import search
from holdfast.models import CallableEmbedder, Smoothed, build, save, under_metric
from holdfast.models.folded import stored
from holdfast.models.metric import Metric
from holdfast.proofs.smoothing import Smoothing

SPEC = (1, 8, 8)


def embedder(unit_norm=False, seed=0, name="small", **options):
    torch.manual_seed(seed)
    return build(name, spec=SPEC, dim=6, unit_norm=unit_norm, **options).eval()


def metric(rank=4, features=6, seed=0, **about):
    random = np.random.default_rng(seed)
    low, span = random.normal(size=features), 0.1 + random.random(features)
    return Metric(random.normal(size=(rank, features)), low, span, {"method": "arml", **about})


def images(count=5, seed=1):
    return torch.rand(count, *SPEC, generator=torch.Generator().manual_seed(seed))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 6)

    def forward(self, x):
        return self.layer(x.flatten(1)).relu()


def bases():
    torch.manual_seed(0)
    return {
        "merged": embedder(),
        "unit norm": embedder(unit_norm=True),
        "something after the last layer": embedder(activation="relu"),
        "wrapped": wrap(Plain(), SPEC),
        "wrapped, unit norm": wrap(Plain(), SPEC, unit_norm=True),
        "black box": CallableEmbedder(lambda x: x.flatten(1)[:, :6], SPEC),
    }


@pytest.mark.parametrize("kind", list(bases()))
def test_distances_are_those_of_the_metric(kind):
    base, learned = bases()[kind], metric()
    before = base.fingerprint()
    made = under_metric(base, stored(learned))
    found, wanted = (
        made.embed(images()).double(),
        torch.from_numpy(learned.apply(base.embed(images()).numpy())),
    )
    assert made.dim == 4
    assert torch.allclose(torch.cdist(found, found), torch.cdist(wanted, wanted), rtol=1e-4, atol=1e-4)
    assert base.fingerprint() == before, "the one that it is made of stays as it is"
    assert made.fingerprint() not in (before, under_metric(base, stored(metric(seed=1))).fingerprint())
    assert made.fingerprint() == under_metric(base, stored(learned)).fingerprint()


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6), st.booleans(), st.sampled_from([0.0, 0.01, 0.1, 0.5]), st.sampled_from([1, 3, 6])
)
def test_no_altered_image_leaves_the_bounds(seed, unit_norm, eps, rank):
    made = under_metric(embedder(unit_norm, seed), stored(metric(rank, seed=seed)))
    graph, pictures = trace(made), images(2, seed)
    boxes = image_box(pictures.double(), eps, rounding=True)
    with torch.no_grad():
        intervals = interval_bounds(graph, boxes, rounding=True)
        lines = linear_box(graph, boxes, rounding=True)
    shift = torch.Generator().manual_seed(seed)
    ends = [torch.rand(pictures.shape, generator=shift).round() * 2 - 1 for _ in range(10)]
    ends += [torch.zeros_like(pictures), *(_pushed(made, pictures, which) for which in range(rank))]
    for end in ends:
        vectors = made((pictures + eps * end).clamp(0, 1)).detach().double()
        for box in (intervals, lines):
            assert ((vectors - box.centre).abs() <= box.radius).all()
    if eps == 0:
        assert float((intervals.radius / (1 + intervals.centre.abs())).max()) < 0.2, "not wider than need be"


def _pushed(made, pictures, which):
    pictures = pictures.clone().requires_grad_()
    made(pictures)[:, which].sum().backward()
    return pictures.grad.sign()


def test_where_the_vector_may_be_zero_its_direction_is_bounded_all_the_same():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
    network[1].bias.data = -0.5 * network[1].weight.data.sum(1)
    made = under_metric(wrap(network.eval(), SPEC, unit_norm=True), stored(metric()))
    grey = torch.full((1, *SPEC), 0.5)
    with torch.no_grad():
        box = interval_bounds(trace(made), image_box(grey.double(), 0.1, rounding=True), rounding=True)
        vectors = made((grey + 0.1 * (2 * images(200) - 1)).clamp(0, 1)).double()
    assert torch.isfinite(box.radius).all()
    assert ((vectors - box.centre).abs() <= box.radius).all()


def test_smoothing_knows_how_long_the_vectors_can_be():
    learned = metric()
    made = under_metric(embedder(unit_norm=True), stored(learned))
    smoothed = Smoothed(made, 0.3, 16)
    norm = np.linalg.norm(learned.transform / learned.span, 2)
    assert norm <= smoothed.bound <= norm * 1.001
    assert smoothed.embed(images(2)).norm(dim=1).max() <= smoothed.bound
    with pytest.raises(ModelError, match="needs a bound"):
        Smoothed(under_metric(embedder(), stored(learned)), 0.3, 16)


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, image in enumerate(images(8)):
        Image.fromarray((image[0].numpy() * 255).astype(np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize("smooth", [None, Smoothing(0.2, gallery=4, n=200)])
def test_a_gallery_keeps_its_metric_and_opens_again(pictures, tmp_path, smooth):
    base, learned = embedder(unit_norm=True), metric()
    path = tmp_path / "shop.gallery"
    gallery, _ = open_and_index(base, pictures, path, smooth=smooth, metric=learned)
    gallery.close()
    with Gallery.open(path) as again:
        made = as_stored(base, again.info.embedder)
        assert again.info.dim == 4
        if smooth is None:
            again.check_embedder(embedder_info(made))
            hits = search(again, made, pictures / "3.png", 8).hits
            assert hits[0].id == "3.png"
            wanted = torch.from_numpy(learned.apply(base.embed(images(8)).numpy()))
            nearest = torch.cdist(wanted, wanted)[3].argsort()
            assert [int(hit.id[0]) for hit in hits][:2] == nearest[:2].tolist()
            with pytest.raises(GalleryError):
                again.check_embedder(embedder_info(base))
    gallery, done = open_and_index(base, pictures, path, smooth=smooth)
    gallery.close()
    assert (done.added, done.unchanged) == (0, 8), "brought up to date without naming the metric again"
    with pytest.raises(GalleryError, match="under another metric"):
        open_and_index(base, pictures, path, metric=metric(seed=5))
    plain = tmp_path / "plain.gallery"
    open_and_index(base, pictures, plain)[0].close()
    with pytest.raises(GalleryError, match="under no metric"):
        open_and_index(base, pictures, plain, metric=learned)


def test_what_cannot_be_is_said(tmp_path):
    base = embedder()
    with pytest.raises(ModelError, match="of 5 features, and the embedder gives vectors of 6"):
        under_metric(base, stored(metric(features=5)))
    with pytest.raises(ModelError, match="another embedder's vectors"):
        under_metric(base, stored(metric(embedder=embedder(seed=9).fingerprint())))
    assert under_metric(base, stored(metric(embedder=base.fingerprint()))).dim == 4
    with pytest.raises(ModelError, match="the metric is zero"):
        stored(Metric(np.zeros((2, 6)), np.zeros(6), np.ones(6)))
    with pytest.raises(CheckpointError, match="under a metric is not saved"):
        save(under_metric(base, stored(metric())), tmp_path, config={}, data="x", seed=0, metrics={})
    # A singular metric is fine: what it does not see makes no difference.
    flat = Metric(np.vstack([np.eye(6)[:2], np.eye(6)[:1]]), np.zeros(6), np.ones(6))
    made = under_metric(base, stored(flat))
    assert made.embed(images())[:, 0].equal(made.embed(images())[:, 2])
