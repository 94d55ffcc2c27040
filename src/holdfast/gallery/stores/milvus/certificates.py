"""The kept certificates of a gallery in Milvus: texts beside its state."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery.kept import Kept, KeptHit
from holdfast.gallery.stores.milvus.documents import CERTIFICATE, Document, Documents

Key = tuple[str, str, int]
"""Query, threat and k: what certificates that replace each other share."""


class Certificates:
    """The kept certificates among the documents of one gallery; who changes them has claimed the gallery."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def all(self) -> list[Kept]:
        """The newest for each query, threat and k, in that order."""
        found = sorted(self._documents.read(CERTIFICATE), key=number_of)
        newest = {one.named: one for one in map(decode_certificate, found)}
        return [newest[key] for key in sorted(newest)]

    def keep(self, certificates: Sequence[Kept]) -> None:
        """Keep these."""
        there = self._documents.read(CERTIFICATE)
        # Who dies before the old ones are deleted leaves both: the larger number counts.
        first = 1 + max(map(number_of, there), default=0)
        new = [encode_certificate(one, first + at) for at, one in enumerate(certificates)]
        prefixes = {one.name.partition("-")[0] for one in new}
        alike = [one for one in there if one.name.partition("-")[0] in prefixes]
        asked = {one.named for one in certificates}
        old = [one for one in alike if (said := _said(one)) is None or said in asked]
        self._documents.write(new)
        self._documents.delete(old)

    def forget(self, queries: set[str]) -> int:
        """Drop those of these queries, and say how many there were; damaged ones may be of any query and go too."""
        found = self._documents.read(CERTIFICATE)
        gone = [one for one in found if (said := _said(one)) is None or said[0] in queries]
        self._documents.delete(gone)
        return len(gone)


def _said(document: Document) -> Key | None:
    """Of what query, threat and k it is; None where it is damaged."""
    try:
        return decode_certificate(document).named
    except GalleryError:
        return None


def certificate_name(query: str, threat: str, k: int) -> str:
    """The same for certificates that replace each other."""
    return f"{zlib.crc32(repr((query, threat, k)).encode()):08x}"


def number_of(certificate: Document) -> int:
    """The larger, the newer; 0 for one whose name does not say it."""
    parts = certificate.name.split("-")
    return int(parts[1]) if len(parts) == 3 else 0


def encode_certificate(one: Kept, number: int) -> Document:
    """A kept certificate as text, every number exactly as it is; newer ones have a larger `number`."""
    arrays = {
        name: None if array is None else array.astype(kind).tobytes().hex()
        for name, kind, array in (
            ("embedding", "<f4", one.embedding),
            ("centre", "<f8", one.centre),
            ("radius", "<f8", one.radius),
        )
    }
    hits = [asdict(hit) for hit in one.hits]
    said = {"query": one.query, "threat": one.threat, "k": one.k, "generation": one.generation}
    body = json.dumps({**said, "hits": hits, "unit_norm": one.unit_norm, **arrays})
    name = f"{certificate_name(one.query, one.threat, one.k)}-{number}-{uuid.uuid4().hex}"
    return Document(CERTIFICATE, name, f"{zlib.crc32(body.encode()):08x}{body}")


def decode_certificate(document: Document) -> Kept:
    """The certificate; refused if it is not what was written."""
    body = document.body[8:]
    if f"{zlib.crc32(body.encode()):08x}" != document.body[:8]:
        raise GalleryError(f"the kept certificate {document.name} does not match its checksum; forget it")
    found = json.loads(body)
    for name, kind in (("embedding", "<f4"), ("centre", "<f8"), ("radius", "<f8")):
        if found[name] is not None:
            found[name] = np.frombuffer(bytes.fromhex(found[name]), dtype=kind).copy()
    found["hits"] = tuple(KeptHit(**hit) for hit in found["hits"])
    return Kept(**found)
