"""Proofs for an embedder with a candidate side, attacked: by queries, candidates and both, and through files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from holdfast import data, wrap
from holdfast.attacks import Attack, Candidates, Given, as_access, objective, optimiser
from holdfast.attacks.resized import Resized
from holdfast.certificate import Verdict
from holdfast.certify import nearest
from holdfast.certify.certifier import Certifier
from holdfast.data import decode, read_image
from holdfast.data.export import export_images
from holdfast.evaluate import certify, er_recall
from holdfast.gallery.attacking import attack_picture
from holdfast.gallery.searching import search
from holdfast.models import ClassCode, to_unit
from holdfast.threat import Threat
from holdfast.training import parse, train
from holdfast.workflow import index

EPS = 0.04


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = parse(
        {
            "data": {"name": "fashion-mnist-mini", "validation": 0},
            "defence": {"name": "class-code", "eps": EPS, "fine": 4},
            "train": {"steps": 150, "batch": 64, "lr": 3e-3},
        }
    )
    return train(config, tmp_path_factory.mktemp("code") / "run", say=lambda line: None)


@pytest.fixture(scope="module")
def shop(run, tmp_path_factory):
    pictures = tmp_path_factory.mktemp("code") / "pictures"
    export_images(data.load("fashion-mnist-mini").test, pictures, limit=5)
    with index(run.embedder, str(pictures), pictures.with_name("shop.gallery"), boxes=0.004) as gallery:
        yield gallery


@pytest.mark.parametrize("who", ["query", "candidates", "both"])
def test_no_altered_image_leaves_its_interval(run, who):
    embedder = run.embedder
    images = to_unit(data.load("fashion-mnist-mini").test.batch(range(48)))
    asking, pool = images[:8], images[8:]
    eps = EPS if who == "query" else 0.01
    vectors = embedder.embed_candidates(pool).double()
    hits = nearest(embedder.embed(asking).double(), vectors, 10)
    attack = Certifier(embedder).alteration(
        Threat.parse(f"{who}:linf:{eps}"), asking, pool, vectors, method="interval"
    )
    found = attack.ranks(hits)
    assert (found.worst < len(pool)).any(), "nothing is at stake"
    assert found.known.all()

    def moved(clean: torch.Tensor, toward: torch.Tensor, candidates: bool) -> torch.Tensor:
        """Images altered by signed steps that bring their vectors toward others."""
        x = clean
        for _ in range(4):
            x = x.detach().requires_grad_()
            seen = embedder(x)
            seen = embedder.as_candidates(seen) if candidates else seen
            (slope,) = torch.autograd.grad((seen * toward).sum(), x)
            x = torch.clamp(clean + torch.clamp(x + eps / 2 * slope.sign() - clean, -eps, eps), 0, 1)
        return x.detach()

    for seed in range(6):
        chance = torch.Generator().manual_seed(seed)
        q, c = asking, pool
        if who != "candidates":
            q = moved(q, vectors[torch.randint(40, (8,), generator=chance)].float(), False)
        if who != "query":
            c = moved(c, torch.randn(40, embedder.dim, generator=chance), True)
        away = torch.cdist(embedder.embed(q).double(), embedder.embed_candidates(c).double())
        own = away.gather(1, hits)
        for i in range(8):
            rank = 1 + (away[i][None] < own[i][:, None]).sum(1)
            assert (rank >= found.best[i]).all()
            assert (rank <= found.worst[i]).all()


def test_certified_hits_stay_however_the_file_is_altered(run, shop, tmp_path):
    """Through the user's door: a file is altered, saved, decoded, searched."""
    embedder, k = run.embedder, 10
    pictures = sorted(Path(item.path) for item in shop.catalogue().values())
    threat = Threat.parse(f"linf:{EPS}")
    proved = moved = 0
    for picture in pictures[::9]:
        found = search(
            shop, embedder, read_image(picture, embedder.spec), k, certify=threat, method="last-layer"
        )
        sure = {entry.id for entry in found.hits if entry.certificate.verdict == Verdict.CERTIFIED}
        proved += len(sure)
        first = found.hits[0].id
        farther = list(shop.catalogue())[len(pictures) // 2]
        for goal in ("misrank", f"push-out:{first}", f"pull-in:{farther}", "shift"):
            done = attack_picture(shop, embedder, read_image(picture), goal=goal, threat=threat, k=k)
            assert done.held
            file = tmp_path / "altered.png"
            done.save(file)
            hits = search(shop, embedder, file, len(shop)).hits
            ranks = {hit.id: hit.rank for hit in hits}
            moved += sum(ranks[entry.id] != entry.rank for entry in found.hits)
            assert sure <= {hit.id for hit in hits[:k]}
            assert all(
                entry.certificate.best <= ranks[entry.id] <= entry.certificate.worst for entry in found.hits
            )
    assert proved, "nothing is at stake"
    assert moved, "the attack moved nothing"


def test_stored_boxes_hold_altered_candidates(run, shop):
    embedder, eps = run.embedder, 0.004
    query = sorted(Path(item.path) for item in shop.catalogue().values())[3]
    pixels = read_image(query, embedder.spec)
    found = search(shop, embedder, pixels, 5, certify=Threat.parse(f"candidates:linf:{eps}"))
    vector = embedder.embed(pixels[None])
    clean = {id: decode(Path(item.path).read_bytes(), embedder.spec) for id, item in shop.catalogue().items()}
    assert np.allclose(
        shop.vectors(list(clean)), embedder.embed_candidates(np.stack(list(clean.values()))), atol=1e-5
    )
    images = to_unit(torch.from_numpy(np.stack(list(clean.values()))))
    for sign in (1, -1):
        x = images.clone().requires_grad_()
        away = (embedder.as_candidates(embedder(x)) - vector).norm(dim=1)
        (slope,) = torch.autograd.grad(sign * away.sum(), x)
        altered = torch.clamp(images + eps * slope.sign(), 0, 1)
        far = dict(
            zip(
                clean,
                (embedder.embed_candidates(altered) - vector).double().norm(dim=1).tolist(),
                strict=True,
            )
        )
        for entry in found.hits:
            rank = 1 + sum(d < far[entry.id] for d in far.values())
            assert entry.certificate.best <= rank <= entry.certificate.worst


def test_attacks_on_candidates_go_through_their_side(run):
    embedder = run.embedder
    pixels = data.load("fashion-mnist-mini").test.batch(range(30))
    asked = embedder.embed(pixels[:2])
    pool = embedder.embed_candidates(pixels[2:])
    given = Given(Candidates(pool), targets=torch.tensor([[0]]), own=torch.tensor([20]), queries=asked)
    attack = Attack(objective("ca+", given), optimiser("pgd", steps=10), Threat.parse("candidates:linf:0.3"))
    done = attack.run(embedder, pixels[22:23])
    assert done.loss < done.loss_before
    whole = Resized(as_access(embedder), (1, 28, 28), embedder.spec).of_candidates()
    assert torch.allclose(whole.see(to_unit(pixels[:2])), embedder.embed_candidates(pixels[:2]), atol=1e-5)
    before, after = (embedder.embed_candidates(x) for x in (to_unit(pixels[22:23]), done.images))
    reached = [float((one - asked[:1]).norm()) for one in (before, after)]
    assert reached[1] < reached[0], "the altered candidate is nearer to the query as it would be stored"


def test_certified_is_at_most_attacked_at_most_clean(run, tmp_path):
    images = data.load("fashion-mnist-mini").test
    threats = [Threat.parse(f"query:linf:{EPS}"), Threat.parse("candidates:linf:0.02")]
    drawn = {"queries": 40, "candidates": 60, "ks": [1]}
    proved = certify.certify(run.embedder, images, tmp_path / "c", threats, method="last-layer", **drawn)
    attacked = er_recall.er_recall(
        run.embedder, images, tmp_path / "a", threats, ca_queries=10, sources=20, **drawn
    )
    assert proved.rows.header["says"] == "closed-set: the classes of the training set"
    for one in proved.table:
        assert one.certified_hit_rate <= one.recall
    assert proved.table[0].certified_hit_rate > 0.3, "nothing is at stake"
    assert proved.table[0].certified_hit_rate <= attacked.table[0].robust_recall
    sure = proved.rows.columns["hit_1"][proved.rows.columns["threat"] == str(threats[1])][:10]
    held = attacked.rows.columns["robust_1"][attacked.rows.columns["threat"] == str(threats[1])]
    assert (sure <= held).all()


def test_where_nothing_is_known_of_the_scores_nothing_is_claimed():
    """The shares of a softmax always lie in [0, 1]; that is no proof about an infinite score."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    embedder = wrap(network, (1, 4, 4), candidate_side=ClassCode(3, 1.0))
    certifier = Certifier(embedder)
    images = torch.rand(2, 1, 4, 4)
    assert torch.isfinite(certifier.candidate_box(images, 0.01).radius).all()
    with torch.no_grad():
        network[1].weight.fill_(torch.inf)
    assert not torch.isfinite(certifier.candidate_box(images, 0.01).radius).any()
