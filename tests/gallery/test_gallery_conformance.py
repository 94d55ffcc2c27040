"""Every store of the registry answers alike, and so does the toy store of `tests/extending`.

The references are a naive float64 ranking, and for certificates the embedded gallery with the same candidates.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gallery_reference import DIM, EMBEDDER, names, random, ranking, told
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from noisy_circle import smoothed_search

from holdfast.bounds import Box
from holdfast.certificate import Verdict
from holdfast.certify.smoothing import Smoothing
from holdfast.errors import GalleryError
from holdfast.gallery import (
    Boxes,
    EmbedderInfo,
    Gallery,
    TooManyError,
    create_gallery,
    discard_gallery,
    gallery_exists,
    open_gallery,
    reading,
    verify_gallery,
)
from holdfast.gallery.certified import QueryBounds, certify_query
from holdfast.gallery.exact import largest_norm, norm_form_error
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.kept import Kept
from holdfast.gallery.recheck import recheck
from holdfast.gallery.rules import VoteQuestion
from holdfast.gallery.smoothed import smoothed, smoothed_info
from holdfast.gallery.stores import STORES, store_at
from holdfast.gallery.stores.base import ChangedError
from holdfast.gallery.stores.milvus import documents, link, rows
from holdfast.gallery.stores.milvus import store as milvus_store
from holdfast.gallery.stores.milvus.certificates import encode_certificate
from holdfast.gallery.values import Item
from holdfast.models import Foreign
from holdfast.threat import Threat

sys.path.append(str(Path(__file__).parents[1] / "extending"))  # where the toy store is

EPS = 0.1
THREATS = ("query:linf:0.1", "candidates:linf:0.1", "candidates:linf:0.1:m=1", "both:linf:0.1")
OTHER = EmbedderInfo("b" * 64, {}, None)


class Engine:
    """Where galleries of one engine are; making one takes seconds on a server, so that tests share them."""

    def __init__(self, kind, place):
        self.kind, self.place, self.made = kind, place, {}

    def location(self, name, options=""):
        if self.kind == "sqlite":
            return self.place / f"{name}.gallery"
        if self.kind == "milvus-lite":
            return f"milvus-lite:{self.place}/shop.db/{name}{options}"
        if self.kind == "milvus":
            return f"milvus://{self.place}/{name}_{os.getpid()}{options}"  # Workers share the server.
        return f"{self.kind}:{self.place}/{name}"

    @property
    def promises(self):
        return store_at(self.location("any"))[0].promises

    def empty(self, boxes=False, options="", dim=DIM):
        """A gallery without candidates or certificates."""
        name = f"g{dim}{'b' if boxes else ''}{'h' if options else ''}"
        if name not in self.made:
            gallery = create_gallery(self.location(name, options), dim=dim, embedder=EMBEDDER)
            if boxes:
                gallery.add_boxes(EPS, lambda *_: None)
            self.made[name] = gallery
        gallery = self.made[name]
        gallery.remove(gallery.ids())
        gallery.forget({one.query for one in gallery.certificates()})
        return gallery

    @contextlib.contextmanager
    def again(self, gallery):
        """The same gallery as another process has it."""
        opened = open_gallery(gallery.path)
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture(params=[*STORES, "toy"], scope="module")
def engine(request, tmp_path_factory):
    place = request.getfixturevalue("milvus_server") if request.param == "milvus" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STORES, "toy", "test_toy_store:ToyStore")
        made = Engine(request.param, place or tmp_path_factory.mktemp(request.param))
        yield made
        for gallery in made.made.values():
            gallery.close()


@pytest.fixture
def gallery(engine):
    return engine.empty()


@pytest.fixture
def milvus(engine):
    if not engine.kind.startswith("milvus"):
        pytest.skip("of Milvus only")
    return engine


def test_what_is_added_comes_back(gallery):
    vectors = random(4)
    vectors[1] = [0.0, -0.0, 1e-42, 3e38, -3e38]
    ids = ["plain", "quo'te\" \\ back", "é 图 \n tab\t", "x" * 2000]
    gallery.add(
        ids, vectors, labels=["a", None, "", "é"], paths=[None, "p", None, "q"], digests=["d", None, None, ""]
    )
    assert len(gallery) == 4
    assert list(gallery.ids()) == sorted(ids)
    assert gallery.get(ids[1]) == Item(ids[1], None, "p", None)
    assert gallery.get(ids[3]) == Item(ids[3], "é", "q", "")
    assert list(gallery.catalogue().items()) == [(id, gallery.get(id)) for id in sorted(ids)]
    assert ids[2] in gallery
    assert "x" not in gallery
    order = [ids[3], ids[1], ids[0]]
    assert gallery.vectors(order).tobytes() == vectors[[3, 1, 0]].tobytes()
    assert gallery.verify() == []


def test_writes_are_all_or_none(gallery):
    ids, vectors = names(6), random(6)
    gallery.add(ids[:3], vectors[:3], labels=list("abc"))
    before = gallery.info.generation
    with pytest.raises(GalleryError, match="already in the gallery: 'image-0002'; nothing was added"):
        gallery.add(ids[2:], vectors[2:])
    assert (list(gallery.ids()), gallery.info.generation) == (ids[:3], before)
    gallery.add(ids[2:], vectors[2:], labels=["z"] * 4, replace=True)
    assert (len(gallery), gallery.get(ids[2]).label, gallery.info.generation) == (6, "z", before + 1)
    with pytest.raises(GalleryError, match="not in the gallery: 'nobody'"):
        gallery.describe([Item(ids[0], "new"), Item("nobody")])
    assert gallery.get(ids[0]).label == "a"
    gallery.describe([Item(ids[0], "new", "path", "digest")])
    assert gallery.get(ids[0]) == Item(ids[0], "new", "path", "digest")
    assert gallery.vectors(ids).tobytes() == vectors.tobytes()
    assert gallery.remove([ids[1], "nobody", ids[4]]) == 2
    assert gallery.remove([]) == 0
    left = [ids[0], ids[2], ids[3], ids[5]]
    assert list(gallery.ids()) == left
    assert told(gallery.nearest(vectors[1], 9)[0]) == ranking(vectors[1], left, vectors[[0, 2, 3, 5]])
    assert gallery.verify() == []


def test_search_is_exact_with_ties_and_duplicates(gallery):
    vectors = random(150)
    vectors[20:40] = vectors[0]
    vectors[50:60] = np.round(vectors[50:60])
    ids = names(150)
    gallery.add(ids, vectors)
    queries = np.concatenate(
        [random(5, seed=1), vectors[:1], np.round(random(4, seed=2)), np.zeros((1, DIM))]
    )
    queries = queries.astype(np.float32)
    for k in (1, 10, 35, 150, 1000):
        for query, found in zip(queries, gallery.nearest(queries, k), strict=True):
            assert told(found) == ranking(query, ids, vectors)[:k]


@pytest.mark.parametrize("offset", [0.0, 3e3, 1e18])
def test_float32_never_decides(gallery, offset):
    """Far from the origin float32 distances in norm form say nothing, and beyond that they overflow."""
    vectors = random(120, seed=3) * np.float32(1e-3 if offset < 1e4 else offset) + np.float32(offset)
    ids = names(120)
    gallery.add(ids, vectors)
    for query in vectors[:3] + np.float32(offset * 1e-7):
        assert told(gallery.nearest(query, 7)[0]) == ranking(query, ids, vectors)[:7]
        radius = ranking(query, ids, vectors)[11][1]
        wanted = [entry[:2] for entry in ranking(query, ids, vectors) if entry[1] <= radius]
        assert [entry[:2] for entry in told(gallery.range_search(query, radius))] == wanted


def test_distances_that_float32_cannot_tell_apart(gallery):
    vectors = np.zeros((120, DIM), dtype=np.float32)
    vectors[:, 0] = 1
    vectors[:, 1] = np.random.default_rng(0).permutation(120) * 1e-6
    ids, query = names(120), np.zeros(DIM, dtype=np.float32)
    gallery.add(ids, vectors)
    assert told(gallery.nearest(query, 7)[0]) == ranking(query, ids, vectors)[:7]
    for place in (3, 60):
        found = told(gallery.range_search(query, ranking(query, ids, vectors)[place][1]))
        assert found == ranking(query, ids, vectors)[: place + 1]


def test_range_search(gallery):
    ids, vectors = names(90), random(90)
    vectors[7] = vectors[3]
    gallery.add(ids, vectors)
    for query in random(2, seed=4):
        for radius in (0.0, 0.3, ranking(query, ids, vectors)[5][1], 2.0, 1e30):
            wanted = [entry for entry in ranking(query, ids, vectors) if entry[1] <= radius]
            assert [entry[:2] for entry in told(gallery.range_search(query, radius))] == [
                e[:2] for e in wanted
            ]
    assert [hit.id for hit in gallery.range_search(vectors[3], 0.0).hits] == [ids[3], ids[7]]
    with pytest.raises(GalleryError, match="a radius is 0 or more"):
        gallery.range_search(vectors[0], -1.0)


def test_what_does_not_fit_is_refused(engine, gallery):
    with pytest.raises(GalleryError, match="is empty"):
        gallery.nearest(random(1), 1)
    with pytest.raises(GalleryError, match="number 2 of 2 has a NaN"):
        gallery.add(names(2), [[0.0] * DIM, [np.nan] * DIM])
    with pytest.raises(GalleryError, match=f"must have {DIM} numbers each"):
        gallery.add(names(2), random(2, dim=DIM + 1))
    with pytest.raises(GalleryError, match="2 ids came with 3 vectors"):
        gallery.add(names(2), random(3))
    with pytest.raises(GalleryError, match="every candidate has the boxes"):
        gallery.add(names(1), random(1), boxes={EPS: Boxes(random(1), np.full((1, DIM), 9, np.float32))})
    with pytest.raises(GalleryError, match="given more than once"):
        gallery.add(["a", "a"], random(2))
    assert len(gallery) == 0
    gallery.add(["a"], random(1))
    for queries, k, problem in (
        (random(1), 0, "k is at least 1"),
        ([[np.inf] * DIM], 1, "finite"),
        (random(1), 1.5, "k is"),
    ):
        with pytest.raises(GalleryError, match=problem):
            gallery.nearest(queries, k)
    with pytest.raises(GalleryError, match="has no item 'b'"):
        gallery.get("b")
    with pytest.raises(GalleryError, match="was made by embedder 2:aaaaaaaaaa, not by bbbbbbbbbbbb"):
        gallery.check_embedder(OTHER)
    with pytest.raises(GalleryError, match="was made by embedder"):
        open_gallery(gallery.path, embedder=OTHER)
    with pytest.raises(GalleryError, match="there is no gallery at"):
        open_gallery(engine.location("none"))
    assert not gallery_exists(engine.location("none"))
    with pytest.raises(GalleryError, match="exists already"):
        create_gallery(gallery.path, dim=DIM, embedder=EMBEDDER)
    with engine.again(gallery) as readonly:
        pass
    with (
        open_gallery(gallery.path, readonly=True) as readonly,
        pytest.raises(GalleryError, match="for reading only"),
    ):
        readonly.remove(["a"])


def candidates(seed, count, d, unbounded):
    """Vectors with duplicates among them, and boxes of very different sizes."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, d)).astype(np.float32)
    vectors[rng.random(count) < 0.2] = vectors[0]
    radius = 0.2 * rng.random((count, d)) * rng.choice([0.01, 1, 3], (count, 1))
    radius[rng.random(count) < unbounded] = np.inf
    centre = vectors + np.where(np.isfinite(radius), radius, 0) * (rng.random((count, d)) - 0.5)
    raw = (vectors[rng.integers(count)] * 0.5 + rng.standard_normal(d) * 0.2).astype(np.float32)
    box = Box(torch.from_numpy(raw).double()[None], torch.from_numpy(0.05 * rng.random((1, d))))
    return vectors, Boxes.around(centre, radius), QueryBounds(raw, box, False)


def proved(gallery, asked, k):
    found = {text: certify_query(gallery, asked, k, Threat.parse(text)).hits for text in THREATS}
    return {
        text: [
            (e.id, e.distance, e.certificate.best, e.certificate.worst, e.certificate.verdict) for e in hits
        ]
        for text, hits in found.items()
    }


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 99_999),
    count=st.integers(1, 90),
    unbounded=st.sampled_from([0.0, 0.0, 0.1]),
    k=st.integers(1, 8),
)
def test_certificates_are_those_of_the_embedded_gallery(engine, tmp_path_factory, seed, count, unbounded, k):
    vectors, boxes, asked = candidates(seed, count, DIM, unbounded)
    with Gallery.create(
        tmp_path_factory.getbasetemp() / "same.gallery", dim=DIM, embedder=EMBEDDER, overwrite=True
    ) as embedded:
        embedded.add_boxes(EPS, lambda *_: None)
        embedded.add(names(count), vectors, boxes={EPS: boxes})
        wanted = proved(embedded, asked, k)
    gallery = engine.empty(boxes=True)
    gallery.add(names(count), vectors, boxes={EPS: boxes})
    assert proved(gallery, asked, k) == wanted
    with gallery.snapshot():
        scan = gallery.scan(asked.embedding)
        slots = scan.nearest(count).slots
        ids = [item.id for item in gallery.items(slots)]
        order = [int(id[-4:]) for id in ids]
        assert gallery.vectors_at(slots).tobytes() == vectors[order].tobytes()
        found = gallery.boxes_at(EPS, slots)
    assert found.centre.tobytes() == boxes.centre[order].tobytes()
    assert found.radius.tobytes() == boxes.radius[order].tobytes()


@pytest.mark.parametrize("rule", ["mean", "votes"])
def test_a_smoothed_search_is_the_same(engine, tmp_path, rule):
    """The mean needs all vectors at once, and its slots to be those of them; votes need a batch of queries."""
    how = Smoothing(sigma=0.25, n=600, alpha=0.05, first=60, gallery=8, rule=rule)
    slope = torch.full((16,), 0.25)
    base = Foreign(
        lambda images: torch.stack([(images.flatten(1) @ slope).cos(), (images.flatten(1) @ slope).sin()], 1),
        (1, 4, 4),
        unit_norm=True,
    )
    embedder = smoothed(base, how)
    info = smoothed_info(embedder, embedder_info(embedder), how)
    angles = np.linspace(0, 3, 9)
    pixels = np.full((1, 4, 4), 90, dtype=np.uint8)
    found = []
    for location in (tmp_path / "same.gallery", engine.location("noisy")):
        with create_gallery(location, dim=2, embedder=info) as made:
            made.add(names(9), np.stack([np.cos(angles), np.sin(angles)], 1), labels=["a", "a", "b"] * 3)
            made.remove(names(9)[1:2])
            found.append(smoothed_search(made, embedder, pixels, 3, seed=0))
        discard_gallery(location, content=True)
    assert found[0] == found[1]
    assert Verdict.CERTIFIED in {entry.certificate.verdict for entry in found[0].hits}


def test_boxes_for_all_that_is_there(engine):
    ids, vectors = names(300), random(300)
    location = engine.location("boxed")
    gallery = create_gallery(location, dim=DIM, embedder=EMBEDDER)
    gallery.add(ids, vectors)

    def make(items, some):
        assert [int(item.id[-4:]) for item in items] == [vectors.tolist().index(row) for row in some.tolist()]
        return Boxes(some, np.full_like(some, 0.25))

    def fail(items, some):
        raise GalleryError("no such image")

    with gallery:
        with pytest.raises(GalleryError, match="no such image"):
            gallery.add_boxes(EPS, fail)
        assert gallery.info.boxes == ()
        gallery.add_boxes(EPS, make)
        gallery.add_boxes(EPS, fail)
        assert gallery.info.boxes == (EPS,)
        gallery.describe([Item(ids[0], "other")])
        gallery.compact()
        assert verify_gallery(location) == []
        with gallery.snapshot():
            slots = gallery.scan(vectors[0]).nearest(2).slots
            assert (gallery.boxes_at(EPS, slots).radius == 0.25).all()
    discard_gallery(location)
    assert gallery_exists(location), "it holds something"
    discard_gallery(location, content=True)
    assert not gallery_exists(location)


def kept(query, threat="query:linf:0.1", k=2):
    zeros = np.zeros(DIM)
    return Kept(query, threat, k, -1, (), False, zeros.astype(np.float32), zeros, np.full(DIM, 0.2))


def test_kept_certificates(engine, gallery):
    at = np.zeros((3, DIM), dtype=np.float32)
    at[:, 0] = [1, 2, 4]
    gallery.add(["a", "b", "c"], at)
    gallery.keep([kept("q"), kept("q", k=1), kept("other")])
    assert recheck(gallery).kept == 3
    assert [(one.query, one.k) for one in gallery.certificates()] == [("other", 2), ("q", 1), ("q", 2)]
    assert {hit.verdict for one in gallery.certificates() for hit in one.hits} == {"CERTIFIED"}
    one = gallery.certificates()[0]
    assert (one.radius.tobytes(), one.embedding.dtype) == (np.full(DIM, 0.2).tobytes(), np.float32)
    gallery.add(["d"], at[1:2])
    lines = [change.changes for change in recheck(gallery).changed]
    assert lines == [("hit 2: 2–2 → 2–3, CERTIFIED → UNKNOWN",)] * 2
    assert recheck(gallery).changed == ()
    with engine.again(gallery) as again:
        assert len(again.certificates()) == 3
    before = gallery.certificates()
    assert gallery.forget(["q", "nobody"]) == 2
    gallery.keep(before, instead_of=before)
    assert [one.query for one in gallery.certificates()] == ["other"]


def test_of_two_certificates_of_one_name_the_newest_counts(milvus, monkeypatch):
    gallery = milvus.empty()
    monkeypatch.setattr(documents, "LEASE", 0.3)
    for unit_norm in (True, False, True, False):
        with monkeypatch.context() as patch:
            patch.setattr(documents.Documents, "delete", lambda *_: None)
            gallery.keep([dataclasses.replace(kept("q"), unit_norm=unit_norm)])
        assert [one.unit_norm for one in gallery.certificates()] == [unit_norm]


def test_a_damaged_certificate_can_be_forgotten(milvus):
    gallery = milvus.empty()
    gallery.keep([kept("q"), kept("other")])
    stored = encode_certificate(kept("q", k=5), 9)
    gallery._store._documents.write([dataclasses.replace(stored, body="00000000" + stored.body[8:])])
    with pytest.raises(GalleryError, match="does not match its checksum; forget it"):
        gallery.certificates()
    assert gallery.forget(["q"]) == 2
    assert [one.query for one in gallery.certificates()] == ["other"]


def test_another_reader_sees_a_write(engine, gallery):
    ids, vectors = names(3), random(3)
    gallery.add(ids[:1], vectors[:1])
    with engine.again(gallery) as reader:
        assert len(reader.nearest(vectors[0], 5)[0]) == 1
        gallery.add(ids[1:], vectors[1:])
        assert reader.nearest(vectors[2], 5)[0].hits[0].id == ids[2]
        assert len(reader) == 3
        gallery.remove(ids[2:])
        assert ids[2] not in [hit.id for hit in reader.nearest(vectors[2], 5)[0].hits]


def test_two_writers_never_mix(engine, gallery):
    """Both add the same ids: one of the two is refused, and nothing of it is there."""
    gallery.add(["first"], random(1))
    outcome = {}

    def write(who):
        with engine.again(gallery) as mine:
            try:
                for number in range(2):
                    mine.add([f"{who}-{number}", f"both-{number}"], random(2, seed=number))
                outcome[who] = "done"
            except GalleryError as error:
                outcome[who] = str(error)

    threads = [threading.Thread(target=write, args=(who,)) for who in ("x", "y")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gallery) == len(list(gallery.ids())) == len(set(gallery.ids()))
    assert "both-0" in gallery
    assert any("already in the gallery" in said for said in outcome.values())
    assert gallery.verify() == []


def test_a_claim_steps_back_from_an_earlier_one(milvus, monkeypatch):
    """Between looking for claims and putting down its own, another writer was quicker."""
    gallery = milvus.empty()
    events, beat = [], documents.Claim.beat
    with milvus.again(gallery) as other, contextlib.ExitStack() as held:

        def late(claim):
            monkeypatch.undo()
            held.enter_context(other._store._documents.claimed(0, 5.0))
            threading.Timer(0.5, lambda: (events.append("other ends"), held.close())).start()
            beat(claim)

        monkeypatch.setattr(documents.Claim, "beat", late)
        gallery.add(["a"], random(1))
        events.append("written")
        assert events == ["other ends", "written"]
    assert list(gallery.ids()) == ["a"]


def test_a_snapshot_that_is_overtaken_says_so(milvus):
    gallery = milvus.empty()
    ids, vectors = names(4), random(4)
    gallery.add(ids, vectors)
    with milvus.again(gallery) as writer:
        with pytest.raises(ChangedError, match="was changed while it was being read"):  # noqa: PT012, SIM117
            with gallery.snapshot():
                gallery.nearest(vectors[0], 2)
                writer.remove(ids[:1])
        with gallery.snapshot(), pytest.raises(GalleryError, match="leave the snapshot first"):
            gallery.remove(ids[:1])
        asked = []

        def overtaken(self, queries, k, **how):
            if not asked:
                asked.append(writer.remove(ids[1:2]))
            return nearest(self, queries, k, **how)

        nearest = reading.Proposed.nearest
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading.Proposed, "nearest", overtaken)
            assert {hit.id for hit in gallery.nearest(vectors[0], 9)[0].hits} == set(ids[2:])
        assert asked == [1]


def test_a_writer_that_dies_leaves_nothing_to_see(milvus, monkeypatch):
    gallery = milvus.empty()
    ids, vectors = names(5), random(5)
    gallery.add(ids[:2], vectors[:2])
    monkeypatch.setattr(documents, "LEASE", 2.0)

    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    with milvus.again(gallery) as writer, monkeypatch.context() as patch:
        patch.setattr(documents.Claim, "commit", killed)  # Its rows are there, its claim stays.
        patch.setattr(documents.Documents, "delete", killed)
        with pytest.raises(Killed):
            writer.add(ids[1:4], vectors[1:4], replace=True)
    assert list(gallery.ids()) == ids[:2]
    assert told(gallery.nearest(vectors[2], 9)[0]) == ranking(vectors[2], ids[:2], vectors[:2])
    begun = time.monotonic()
    gallery.add(ids[2:], vectors[2:])
    assert time.monotonic() - begun > 2.0
    assert told(gallery.nearest(vectors[2], 9)[0]) == ranking(vectors[2], ids, vectors)
    assert gallery.verify() == []
    gallery.compact()
    stored = gallery._store._link.query(gallery._store._name, "slot >= 0", ["slot"])
    assert len(stored) == 5
    assert told(gallery.nearest(vectors[2], 9)[0]) == ranking(vectors[2], ids, vectors)


def test_a_writer_that_dies_after_its_commit_has_written(milvus, monkeypatch):
    gallery = milvus.empty()
    ids, vectors = names(4), random(4)
    monkeypatch.setattr(documents, "LEASE", 2.0)
    with monkeypatch.context() as patch:
        patch.setattr(documents.Documents, "delete", lambda *_: None)
        gallery.add(ids[:3], vectors[:3])
    gallery.add(ids[3:], vectors[3:])
    assert list(gallery.ids()) == ids
    assert gallery.verify() == []


@pytest.mark.parametrize("write", ["add", "remove"])
def test_a_commit_without_an_answer_is_undone(milvus, monkeypatch, write):
    """It counted for a while; readers that saw it notice, whatever is written next."""
    gallery = milvus.empty()
    ids, vectors = names(6), random(6)
    gallery.add(ids[:4], vectors[:4])
    commit, seen = documents.Documents.commit, []
    with milvus.again(gallery) as reader:

        def unanswered(self, state):
            monkeypatch.undo()
            commit(self, state)
            seen.append((reader.info.generation, reader.all_vectors().shape[0]))
            raise GalleryError("no answer")

        monkeypatch.setattr(documents.Documents, "commit", unanswered)
        with pytest.raises(GalleryError, match="no answer"):
            gallery.add(ids[4:5], vectors[4:5]) if write == "add" else gallery.remove(ids[:1])
        assert seen[0][1] == (5 if write == "add" else 3)
        states = gallery._store._documents.read(documents.STATE)
        assert len({documents.serial_of(one) for one in states}) == len(states)
        assert list(reader.ids()) == ids[:4]
        if write == "add":
            gallery.add(ids[5:], vectors[5:])
        else:
            gallery.remove(ids[3:4])
        left = [0, 1, 2, 3, 5] if write == "add" else [0, 1, 2]
        assert reader.info.generation > seen[0][0]
        assert sorted(reader.all_vectors().tolist()) == sorted(vectors[left].tolist())
        assert gallery.verify() == []


def test_a_writer_that_was_asleep_is_refused(milvus, monkeypatch):
    gallery = milvus.empty()
    ids, vectors = names(3), random(3)
    monkeypatch.setattr(documents, "LEASE", 2.0)
    with milvus.again(gallery) as other:
        put = milvus_store.MilvusStore.put

        def asleep(store, *rest):
            patch.undo()
            claim = store._claim
            claim.last = time.monotonic()  # Nothing is heard of it until its commit.
            claim.beat = lambda: None
            commit = claim.commit

            def late(**changes):
                if "count" in changes:
                    other.add(ids[1:], vectors[1:])
                    del claim.beat
                return commit(**changes)

            claim.commit = late
            put(store, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(milvus_store.MilvusStore, "put", asleep)
            with pytest.raises(GalleryError, match="another one took over; nothing was written"):
                gallery.add(ids[:1], vectors[:1])
        assert list(gallery.ids()) == ids[1:]
        other.add(ids[:1], vectors[:1])
    assert list(gallery.ids()) == ids
    assert gallery.verify() == []


def test_a_commit_that_takes_too_long_is_not_called_done(milvus, monkeypatch):
    gallery = milvus.empty()
    ids, vectors = names(2), random(2)
    monkeypatch.setattr(documents, "LEASE", 2.0)
    write, slow = documents.Documents.write, []

    def late(self, found):
        write(self, found)
        if found[0].kind == documents.STATE and not slow:
            slow.append(time.sleep(2.1))

    with monkeypatch.context() as patch:
        patch.setattr(documents.Documents, "write", late)
        with pytest.raises(GalleryError, match="it may not have been kept: look, and write again"):
            gallery.add(ids[:1], vectors[:1])
    assert list(gallery.ids()) == []
    gallery.add(ids, vectors)
    assert list(gallery.ids()) == ids
    assert gallery.verify() == []


def test_a_refused_insert_is_undone(milvus, monkeypatch):
    gallery = milvus.empty(boxes=True)
    vectors, boxes, _ = candidates(1, 3, DIM, 0.0)
    insert = link.Link.insert

    def broken(self, collection, *rest):
        if "__boxes_" in collection:
            raise GalleryError("no room")
        return insert(self, collection, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(link.Link, "insert", broken)
        with pytest.raises(GalleryError, match="no room"):
            gallery.add(names(3), vectors, boxes={EPS: boxes})
    assert (len(gallery), list(gallery.ids())) == (0, [])
    gallery.add(names(3), vectors, boxes={EPS: boxes})
    assert told(gallery.nearest(vectors[0], 3)[0]) == ranking(vectors[0], names(3), vectors)
    assert gallery.verify() == []


def slots_of(gallery, ids):
    """In which slots of the store these are."""
    with gallery._store.snapshot():
        return gallery._store.find(ids)


def boxed(items, some):
    return Boxes(some, np.full_like(some, 0.25))


def test_damage_is_seen(milvus):
    gallery = milvus.empty()
    ids, vectors = names(3), random(3)
    gallery.add(ids, vectors)
    slot = slots_of(gallery, [ids[1]])[ids[1]]
    wrong = rows.candidates([slot], [Item(ids[1])], vectors[1:2] + 1)[0]
    wrong["vector"] = vectors[1]
    gallery._store._link.delete(gallery._store._name, f"slot in [{slot}]")
    gallery._store._link.insert(gallery._store._name, [wrong])
    assert "does not match its checksum" in gallery.verify()[0]
    with pytest.raises(GalleryError, match="does not match its checksum"):
        gallery.nearest(vectors[1], 1)
    gallery._store._link.delete(gallery._store._name, f"slot in [{slot}]")
    time.sleep(0.3)  # Deleted behind its back: no state names the stamp of it.
    assert "2 candidates are there where 3 are counted" in gallery.verify()[0]
    for write in (gallery.catalogue, gallery.compact, lambda: gallery.add_boxes(0.5, boxed)):
        with pytest.raises(GalleryError, match=r"is damaged \(3 candidates are counted, 2 are there\)"):
            write()
    assert gallery.info.boxes == ()
    gallery._store._link.insert(gallery._store._name, rows.candidates([slot], [Item(ids[1])], vectors[1:2]))


def test_a_gallery_that_is_being_overwritten_answers_nothing(milvus, monkeypatch):
    location = milvus.location("over")
    vectors = random(40)
    with create_gallery(location, dim=DIM, embedder=EMBEDDER) as reader:
        reader.add(names(40), vectors)
        load, asked = link.Link.load, []

        def between(self, *collections):
            load(self, *collections)
            if documents.DOCUMENTS not in collections:
                with pytest.raises(GalleryError, match="was replaced or deleted"):
                    reader.range_search(vectors[0], 1.0)
                asked.append(collections)

        with monkeypatch.context() as patch:
            patch.setattr(link.Link, "load", between)
            create_gallery(location, dim=DIM, embedder=EMBEDDER, overwrite=True).close()
        assert len(asked) == 1
    discard_gallery(location)


def test_a_range_search_is_held_against_what_is_known(milvus, monkeypatch):
    gallery = milvus.empty()
    ids, vectors = names(60), random(60)
    gallery.add(ids, vectors)
    radius = ranking(vectors[0], ids, vectors)[9][1]
    search = link.Link.search

    def answers(change):
        def changed(self, *rest, ask, **how):
            found = search(self, *rest, ask=ask, **how)
            return [change(*one) for one in found] if "radius" in ask else found

        monkeypatch.setattr(link.Link, "search", changed)

    answers(lambda slots, said: (slots[1:], said[1:]))
    with pytest.raises(GalleryError, match="is missing from a range search"):  # noqa: PT012, SIM117
        with gallery.snapshot():
            scan = gallery.scan(vectors[0])
            scan.nearest(5)
            gallery.possible(scan, radius)
    answers(lambda slots, said: (slots[1:], said[1:] + 0.01))
    found = told(gallery.range_search(vectors[0], radius))
    assert found == ranking(vectors[0], ids, vectors)[:10]


def test_rows_that_come_twice_count_once(milvus, monkeypatch):
    gallery = milvus.empty()
    ids, vectors = names(60), random(60)
    gallery.add(ids, vectors)
    query, search = link.Link.query, link.Link.search
    monkeypatch.setattr(link.Link, "query", lambda *rest, **how: [*query(*rest, **how)] * 2)
    monkeypatch.setattr(
        link.Link,
        "search",
        lambda self, name, asked, limit, **how: [
            (np.repeat(slots, 2)[:limit], np.repeat(said, 2)[:limit])
            for slots, said in search(self, name, asked, limit, **how)
        ],
    )
    order = ranking(vectors[0], ids, vectors)
    assert told(gallery.range_search(vectors[0], order[9][1])) == order[:10]
    assert told(gallery.nearest(vectors[0], 30)[0]) == order[:30]
    assert list(gallery.catalogue()) == ids
    assert len(gallery.all_vectors()) == 60
    assert gallery.verify() == []


def test_a_reach_that_is_not_what_was_written_is_seen(milvus):
    gallery = milvus.empty(boxes=True)
    vectors, boxes, asked = candidates(5, 40, DIM, 0.0)
    gallery.add(names(40), vectors, boxes={EPS: boxes})
    near = ranking(asked.embedding, names(40), vectors)[5][0]
    slot = slots_of(gallery, [near])[near]
    collection = gallery._store._newest().boxes[EPS]
    right = dict(gallery._store._link.query(collection, f"slot == {slot}", list(rows.BOX))[0])
    for row in ({**right, "reach": 0.0}, right):
        gallery._store._link.delete(collection, f"slot in [{slot}]")
        gallery._store._link.insert(collection, [row])
        time.sleep(0.3)
        if row is not right:
            with gallery.snapshot(), pytest.raises(GalleryError, match="does not match its checksum"):
                gallery.possible(gallery.scan(asked.embedding), 1e3, EPS)
    assert gallery.verify() == []


def test_more_than_milvus_gives_out(milvus, monkeypatch):
    """Where an answer is cut off, all vectors are read; where these are too many, nothing is claimed."""
    vectors, boxes, asked = candidates(5, 80, DIM, 0.1)
    gallery = milvus.empty(boxes=True)
    gallery.add(names(80), vectors, boxes={EPS: boxes})
    wanted = proved(gallery, asked, 5)
    assert any(entry[4] == "CERTIFIED" for entry in wanted["query:linf:0.1"])
    with monkeypatch.context() as patch:
        patch.setattr(reading, "WHOLE", 0)  # Milvus itself leaves out what is too far.
        assert proved(gallery, asked, 5) == wanted
    monkeypatch.setattr(milvus_store, "MOST", 30)
    assert proved(gallery, asked, 5) == wanted
    assert told(gallery.nearest(vectors[0], 60)[0]) == ranking(vectors[0], names(80), vectors)[:60]
    gallery.remove(names(1))
    monkeypatch.setattr(reading, "WHOLE", 78)
    gone = certify_query(
        gallery,
        QueryBounds(asked.embedding, Box(asked.box.centre, asked.box.radius * 100), False),
        5,
        Threat.parse(THREATS[0]),
    )
    assert {(c.best, c.worst, c.verdict) for c in gone.certificates} == {(1, 79, Verdict.UNKNOWN)}
    assert "79 candidates are too many to be read in full" in gone.proof.reason
    with pytest.raises(TooManyError, match="too many"):
        gallery.range_search(vectors[0], 100.0)


def test_any_rounding_within_the_bound_is_harmless(milvus, monkeypatch):
    """Milvus may compute in any form: here each squared distance is off by as much as the bound allows."""
    if milvus.kind == "milvus":
        pytest.skip("Milvus is not asked here")
    vectors = random(150, seed=8) + np.float32(400)
    ids = names(150)
    gallery = milvus.empty()
    gallery.add(ids, vectors)
    first = slots_of(gallery, ids[:1])[ids[0]]
    rng = np.random.default_rng(9)

    def search(self, collection, queries, limit, *, expression, stamp, ask):
        found = []
        for query in queries:
            error = norm_form_error(query[None], largest_norm(vectors))[0] * 0.99
            squares = np.square(vectors.astype(np.float64) - query).sum(axis=1)
            said = squares + error * rng.choice([-1, 1], len(squares))
            order = [n for n in np.argsort(said) if said[n] < ask.get("radius", np.inf)][:limit]
            found.append(
                (np.array(order, dtype=np.int64) + first, said[order].astype(np.float32).astype(float))
            )
        return found

    monkeypatch.setattr(link.Link, "search", search)
    monkeypatch.setattr(reading, "WHOLE", 0)
    for query in vectors[:6] + random(6, seed=10) * np.float32(0.1):
        order = ranking(query, ids, vectors)
        assert told(gallery.nearest(query, 5)[0]) == order[:5]
        for place in (0, 20, 100):
            assert told(gallery.range_search(query, order[place][1])) == order[: place + 1]


@pytest.mark.parametrize("farthest", [9.0, np.inf])
def test_candidates_that_come_from_afar(milvus, monkeypatch, tmp_path, farthest):
    """Most move a little, two far: each is found without reading all."""
    vectors = np.zeros((80, DIM), dtype=np.float32)
    vectors[:, 0] = np.arange(80) * 0.1
    radius = np.full_like(vectors, 0.08)
    radius[30] = 2.0
    radius[70] = farthest
    boxes = Boxes(vectors, radius)
    query = QueryBounds(np.full(DIM, 0.01, dtype=np.float32), None, False)
    monkeypatch.setattr(reading, "WHOLE", 0)
    found = []
    with Gallery.create(tmp_path / "same.gallery", dim=DIM, embedder=EMBEDDER) as embedded:
        embedded.add_boxes(EPS, lambda *_: None)
        for gallery in (embedded, milvus.empty(boxes=True)):
            gallery.add(names(80), vectors, boxes={EPS: boxes})
            found.append(certify_query(gallery, query, 3, Threat.parse("candidates:linf:0.1")))
    stored = gallery._store._link.query(gallery._store._newest().boxes[EPS], "slot >= 0", ["reach"])
    assert np.isfinite([row["reach"] for row in stored]).all()
    assert found[0] == found[1]
    assert found[0].proof.examined < 20
    if farthest < np.inf:
        assert [entry.certificate.worst for entry in found[0].hits] == [4, 5, 6]


def test_an_approximate_index_proves_by_comparing_with_all_or_says_unknown(milvus, monkeypatch):
    gallery = milvus.empty(boxes=True, options="?index=HNSW&M=4&efConstruction=8")
    vectors, boxes, asked = candidates(7, 80, DIM, 0.0)
    gallery.add(names(80), vectors, boxes={EPS: boxes})
    assert gallery.info.index == "HNSW"
    found = gallery.nearest(vectors[:3], 5)
    for query, hits in zip(vectors, found, strict=False):
        distances = dict(entry[:2] for entry in ranking(query, names(80), vectors))
        assert [hit.distance for hit in hits.hits] == [distances[hit.id] for hit in hits.hits]
    plain = milvus.empty(boxes=True)
    plain.add(names(80), vectors, boxes={EPS: boxes})
    assert proved(gallery, asked, 5) == proved(plain, asked, 5)
    gallery.remove(names(1))
    monkeypatch.setattr(reading, "WHOLE", 10)
    for text in THREATS:
        unsure = certify_query(gallery, asked, 5, Threat.parse(text))
        assert {(c.best, c.worst, c.verdict) for c in unsure.certificates} == {(1, 79, Verdict.UNKNOWN)}
        assert "the index HNSW is approximate" in unsure.proof.reason
    with pytest.raises(GalleryError, match=r"which the index HNSW of .* may miss; search by the mean"):
        VoteQuestion.check(gallery, Smoothing(0.1, rule="votes"), 1, 1)
    with pytest.raises(GalleryError, match="was made with index HNSW"):
        open_gallery(gallery.path.replace("HNSW", "IVF_FLAT").replace("M=4&efConstruction=8", "nlist=4"))


@pytest.mark.parametrize("step", ["_client_class", "_check_version"])
def test_a_file_that_could_not_be_opened_is_let_go(tmp_path, monkeypatch, step):
    location = f"milvus-lite:{tmp_path}/shop.db/g"

    def fail(*_, **__):
        raise GalleryError("no")

    with monkeypatch.context() as patch:
        patch.setattr(link, step, (lambda: fail) if step == "_client_class" else fail)
        with pytest.raises(GalleryError, match="no"):
            create_gallery(location, dim=DIM, embedder=EMBEDDER)
    assert link._files[f"{tmp_path}/shop.db"] == 0
    create_gallery(location, dim=DIM, embedder=EMBEDDER).close()


def test_the_wait_for_a_writer_ends(milvus, monkeypatch):
    gallery = milvus.empty()
    monkeypatch.setattr(documents, "LEASE", 0.3)
    with milvus.again(gallery) as other:
        other._store._wait = 0.1
        with gallery._store.write():
            claim, beating = gallery._store._claim, threading.Event()

            def live():
                while not beating.wait(0.05):
                    claim.last = 0.0
                    claim.beat()

            alive = threading.Thread(target=live)
            alive.start()
            try:
                with pytest.raises(GalleryError, match="is being written by another process"):
                    other.add(["a"], random(1))
            finally:
                beating.set()
                alive.join()
    assert len(gallery) == 0
