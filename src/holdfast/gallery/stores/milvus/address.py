"""Where a gallery in Milvus is, as one line of text.

    milvus://HOST[:PORT]/NAME        a server; the port is 19530 unless said
    milvus-lite:PATH/NAME            a local file of milvus-lite (its own folder PATH, say shop.db)

Options follow a question mark: `db=` (a database of the server), `tls=1`, and for a new gallery `index=FLAT`
(exact, what is made unless said), `HNSW` or `IVF_FLAT` with their numbers, as `?index=HNSW&M=16&ef=128`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

from holdfast.errors import GalleryError, unknown_name

SERVER, LITE = "milvus://", "milvus-lite:"
PORT = 19530
DOCUMENTS = "holdfast_documents"
"""The collection that holds what galleries say of themselves; one for all galleries of a database."""

BUILD = {"FLAT": {}, "HNSW": {"M": 16, "efConstruction": 200}, "IVF_FLAT": {"nlist": 1024}}
ASK = {"FLAT": {}, "HNSW": {"ef": 128}, "IVF_FLAT": {"nprobe": 32}}


@dataclass(frozen=True)
class Index:
    """How Milvus finds the nearest: FLAT compares with all, any other may miss some."""

    kind: str = "FLAT"
    build: dict[str, int] = field(default_factory=dict)
    ask: dict[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        return self.kind == "FLAT"


@dataclass(frozen=True)
class Address:
    """A gallery in Milvus; `file` is that of milvus-lite, `index` what was asked for, None where nothing was."""

    text: str
    name: str
    uri: str = ""
    file: Path | None = None
    database: str = ""
    index: Index | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def engine(self) -> str:
        """What does not answer when something is wrong."""
        return f"a Milvus server at {self.uri.partition('://')[2]}" if self.file is None else str(self.file)


def parse(text: str) -> Address:
    """The address that `text` says; anything unclear is refused."""
    place, _, options = text.partition("?")
    wrong = f"'{text}' is not milvus://HOST:PORT/NAME or milvus-lite:PATH/NAME"
    if place.startswith(LITE):
        where, _, name = place.removeprefix(LITE).rpartition("/")
    elif place.startswith(SERVER):
        where, _, name = place.removeprefix(SERVER).partition("/")
    else:
        raise GalleryError(wrong)
    if not where or not name:
        raise GalleryError(wrong)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,199}", name) or "__" in name or name == DOCUMENTS:
        raise GalleryError(
            f"a gallery in Milvus is named by letters, digits and single '_', a letter first, not '{name}'"
        )
    chosen = dict(parse_qsl(options, keep_blank_values=True))
    database, tls = chosen.pop("db", ""), chosen.pop("tls", "0")
    index = _index(text, chosen) if chosen else None
    if place.startswith(LITE):
        if database or tls != "0":
            raise GalleryError(f"'{text}': db and tls are for a server")
        return Address(text, name, file=Path(where), index=index)
    host = re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(?::([0-9]{1,5}))?", where)
    if host is None or tls not in ("0", "1"):
        raise GalleryError(wrong)
    uri = f"{'https' if tls == '1' else 'http'}://{host[1]}:{host[2] or PORT}"
    return Address(text, name, uri, None, database, index)


def _index(text: str, chosen: dict[str, str]) -> Index:
    kind = chosen.pop("index", "FLAT").upper()
    if kind not in BUILD:
        raise GalleryError(unknown_name("index", kind, BUILD))
    build, ask = dict(BUILD[kind]), dict(ASK[kind])
    for name, value in chosen.items():
        if name not in build and name not in ask:
            raise GalleryError(unknown_name("option", name, {"db", "tls", "index", *build, *ask}))
        if not value.isdecimal() or not 0 < int(value) < 1 << 16:
            raise GalleryError(f"'{text}': {name} is a whole number above 0, not '{value}'")
        (build if name in build else ask)[name] = int(value)
    return Index(kind, build, ask)
