"""Rows survive kills, keep their types, and are the same bytes whatever happened on the way."""

from __future__ import annotations

import gzip
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DataError, RunError
from holdfast.rows import RowWriter, config_hash, read_rows

COLUMNS = {"query": "str", "rank": "int", "score": "float", "hits": "list"}
HEADER = {"hash": "abc", "seed": 0}


def row(i: int) -> dict[str, object]:
    return {"query": f'a,"b"\n{i}\u2028', "rank": i, "score": i / 3, "hits": [f"x{i}", "é"]}


def write(path, parts):
    writer = RowWriter(path, HEADER, COLUMNS)
    for part in parts:
        writer.append([row(i) for i in part])
    return writer


def test_round_trip_keeps_types_and_odd_characters(tmp_path):
    path = write(tmp_path / "rows.csv.gz", [range(3), range(3, 5)]).finish()
    rows = read_rows(path)
    assert len(rows) == 5
    assert rows.header["seed"] == 0
    for i in range(5):
        assert {name: column[i] for name, column in rows.columns.items()} == row(i)
    assert rows.columns["rank"].dtype.kind == "i"
    assert not (tmp_path / "rows.csv.gz.part").exists()


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 2000))
def test_a_cut_file_resumes_after_its_last_whole_block(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("rows")
    path = folder / "rows.csv.gz"
    write(path, [range(4), range(4, 8), range(8, 12)])
    part = folder / "rows.csv.gz.part"
    data = part.read_bytes()
    part.write_bytes(data[: max(0, len(data) - cut)])
    writer = RowWriter(path, HEADER, COLUMNS)
    assert writer.done in (0, 4, 8, 12)
    for first in range(writer.done, 12, 4):
        writer.append([row(i) for i in range(first, first + 4)])
    writer.finish()
    whole = write(folder / "whole.csv.gz", [range(12)]).finish()
    assert path.read_bytes() == whole.read_bytes()


def test_nan_is_kept(tmp_path):
    writer = RowWriter(tmp_path / "r.gz", HEADER, {"score": "float"})
    writer.append([{"score": math.nan}])
    assert math.isnan(read_rows(writer.finish()).columns["score"][0])


def test_rows_of_another_config_are_not_continued(tmp_path):
    write(tmp_path / "rows.csv.gz", [range(2)])
    with pytest.raises(RunError, match="another evaluation"):
        RowWriter(tmp_path / "rows.csv.gz", {"hash": "other"}, COLUMNS)


def test_what_is_not_rows_is_refused(tmp_path):
    with pytest.raises(DataError, match="no rows"):
        read_rows(tmp_path / "none.gz")
    for number, content in enumerate([b"text", gzip.compress(b"a,b\n1,2\n"), gzip.compress(b"#{}\n")[:-4]]):
        path = tmp_path / f"{number}.gz"
        path.write_bytes(content)
        with pytest.raises(DataError, match="not a file of rows"):
            read_rows(path)


def test_config_hash_is_of_the_content():
    assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1}) != config_hash({"a": 1, "b": 3})
