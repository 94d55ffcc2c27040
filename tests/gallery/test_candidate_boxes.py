"""Boxes beside the vectors: they hold what they should, and no write brings the two out of step."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from gallery_reference import DIM, EMBEDDER, names, random, to_version
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from holdfast.certify.certifier import Certifier
from holdfast.errors import GalleryError, ModelError
from holdfast.gallery import Boxes, Gallery, verify_file
from holdfast.gallery import boxes as box_columns
from holdfast.gallery.bounding import stored_boxes
from holdfast.gallery.stores.sqlite import columns, meta
from holdfast.models import wrap
from holdfast.workflow import open_and_index

EPS = 0.1


def around(vectors, seed=0, size=0.3):
    rng = np.random.default_rng(seed)
    move = size * rng.random(vectors.shape)
    return Boxes.around(vectors + move * (rng.random(vectors.shape) - 0.5), move)


def add(gallery, ids, vectors, **more):
    boxes = {eps: around(vectors, int(eps * 100), eps) for eps in gallery.info.boxes}
    gallery.add(ids, vectors, boxes=boxes, **more)


def slots(gallery):
    return np.arange(len(gallery))


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.float64, (2, 3), elements=st.floats(-1e39, 1e39)),
    arrays(np.float64, (2, 3), elements=st.floats(0, 1e39)),
)
def test_the_float32_box_holds_the_float64_one(centre, radius):
    made = Boxes.around(centre, radius)
    for sign in (-1, 1):
        gap = np.abs((centre - made.centre) + sign * radius)
        assert (gap <= made.radius).all()
    kept = np.isfinite(made.radius)
    assert kept[(np.abs(centre) < 1e38) & (radius < 1e38)].all()
    vectors = np.clip(centre, -3e38, 3e38).astype(np.float32)
    far = np.sqrt(np.square(np.abs(vectors - made.centre.astype(np.float64)) + made.radius).sum(1))
    assert (made.reach(vectors)[:, 0] >= far).all()


def test_writes_keep_all_columns_in_step(gallery, small_blocks):
    gallery.add(names(20), random(20))
    first = around(random(20))
    order = {id: row for row, id in enumerate(names(20))}
    gallery.add_boxes(
        EPS,
        lambda some, _: Boxes(
            *(half[[order[item.id] for item in some]] for half in (first.centre, first.radius))
        ),
    )
    gallery.add_boxes(EPS, lambda *_: pytest.fail("there already"))
    gallery.add_boxes(0.2, lambda _, vectors: around(vectors, 2))
    assert gallery.info.boxes == (EPS, 0.2)
    assert gallery.verify() == []
    gallery.remove(names(20)[3:9])
    add(gallery, ["new", "image-0001"], random(2, 7), replace=True)
    gallery.compact()
    assert gallery.verify() == []
    with gallery.snapshot():
        ids = [item.id for item in gallery.items(slots(gallery))]
        boxes, reach = gallery.boxes_at(EPS, slots(gallery)), gallery.reach(EPS)
    assert len(ids) == len(boxes) == len(reach) == 15
    for row, id in enumerate(ids):
        if id not in ("new", "image-0001"):
            assert boxes.centre[row].tolist() == first.centre[order[id]].tolist()
            assert boxes.radius[row].tolist() == first.radius[order[id]].tolist()
    vectors = gallery.vectors(ids)
    assert boxes.hold(vectors)
    far = np.sqrt(np.square(np.abs(vectors.astype(float) - boxes.centre) + boxes.radius).sum(1))
    assert (reach >= far).all()
    assert (reach <= far * 1.0001).all()


def test_a_reader_sees_new_boxes(gallery, path, small_blocks):
    gallery.add(names(9), random(9))
    with Gallery.open(path, readonly=True) as reader:
        assert reader.info.boxes == ()
        gallery.add_boxes(EPS, lambda _, vectors: around(vectors))
        assert reader.info.boxes == (EPS,)
        before = reader.reach(EPS).copy()
        add(gallery, ["image-0002", "x"], random(2, 1) * 9, replace=True)
        after = reader.reach(EPS)
        assert len(after) == 10
        assert np.flatnonzero(after[:9] != before).tolist() == [2]


def test_what_does_not_fit_is_refused(gallery):
    gallery.add(names(3), random(3))
    with pytest.raises(GalleryError, match=r"found boxes for linf:0\.1, not none; nothing was added"):
        gallery.add(["x"], random(1), boxes={EPS: around(random(1))})
    gallery.add_boxes(EPS, lambda _, vectors: around(vectors))
    for wrong in (None, {0.2: around(random(1))}):
        with pytest.raises(GalleryError, match=r"not linf:0\.1; nothing was added"):
            gallery.add(["x"], random(1), boxes=wrong)
    with pytest.raises(GalleryError, match="came with boxes of shape"):
        gallery.add(["x"], random(1), boxes={EPS: around(random(2))})
    with pytest.raises(GalleryError, match="does not hold the vector"):
        gallery.add(["x"], random(1), boxes={EPS: around(random(1) + 1)})
    with pytest.raises(GalleryError, match="radius of 0 or more"):
        Boxes(random(2), -np.ones_like(random(2)))
    with pytest.raises(GalleryError, match="between 0 and 1"):
        gallery.add_boxes(1.5, lambda _, vectors: around(vectors))

    def fails(_, vectors):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gallery.add_boxes(0.3, fails)
    assert (gallery.info.boxes, len(gallery), gallery.verify()) == ((EPS,), 3, [])


@pytest.mark.parametrize(
    ("part", "change", "problem"),
    [
        ("centre", lambda rows: rows + 9, "boxes for linf:0.1 in slots 0 to 8 do not fit their vectors"),
        ("radius", lambda rows: rows * 0, "do not fit their vectors"),
        ("centre", lambda rows: rows + np.inf, "has a NaN or infinity"),
        ("reach", lambda rows: rows * 0.9, "do not fit their vectors"),
        ("reach", lambda rows: rows[:-1], "has 8 rows, not 9"),
    ],
)
def test_verify_compares_boxes_with_vectors(path, part, change, problem):
    with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as gallery:
        gallery.add(names(9), random(9))
        gallery.add_boxes(EPS, lambda _, vectors: around(vectors))
        connection = gallery._store.connection
        column = meta.read(connection).columns[box_columns.kind(part, EPS)]
        columns._write(connection, column, 0, change(columns._read(connection, column, 0)), 2)
    assert problem in "\n".join(verify_file(path))


def test_boxes_without_bounds_are_sound(gallery):
    unknown = Boxes.around(np.zeros((3, DIM)), np.full((3, DIM), np.inf))
    gallery.add_boxes(EPS, lambda _, vectors: around(vectors))
    gallery.add(names(3), random(3), boxes={EPS: unknown})
    assert gallery.verify() == []
    assert np.isinf(gallery.reach(EPS)).all()


WRITER = """
import sys
import numpy as np
from holdfast.gallery import Boxes, Gallery
from holdfast.gallery.stores.sqlite import columns
columns._BLOCK_BYTES = 80
gallery = Gallery.open(sys.argv[1])
rng = np.random.default_rng(int(sys.argv[2]))
step = 0
while True:
    step += 1
    ids = [f"{sys.argv[2]}-{step}-{n}" for n in range(rng.integers(1, 30))]
    vectors = rng.standard_normal((len(ids), 5)).astype(np.float32)
    boxes = {eps: Boxes.around(vectors.astype(float), np.full(vectors.shape, eps)) for eps in gallery.info.boxes}
    gallery.add(ids, vectors, boxes=boxes)
    gallery.remove([id for id in gallery.ids() if rng.random() < 0.4])
    if step == 4 and len(gallery.info.boxes) < 4:
        eps = 0.1 * (1 + len(gallery.info.boxes))
        gallery.add_boxes(eps, lambda _, v: Boxes.around(v.astype(float), np.full(v.shape, eps)))
    print(step, flush=True)
"""


def test_a_killed_writer_leaves_boxes_and_vectors_consistent(path, small_blocks):
    with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as gallery:
        gallery.add_boxes(EPS, lambda _, vectors: around(vectors))
    moments = np.random.default_rng(0)
    for life in range(8):
        command = [sys.executable, "-c", WRITER, str(path), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(moments.integers(1, 9)):
                assert writer.stdout.readline()
            time.sleep(moments.uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
        assert verify_file(path) == []
    with Gallery.open(path) as gallery:
        assert len(gallery.info.boxes) > 1


@pytest.fixture
def pictures(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a/1.png", "a/2.png", "b/3.png", "b/4.png"):
        file = tmp_path / "pictures" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file)
    return tmp_path / "pictures"


def network(unit_norm=False):
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(3, 4, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(196, DIM),
    ]
    return wrap(torch.nn.Sequential(*layers).eval(), (3, 16, 16), unit_norm=unit_norm)


@pytest.mark.parametrize("unit_norm", [False, True])
def test_no_altered_image_leaves_its_box(unit_norm):
    embedder = network(unit_norm)
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (6, 3, 16, 16), generator=g, dtype=torch.uint8)
    images = pixels.float() / 255
    for eps in (0.0, 1e-3, 0.02, 0.5):
        boxes = stored_boxes(Certifier(embedder), pixels.numpy(), eps)
        assert np.isfinite(boxes.radius).all()
        for _ in range(10):
            noise = eps * (2 * torch.rand(images.shape, generator=g) - 1).sign()
            assert boxes.hold(embedder.embed((images + noise).clamp(0, 1)).numpy())
        x = images.clone()
        target = torch.randn(DIM, generator=g)
        for _ in range(5):
            x.requires_grad_(True)
            (gradient,) = torch.autograd.grad((embedder(x) @ target).sum(), x)
            step = x.detach() + eps * gradient.sign()
            x = torch.minimum(torch.maximum(step, images - eps), images + eps).clamp(0, 1)
            assert boxes.hold(embedder.embed(x).numpy())


def test_indexing_keeps_boxes_complete(pictures, tmp_path):
    embedder, out = network(), tmp_path / "g.gallery"
    gallery, done = open_and_index(embedder, pictures, out, boxes=EPS)
    gallery.close()
    assert done.boxes == (EPS,)
    Image.new("RGB", (16, 16), "red").save(pictures / "new.png")
    Image.new("RGB", (16, 16), "blue").save(pictures / "a" / "1.png")
    gallery, done = open_and_index(embedder, pictures, out)
    assert (done.added, done.updated, done.boxes) == (1, 1, (EPS,))
    with gallery:
        assert gallery.verify() == []
        kept = gallery.boxes_at(EPS, slots(gallery))
    again, _ = open_and_index(embedder, pictures, tmp_path / "h.gallery", boxes=EPS)
    with again, gallery.open(out) as gallery:
        for id in again.ids():
            mine, theirs = (g._slots([id]) for g in (gallery, again))
            assert kept.radius[mine].tolist() == again.boxes_at(EPS, theirs).radius.tolist()


def test_boxes_are_added_later_from_the_files(pictures, tmp_path):
    embedder, out = network(), tmp_path / "g.gallery"
    gallery, _ = open_and_index(embedder, pictures, out)
    gallery.close()
    other = tmp_path / "other"
    other.mkdir()
    Image.new("RGB", (16, 16), "red").save(other / "x.png")
    gallery, _ = open_and_index(embedder, other, out)
    gallery.close()
    (pictures / "b" / "4.png").rename(tmp_path / "away.png")
    Image.new("RGB", (16, 16), "green").save(pictures / "b" / "3.png")
    with pytest.raises(
        GalleryError, match=r"gone or changed since: 'b/3.png', 'b/4.png'; index their folder"
    ):
        open_and_index(embedder, other, out, boxes=EPS)
    with Gallery.open(out) as gallery:
        assert gallery.info.boxes == ()
    gallery, done = open_and_index(embedder, pictures, out, boxes=EPS, prune=True)
    with gallery:
        assert (done.removed, done.updated, done.boxes) == (1, 1, (EPS,))
        assert (len(gallery), gallery.verify()) == (4, [])


def test_a_network_without_bounds_leaves_no_gallery(pictures, tmp_path):
    odd = wrap(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 4), torch.nn.GELU()), (3, 16, 16))
    with pytest.raises(ModelError, match="GELU"):
        open_and_index(odd, pictures, tmp_path / "g.gallery", boxes=EPS)
    assert not (tmp_path / "g.gallery").exists()


def test_a_gallery_of_the_first_version_gains_boxes_when_it_is_given_them(path):
    with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as gallery:
        gallery.add(names(3), random(3))
    to_version(path, 1)
    with Gallery.open(path) as gallery:
        assert (gallery.certificates(), gallery.verify()) == ([], [])
        connection = gallery._store.connection
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        gallery.add(["x"], random(1))
        gallery.add_boxes(EPS, lambda _, vectors: around(vectors))
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
    assert verify_file(path) == []


def test_columns_are_named_by_their_eps():
    assert [c.width for c in meta.columns_for(EPS, 7)] == [7, 7, 1]
    assert meta.sizes([box_columns.kind("reach", eps) for eps in (8 / 255, 0.01)]) == (0.01, 8 / 255)
