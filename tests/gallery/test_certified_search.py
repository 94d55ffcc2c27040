"""Certified search: pruned and in blocks it says what the whole gallery says, and no attack escapes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gallery_reference import EMBEDDER
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.bounds import Box, normalised
from holdfast.certificate import Verdict
from holdfast.certify import (
    AlteredBoth,
    AlteredCandidates,
    AlteredQuery,
    FewAlteredCandidates,
    blocks,
)
from holdfast.certify.certifier import Certifier
from holdfast.errors import ConfigError, GalleryError
from holdfast.gallery import Boxes, Gallery
from holdfast.gallery.bounding import stored_boxes
from holdfast.gallery.certified import QueryBounds, certify_query
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.searching import search
from holdfast.models import wrap
from holdfast.threat import Threat

EPS = 0.1
THREATS = ("query:linf:0.1", "candidates:linf:0.1", "candidates:linf:0.1:m=0", "candidates:linf:0.1:m=1")
THREATS += ("candidates:linf:0.1:m=3", "both:linf:0.1")


@pytest.fixture(params=[3, 8192], scope="module")
def block(request):
    before = blocks.BLOCK
    blocks.BLOCK = request.param
    yield
    blocks.BLOCK = before


def unpruned(gallery, asked, threat, slots):
    """The certificate by the attack classes, over all candidates at once."""
    everything = np.arange(len(gallery))
    vectors = torch.from_numpy(gallery.vectors_at(everything)).double()
    query = torch.from_numpy(asked.embedding).double()[None]
    places, hits = torch.arange(1, len(slots) + 1)[None], torch.from_numpy(slots)[None]
    if threat.who == "query":
        return AlteredQuery(asked.box, vectors, unit_norm=asked.unit_norm).ranks(hits, places)
    stored = gallery.boxes_at(EPS, everything)
    boxes = Box(torch.from_numpy(stored.centre).double(), torch.from_numpy(stored.radius).double())
    if threat.who == "both":
        return AlteredBoth(normalised(asked.box) if asked.unit_norm else asked.box, boxes).ranks(hits, places)
    if threat.most is None:
        return AlteredCandidates(boxes, query).ranks(hits, places)
    return FewAlteredCandidates(boxes, vectors, query, threat.most).ranks(hits, places)


def case(path, seed, count, d, unit_norm, query_size, box_size, unbounded):
    """A gallery with boxes of very different sizes, duplicates among its vectors, and a query's box."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, d))
    features[rng.random(count) < 0.2] = features[0]
    asked = features[rng.integers(count)] * 0.5 + rng.standard_normal(d) * rng.choice([0.1, 1.0])
    if unit_norm:
        features = features / np.linalg.norm(features, axis=1, keepdims=True)
    vectors = features.astype(np.float32)
    radius = box_size * rng.random((count, d)) * rng.choice([0.01, 1, 3], (count, 1))
    radius[rng.random(count) < unbounded] = np.inf
    centre = vectors + np.where(np.isfinite(radius), radius, 0) * (rng.random((count, d)) - 0.5)
    gallery = Gallery.create(path, dim=d, embedder=EMBEDDER, overwrite=True)
    gallery.add_boxes(EPS, lambda *_: None)
    gallery.add([f"{n:03d}" for n in range(count)], vectors, boxes={EPS: Boxes.around(centre, radius)})
    raw = asked.astype(np.float32)
    embedding = raw / np.float32(np.linalg.norm(raw)) if unit_norm else raw
    spread = torch.from_numpy(query_size * rng.random((1, d)))
    return gallery, QueryBounds(embedding, Box(torch.from_numpy(raw).double()[None], spread), unit_norm)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 99_999),
    count=st.integers(1, 60),
    d=st.integers(1, 6),
    unit_norm=st.booleans(),
    query_size=st.sampled_from([0.0, 0.05, 0.5]),
    box_size=st.sampled_from([0.0, 0.05, 0.5]),
    unbounded=st.sampled_from([0.0, 0.0, 0.05]),
    k=st.integers(1, 8),
)
def test_pruned_and_in_blocks_is_the_whole(
    block, tmp_path_factory, seed, count, d, unit_norm, query_size, box_size, unbounded, k
):
    path = tmp_path_factory.getbasetemp() / "case.gallery"
    gallery, asked = case(path, seed, count, d, unit_norm, query_size, box_size, unbounded)
    with gallery:
        for threat in map(Threat.parse, THREATS):
            found = certify_query(gallery, asked, k, threat)
            slots = gallery._slots([entry.id for entry in found.hits])
            whole = unpruned(gallery, asked, threat, slots)
            assert [entry.certificate.best for entry in found.hits] == whole.best[0].tolist(), threat
            assert [entry.certificate.worst for entry in found.hits] == whole.worst[0].tolist(), threat
            for entry in found.hits:
                sure = entry.certificate.worst <= k and bool(whole.known.all())
                assert (entry.certificate.verdict == Verdict.CERTIFIED) == sure
            assert len(found.hits) <= found.proof.examined <= found.proof.candidates == count


def test_much_is_left_out_and_the_last_hit_still_has_its_rank(tmp_path):
    gallery, asked = case(tmp_path / "g", 3, 2000, 5, False, 0.01, 0.01, 0.0)
    with gallery:
        for threat in map(Threat.parse, THREATS):
            found = certify_query(gallery, asked, 5, threat)
            assert found.proof.examined < 200, threat
            assert found.hits[0].certificate.worst < 50


def test_intervals_by_hand(tmp_path):
    """On a line, the query at 0 ± 0.3, candidates at 1, 2, 4, 10, each ± 0.6, the last ± 7.5."""
    at = np.array([[1.0], [2.0], [4.0], [10.0]], dtype=np.float32)
    moves = np.array([[0.6], [0.6], [0.6], [7.5]])
    asked = QueryBounds(np.zeros(1, dtype=np.float32), Box(torch.zeros(1, 1), torch.full((1, 1), 0.3)), False)
    with Gallery.create(tmp_path / "g", dim=1, embedder=EMBEDDER) as gallery:
        gallery.add_boxes(EPS, lambda *_: None)
        gallery.add(list("abcd"), at, boxes={EPS: Boxes.around(at.astype(float), moves)})
        for threat, intervals in {
            "query:linf:0.1": [(1, 1), (2, 2), (3, 3)],
            "candidates:linf:0.1": [(1, 2), (1, 3), (3, 4)],
            "candidates:linf:0.1:m=0": [(1, 1), (2, 2), (3, 3)],
            "candidates:linf:0.1:m=1": [(1, 1), (2, 2), (3, 4)],
            "candidates:linf:0.1:m=2": [(1, 2), (1, 3), (3, 4)],
            "both:linf:0.1": [(1, 2), (1, 3), (3, 4)],
        }.items():
            found = certify_query(gallery, asked, 3, Threat.parse(threat))
            assert [(e.certificate.best, e.certificate.worst) for e in found.hits] == intervals, threat
            assert [e.id for e in found.hits] == list("abc")
        near = certify_query(gallery, asked, 1, Threat.parse("query:linf:0.1"))
        assert (near.proof.examined, near.proof.candidates) == (1, 4)


def rank_of(distance, hit):
    """The least and the largest rank that ties allow."""
    others = np.delete(distance, hit)
    return 1 + int((others < distance[hit]).sum()), 1 + int((others <= distance[hit]).sum())


@pytest.fixture(scope="module", params=[False, True])
def attacked(request, tmp_path_factory):
    """A small network, a gallery of its embeddings with boxes, and queries that lie between candidates."""
    torch.manual_seed(1)
    layers = (torch.nn.Flatten(), torch.nn.Linear(36, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))
    embedder = wrap(torch.nn.Sequential(*layers).eval(), (1, 6, 6), unit_norm=request.param)
    pixels = torch.randint(0, 256, (40, 1, 6, 6), dtype=torch.uint8)
    path = tmp_path_factory.mktemp("attacked") / "g"
    with Gallery.create(path, dim=4, embedder=embedder_info(embedder)) as gallery:
        gallery.add_boxes(0.02, lambda *_: None)
        boxes = {0.02: stored_boxes(Certifier(embedder), pixels.numpy(), 0.02)}
        gallery.add([f"{n:02d}" for n in range(40)], embedder.embed(pixels).numpy(), boxes=boxes)
        yield embedder, gallery, pixels


def climbed(embedder, images, eps, objective, steps=8):
    """Images within eps at which the objective of their embeddings is large."""
    x = images.clone()
    for _ in range(steps):
        x.requires_grad_(True)
        (gradient,) = torch.autograd.grad(objective(embedder(x)).sum(), x)
        x = x.detach() + eps / 3 * gradient.sign()
        x = torch.minimum(torch.maximum(x, images - eps), images + eps).clamp(0, 1)
    return x


@pytest.mark.parametrize(
    ("threat", "method"),
    [
        ("query:linf:0.02", "interval"),
        ("query:linf:0.02", "last-layer"),
        ("query:linf:0.02", "crown"),
        ("both:linf:0.02", "interval"),
        ("candidates:linf:0.02", "interval"),
    ],
)
def test_no_attack_leaves_the_interval(attacked, threat, method):
    embedder, gallery, pixels = attacked
    wanted = Threat.parse(threat)
    g = torch.Generator().manual_seed(0)
    images = pixels.float() / 255
    moved = 0
    for number in range(6):
        query = torch.randint(0, 256, (1, 6, 6), generator=g, dtype=torch.uint8)
        found = search(gallery, embedder, query.numpy(), 6, certify=wanted, method=method)
        asked = query.float()[None] / 255
        for entry in found.hits:
            hit = int(entry.id)
            for sign in (1, -1):
                centre = embedder(asked).detach()
                target = embedder(images).detach()

                def hurt(z, target=target, hit=hit, sign=sign):
                    return sign * ((z - target[hit]).norm(dim=1) - torch.cdist(z, target).mean())

                def spread(z, centre=centre, hit=hit, sign=sign):
                    own = torch.full((len(z),), -1.0)
                    own[hit] = 1.0
                    return sign * own * (z - centre).norm(dim=1)

                q = climbed(embedder, asked, 0.02, hurt) if wanted.who != "candidates" else asked
                c = climbed(embedder, images, 0.02, spread) if wanted.who != "query" else images
                noise = 0.02 * (2 * torch.rand(images.shape, generator=g) - 1).sign()
                for other in (c, (images + noise).clamp(0, 1) if wanted.who != "query" else images):
                    z, v = embedder.embed(q).double().numpy(), embedder.embed(other).double().numpy()
                    least, most = rank_of(np.linalg.norm(v - z, axis=1), hit)
                    assert entry.certificate.best <= least <= most <= entry.certificate.worst, (
                        number,
                        entry,
                        sign,
                    )
                    moved += most != entry.rank
    assert moved > 0, "the attacks did nothing"


def test_a_dearer_method_proves_at_least_as_much_and_more(attacked):
    embedder, gallery, _ = attacked
    g = torch.Generator().manual_seed(0)
    proved = dict.fromkeys(("interval", "last-layer", "crown"), 0)
    for _ in range(6):
        query = torch.randint(0, 256, (1, 6, 6), generator=g, dtype=torch.uint8).numpy()
        for threat in ("query:linf:0.02", "query:linf:auto"):
            wide = None
            for method in proved:
                hits = search(gallery, embedder, query, 6, certify=Threat.parse(threat), method=method).hits
                proved[method] += sum(e.certificate.verdict == Verdict.CERTIFIED for e in hits)
                if wide is not None and threat == "query:linf:0.02":
                    assert all(
                        w.certificate.best <= e.certificate.best
                        and e.certificate.worst <= w.certificate.worst
                        for w, e in zip(wide, hits, strict=True)
                    )
                elif wide is not None:
                    assert all(
                        (w.certificate.eps or -1) <= (e.certificate.eps or -1)
                        for w, e in zip(wide, hits, strict=True)
                    )
                wide = hits
    assert proved["interval"] < proved["crown"]


def test_a_kept_certificate_needs_no_network(attacked):
    embedder, gallery, pixels = attacked
    threat = Threat.parse("query:linf:0.02")
    with pytest.raises(ConfigError, match="keep one of method interval"):
        search(gallery, embedder, pixels[0].numpy(), 3, certify=threat, method="crown", keep=True)


def test_few_altered_candidates_stay_inside(attacked):
    embedder, gallery, pixels = attacked
    g = torch.Generator().manual_seed(0)
    images = pixels.float() / 255
    clean = embedder.embed(pixels).double().numpy()
    for _ in range(4):
        query = torch.randint(0, 256, (1, 6, 6), generator=g, dtype=torch.uint8)
        z = embedder.embed(query[None]).double().numpy()
        target = embedder(query[None].float() / 255).detach()
        near, far = (
            embedder.embed(climbed(embedder, images, 0.02, lambda v, s=s, t=target: s * (v - t).norm(dim=1)))
            .double()
            .numpy()
            for s in (-1, 1)
        )
        for m in (0, 1, 3):
            found = search(
                gallery, embedder, query.numpy(), 6, certify=Threat.parse(f"candidates:linf:0.02:m={m}")
            )
            for entry in found.hits:
                hit = int(entry.id)
                for _ in range(20):
                    chosen = torch.randperm(40, generator=g)[:m].numpy()
                    v = clean.copy()
                    v[chosen] = near[chosen]
                    if hit in chosen:
                        v[hit] = far[hit]
                    least, most = rank_of(np.linalg.norm(v - z, axis=1), hit)
                    assert entry.certificate.best <= least <= most <= entry.certificate.worst


def test_a_larger_stored_box_serves_a_smaller_threat(attacked):
    embedder, gallery, pixels = attacked
    query = pixels[0].numpy()
    same = search(gallery, embedder, query, 3, certify=Threat.parse("candidates:linf:0.02"))
    less = search(gallery, embedder, query, 3, certify=Threat.parse("candidates:linf:0.01"))
    assert (same.proof.boxes, less.proof.boxes) == (0.02, 0.02)
    assert [(e.certificate.best, e.certificate.worst) for e in same.hits] == [
        (e.certificate.best, e.certificate.worst) for e in less.hits
    ]
    for threat in ("candidates:linf:0.03", "both:linf:0.5", "candidates:linf:0.1:m=2"):
        with pytest.raises(
            GalleryError, match=r"has only boxes for linf:0\.02, so .* --boxes linf:0"
        ) as caught:
            search(gallery, embedder, query, 3, certify=Threat.parse(threat))
        assert "\n" not in str(caught.value)


def test_what_cannot_be_certified_or_kept(attacked):
    embedder, gallery, pixels = attacked
    for threat, keep in (("candidates:linf:auto", False), ("l2:0.1", False), ("linf:auto", True)):
        with pytest.raises(ConfigError, match="search certifies linf:EPS"):
            search(gallery, embedder, pixels[0].numpy(), 3, certify=Threat.parse(threat), keep=keep)


def test_a_query_without_bounds_is_unknown(tmp_path):
    gallery, asked = case(tmp_path / "g", 0, 30, 4, False, 0.1, 0.1, 0.0)
    lost = QueryBounds(asked.embedding, Box(asked.box.centre, torch.full((1, 4), torch.inf)), False)
    with gallery:
        for threat in ("query:linf:0.1", "both:linf:0.1"):
            found = certify_query(gallery, lost, 4, Threat.parse(threat))
            assert all(
                (e.certificate.best, e.certificate.worst, e.certificate.verdict) == (1, 30, Verdict.UNKNOWN)
                for e in found.hits
            )


def test_crown_proves_hits_of_a_plain_network_and_no_attack_moves_them(tmp_path):
    """By intervals nothing is proved of it: their box is so wide that it prunes nothing, either."""
    from torch import nn

    from holdfast.spec import ImageSpec

    torch.manual_seed(0)
    spec = ImageSpec(1, 8, 8)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12)]
    embedder = wrap(nn.Sequential(*layers).eval(), spec)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (1301, 1, 8, 8), dtype=np.uint8)
    vectors = embedder.embed(torch.from_numpy(pixels)).numpy()
    eps, k = 0.004, 5
    with Gallery.create(tmp_path / "g", dim=12, embedder=embedder_info(embedder)) as gallery:
        gallery.add([str(i) for i in range(1300)], vectors[1:])
        threat = Threat.parse(f"query:linf:{eps}")
        plain = search(gallery, embedder, pixels[0], k, certify=threat)
        found = search(gallery, embedder, pixels[0], k, certify=threat, method="crown")
        assert not any(hit.certificate.verdict == Verdict.CERTIFIED for hit in plain.hits)
        assert plain.proof.effort is None
        assert plain.proof.examined > 1024 > found.proof.examined
        assert found.proof.sharpened
        sure = [hit for hit in found.hits if hit.certificate.verdict == Verdict.CERTIFIED]
        assert len(sure) >= 2
        assert found.proof.effort.by_intervals == 0
        assert found.proof.effort.seconds > 0
    image = torch.from_numpy(pixels[:1]) / 255
    low, high = (image - eps).clamp(min=0), (image + eps).clamp(max=1)
    gallery_vectors = torch.from_numpy(vectors[1:]).double()
    tried = 0
    for hit in found.hits:
        own = gallery_vectors[int(hit.id)]
        nearby = gallery_vectors[(gallery_vectors - own).norm(dim=1).argsort()[1:9]]
        for rival in nearby:
            for way in (1, -1):  # out of the list, and to its top
                x = image.clone()
                for _ in range(12):
                    x = x.requires_grad_()
                    (gradient,) = torch.autograd.grad((embedder(x).double() @ (own - rival)).sum() * way, x)
                    x = torch.clamp(x.detach() - eps / 3 * gradient.sign(), low, high)
                away = (gallery_vectors - embedder.embed(x).double()).norm(dim=1)
                rank = 1 + int((away < away[int(hit.id)]).sum())
                assert hit.certificate.best <= rank <= hit.certificate.worst
                tried += 1
    assert tried == 80
