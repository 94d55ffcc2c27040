"""The galleries that are served and what can be asked of them; nothing here knows of HTTP.

A gallery is open once: its threads read side by side, also while one of them writes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.certify.certifier import Certifier
from holdfast.data import Picture
from holdfast.errors import ConfigError, GalleryError, HoldfastError, StorageError
from holdfast.gallery import Gallery, GalleryInfo, Hits, Item, open_gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.made_by import embedder_of
from holdfast.gallery.provers import Options, Provers, Query
from holdfast.gallery.searching import certified
from holdfast.gallery.smoothed import stored_smoothing
from holdfast.gallery.stores import store_at
from holdfast.gallery.stores.base import ChangedError, GoneError
from holdfast.models import AnyEmbedder, Embedder, Smoothed
from holdfast.service.problems import NotThereError, NotUnderstoodError, UnavailableError
from holdfast.threat import Threat

T = TypeVar("T")
Pixels = NDArray[Any]
"""Of a picture as the network takes it."""
LISTED = 20_000
DEFAULT = Options()
NONE = Hits("query", ())
"""What is found in an empty gallery."""
CHANGES = 3
"""How often a gallery is asked that is changed each time while it is read."""
PROBED = 10
"""Items that are read to see whether a gallery can be searched."""
AGAIN = 1.0
"""Seconds for which a gallery that could not be opened is not tried again."""


@dataclass(frozen=True)
class Outcome:
    """What a search found, in which state of the gallery, and how long that took."""

    found: Hits
    k: int
    generation: int
    candidates: int
    threat: Threat | None = None
    seconds: float = 0.0
    uid: str = ""


@dataclass(frozen=True)
class Traits:
    """What can be done with a gallery: which threats certified, by which methods, and whether attacks are live."""

    threats: tuple[str, ...]
    methods: tuple[str, ...]
    attackable: bool


class Served:
    """One gallery with its embedder. Threads may share it."""

    def __init__(self, name: str, where: str, model: Path | None = None, *, writable: bool = False) -> None:
        self.name, self.where, self.writable = name, where, writable
        promises = store_at(where)[0].promises
        if writable and not promises.files:
            raise ConfigError(
                f"{where} is in {promises.name} and has no folder for uploaded pictures; serve it without "
                "--writable, and change it with 'holdfast index'"
            )
        self._lock = threading.Lock()
        self._failed: tuple[float, GalleryError] | None = None
        self._file = _file(where)
        self._gallery = open_gallery(where, readonly=not writable)
        try:
            self.embedder = embedder_of(self._gallery, model)
        except BaseException:
            self._gallery.close()
            raise
        self.known = self._gallery.info
        """What the gallery last said of itself."""
        network = self.embedder.base if isinstance(self.embedder, Smoothed) else self.embedder
        if isinstance(network, Embedder):
            network.eval().requires_grad_(False)  # An attack that ends would wake the weights under another.
            network.frozen = True  # Nobody else has it: no need to read all weights for each search.
        self.attackable = isinstance(network, Embedder)
        self.provers = Provers(self.embedder)
        self.traits(
            self.known
        )  # Traces the network, which disturbs every thread that uses one: now, not later.
        self.certifier = _certifier(self.embedder) if writable else None
        """For the boxes of what is uploaded; None where the network has no bounds."""

    def close(self) -> None:
        with self._lock:
            self._gallery.close()

    def use(self, work: Callable[[Gallery], T]) -> T:
        """What `work` makes of the gallery; one that was replaced meanwhile is opened again, once.

        One that was changed while it was read is asked again, a few times. A gallery that does not answer is an
        UnavailableError, which names no path; neither does the StorageError of a write that failed.
        """
        try:
            for _ in range(CHANGES - 1):
                with suppress(ChangedError):
                    return self._used(work)
            return self._used(work)
        except GalleryError as error:
            raise UnavailableError(self.without_paths(str(error))) from error
        except StorageError as error:
            raise StorageError(self.without_paths(str(error))) from error

    def held(self, work: Callable[[Gallery], T]) -> T:
        """As `use`, where all that `work` reads is of one state of the gallery.

        Not so where the store cannot hold a state still: there `work` compares the generations.
        """
        if not self._gallery.promises.steady:
            return self.use(work)

        def one_state(gallery: Gallery) -> T:
            with gallery.snapshot():
                return work(gallery)

        return self.use(one_state)

    def without_paths(self, text: str) -> str:
        """The text with the gallery's name in place of where it, or what lies beside it, is."""
        places = {self.where, str(Path(self.where)), str(Path(self.where).absolute())}
        named = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True))
        beside = r"(?:\.images|-wal|-shm|-journal)?(?:/[^\s()]*)?"
        return re.sub(rf"(?<![\w./-])(?:{named}){beside}(?![\w-])", f"gallery '{self.name}'", text)

    def info(self) -> GalleryInfo:
        """What the gallery says of itself; one that a search would not read does not answer here either."""

        def ask(gallery: Gallery) -> GalleryInfo:
            with gallery.snapshot():
                return gallery.info

        self.known = self.use(ask)
        return self.known

    def probe(self) -> None:
        """Read what a search reads: the vectors, and the items nearest to one drawn at random."""

        def ask(gallery: Gallery) -> None:
            with gallery.snapshot():
                info = gallery.info
                if info.count:
                    gallery.nearest(np.random.default_rng().standard_normal(info.dim, np.float32), PROBED)

        self.use(ask)

    def last_info(self) -> tuple[GalleryInfo, bool]:
        """What the gallery says of itself and True; what it last said and False where it does not answer."""
        try:
            return self.info(), True
        except UnavailableError:
            return self.known, False

    def traits(self, info: GalleryInfo) -> Traits:
        return Traits(self.provers.threats(info), self.provers.methods(info), self.attackable)

    def item(self, id: str) -> Item:
        return self.use(lambda gallery: self._item(gallery, id))

    def examples(self, most: int) -> list[Item]:
        """At most so many items from all over the gallery; of a very large one, from its first `LISTED` ids."""

        def some(gallery: Gallery) -> list[Item]:
            ids = list(islice(gallery.ids(), LISTED))
            count = min(most, len(ids))
            chosen = [ids[(2 * place + 1) * len(ids) // (2 * count)] for place in range(count)]
            with gallery.snapshot():
                return [gallery.get(id) for id in chosen if id in gallery]

        return self.use(some)

    def plain(self, asked: Sequence[tuple[Pixels, int]]) -> list[Outcome]:
        """The nearest candidates of several pictures at once, each with its own k."""
        start = time.perf_counter()
        vectors = self.embedder.embed(np.stack([pixels for pixels, _ in asked])).numpy()

        def search(gallery: Gallery) -> list[Outcome]:
            with gallery.snapshot():
                info = gallery.info
                most = max(k for _, k in asked)
                found = gallery.nearest(vectors, most) if info.count else [NONE] * len(asked)
            seconds = time.perf_counter() - start
            return [
                Outcome(
                    Hits(hits.query, hits.hits[:k]),
                    min(k, info.count),
                    info.generation,
                    info.count,
                    seconds=seconds,
                    uid=info.uid,
                )
                for hits, (_, k) in zip(found, asked, strict=True)
            ]

        return self.use(search)

    def certified(
        self, picture: Picture, k: int, threat: Threat | None, options: Options = DEFAULT
    ) -> Outcome:
        """The nearest candidates, and what no attack within `threat` can do to each.

        Without a threat: what a search of this gallery says anyway, where it says something.
        """
        start, asked = time.perf_counter(), threat or self.provers.usual
        assert asked is not None

        def search(gallery: Gallery) -> Outcome:
            with gallery.snapshot():
                info = gallery.info
                self.check_threat(info, asked, options)
                found = certified(gallery, self.provers, Query(picture), max(1, k), asked, options)
                seconds = time.perf_counter() - start
                most = min(k, info.count)
                return Outcome(found, most, info.generation, info.count, threat, seconds, info.uid)

        return self.use(search)

    def check_threat(self, info: GalleryInfo, threat: Threat, options: Options = DEFAULT) -> None:
        """Refuse what this gallery cannot certify, with what it can."""
        if error := self.provers.refuses(threat, options, info):
            known = ", ".join(f"{known}:EPS" for known in self.provers.threats(info)) or "nothing"
            why = self.without_paths(str(error))
            named = "" if f"'{self.name}'" in why else f"gallery '{self.name}': "
            raise NotUnderstoodError(f"{named}{why}; what it can certify: {known}") from error

    def is_expensive(self, threat: Threat | None, options: Options = DEFAULT) -> bool:
        """Whether the answer takes many passes of the network."""
        asked = threat or self.provers.usual
        if asked is None or self.provers.refuses(asked, options, self.known):
            return False
        return self.provers.prover(asked, options, self.known).cost(asked, options, self.known).is_expensive

    def _used(self, work: Callable[[Gallery], T]) -> T:
        gallery = self._current()
        try:
            return work(gallery)
        except ChangedError:
            raise
        except GalleryError:
            fresh = self._current(suspect=gallery)
            if fresh is gallery:
                raise
            return work(fresh)

    def _item(self, gallery: Gallery, id: str) -> Item:
        with gallery.snapshot():
            if id not in gallery:
                raise NotThereError(f"gallery '{self.name}' has no item '{shortened(id)}'")
            return gallery.get(id)

    def _current(self, suspect: Gallery | None = None) -> Gallery:
        """The open gallery; opened again where another file is in its place.

        A `suspect` failed: it is also asked whether its file holds another gallery now. A file that was put over
        one with a log is left alone: SQLite knows a log by its name, and would write the old one's into it.
        """
        with self._lock:
            there = _file(self.where)
            same = self._file == there
            if same and (suspect is None or self._gallery is not suspect or not _other(suspect)):
                return self._gallery
            if not same and there is not None and Path(f"{self.where}-wal").exists():
                raise GalleryError(
                    f"{self.where} was replaced while in use; stop the service, remove the files beside it that end "
                    "in -wal and -shm, start it again, and use 'holdfast gallery replace' from then on"
                )
            if self._failed is not None and time.monotonic() - self._failed[0] < AGAIN:
                raise self._failed[1]
            try:
                file, fresh = _file(self.where), self._opened()
            except GalleryError as error:
                self._failed = (time.monotonic(), error)
                raise
            old = self._gallery
            self._file, self._gallery, self._failed = file, fresh, None
        old.close()  # Maybe long, until its last write has ended: nobody else waits for that.
        return fresh

    def _opened(self) -> Gallery:
        opened = open_gallery(self.where, readonly=not self.writable)
        try:
            opened.check_embedder(embedder_info(self.embedder))
        except BaseException:
            opened.close()
            raise
        return opened


class Engine:
    """All galleries of a service, by name; the first is the one that is meant where none is named."""

    def __init__(self, served: Sequence[Served]) -> None:
        self._served = {one.name: one for one in served}
        if len(self._served) != len(served) or not served:
            raise ConfigError("galleries are served under different names, one at least; write NAME=GALLERY")

    @classmethod
    def open(cls, galleries: Sequence[str], models: Sequence[str] = (), *, writable: bool = False) -> Engine:
        """The galleries at these places, each GALLERY or NAME=GALLERY; `models` are MODEL or NAME=MODEL."""
        places = dict(_named(text) for text in galleries)
        if len(places) != len(galleries):
            raise ConfigError("two galleries have the same name; write NAME=GALLERY for one of them")
        chosen: dict[str, Path] = {}
        for text in models:
            name, equals, path = text.partition("=")
            if equals and name in places:
                chosen[name] = Path(path)
            else:
                chosen |= dict.fromkeys(places.keys() - chosen.keys(), Path(text))
        served: list[Served] = []
        try:
            for name, where in places.items():
                served.append(Served(name, where, chosen.get(name), writable=writable))
        except BaseException:
            for one in served:
                one.close()
            raise
        return cls(served)

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def get(self, name: str | None) -> Served:
        if name is None:
            return next(iter(self))
        if name not in self._served:
            raise NotThereError(
                f"there is no gallery '{shortened(name)}'; there is {', '.join(self._served)}"
            )
        return self._served[name]

    def warm(self) -> None:
        """Ask each gallery something, so that the first to ask it does not wait for compilers and first pages."""
        for one in self:
            blank = np.zeros(one.embedder.spec.shape, dtype=np.uint8)
            with suppress(HoldfastError):
                one.plain([(blank, 10)])
                one.certified(Picture(blank), 10, Threat.parse("linf:0"))

    def close(self) -> None:
        for one in self:
            one.close()


def shortened(text: str) -> str:
    """A stranger's text for a sentence: not long, and all on one line."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:81])
    return plain if len(plain) <= 80 else plain[:79] + "…"


def stored_settings(info: GalleryInfo) -> dict[str, float | str] | None:
    """How a smoothed gallery is searched; None where it is not smoothed."""
    how = stored_smoothing(info.embedder)
    return None if how is None else {"sigma": how.sigma, "n": how.n, "alpha": how.alpha, "rule": how.rule}


def _file(where: str) -> object:
    """Which file is at a place; None where there is none."""
    try:
        stat = Path(where).stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _other(gallery: Gallery) -> bool:
    """Whether an open gallery can no longer be read, because its file now holds another one."""
    try:
        with gallery.snapshot():
            return False
    except GoneError:
        return True
    except GalleryError:
        return False


def _certifier(embedder: AnyEmbedder) -> Certifier | None:
    """None where the network has no bounds."""
    try:
        return Certifier(embedder)
    except HoldfastError:
        return None


def _named(text: str) -> tuple[str, str]:
    """NAME=PLACE, or a place whose own name is taken."""
    name, equals, place = text.partition("=")
    if not equals or Path(text).exists():
        name, place = Path(text).name.removesuffix(".gallery"), text
    if not re.fullmatch(r"[\w.-]{1,64}", name):
        raise ConfigError(
            f"'{name}' is no name for a gallery; write NAME={place} with letters, digits, _ . -"
        )
    return name, place
