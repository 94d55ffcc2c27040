"""A prover written from CONTRIBUTING's "Add a prover" alone: one file, one name in the registry."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.certificate import Certificate, Proof, Verdict
from holdfast.errors import ConfigError
from holdfast.gallery import Gallery, Hits
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.provers import PROVERS, Cost, Prover, Provers
from holdfast.gallery.provers.base import Options
from holdfast.gallery.searching import search
from holdfast.models import Smoothed, wrap
from holdfast.report import hits_page
from holdfast.service.answers import QueryState, search_answer
from holdfast.service.engine import Outcome
from holdfast.threat import Threat, floored


@dataclass(frozen=True)
class Reach(Certificate):
    """The hit is among the first k for every query within `radius` in ℓ2."""

    radius: float

    def columns(self):
        return {"reach": floored(self.radius), "verdict": str(self.verdict)}

    def lines(self):
        return [f"to ℓ2 {floored(self.radius)}", str(self.verdict)]

    def to_dict(self):
        return {"radius": self.radius, **super().to_dict()}

    def _covers(self, threat, eps):
        return threat.who == "query" and threat.norm == "l2" and eps <= self.radius

    def _claimed(self):
        return f"No query within {floored(self.radius)} loses this hit."

    def _open(self):
        return "Its margin is too small."


@dataclass(frozen=True, kw_only=True)
class ReachProof(Proof):
    constant: float

    def title(self):
        return f"by a Lipschitz constant of {self.constant:g}"

    def notes(self):
        return ["every radius is half the margin, over the constant"]

    def meaning(self):
        return self.notes()


class Lipschitz(Prover):
    """An embedding moves by at most `constant` times as far as the query: half a margin lasts that long."""

    name = "toy"
    words = "a gallery whose network has a Lipschitz constant"
    options = frozenset()
    constant = 1.0

    @classmethod
    def lacks(cls, embedder):
        return "no constant is known" if isinstance(embedder, Smoothed) else None

    def __init__(self, embedder):
        self._embedder = embedder

    def threats(self, info):
        return ("query:l2",)

    def refuses(self, threat, options, info):
        return None if (threat.who, threat.norm) == ("query", "l2") else ConfigError("it is about query:l2")

    def cost(self, threat, options, info):
        return Cost(1, is_expensive=False)

    def prove(self, query, gallery, k, threat, options):
        vector = self._embedder.embed(query.picture.pixels[None]).numpy()
        with gallery.snapshot():
            (found,) = gallery.nearest(vector, k + 1, names=[query.name])
        border = found[k].distance if len(found) > k else np.inf
        certificates = []
        for hit in found[:k]:
            radius = max(0.0, (border - hit.distance) / (2 * self.constant)) * (1 - 1e-6)
            sure = radius > (threat.eps or 0.0)
            verdict = Verdict.CERTIFIED if sure else Verdict.UNKNOWN
            certificates.append(Reach(radius, threat=threat, k=k, verdict=verdict))
        return Hits(query.name, found[:k]).proved(
            ReachProof(threat=threat, k=k, constant=self.constant), certificates
        )


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """An isometry of 4 pixels, and 20 candidates."""
    monkeypatch.setitem(PROVERS, Lipschitz.name, Lipschitz)
    layer = nn.Linear(4, 4, bias=False)
    layer.weight.data = torch.eye(4)
    embedder = wrap(nn.Sequential(nn.Flatten(), layer).eval(), (1, 2, 2))
    pixels = np.random.default_rng(0).integers(0, 256, (20, 1, 2, 2), dtype=np.uint8)
    with Gallery.create(tmp_path / "g", dim=4, embedder=embedder_info(embedder)) as gallery:
        gallery.add([f"{n:02d}" for n in range(20)], embedder.embed(pixels).numpy())
        yield gallery, embedder


def test_a_search_asks_it_and_every_way_out_prints_it(shop):
    gallery, embedder = shop
    image = np.full((1, 2, 2), 100, dtype=np.uint8)
    assert Provers(embedder).threats(gallery.info) == ("query:linf", "query:l2")
    found = search(gallery, embedder, image, 3, certify="l2:0.01")
    assert found.certified >= 1
    assert "by a Lipschitz constant of 1" in found.table()
    assert "reach" in found.table()
    assert json.loads(found.to_json())["hits"][0]["radius"] == found[0].certificate.radius
    assert "to ℓ2" in hits_page([found], [None], lambda _: None, "g")
    query = QueryState(name="q", digest=None, id=None, image=None)
    answer = search_answer(Outcome(found, 3, 1, 20, Threat.parse("l2:0.01")), query, "g")
    assert answer.hits[0].radius == found[0].certificate.radius
    assert answer.hits[0].reason == found[0].certificate.sentence()


def test_its_claims_hold(shop):
    gallery, embedder = shop
    rng = np.random.default_rng(1)
    image = np.full((1, 2, 2), 0.4, dtype=np.float32)
    found = search(gallery, embedder, image, 3, certify="l2:auto")
    hit = found[0]
    assert hit.certificate.radius > 0
    for _ in range(200):
        step = rng.standard_normal((1, 2, 2)).astype(np.float32)
        moved = image + step / np.linalg.norm(step) * hit.certificate.radius * 0.999
        if moved.min() >= 0 and moved.max() <= 1:
            assert hit.id in [other.id for other in search(gallery, embedder, moved, 3)]


def test_what_it_does_not_take_goes_to_the_others_or_is_refused(shop):
    gallery, embedder = shop
    image = np.full((1, 2, 2), 100, dtype=np.uint8)
    bounds = search(gallery, embedder, image, 3, certify="linf:0.01")
    assert "rank interval" in bounds.table()
    with pytest.raises(ConfigError, match="are for a smoothed gallery"):
        search(gallery, embedder, image, 3, certify="l2:0.01", samples=10)
    assert isinstance(Provers(embedder).prover(Threat.parse("l2:0.1"), Options(), gallery.info), Lipschitz)
