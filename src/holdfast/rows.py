"""Rows: one typed record per query, in a compressed CSV with a header record.

The first line is `#` and a JSON object: the config and its hash, seed, versions, commit, and the
type of each column. While an evaluation runs, rows go to `….part`, a gzip member for each block,
so that a run killed at any moment resumes after the last whole block; the finished file takes the
name without `.part` in one move.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, DataError, RunError
from holdfast.files import atomic_write, exclusive, storage_error
from holdfast.provenance import commit, versions

ROWS = "rows.csv.gz"
SUMMARY = "summary.json"
T = TypeVar("T")


@dataclass(frozen=True)
class Rows:
    """A finished set of rows: header, and columns of equal length (lists stay Python lists)."""

    header: dict[str, Any]
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Finding:
    """Something that speaks against some rows. An error means that a number is wrong, whichever it is."""

    level: Literal["warning", "error"]
    text: str

    def __str__(self) -> str:
        return f"{self.level.upper()}: {self.text}"


def config_hash(config: Mapping[str, Any]) -> str:
    """A short hash by which two configs are told apart."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


class RowWriter:
    """Writes rows block by block; `done` rows were already there from an earlier, stopped run."""

    def __init__(self, path: Path, header: Mapping[str, Any], columns: Mapping[str, str]) -> None:
        self.path = path
        self._part = path.with_name(path.name + ".part")
        self._columns = dict(columns)
        self._header = {**header, "columns": self._columns}
        if self._part.exists() and self._resume():
            return
        self.done = 0
        atomic_write(self._part, self._member("#" + json.dumps(self._header) + "\n" + self._line(columns)))

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add one block of rows; after this returns they survive a kill."""
        text = "".join(self._line([_text(row[c], t) for c, t in self._columns.items()]) for row in rows)
        try:
            with open(self._part, "ab") as handle:
                handle.write(self._member(text))
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as cause:
            raise storage_error(self._part, cause) from cause
        self.done += len(rows)

    def read(self) -> Rows:
        """The rows written so far."""
        return _rows(_whole_members(self._part)[0])

    def finish(self) -> Path:
        """Give the file its final name, as one gzip member: equal rows make equal bytes."""
        atomic_write(self.path, self._member(_whole_members(self._part)[0]))
        self._part.unlink()
        return self.path

    def _resume(self) -> bool:
        text, end = _whole_members(self._part)
        if not text:
            return False
        header, records = _split(text)
        if header["hash"] != self._header["hash"]:
            raise RunError(
                f"{self._part} is from another evaluation; remove it, or choose another folder", option="out"
            )
        if any(header.get(key) != self._header.get(key) for key in ("versions", "commit")):
            return False  # Rows of one file come from one version of the code.
        os.truncate(self._part, end)
        self.done = len(records) - 1
        return True

    @staticmethod
    def _member(text: str) -> bytes:
        return gzip.compress(text.encode(), compresslevel=6, mtime=0)

    @staticmethod
    def _line(values: Any) -> str:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerow(values)
        return buffer.getvalue()


def is_finished(folder: Path, *configs: Mapping[str, Any]) -> bool:
    """Whether the rows of one of these configs are in the folder, all of them; rows of another config are an error."""
    rows = folder / ROWS
    if not rows.exists():
        return False
    if read_header(rows)["hash"] not in map(config_hash, configs):
        raise ConfigError(
            f"{folder} holds the rows of another model or setting; choose another folder, or remove it",
            option="out",
        )
    return True


@contextmanager
def writing(
    folder: Path, config: Mapping[str, Any], columns: Mapping[str, str], **about: Any
) -> Iterator[RowWriter]:
    """A writer for rows in the folder that no other process shares; their header says all that made them.

    `config` has the `kind` of the rows and the `seed`.
    """
    header = {"config": config, "hash": config_hash(config), "seed": config["seed"], **about}
    header |= {"versions": versions(), "commit": commit()}
    with exclusive(folder, config["kind"]):
        yield RowWriter(folder / ROWS, header, columns)


def read_rows(path: Path) -> Rows:
    """The rows of a finished file."""
    with _readable(path):
        return _rows(gzip.decompress(path.read_bytes()).decode())


def read_header(path: Path) -> dict[str, Any]:
    """The header of a finished file, without its rows."""
    with _readable(path), gzip.open(path, "rt", encoding="utf-8", newline="") as handle:
        return _split(handle.readline())[0]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"no rows at {path}; run 'holdfast evaluate' first") from None
    except (OSError, EOFError, zlib.error, ValueError, KeyError) as error:
        raise DataError(f"{path} is not a file of rows, or is damaged: {error}") from None


def _rows(text: str) -> Rows:
    header, (names, *records) = _split(text)
    types = header["columns"]
    columns = {name: _column([record[i] for record in records], types[name]) for i, name in enumerate(names)}
    return Rows(header, columns)


def _split(text: str) -> tuple[dict[str, Any], list[list[str]]]:
    """The header, and the records after it, of which the first is the names of the columns."""
    first, _, rest = text.partition("\n")
    if not first.startswith("#"):
        raise KeyError("no header record")
    header: dict[str, Any] = json.loads(first[1:])
    return header, list(csv.reader(io.StringIO(rest, newline="")))


def _text(value: Any, kind: str) -> str:
    if kind == "list":
        return json.dumps(value)
    if kind == "float":
        return repr(float(value))
    return str(value)


def _column(values: list[str], kind: str) -> NDArray[Any]:
    if kind == "list":
        out = np.empty(len(values), dtype=object)
        out[:] = [json.loads(value) for value in values]
        return out
    if kind == "str":
        return np.array(values, dtype=object)
    return np.array(values, dtype=object).astype(np.int64 if kind == "int" else np.float64)


def _whole_members(path: Path) -> tuple[str, int]:
    """The text of a file's complete gzip members, and where the last of them ends."""
    pieces: list[bytes] = []
    end = 0
    with open(path, "rb") as handle:
        stream, piece, data = zlib.decompressobj(wbits=31), [], b""
        while data or (data := handle.read(1 << 20)):
            try:
                piece.append(stream.decompress(data))
            except zlib.error:
                break
            data = stream.unused_data
            if stream.eof:
                end = handle.tell() - len(data)
                pieces += piece
                stream, piece = zlib.decompressobj(wbits=31), []
    return b"".join(pieces).decode(), end


def pending(parts: Iterable[tuple[T, int, int]], done: int) -> Iterator[tuple[T, range]]:
    """The blocks of rows that are not done yet, for parts of (what, how many rows, rows in a block).

    What is in a block depends on its place alone, so that a resumed run makes the same rows.
    """
    start = 0
    for what, rows, size in parts:
        for first in range(0, rows, size):
            block = range(first, min(first + size, rows))
            if start >= done:
                yield what, block
            start += len(block)
