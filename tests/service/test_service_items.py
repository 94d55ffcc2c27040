"""Items over HTTP: added with their picture, replaced, removed; nothing is written where that is not allowed."""

from __future__ import annotations

import pytest
from serving import ask, png, problem, serving

from holdfast.deadline import Deadline, running
from holdfast.errors import OutOfTimeError, StorageError
from holdfast.gallery import Gallery
from holdfast.service import writing


@pytest.fixture
def writable(own_shop, tmp_path):
    with serving(own_shop, tmp_path / "c", writable=True) as (client, _):
        yield client, own_shop.gallery, own_shop.gallery.with_name("own.gallery.images")


def test_an_item_comes_and_goes_with_its_picture(writable):
    client, gallery, folder = writable
    before = client.get("/api/v1/status").json()["galleries"][0]["generation"]
    made = ask(client, png(), path="items", id="new/one é.png", label="hat")
    assert made.status_code == 201
    assert made.json()["generation"] == before + 1
    assert [path.read_bytes() for path in folder.iterdir()] == [png()]
    found = ask(client, png(), k=1).json()["hits"][0]
    assert (found["id"], found["label"]) == ("new/one é.png", "hat")
    assert found["distance"] < 1e-5
    assert client.get(found["image"]).headers["content-type"] == "image/png"
    certified = ask(client, png(), path="search/certified", threat="candidates:linf:0.01", k=1).json()
    assert certified["hits"][0]["id"] == "new/one é.png"
    with Gallery.open(gallery, readonly=True) as opened:
        assert opened.verify() == []
        assert opened.info.count == 61

    problem(ask(client, png(seed=2), path="items", id="new/one é.png"), 409, "say replace=true")
    assert ask(client, png(seed=2), path="items", id="new/one é.png", replace="true").status_code == 201
    assert [path.read_bytes() for path in folder.iterdir()] == [png(seed=2)]
    gone = client.delete("/api/v1/items/new/one é.png")
    assert gone.json()["removed"] == 1
    assert list(folder.iterdir()) == []
    problem(client.delete("/api/v1/items/new/one é.png"), 404, "has no item")
    problem(client.get("/api/v1/items/new/one é.png"), 404, "has no item")


def test_a_picture_that_was_indexed_from_elsewhere_stays(writable, shop):
    client, _, _ = writable
    hit = ask(client, shop.picture(), k=1).json()["hits"][0]
    assert client.delete(f"/api/v1/items/{hit['id']}").status_code == 200
    assert (shop.pictures / hit["id"]).exists()


@pytest.mark.parametrize(
    "id", ["/a", "a/../b", "..", "a//b", "a\nb", " a", "a/image", "image", "a\x00", "x" * 513]
)
def test_ids_that_could_not_be_asked_for(writable, id):
    client, gallery, folder = writable
    problem(ask(client, png(), path="items", id=id), 422, "")
    assert not folder.exists()
    with Gallery.open(gallery, readonly=True) as opened:
        assert opened.info.count == 60


def test_what_cannot_be_read_is_not_added(writable):
    client, _, folder = writable
    problem(ask(client, b"junk", path="items", id="x"), 422, "not an image")
    problem(ask(client, png(), path="items", id="x", label="a\x07"), 422, "a label is")
    problem(ask(client, png(), path="items", id="x", path_="/etc/passwd"), 422, "unknown field")
    problem(ask(client, None, path="items", id="x"), 422, "image")
    assert not folder.exists()


def test_a_gallery_that_is_not_writable_is_not_written(client):
    problem(ask(client, png(), path="items", id="x"), 403, "start with --writable")
    problem(client.delete("/api/v1/items/x"), 403, "start with --writable")


def test_a_write_that_fails_leaves_nothing(writable, monkeypatch):
    client, gallery, folder = writable

    def fails(*_, **__):
        raise StorageError(f"could not write {gallery} (the disk is full)")

    monkeypatch.setattr(Gallery, "add", fails)
    said = problem(ask(client, png(), path="items", id="x"), 507, "the disk is full")
    assert str(gallery) not in said["detail"]
    assert list(folder.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(writing, "atomic_write", fails)
    problem(ask(client, png(), path="items", id="x"), 507, "the disk is full")
    problem(client.get("/api/v1/items/x"), 404, "no item")


def test_a_write_that_was_answered_as_stopped_is_not_kept(own_shop):
    with Gallery.open(own_shop.gallery) as gallery:
        deadline = Deadline(60)

        def late():
            with running(deadline), gallery._store.write():
                gallery._store.connection.execute("UPDATE items SET label = NULL")
                deadline.cancel()

        before = generation_of(own_shop)
        with pytest.raises(OutOfTimeError):
            late()
        assert gallery.info.generation == before
        assert gallery.remove([next(iter(gallery.ids()))]) == 1


def generation_of(shop):
    with Gallery.open(shop.gallery, readonly=True) as gallery:
        return gallery.info.generation


def test_a_picture_that_was_changed_is_not_shown_for_the_old_one(writable):
    client, _, folder = writable
    assert ask(client, png(seed=1), path="items", id="mine").status_code == 201
    assert client.get("/api/v1/items/mine/image").status_code == 200
    next(folder.iterdir()).write_bytes(png(seed=2))
    said = "is no longer where it was, or was changed"
    problem(client.get("/api/v1/items/mine/image"), 404, said)
    problem(ask(client, None, id="mine"), 404, said)
