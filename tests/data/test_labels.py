"""Labels as people have them: tables, depths, two folders, groups, and copies among the pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast import data
from holdfast.data.labels import by_folder, check_rule, read_table
from holdfast.errors import DataError
from holdfast.spec import ImageSpec

SPEC = ImageSpec(3, 16, 16)


def picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(["a/x/0.png", "a/x/1.png", "a/y/2.png", "b/x/3.png", "b/x/4.png", "5.png"]):
        picture(tmp_path / "photos" / name, seed)
    return tmp_path / "photos"


def table(folder: Path, *lines: str, name: str = "labels.csv") -> str:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return str(path)


ALL = ("a/x/0.png,cat", "a/x/1.png,cat", "a/y/2.png,dog", "b/x/3.png,dog", "b/x/4.png,cat")


def test_a_table_gives_labels_and_splits(folder: Path) -> None:
    lines = [f"{line},{'test' if 'cat' in line else 'train'}" for line in ALL]
    labels = table(folder, "path,label,split", *lines)
    found = data.load(str(folder), spec=SPEC, labels=labels)
    assert found.split == "given"
    assert found.test.classes == ("cat", "dog")
    assert set(found.test.ids) == {"a/x/0.png", "a/x/1.png", "b/x/4.png"}
    assert [found.train.classes[label] for label in found.train.require_labels("it")] == ["dog", "dog"]
    # What is not in the table is named, not guessed.
    assert [(entry.id, entry.reason) for entry in found.skipped] == [("5.png", "not in labels.csv")]


@pytest.mark.parametrize("where", ["beside", "absolute", "below"])
def test_paths_are_below_the_images_or_below_the_table(folder: Path, where: str) -> None:
    if where == "beside":
        lines = [f"photos/{line}" for line in ALL]
        labels = table(folder.parent, "path,label", *lines)
    else:
        prefix = f"{folder}/" if where == "absolute" else "./"
        labels = table(folder, "path,label", *(f"{prefix}{line}" for line in ALL))
    images, _ = data.load_images(folder, spec=SPEC, labels=labels)
    assert images.ids[:2] == ("a/x/0.png", "a/x/1.png")
    assert len(images) == 5


def test_a_parquet_table_is_the_same(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    rows = [line.split(",") for line in ALL]
    columns = {
        "path": [row[0] for row in rows],
        "label": [row[1] for row in rows],
        "group": [1, 1, None, 2, 2],
    }
    parquet.write_table(pyarrow.table(columns), folder / "labels.parquet")
    found = read_table(folder / "labels.parquet")
    csv = table(
        folder, "path,label,group", *(f"{a},{b}" for a, b in zip(ALL, ["1", "1", "", "2", "2"], strict=True))
    )
    assert found.rows == read_table(csv).rows
    (folder / "labels.parquet").write_bytes(b"broken")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_table(folder / "labels.parquet")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("path,class", "a/x/0.png,cat"), "has no column 'label', but path, class"),
        (("path,label",), "has no rows"),
        (("path,label", *ALL, "a/x/0.png,dog"), "names 1 images twice: a/x/0.png"),
        (("path,label", *ALL, "a/x/9.png,dog"), "names 1 images that are not in .*photos: a/x/9.png"),
        (("path,label", "a/x/0.png,"), "row 1 of .* has no label"),
        (("path,label,split", "a/x/0.png,cat,dev"), "the split 'dev'; known: train, validation"),
        (("path,label,is_query", "a/x/0.png,cat,maybe"), "the is_query 'maybe'"),
        (("path,label", "a/x/0.png,cat,more"), "line 2 of .* has 3 values for 2 columns"),
    ],
)
def test_what_is_wrong_in_a_table_is_one_line(folder: Path, lines: tuple[str, ...], says: str) -> None:
    labels = table(folder, *lines)
    with pytest.raises(DataError, match=says) as error:
        data.load_images(folder, spec=SPEC, labels=labels)
    assert "\n" not in str(error.value)


def test_tables_that_are_not_there_and_rules_that_are_none(folder: Path) -> None:
    with pytest.raises(DataError, match="there is no table of labels at"):
        data.load_images(folder, spec=SPEC, labels="none.csv")
    for rule in ("middle", "0", "-1", "labels.txt"):
        with pytest.raises(DataError, match="labels are 'deepest', 'top', the depth"):
            check_rule(rule)


def test_a_depth_is_counted_from_the_top(folder: Path) -> None:
    assert by_folder(["a", "x", "0.png"], "1") == by_folder(["a", "x", "0.png"], "top") == "a"
    assert by_folder(["a", "x", "0.png"], "2") == "x"
    assert by_folder(["a", "x", "0.png"], "3") is None
    found = data.load(str(folder), spec=SPEC, labels="2", split="closed")
    assert found.train.classes == ("x", "y")
    assert [entry.id for entry in found.skipped] == ["5.png"]
    deeper = data.load(str(folder), spec=SPEC, labels="deepest", split="closed")
    assert deeper.train.classes == ("a/x", "a/y", "b/x")


def test_roles_and_groups_come_with_the_images(folder: Path) -> None:
    marks = ["1,0,c1", "0,1,c1", "1,1,", "0,1,c2", "0,1,c1"]
    lines = [f"{line},{mark}" for line, mark in zip(ALL, marks, strict=True)]
    images, _ = data.load_images(
        folder, spec=SPEC, labels=table(folder, "path,label,is_query,is_gallery,group", *lines)
    )
    assert images.roles is not None
    asked, found = images.roles.sides("it")
    assert (asked.tolist(), found.tolist()) == ([0, 2], [1, 2, 3, 4])
    assert images.roles.group.tolist() == [0, 0, -1, 1, 0]
    part = images.take([2, 4])
    assert part.roles is not None
    assert part.roles.group.tolist() == [-1, 0]
    unmarked, _ = data.load_images(folder, spec=SPEC, labels=table(folder, "path,label", *ALL))
    assert unmarked.roles is None
    assert unmarked.digest() != images.digest()


def test_queries_and_candidates_in_two_folders(folder: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(["q/one.png", "q/two.png"], 20):
        picture(tmp_path / name, seed)
    lines = [*(f"photos/{line}" for line in ALL), "q/one.png,cat", "q/two.png,bird"]
    labels = table(tmp_path, "path,label", *lines)
    images, skipped = data.load_pair(tmp_path / "q", folder, spec=SPEC, labels=labels)
    assert images.roles is not None
    asked, found = images.roles.sides("it")
    assert [images.ids[i] for i in asked] == ["queries/one.png", "queries/two.png"]
    assert len(found) == 5
    names = [images.classes[label] for label in images.require_labels("it")]
    assert names == ["cat", "bird", "cat", "cat", "dog", "dog", "cat"]
    assert [entry.id for entry in skipped] == ["gallery/5.png"]
    with pytest.raises(DataError, match=r"names 1 images that are not in .*q or .*photos: q/three.png"):
        data.load_pair(
            tmp_path / "q", folder, spec=SPEC, labels=table(tmp_path, "path,label", *lines, "q/three.png,cat")
        )
    with pytest.raises(DataError, match="q has no labels"):
        data.load_pair(tmp_path / "q", folder, spec=SPEC)


def test_near_duplicates_are_found_and_can_be_left_out(tmp_path: Path, shared_data: Path) -> None:
    from tarfile import open as open_tar

    archive = shared_data / "clothing_small_s128.tar"
    if not archive.exists():
        pytest.skip(f"{archive.name} is not among the data sets")
    with open_tar(archive) as tar:
        members = [member for member in tar if member.name.endswith(".jpg")][:60]
        for number, member in enumerate(members):
            content = tar.extractfile(member)
            assert content is not None
            path = tmp_path / "photos" / f"{number:02d}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content.read())
    with Image.open(tmp_path / "photos" / "07.jpg") as photo:
        smaller = photo.convert("RGB").resize((photo.width * 3 // 4, photo.height * 3 // 4))
        smaller.save(tmp_path / "photos" / "copy.jpg", quality=60)
    Image.new("RGB", (30, 30), "red").save(tmp_path / "photos" / "flat.png")
    Image.new("RGB", (30, 30), "blue").save(tmp_path / "photos" / "flat2.png")
    images, _ = data.load_images(tmp_path / "photos", spec=ImageSpec(3, 64, 64))
    first = data.near_duplicates(images)
    assert [(images.ids[i], images.ids[j]) for i, j in enumerate(first) if i != j] == [("copy.jpg", "07.jpg")]
    assert data.count_near_duplicates(images) == 1
    left = data.without_near_duplicates(images)
    assert "copy.jpg" not in left.ids
    assert len(left) == len(images) - 1


def test_a_candidate_that_copies_a_query_cannot_be_found(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "q" / "c").mkdir(parents=True)
    (tmp_path / "q" / "c" / "0.png").write_bytes((folder / "b/x/3.png").read_bytes())
    (folder / "5.png").unlink()
    images, _ = data.load_pair(tmp_path / "q", folder, spec=SPEC)
    assert data.count_near_duplicates(images) == 1
    left = data.without_near_duplicates(images)
    assert left.roles is not None
    assert "gallery/b/x/3.png" not in [left.ids[i] for i in left.roles.sides("it")[1]]
    assert left.roles.query.sum() == 1
