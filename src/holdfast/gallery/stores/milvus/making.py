"""Galleries in Milvus as wholes: made, found, asked for, taken away."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from holdfast.errors import GalleryError
from holdfast.gallery.stores.milvus import rows
from holdfast.gallery.stores.milvus.address import DOCUMENTS, Address, Index, parse
from holdfast.gallery.stores.milvus.documents import CERTIFICATE, CLAIM, STATE, Documents, State
from holdfast.gallery.stores.milvus.link import Link
from holdfast.gallery.values import EmbedderInfo


def create(address: Address, dim: int, embedder: EmbedderInfo, *, overwrite: bool) -> tuple[Link, State]:
    """A new, empty gallery; an old one is replaced only if `overwrite`, any other collection never is."""
    if not rows.DIMS[0] <= dim <= rows.DIMS[1]:
        raise GalleryError(f"Milvus stores vectors of {rows.DIMS[0]} to {rows.DIMS[1]:,} numbers, not {dim}")
    link = Link(address)
    try:
        documents = Documents(link, address.name)
        documents.prepare()
        old = documents.state()
        if old is not None and not overwrite:
            raise GalleryError(
                f"{address} exists already; choose another name, or say that it is overwritten"
            )
        if link.has(address.name) and tuple(link.fields(address.name)) != rows.CANDIDATE:
            raise GalleryError(f"{address} exists and is not a gallery; choose another name")
        # The old state goes first: a reader that then misses rows finds that its gallery is gone.
        documents.delete(documents.read(STATE, CLAIM, CERTIFICATE))
        _drop(link, address.name)
        index = address.index or Index()
        link.create(address.name, rows.candidate_fields(dim), index)
        link.load(address.name)
        state = State(
            uuid.uuid4().hex,
            dim,
            embedder.fingerprint,
            embedder.card,
            embedder.location,
            datetime.now(UTC).isoformat(timespec="seconds"),
            index,
            serial=1 if old is None else old.serial + 1,
        )
        documents.commit(state)
        return link, state
    except BaseException:
        link.close()
        raise


def find(address: Address) -> tuple[Link, State]:
    """The gallery that is there, its collections loaded."""
    missing = GalleryError(f"there is no gallery at {address}; make one with 'holdfast index'")
    if address.file is not None and not address.file.exists():
        raise missing
    link = Link(address)
    try:
        state = _stored(link)
        if state is None:
            raise missing
        if address.index is not None and address.index != state.index:
            raise GalleryError(
                f"{address} was made with index {state.index.kind} {state.index.build or ''}".rstrip()
                + "; leave the index out, or make another gallery"
            )
        for name in (address.name, *state.boxes.values()):
            if not link.has(name):
                raise GalleryError(
                    f"{address} is damaged (its collection {name} is gone); index the images again"
                )
        link.load(address.name, *state.boxes.values())
        return link, state
    except BaseException:
        link.close()
        raise


def exists(location: str) -> bool:
    """Whether there is a gallery at `location`."""
    address = parse(location)
    if address.file is not None and not address.file.exists():
        return False
    link = Link(address)
    try:
        return _stored(link) is not None
    finally:
        link.close()


def discard(location: str, *, content: bool) -> None:
    """Take an empty gallery away, or any with all that it holds if `content`."""
    address = parse(location)
    link = Link(address)
    try:
        state = _stored(link)
        if state is not None and (content or not state.count):
            documents = Documents(link, address.name)
            documents.delete(documents.read(STATE, CLAIM, CERTIFICATE))
            _drop(link, address.name)
    finally:
        link.close()


def _stored(link: Link) -> State | None:
    if not link.has(DOCUMENTS):
        return None
    link.load(DOCUMENTS)
    return Documents(link, link.address.name).state()


def _drop(link: Link, name: str) -> None:
    for one in link.collections():
        if one == name or one.startswith(f"{name}__boxes_"):
            link.drop(one)
