"""Certificates of a trained network on real images, attacked; rows that resume; bad input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from holdfast import data
from holdfast.bounds import image_box, interval_bounds, trace
from holdfast.certificate import Verdict
from holdfast.certify import AlteredQuery, largest_eps, nearest
from holdfast.data.export import export_images
from holdfast.errors import ConfigError, DataError, GalleryError, ModelError
from holdfast.evaluate import certify as module
from holdfast.evaluate.certify import certify
from holdfast.gallery.searching import search
from holdfast.models import build, to_unit, wrap
from holdfast.spec import ImageSpec
from holdfast.threat import Threat
from holdfast.workflow import index

THREATS = [
    Threat.parse(t)
    for t in ("query:linf:0.01", "candidates:linf:0.01", "candidates:linf:0.01:m=2", "both:linf:0.005")
]


@pytest.fixture(scope="module")
def done(trained, photos, tmp_path_factory):
    return certify(
        trained, photos, tmp_path_factory.mktemp("c"), THREATS, queries=60, candidates=300, ks=(1, 5, 20)
    )


def test_something_is_certified_and_the_numbers_are_ordered(done):
    table = {(line.threat, line.k): line for line in done.table}
    assert table[("query:linf:0.01", 20)].certified_hit_rate > 0.2
    for line in done.table:
        assert line.cr_recall <= line.cr_recall_one_sided <= line.certified_hit_rate <= line.recall
        low, high = line.interval["hit"]
        assert low <= line.certified_hit_rate <= high
    for k in (1, 5, 20):
        assert (
            table[("candidates:linf:0.01", k)].certified_hit_rate
            <= table[("candidates:linf:0.01:m=2", k)].certified_hit_rate
        )


def pgd(embedder, images, eps, objective, steps=12):
    x = images.clone()
    for _ in range(steps):
        x.requires_grad_(True)
        (gradient,) = torch.autograd.grad(objective(embedder(x)).sum(), x)
        x = (x.detach() + eps / 4 * gradient.sign()).clamp(images - eps, images + eps).clamp(0, 1)
    return x.detach()


@pytest.mark.parametrize("method", ["interval", "last-layer", "crown"])
def test_no_query_attack_breaks_a_certificate(trained, photos, tmp_path, method):
    """Attack each query to push its first right hit away, at random and by gradient; check every claim."""
    done = certify(
        trained, photos, tmp_path, THREATS[:1], queries=60, candidates=300, ks=(1, 5, 20), method=method
    )
    asked, found = data.draw(photos, 60, 300, 0)
    labels = photos.labels
    queries, pool = to_unit(photos.batch(asked)), to_unit(photos.batch(found))
    vectors = trained.embed(pool).double()
    same = torch.from_numpy(labels[asked])[:, None] == torch.from_numpy(labels[found])[None]
    clean = trained.embed(queries).double()
    hits = nearest(clean, vectors, 20)
    rows = {q: i for i, q in enumerate(done.rows.columns["query"][:60])}
    order = [rows[photos.ids[a]] for a in asked]
    columns = {name: column[:60][order] for name, column in done.rows.columns.items()}
    near = torch.where(same, torch.cdist(clean, vectors), torch.inf).argmin(1)
    other = torch.where(same, torch.inf, torch.cdist(clean, vectors)).argmin(1)

    def away(z):
        return (z - vectors[near].float()).square().sum(1) - (z - vectors[other].float()).square().sum(1)

    g = torch.Generator().manual_seed(0)
    tries = [pgd(trained, queries, 0.01, away)]
    tries += [(queries + 0.01 * torch.randn(queries.shape, generator=g).sign()).clamp(0, 1) for _ in range(5)]
    checked = 0
    for x in tries:
        assert ((x - queries).abs() <= 0.01 + 1e-6).all()
        distance = torch.cdist(
            trained.embed(x).double(), vectors, compute_mode="donot_use_mm_for_euclid_dist"
        )
        for i in range(60):
            for column in range(10):
                hit = int(hits[i, column])
                rank = 1 + int((distance[i] < distance[i, hit]).sum())
                assert columns["best"][i][column] <= rank <= columns["worst"][i][column]
            top = distance[i].argsort()
            for k in (1, 5, 20):
                if columns[f"hit_{k}"][i]:
                    checked += 1
                    assert same[i, top[:k]].any()
    assert checked > 50


def test_rows_resume_to_the_same_bytes(trained, photos, done, tmp_path, monkeypatch, killed_at):
    monkeypatch.setattr(module, "BLOCK", 25)
    settings = {"queries": 60, "candidates": 300, "ks": (1, 5, 20)}
    with killed_at(3):
        certify(trained, photos, tmp_path, THREATS, **settings)
    again = certify(trained, photos, tmp_path, THREATS, **settings)
    for name, column in done.rows.columns.items():
        assert column.tolist() == again.rows.columns[name].tolist(), name
    with pytest.raises(ConfigError, match="another model or setting"):
        certify(trained, photos, tmp_path, THREATS[:1], **settings)


def test_the_papers_form_certifies_no_more(trained, photos, tmp_path, done):
    paper = certify(
        trained,
        photos,
        tmp_path,
        THREATS[:1],
        queries=60,
        candidates=300,
        ks=(1, 5, 20),
        method="paper",
        clip=False,
    )
    for k in (1, 5, 20):
        for name in ("cr", "one_sided", "hit"):
            assert (paper.rows.columns[f"{name}_{k}"] <= done.rows.columns[f"{name}_{k}"][:60]).all()


def test_each_stronger_form_certifies_no_less(trained, photos, tmp_path, done):
    before = {name: column[:60] for name, column in done.rows.columns.items()}
    for method in ("last-layer", "crown"):
        found = certify(
            trained,
            photos,
            tmp_path / method,
            THREATS[:1],
            queries=60,
            candidates=300,
            ks=(1, 5, 20),
            method=method,
        )
        after = found.rows.columns
        for k in (1, 5, 20):
            for name in ("cr", "one_sided", "hit"):
                assert (after[f"{name}_{k}"] >= before[f"{name}_{k}"]).all()
        assert (after["unbeaten"] <= before["unbeaten"]).all()
        wide, narrow = (np.array(columns["worst"].tolist()) for columns in (before, after))
        assert (narrow <= wide).all()
        assert narrow.sum() < wide.sum(), "nothing was gained"
        before = after


def test_unit_norm_embedders_are_certified(photos, tmp_path):
    torch.manual_seed(0)
    embedder = build("small", spec=photos.spec, unit_norm=True).eval()
    found = certify(embedder, photos, tmp_path, THREATS, queries=20, candidates=50, ks=(1, 50))
    assert all(line.certified_hit_rate <= line.recall for line in found.table)
    assert np.isin(found.rows.columns["known"], (0, 1)).all()


def test_bad_input(trained, photos, tmp_path):
    def run(threats, embedder=trained, images=photos, **settings):
        return certify(
            embedder,
            images,
            tmp_path / "x",
            threats,
            **{"queries": 5, "candidates": 9, "ks": (1,), **settings},
        )

    with pytest.raises(ConfigError, match="for linf"):
        run([Threat.parse("l2:0.5")])
    with pytest.raises(ConfigError, match="for linf"):
        run([Threat.parse("linf:auto")])
    with pytest.raises(ConfigError, match="at least one threat"):
        run([])
    with pytest.raises(ConfigError, match="K lies between"):
        run(THREATS[:1], ks=(1, 10))
    unlabelled = data.ImageSet(
        name="flat",
        ids=photos.ids[:20],
        labels=None,
        classes=(),
        spec=photos.spec,
        pixels=photos.pixels,
        rows=photos.rows[:20],
    )
    with pytest.raises(DataError, match="needs labels"):
        run(THREATS[:1], images=unlabelled)
    odd = wrap(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 4), torch.nn.GELU()),
        ImageSpec(1, 28, 28),
    )
    with pytest.raises(ModelError, match="GELU"):
        run(THREATS[:1], embedder=odd)
    assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def gallery(trained, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    export_images(photos.take(range(40, 400)), folder / "pictures")
    with index(trained, folder / "pictures", folder / "g.gallery") as opened:
        yield opened


def test_certified_search_prunes_without_losing_or_adding_a_proof(trained, photos, gallery):
    """The intervals are those of the exact test against the whole gallery, at boxes from tiny to hopeless."""
    ids = list(gallery.ids())
    vectors = torch.from_numpy(gallery.vectors(ids)).double()
    shares = []
    for number, eps in itertools.product(range(6), (0.0, 0.01, 0.05, 0.6)):
        pixels = photos.image(number)
        found = search(gallery, trained, pixels, 8, certify=Threat.parse(f"linf:{eps}"))
        image = to_unit(torch.from_numpy(pixels.copy())[None]).double()
        with torch.no_grad():
            box = interval_bounds(trace(trained), image_box(image, eps, rounding=True), rounding=True)
        whole = AlteredQuery(box, vectors).ranks(torch.tensor([[ids.index(e.id) for e in found.hits]]))
        assert [e.certificate.worst for e in found.hits] == whole.worst[0].tolist()
        assert [e.certificate.best for e in found.hits] == whole.best[0].tolist()
        assert [e.certificate.verdict == Verdict.CERTIFIED for e in found.hits] == [
            e.certificate.worst <= 8 for e in found.hits
        ]
        assert found.proof.candidates == 360
        shares.append((eps, found.proof.examined))
    assert all(examined < 360 for eps, examined in shares if eps <= 0.01)
    assert all(examined == 360 for eps, examined in shares if eps == 0.6)


def test_certified_search_refuses_what_it_cannot_prove(trained, photos, gallery):
    with pytest.raises(GalleryError, match=r"has no boxes of its candidates.*--boxes linf:0\.1"):
        search(gallery, trained, photos.image(0), 3, certify=Threat.parse("candidates:linf:0.1"))
    for threat in ("l2:0.1", "candidates:linf:auto", "both:linf:auto"):
        with pytest.raises(ConfigError, match="search certifies linf:EPS"):
            search(gallery, trained, photos.image(0), 3, certify=Threat.parse(threat))
    other = build("small", spec=photos.spec).eval()
    with pytest.raises(GalleryError, match="was made by embedder"):
        search(gallery, other, photos.image(0), 3, certify=Threat.parse("linf:0.1"))


def test_the_largest_eps_is_proved_and_a_little_more_is_not(trained, photos, gallery):
    pixels = photos.image(1)
    found = search(gallery, trained, pixels, 8, certify=Threat.parse("linf:auto"))
    sizes = [entry.certificate.eps for entry in found.hits]
    assert max(size for size in sizes if size is not None) > 0.002
    for place, entry in enumerate(found.hits):
        if entry.certificate.eps is None:
            assert entry.certificate.verdict == Verdict.UNKNOWN
            continue
        assert entry.certificate.verdict == Verdict.CERTIFIED
        assert entry.certificate.worst <= 8
        above = search(gallery, trained, pixels, 8, certify=Threat("linf", entry.certificate.eps + 2 / 2**12))
        assert above.hits[place].certificate.verdict == Verdict.UNKNOWN


def test_bisection_by_hand():
    limits = torch.tensor([0.3, -0.1, 1.0, 0.0])
    found = largest_eps(lambda eps: eps <= limits, 4)
    assert found[1] == -1
    assert found[2] == 1
    assert found[3] == 0
    assert 0.3 - 2**-12 <= found[0] <= 0.3


def test_where_the_last_layer_is_not_linear_elided_is_interval(photos, tmp_path):
    torch.manual_seed(0)
    rectified = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 16), torch.nn.ReLU()).eval()
    found = [
        certify(
            wrap(rectified, photos.spec),
            photos,
            tmp_path / method,
            [Threat.parse("query:linf:0.002")],
            queries=20,
            candidates=30,
            ks=(5,),
            method=method,
        )
        for method in ("interval", "last-layer")
    ]
    one, other = (entry.rows.columns for entry in found)
    assert (one["hit_5"] == other["hit_5"]).all()
    assert (one["cr_5"] == other["cr_5"]).all()
    assert 0 < one["hit_5"].mean() < 1
