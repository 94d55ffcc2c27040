"""Who does the work of a request: threads by kind of work, so that a plain search waits behind nothing dearer."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from holdfast.data import Picture, alterable
from holdfast.data.decode_pool import DecodePool
from holdfast.deadline import Deadline
from holdfast.errors import ImageError, OutOfTimeError
from holdfast.gallery import Item
from holdfast.gallery.attacking import AttackedPicture
from holdfast.gallery.indexing import stored_image
from holdfast.gallery.provers import Options
from holdfast.service import metrics as measured
from holdfast.service.attacking import attack
from holdfast.service.batching import Batcher
from holdfast.service.callers import caller
from holdfast.service.engine import Engine, Outcome, Served
from holdfast.service.limits import Limits
from holdfast.service.metrics import Metrics
from holdfast.service.pictures import QueryStore, digest_of, shown
from holdfast.service.problems import NotThereError, TooLargeError, UnavailableError
from holdfast.service.queues import GRACE, Gate, Workers
from holdfast.threat import Threat

_UNREADABLE = {
    "truncated": "the picture is cut short: send the whole file",
    "damaged or truncated header": "the picture's beginning is damaged or cut short: send the whole file",
}
"""What a sender is told of what the decoder says in a word."""
PROBED = 1.0
"""Seconds for which it is taken as known that the galleries can be searched."""
SHOWN = 512
"""Small pictures that are kept in memory."""


@dataclass(frozen=True, eq=False)
class Query:
    """A picture that is asked about, as the gallery's embedder takes it, and the bytes it was read from."""

    picture: Picture
    name: str
    digest: str | None = None
    item: Item | None = None
    content: bytes = b""

    @property
    def id(self) -> str | None:
        return None if self.item is None else self.item.id


class Desk:
    """The galleries and the threads that answer for them. A `decoder` that is given is the giver's to close."""

    def __init__(
        self, engine: Engine, limits: Limits, store: QueryStore, decoder: DecodePool | None = None
    ) -> None:
        self.engine, self.limits, self.store = engine, limits, store
        self.decoder = decoder or DecodePool()
        self._own_decoder = decoder is None
        self.metrics = Metrics(self._states)
        self._pools: list[ThreadPoolExecutor] = []
        self.uploads = self._workers("uploads", 2, 2 * limits.waiting)
        self.pictures = self._workers("pictures", 2, 2 * limits.waiting)
        self.asked = self._workers("readiness", 1, limits.waiting)
        self.certified = self._workers("certified", limits.heavy, limits.heavy_waiting)
        self.proofs = self._workers("proofs", limits.heavy, limits.heavy_waiting)
        self.attacks = self._workers("attacks", limits.heavy, limits.heavy_waiting)
        self.writes = self._workers("writes", 1, limits.heavy_waiting)
        self.plain_gate = Gate("searches", limits.waiting)
        pool = self._pool("plain", max(1, len(list(engine))))
        self._batchers = {
            served.name: Batcher(served.plain, pool, seen=self.metrics.batches.observe) for served in engine
        }
        self._kinds = (
            self.uploads,
            self.pictures,
            self.asked,
            self.certified,
            self.proofs,
            self.attacks,
            self.writes,
        )
        for kind in self._kinds:
            self._watch(kind.gate)
        self._watch(self.plain_gate)
        self._small: OrderedDict[tuple[str, int], tuple[bytes, str]] = OrderedDict()
        self._small_lock = Lock()
        self._probed = -math.inf

    def stop(self) -> None:
        """Stop what is under way at its next step, and refuse what waits: the service is ending."""
        for kind in self._kinds:
            kind.stop()

    def close(self) -> None:
        """Stop what is under way, wait until it has stopped, and let go of the galleries."""
        self.stop()
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        if self._own_decoder:
            self.decoder.close()
        self.engine.close()

    async def uploaded(self, served: Served, content: bytes, name: str, deadline: Deadline) -> Query:
        """An uploaded picture, kept so that it can be shown again."""

        def read() -> Query:
            try:
                picture = self.decoder.picture(content, served.embedder.spec, max_pixels=self.limits.pixels)
            except ImageError as error:
                raise ImageError(_UNREADABLE.get(str(error), str(error))) from error
            return Query(picture, name, self.store.keep(content), content=content)

        return await self.uploads.run(deadline, read)

    async def earlier(self, served: Served, digest: str, deadline: Deadline) -> Query:
        """A picture that was uploaded before."""

        def read() -> Query:
            content = self._kept(digest)
            picture = self.decoder.picture(content, served.embedder.spec, max_pixels=self.limits.pixels)
            return Query(picture, digest, digest, content=content)

        return await self.uploads.run(deadline, read)

    async def of_item(self, served: Served, id: str, deadline: Deadline) -> Query:
        """The picture of an item of the gallery."""

        def read() -> Query:
            item = served.item(id)
            content = _picture(served, item)
            return Query(self.decoder.picture(content, served.embedder.spec), id, item=item, content=content)

        return await self.uploads.run(deadline, read)

    async def plain(self, served: Served, query: Query, k: int, deadline: Deadline) -> Outcome:
        """The nearest candidates; searches that wait are answered together."""
        if served.provers.usual is not None:
            return await self.proofs.run(deadline, lambda: served.certified(query.picture, k, None))
        return (await self.plain_batch(served, [query], k, deadline))[0]

    async def plain_batch(
        self, served: Served, queries: Sequence[Query], k: int, deadline: Deadline
    ) -> list[Outcome]:
        """The same for several pictures, which count as one that waits."""
        if served.provers.usual is not None:
            return [await self.plain(served, query, k, deadline) for query in queries]
        who = caller()
        self.plain_gate.enter(who)
        batcher = self._batchers[served.name]
        try:
            asked = asyncio.gather(*(batcher.submit((query.picture.pixels, k), who) for query in queries))
            return await asyncio.wait_for(asked, deadline.left + GRACE)
        except TimeoutError:
            raise OutOfTimeError(f"the search took longer than {deadline.seconds:g} seconds") from None
        finally:
            self.plain_gate.leave(who)

    async def certify(
        self,
        served: Served,
        query: Query,
        k: int,
        threat: Threat,
        options: Options,
        deadline: Deadline,
    ) -> Outcome:
        """The nearest candidates with what is proved of each."""
        workers = self.proofs if served.is_expensive(threat, options) else self.certified
        outcome = await workers.run(deadline, lambda: served.certified(query.picture, k, threat, options))
        for certificate in outcome.found.certificates:
            self.metrics.verdicts.labels(str(certificate.verdict)).inc()
        return outcome

    async def attack(
        self,
        served: Served,
        query: Query,
        k: int,
        threat: Threat,
        goal: str,
        steps: int,
        deadline: Deadline,
    ) -> AttackedPicture:
        """The picture altered, and what a search says before and after."""

        def run() -> AttackedPicture:
            pixels = self._alterable(served, query.content)
            return attack(served, pixels, k, threat, goal, steps=steps, own=query.id)

        return await self.attacks.run(deadline, run)

    def _alterable(self, served: Served, content: bytes) -> NDArray[np.uint8]:
        """The pixels that an attack alters."""
        most = self.limits.attack_pixels
        try:
            return self.decoder.picture(content, alterable(served.embedder.spec), max_pixels=most).pixels
        except ImageError as error:
            raise TooLargeError(
                f"a live attack takes pictures of at most {most:,} pixels ({error})"
            ) from error

    async def show_item(self, served: Served, id: str, size: int, deadline: Deadline) -> tuple[bytes, str]:
        """An item's picture, small."""

        def read() -> tuple[bytes, str]:
            content = _picture(served, served.item(id))
            return self._shown(content, digest_of(content), size)

        return await self.pictures.run(deadline, read)

    async def show_query(self, digest: str, size: int, deadline: Deadline) -> tuple[bytes, str]:
        """A picture that was searched for, small."""
        return await self.pictures.run(deadline, lambda: self._shown(self._kept(digest), digest, size))

    def problems(self) -> list[str]:
        """Why galleries cannot be searched; each is opened, and searched unless that went well a moment ago."""
        search, found = time.monotonic() - self._probed > PROBED, []
        for served in self.engine:
            try:
                served.info()
                if search:
                    served.probe()
            except UnavailableError as error:
                found.append(str(error))
        if found:
            self._probed = -math.inf
        elif search:
            self._probed = time.monotonic()
        return found

    def _shown(self, content: bytes, digest: str, size: int) -> tuple[bytes, str]:
        with self._small_lock:
            if (found := self._small.get((digest, size))) is not None:
                self._small.move_to_end((digest, size))
                return found
        made = shown(self.decoder.small(content, size))
        with self._small_lock:
            self._small[digest, size] = made
            while len(self._small) > SHOWN:
                self._small.popitem(last=False)
        return made

    def _kept(self, digest: str) -> bytes:
        content = self.store.read(digest)
        if content is None:
            raise NotThereError("there is no picture of this digest, or no longer; send it again")
        return content

    def _workers(self, name: str, threads: int, most: int) -> Workers:
        return Workers(name, self._pool(name, threads), threads, most)

    def _pool(self, name: str, threads: int) -> ThreadPoolExecutor:
        self._pools.append(ThreadPoolExecutor(threads, thread_name_prefix=name))
        return self._pools[-1]

    def _watch(self, gate: Gate) -> None:
        self.metrics.waiting.labels(gate.name).set_function(lambda: gate.inside)

    def _states(self) -> list[measured.GalleryState]:
        found = []
        for served in self.engine:
            try:
                info = served.info()
                found.append(measured.GalleryState(served.name, info.count, info.generation, True))
            except UnavailableError:
                found.append(measured.GalleryState(served.name, 0, 0, False))
        return found


def _picture(served: Served, item: Item) -> bytes:
    """The bytes that the item's vector was made of, and no others that may lie in their place by now."""
    content = stored_image(item.path)
    if content is None or (item.digest is not None and digest_of(content) != item.digest):
        raise NotThereError(
            f"the picture of this item of gallery '{served.name}' is no longer where it was, or was changed"
        )
    return content
