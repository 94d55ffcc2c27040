"""One connection to Milvus: the few calls that a gallery needs, their errors in one line.

A read names a stamp, the server's time of the last write that it must see. Stamps come from the writes
themselves and travel with the committed state of a gallery, so that only that state is read with consistency
Strong, which waits for the server's next tick; everything else answers at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from holdfast.errors import GalleryError, MissingExtraError
from holdfast.gallery.exact import Doubles, Floats, Slots
from holdfast.gallery.stores.milvus.address import Address, Index

CONNECT, CALL, LOAD = 5.0, 120.0, 120.0
"""Seconds that Milvus gets to accept a connection, to answer a call, and to load a collection."""
TOKEN = "HOLDFAST_MILVUS_TOKEN"
"""The environment variable that holds USER:PASSWORD, or a token, for a server that asks for one."""
MOST = 16384
"""How many rows a server gives out in one answer."""
OLDEST = (2, 3, 5)
"""Servers before it may search new rows by an approximate index, also where FLAT was asked for."""

_SENT_BYTES = 1 << 24
_shared = threading.Lock()
_files: Counter[str] = Counter()


class Link:
    """A connection that many threads may share; made by `Link(address)`, ended by `close`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client: Any = None
        uri = address.uri
        with _shared, _told(address):
            client_class = _client_class()
            if address.file is not None:
                uri = _serve(address)
            token = os.environ.get(TOKEN, "") if address.file is None else ""
            if address.file is not None:
                _files[str(address.file.absolute())] += 1
            try:
                self._client = client_class(
                    uri=uri, db_name=address.database, token=token, timeout=CONNECT, dedicated=True
                )
            except BaseException:
                self._free()
                raise
        try:
            with _told(address):
                _check_version(address, self._client.get_server_version(timeout=CONNECT))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go; the last link to a local file frees it for other processes."""
        with _shared:
            if self._client is None:
                return
            with suppress(Exception):
                self._client.close()
            self._client = None
            self._free()

    def _free(self) -> None:
        if self.address.file is not None:
            name = str(self.address.file.absolute())
            _files[name] -= 1
            if not _files[name]:
                from milvus_lite.server_manager import server_manager_instance

                server_manager_instance.release_server(name)

    def has(self, collection: str) -> bool:
        with self._said():
            return bool(self._client.has_collection(collection, timeout=CALL))

    def collections(self) -> list[str]:
        with self._said():
            return list(self._client.list_collections(timeout=CALL))

    def fields(self, collection: str) -> dict[str, int | None]:
        """The fields of a collection, with the dimension of those that are vectors."""
        with self._said():
            found = self._client.describe_collection(collection, timeout=CALL)
            return {f["name"]: f.get("params", {}).get("dim") for f in found["fields"]}

    def create(self, collection: str, fields: Mapping[str, Mapping[str, Any]], index: Index) -> None:
        """A new, empty collection; `fields` are those of pymilvus, the vector's named `vector`."""
        with self._said():
            schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
            for name, how in fields.items():
                schema.add_field(name, **how)
            self._client.create_collection(
                collection, schema=schema, consistency_level="Strong", num_shards=1, timeout=CALL
            )
            chosen = self._client.prepare_index_params()
            chosen.add_index("vector", index_type=index.kind, metric_type="L2", params=dict(index.build))
            self._client.create_index(collection, chosen, sync=False, timeout=CALL)
            self._client.load_collection(collection, _async=True, timeout=CALL)

    def load(self, *collections: str) -> None:
        """Wait until these can be searched."""
        with self._said():
            end = time.monotonic() + LOAD
            for collection in collections:
                asked = False
                while self._client.get_load_state(collection, timeout=CALL)["state"].name != "Loaded":
                    if not asked:
                        self._client.load_collection(collection, _async=True, timeout=CALL)
                        asked = True
                    if time.monotonic() > end:
                        raise GalleryError(f"{self.address.engine} does not load {collection}; see its log")
                    time.sleep(0.05)

    def drop(self, collection: str) -> None:
        with self._said():
            self._client.drop_collection(collection, timeout=CALL)

    def tidy(self, *collections: str) -> None:
        """Have Milvus put these on its disk and drop what was deleted from them."""
        with self._said():
            for collection in collections:
                self._client.flush(collection, timeout=CALL)
                self._client.compact(collection, timeout=CALL)

    def insert(
        self,
        collection: str,
        rows: Sequence[Mapping[str, Any]],
        row_bytes: int = 1 << 16,
        sent: Callable[[], None] = lambda: None,
    ) -> int:
        """Write rows whose primary keys are new, and say the stamp of the last; `sent` is called after each part."""
        stamp = 0
        size = max(1, min(MOST, _SENT_BYTES // row_bytes))
        with self._said():
            for first in range(0, len(rows), size):
                done = self._handler.insert_rows(collection, list(rows[first : first + size]), timeout=CALL)
                stamp = max(stamp, int(done.timestamp))
                sent()
        return stamp

    def delete(self, collection: str, expression: str) -> int:
        """Delete the rows that fit, and say the stamp."""
        with self._said():
            done = self._handler.delete(collection, expression, timeout=CALL)
            return int(done.timestamp)

    def query(
        self, collection: str, expression: str, fields: Sequence[str], *, stamp: int = 0, limit: int = MOST
    ) -> list[dict[str, Any]]:
        """At most `limit` rows that fit; stamp 0 sees everything that was written before."""
        with self._said():
            return list(
                self._client.query(
                    collection,
                    filter=expression,
                    output_fields=list(fields),
                    limit=limit,
                    timeout=CALL,
                    **_consistency(stamp),
                )
            )

    def search(
        self,
        collection: str,
        queries: Floats,
        limit: int,
        *,
        expression: str,
        stamp: int,
        ask: Mapping[str, float],
    ) -> list[tuple[Slots, Doubles]]:
        """Per query at most `limit` of the nearest rows that fit: primary keys and squared distances."""
        with self._said():
            found = self._client.search(
                collection,
                data=[row.tolist() for row in queries],
                limit=limit,
                filter=expression,
                output_fields=["slot"],
                anns_field="vector",
                search_params={"metric_type": "L2", "params": dict(ask)},
                timeout=CALL,
                **_consistency(stamp),
            )
            return [
                (
                    np.array(
                        [hit["entity"].get("slot", hit.get("slot", hit.get("id"))) for hit in hits], np.int64
                    ),
                    np.array([hit["distance"] for hit in hits], np.float64),
                )
                for hits in found
            ]

    @property
    def _handler(self) -> Any:
        # What a write says of its stamp is only told below the client.
        return self._client._get_connection()

    @contextmanager
    def _said(self) -> Iterator[None]:
        if self._client is None:
            raise GalleryError(f"the gallery {self.address} is closed; open it again")
        with _told(self.address):
            yield


@contextmanager
def _told(address: Address) -> Iterator[None]:
    """Turn what Milvus and the network say into one line."""
    try:
        yield
    except (GalleryError, MissingExtraError):
        raise
    except Exception as cause:
        import grpc
        from pymilvus.exceptions import MilvusException

        if isinstance(cause, MilvusException) and _unreachable(cause):
            raise GalleryError(
                f"could not reach {address.engine}; start it, or check the address ({address})"
            ) from cause
        if isinstance(cause, (MilvusException, grpc.RpcError, OSError)):
            text = " ".join(str(getattr(cause, "message", "") or cause).split())
            raise GalleryError(f"Milvus refused a call for {address}: {text[:300]}") from cause
        raise


def _consistency(stamp: int) -> dict[str, Any]:
    if stamp:
        return {"consistency_level": "Customized", "guarantee_timestamp": stamp}
    return {"consistency_level": "Strong"}


def _client_class() -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise MissingExtraError("a gallery in Milvus", "milvus") from None
    # Its errors come back as exceptions, and are told in one line; its own log repeats them with a traceback.
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return MilvusClient


def _serve(address: Address) -> str:
    """The local server of a file of milvus-lite, in this process."""
    assert address.file is not None
    try:
        from milvus_lite.server_manager import server_manager_instance
    except ImportError:
        raise MissingExtraError("a gallery in a file of milvus-lite", "milvus") from None
    logging.getLogger("milvus_lite").setLevel(logging.CRITICAL)
    if address.file.is_file():
        raise GalleryError(
            f"{address.file} is not of milvus-lite (it is a file, not a folder); choose another"
        )
    address.file.parent.mkdir(parents=True, exist_ok=True)
    uri = server_manager_instance.start_and_get_uri(str(address.file.absolute()))
    if uri is None:
        raise GalleryError(
            f"could not open {address.file}: another process has it open (one at a time may), or it is damaged"
        )
    return str(uri)


def _unreachable(cause: Any) -> bool:
    text = str(cause).lower()
    return cause.code == 2 or any(
        word in text for word in ("unavailable", "unimplemented", "deadline exceeded")
    )


def _check_version(address: Address, said: str) -> None:
    if address.file is not None:
        return
    numbers = said.removeprefix("v").partition("-")[0].split(".")
    if all(n.isdecimal() for n in numbers[:3]) and tuple(int(n) for n in numbers[:3]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise GalleryError(
            f"{address.engine} is of version {said}; use {oldest} or newer, which searches FLAT exactly"
        )
