"""Adding, updating, removing: against a dict that does the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gallery_reference import DIM, EMBEDDER, names, random, ranking, told
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from holdfast.errors import GalleryError
from holdfast.gallery import Gallery, Item
from holdfast.gallery.stores.sqlite import columns


class Followed(RuleBasedStateMachine):
    """A gallery, a second one that only reads the same file, and a dict."""

    folder: Path
    number = 0

    @initialize()
    def begin(self) -> None:
        Followed.number += 1
        self.path = self.folder / f"{Followed.number}.gallery"
        self.gallery = Gallery.create(self.path, dim=DIM, embedder=EMBEDDER)
        self.reader = Gallery.open(self.path, readonly=True)
        self.model: dict[str, tuple[NDArray[np.float32], str | None]] = {}
        self.seed = 0

    def fresh(self, count: int) -> NDArray[np.float32]:
        self.seed += 1
        return np.round(random(count, self.seed))

    @rule(
        ids=st.sets(st.integers(0, 40), max_size=14),
        label=st.none() | st.text(max_size=3),
        replace=st.booleans(),
    )
    def add(self, ids: set[int], label: str | None, replace: bool) -> None:
        chosen = [f"image-{number}" for number in ids]
        vectors = self.fresh(len(chosen))
        if not replace and any(id in self.model for id in chosen):
            with pytest.raises(GalleryError, match="already in the gallery"):
                self.gallery.add(chosen, vectors, labels=[label] * len(chosen))
            return
        self.gallery.add(chosen, vectors, labels=[label] * len(chosen), replace=replace)
        self.model.update({id: (vector, label) for id, vector in zip(chosen, vectors, strict=True)})

    @rule(ids=st.sets(st.integers(0, 40), max_size=25))
    def remove(self, ids: set[int]) -> None:
        chosen = [f"image-{number}" for number in ids]
        assert self.gallery.remove(chosen) == sum(self.model.pop(id, None) is not None for id in chosen)

    @rule()
    def reopen(self) -> None:
        self.gallery.close()
        self.gallery = Gallery.open(self.path, embedder=EMBEDDER)

    @rule()
    def compact(self) -> None:
        self.gallery.compact()

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.gallery.verify() == []
        assert list(self.reader.ids()) == sorted(self.model)
        assert len(self.reader) == len(self.model)
        if self.model:
            ids, query = list(self.model), self.fresh(1)[0]
            wanted = ranking(query, ids, np.stack([self.model[id][0] for id in ids]))
            for gallery in (self.gallery, self.reader):
                (hits,) = gallery.nearest(query, 50)
                assert told(hits) == wanted
                assert all(hit.label == self.model[hit.id][1] for hit in hits.hits)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.gallery.close()
            self.reader.close()


def test_a_gallery_is_a_dict_that_lasts(tmp_path: Path, small_blocks: None) -> None:
    Followed.folder = tmp_path
    machine = Followed.TestCase
    machine.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
    machine().runTest()


def test_items_keep_what_they_were_given(gallery: Gallery) -> None:
    gallery.add(["a", "b"], random(2), labels=["x", None], paths=[None, "b.jpg"], digests=["d1", "d2"])
    assert gallery.get("a") == Item("a", "x", None, "d1")
    assert gallery.get("b") == Item("b", None, "b.jpg", "d2")
    assert {id: item.digest for id, item in gallery.catalogue().items() if item.digest} == {
        "a": "d1",
        "b": "d2",
    }
    assert ("a" in gallery, "c" in gallery, 3 in gallery) == (True, False, False)
    gallery.add(["b", "c"], random(2, 1), replace=True)
    assert gallery.get("b") == Item("b")
    assert gallery.vectors(["c", "a"]).tolist() == [random(2, 1)[1].tolist(), random(2)[0].tolist()]
    assert gallery.info.count == 3
    assert gallery.info.generation == 2
    assert gallery.info.embedder == EMBEDDER


def test_removal_rewrites_each_touched_block_once(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery.add(names(40), random(40))
    written: list[int] = []
    plain = columns._write

    def counted(connection: object, column: object, number: int, *rest: object) -> int:
        written.append(number)
        return plain(connection, column, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(columns, "_write", counted)
    assert gallery.remove([*names(6), "nobody", *names(6)]) == 6
    assert sorted(written) == [0, 1, 8]
    assert gallery.verify() == []


def test_removing_all_leaves_an_empty_gallery_that_works(gallery: Gallery) -> None:
    gallery.add(names(9), random(9))
    assert gallery.remove(gallery.ids()) == 9
    assert (len(gallery), list(gallery.ids()), gallery.verify()) == (0, [], [])
    gallery.add(["again"], random(1))
    assert [hit.id for hit in gallery.nearest(random(1), 3)[0].hits] == ["again"]


def test_compacting_gives_space_back(path: Path) -> None:
    with Gallery.create(path, dim=256, embedder=EMBEDDER) as gallery:
        gallery.add(names(4000), random(4000, dim=256))
        gallery.remove(names(3990))
        gallery.compact()
        assert path.stat().st_size < 1_000_000
        assert gallery.verify() == []
        assert len(gallery.nearest(random(1, dim=256), 20)[0]) == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": ["a", "b", "a"]}, "given more than once: 'a'"),
        ({"ids": ["a", "old", "c"]}, "already in the gallery: 'old'; nothing was added"),
        ({"ids": ["a", "", "c"]}, "an id is a string, not empty; found ''"),
        ({"ids": ["a", 7, "c"]}, "an id is a string, not empty; found 7"),
        ({"ids": "abc"}, "not the one string"),
        ({"ids": ["a", "\udce9", "c"]}, "is not valid Unicode"),
        ({"ids": ["a", "b"]}, "2 ids came with 3 vectors"),
        ({"labels": ["x"]}, "3 ids came with 1 labels"),
        ({"labels": ["x", 3, None]}, "a label is a string or None; found 3"),
        ({"vectors": np.ones((3, DIM + 1))}, "5 numbers each"),
        ({"vectors": np.full((3, DIM), np.nan)}, "number 1 of 3 has a NaN"),
    ],
)
def test_bad_additions_change_nothing(gallery: Gallery, arguments: dict[str, object], message: str) -> None:
    gallery.add(["old"], random(1))
    given = {"ids": ["a", "b", "c"], "vectors": random(3), **arguments}
    with pytest.raises(GalleryError, match=message) as refused:
        gallery.add(given.pop("ids"), given.pop("vectors"), **given)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    assert list(gallery.ids()) == ["old"]
    assert gallery.info.generation == 1


def test_removing_needs_a_list(gallery: Gallery) -> None:
    with pytest.raises(GalleryError, match="not the one string 'old'"):
        gallery.remove("old")
