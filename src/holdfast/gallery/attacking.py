"""One picture attacked in one gallery: altered for a goal, kept in 8 bits, measured by the gallery's own search."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.attacks import (
    Attack,
    Candidates,
    Given,
    Objective,
    Settings,
    objective,
    through_file,
)
from holdfast.attacks.noisy import access_to
from holdfast.data import decode_picture
from holdfast.data.encode import jpeg, png
from holdfast.errors import ConfigError, GalleryError
from holdfast.files import atomic_write
from holdfast.gallery.exact import Floats, pair_distances
from holdfast.gallery.found import Found, find
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.provers import Provers
from holdfast.gallery.stores.base import ChangedError
from holdfast.gallery.values import GalleryInfo, Hit, Item
from holdfast.goals import Goal, Place, Result, parse_goal
from holdfast.metrics import unit_shift
from holdfast.models import AnyEmbedder
from holdfast.threat import Threat

Pixels = NDArray[np.uint8]
NEAREST = 10_000
"""Candidates that an attack looks at, the nearest ones: those are in its way, and it must end soon."""
JPEG = (95, 75)


@dataclass(frozen=True)
class Form:
    """How a search sees one form of the picture: where the followed item stands, and how far the vector moved."""

    form: str
    rank: int
    distance: float
    shift: float


@dataclass(frozen=True)
class Move:
    """Where an item stood before and after, among all candidates."""

    id: str
    before: int
    after: int


@dataclass(frozen=True, eq=False)
class AttackedPicture:
    """A picture before and after an attack, and what the gallery's own search makes of both."""

    goal: Goal
    about: tuple[str, ...]
    """The items that the goal is about."""
    label: str | None
    """The class of the picture."""
    threat: Threat
    k: int
    clean: Pixels
    """The file's own pixels where claims are of the file, else those that the network is given."""
    altered: Pixels
    before: Found
    """Hits that the attack removed and that were UNKNOWN are BROKEN."""
    after: Found
    stood: Mapping[str, Place]
    """Where the hits of before and what the goal is about stood, among all candidates."""
    stand: Mapping[str, Place]
    """Where they stand now."""
    forms: tuple[Form, ...]
    """The clean picture, then the altered one as PNG and as each JPEG that was asked for."""
    gallery: GalleryInfo
    seconds: float

    @property
    def target(self) -> str | None:
        """The one item that the goal is about."""
        return _target(self.goal, self.about)

    @property
    def followed(self) -> str:
        """The target, or the first hit."""
        return self.target or self.before.hits[0].id

    @property
    def moves(self) -> list[Move]:
        """Where the hits of before and what the goal is about went."""
        return [Move(id, place.rank, self.stand[id].rank) for id, place in self.stood.items()]

    @property
    def reached(self) -> bool | None:
        """Whether the goal was reached, ties counting against the attacker; None where it is no yes or no."""
        places = tuple(self.stand[id] for id in self.about)
        return self.goal.reached(Result(self.k, places, self.label, _firsts(self.after.hits)))

    @property
    def removed(self) -> list[str]:
        """Hits of before that the search no longer lists."""
        listed = {hit.id for hit in self.after.hits}
        return [hit.id for hit in self.before.hits if hit.id not in listed]

    @property
    def contradicted(self) -> list[str]:
        """Hits whose certificate is wrong, since the attack did what it excludes. There must be none."""
        return contradicted(self.before, self.after, self.stand, self.threat)

    @property
    def held(self) -> bool:
        """Whether everything that was certified still holds."""
        return not self.contradicted

    def save(self, path: str | Path) -> None:
        """Write the altered picture as a PNG file, which keeps every pixel."""
        if Path(path).suffix.lower() != ".png":
            raise ConfigError(f"an altered picture is saved as .png, which keeps every pixel; found {path}")
        atomic_write(Path(path), png(self.altered))

    def sentences(self) -> list[str]:
        """What came of it, in words."""
        about = "" if self.target is None else f" ({self.target})"
        told = {True: "reached", False: "not reached", None: f"moved the vector by {self.forms[1].shift:.4f}"}
        said = [f"Goal {self.goal.name}{about}: {told[self.reached]}."]
        certified = self.before.answer.certified
        if self.contradicted:
            why = (
                "a smoothed search is wrong with a small probability: try again, and report it if it stays so"
                if self.before.may_fail
                else "a certificate is wrong: please report this"
            )
            said.append(
                f"ERROR: the attack did what was certified not to happen ({_few(self.contradicted)}); {why}."
            )
        elif certified and self.after.unsure:
            said.append("Held: the search for the altered picture says itself that it is not sure (ABSTAIN).")
        elif certified:
            said.append(f"Held: all {certified} certified hits are where their certificates say.")
        elif self.before.threat is not None:
            said.append("No hit was certified, so nothing was promised.")
        if self.removed:
            said.append(f"No longer listed: {_few(self.removed)}.")
        return said


def attack_picture(
    gallery: Gallery,
    embedder: AnyEmbedder,
    pixels: Pixels,
    *,
    goal: str = "push-out",
    threat: Threat,
    k: int = 10,
    label: str | None = None,
    own: str | None = None,
    settings: Settings | None = None,
    seed: int = 0,
    noise: int | None = None,
    nearest: int = NEAREST,
    jpegs: Sequence[int] = JPEG,
    certify: bool = True,
    provers: Provers | None = None,
) -> AttackedPicture:
    """Alter a picture within `threat` so that its search reaches `goal`, as an 8-bit picture of its own size.

    `pixels` are those of `data.read_alterable`: the file's own, which are resized on every way to the model, or for
    bicubic pictures those that the network is given. `goal` is one of `holdfast.goals`. `label` is the picture's
    class, by default that of its first hit; `own` is the item that the picture is, which no goal is about. The attack
    looks at the `nearest` candidates; ranks are among all of them.

    The search before says what is certified within the threat, where the gallery can and `certify` is left on.
    Every search is the gallery's own: by a smoothed one, or exact. `seed` is of the attack, `noise` of smoothed
    searches (if left out, one that nobody can know). The altered picture is also measured as a JPEG of each of
    `jpegs`' qualities.

    Hold a snapshot of the gallery around it, and it is one state that is compared; without one a `ChangedError` ends it
    where the gallery was changed meanwhile.
    """
    start = time.perf_counter()
    gallery.check_embedder(embedder_info(embedder))
    wanted, target = parse_goal(goal)
    way = (settings or Settings(steps=100)).named(embedder).make(_checked(threat, k))
    provers = Provers(embedder) if provers is None else provers

    def see(content: bytes, promise: Threat | None = None) -> Found:
        picture = decode_picture(content, embedder.spec)
        return find(gallery, embedder, picture, k, threat=promise, provers=provers, noise=noise)

    with gallery.snapshot():
        info = gallery.info
        if not info.count:
            raise ConfigError("the gallery is empty: there is nothing that an attack could change")
        before = see(png(pixels), threat if certify else None)
        about = _about(wanted, target, [hit.id for hit in before.hits if hit.id != own], gallery)
        label = before.hits[0].label if label is None else label
        aim = _objective(wanted, gallery, before, about, label, nearest)
        ids = list(dict.fromkeys([*(hit.id for hit in before.hits), *about]))
        stood = places_of(gallery, before, ids)
    model = through_file(access_to(embedder), pixels.shape, embedder.spec)
    one = torch.from_numpy(np.array(pixels))[None]
    found = Attack(aim, way, threat).run(model, one, seed=seed, eight_bit=True)
    altered: Pixels = found.bytes()[0].numpy()
    followed = _target(wanted, about) or before.hits[0].id
    with gallery.snapshot():
        if gallery.info.generation != info.generation:
            raise ChangedError(f"{gallery.path} was changed during the attack; ask again")
        after = see(png(altered))
        stand = places_of(gallery, after, ids)
        looks = [("clean", before, stood[followed]), ("PNG", after, stand[followed])]
        for quality in jpegs:
            look = see(jpeg(altered, quality))
            looks.append((f"JPEG {quality}", look, places_of(gallery, look, [followed])[followed]))
        at = gallery.vectors([followed])[0]
    k = min(k, info.count)
    return AttackedPicture(
        goal=wanted,
        about=about,
        label=label,
        threat=threat,
        k=k,
        clean=pixels,
        altered=altered,
        before=_broken(before, after, stand, k),
        after=after,
        stood=stood,
        stand=stand,
        forms=tuple(_form(name, before, look, place, at) for name, look, place in looks),
        gallery=info,
        seconds=time.perf_counter() - start,
    )


def places_of(gallery: Gallery, found: Found, ids: Sequence[str]) -> dict[str, Place]:
    """Where each item stands among all candidates; what a smoothed search does not list comes after what it lists."""
    with gallery.snapshot():
        scan = gallery.scan(found.vector)
        own = gallery.vectors(ids)
        away = pair_distances(own, np.arange(len(ids))[None], scan.query[None])[0]
        near = scan.within(float(away.max()))
        places = {}
        for id, distance in zip(ids, away, strict=True):
            nearer, reached = (
                int(np.searchsorted(near.distances, distance, side)) for side in ("left", "right")
            )
            tied = gallery.items(near.slots[nearer:reached])
            places[id] = Place(1 + nearer + sum(item.id < id for item in tied), 1 + nearer, reached)
    listed, after = {hit.id: hit.rank for hit in found.hits}, len(found.hits) + 1

    def deployed(id: str, place: Place) -> Place:
        """Votes may list others than the nearest; what they do not list comes after what they do."""
        if id in listed:
            return place if place.rank == listed[id] else Place(listed[id], listed[id], listed[id])
        return place if place.rank >= after else Place(after, after, max(place.worst, after))

    return {id: deployed(id, place) for id, place in places.items()}


def contradicted(before: Found, after: Found, places: Mapping[str, Place], threat: Threat) -> list[str]:
    """The hits of which `before` promised what is not so `after`; one that says it is not sure breaks no promise."""
    if after.unsure:
        return []
    listed = {hit.id for hit in after.hits}
    wrong = (before.promised(threat) - listed) | before.refuted(places)
    return [hit.id for hit in before.hits if hit.id in wrong]


def _broken(before: Found, after: Found, places: Mapping[str, Place], k: int) -> Found:
    """`before`, with the hits BROKEN that the attack surely pushed out, whichever way ties are settled."""
    if after.unsure:
        return before
    listed = {hit.id for hit in after.hits}
    return before.broken([hit.id for hit in before.hits if hit.id not in listed and places[hit.id].best > k])


def _target(goal: Goal, about: Sequence[str]) -> str | None:
    return about[0] if goal.about in ("hit", "item") else None


def _checked(threat: Threat, k: int) -> float:
    """The threat's eps, where an attack on a picture can be within it."""
    if threat.who != "query":
        raise ConfigError(f"an attack on a picture alters the query; give NORM:EPS instead of '{threat}'")
    if threat.eps is None:
        raise ConfigError(f"an attack needs a number for eps, not '{threat}'; 'auto' is for certificates")
    if k < 1:
        raise ConfigError(f"k is at least 1, not {k}")
    return threat.eps


def _about(goal: Goal, target: str | None, hits: Sequence[str], gallery: Gallery) -> tuple[str, ...]:
    """The items that a goal is about; `hits` are those found, without the picture itself."""
    if target is not None and target not in gallery:
        raise GalleryError(f"the gallery has no item '{target[:80]}'; a search shows the ids of hits")
    if goal.about == "query":
        return ()
    if target is not None:
        return (target,)
    if not hits:
        raise ConfigError("nothing was found but the picture itself; there is no hit to push away")
    return (hits[0],) if goal.about == "hit" else tuple(hits)


def _objective(
    goal: Goal, gallery: Gallery, before: Found, about: Sequence[str], label: str | None, nearest: int
) -> Objective:
    """The goal's objective among the nearest candidates and those it is about."""
    slots = gallery.nearest_arrays(before.vector[None], nearest)[1][0]
    items, vectors = gallery.items(slots), gallery.vectors_at(slots)
    number = {item.id: place for place, item in enumerate(items)}
    if absent := [id for id in about if id not in number]:
        number |= {id: len(items) + place for place, id in enumerate(absent)}
        items += [gallery.get(id) for id in absent]
        vectors = np.concatenate([vectors, gallery.vectors(absent)])
    classes, labels = _classes(goal, gallery, items, label)
    targets = torch.tensor([[number[id] for id in about]]) if about else None
    given = Given(Candidates(torch.from_numpy(vectors), classes), labels=labels, targets=targets)
    return objective(goal.objective, given)


def _classes(
    goal: Goal, gallery: Gallery, items: Sequence[Item], label: str | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The candidates' classes as numbers, and that of the picture; an item without a label is of no class."""
    if not goal.labels:
        return None, None
    known = sorted({item.label for item in items if item.label is not None})
    if label is None or known == [label]:
        raise ConfigError(
            f"{goal.name} needs a gallery with labels, of two classes at least; index a folder with one folder per "
            "class"
        )
    if label not in known:
        every = sorted({item.label for item in gallery.catalogue().values() if item.label is not None})
        if label not in every:
            raise ConfigError(f"no item of the gallery is of class '{label}'; known: {', '.join(every[:20])}")
        known.append(label)
    numbers = torch.tensor([-1 if item.label is None else known.index(item.label) for item in items])
    return numbers, torch.tensor([known.index(label)])


def _firsts(hits: Sequence[Hit]) -> tuple[str | None, ...]:
    """The class of the first hit and of those that tie with it; none where more may tie than are listed."""
    firsts = [hit for hit in hits if hit.distance == hits[0].distance]
    whole = len(firsts) == len(hits) and hits[-1].tied
    return () if whole else tuple(hit.label for hit in firsts)


def _form(name: str, before: Found, look: Found, place: Place, item: Floats) -> Form:
    vectors = [torch.from_numpy(found.vector).double()[None] for found in (before, look)]
    distance = (vectors[1][0] - torch.from_numpy(item)).norm()
    return Form(name, place.rank, float(distance), float(unit_shift(*vectors)[0]))


def _few(ids: Sequence[str], most: int = 5) -> str:
    more = "" if len(ids) <= most else f" and {len(ids) - most} more"
    return ", ".join(ids[:most]) + more
