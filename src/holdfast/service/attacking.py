"""A live attack on one picture: altered within a threat, as 8 bits, and measured as a search would see it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.attacks import (
    Access,
    Attack,
    Candidates,
    Given,
    Objective,
    Pgd,
    as_access,
    objective,
    through_file,
)
from holdfast.attacks.noisy import NoisyBox
from holdfast.certify import Verdict
from holdfast.data import Picture, fitted
from holdfast.gallery import AnyGallery, Hit, Hits, Item
from holdfast.gallery.exact import Floats, pair_distances
from holdfast.gallery.smoothed import SmoothedHits, stored_smoothing
from holdfast.models import Embedder, Smoothed, to_unit
from holdfast.service.engine import Outcome, Pixels, Served, shortened
from holdfast.service.problems import NotThereError, NotUnderstoodError, UnavailableError
from holdfast.threat import Threat

Wanted = Literal["lower", "raise", "misrank", "shift", "qa-", "qa+", "gtm", "es"]
"""What the attacker wants, in plain words or by the name in `holdfast.attacks`."""
WANTED: tuple[Wanted, ...] = get_args(Wanted)

Bytes = NDArray[np.uint8]
NEAREST = 10_000
"""Candidates that an attack looks at, the nearest ones: it must end soon, and those are the ones in its way."""

_NAMES: dict[Wanted, str] = {"lower": "qa-", "raise": "qa+", "misrank": "gtm", "shift": "es"}


@dataclass(frozen=True)
class Moved:
    """Where an item stood before and after, among all candidates."""

    id: str
    before: int
    after: int


@dataclass(frozen=True, eq=False)
class Attacked:
    """What an attack did.

    `held`: every hit that was certified is still among the first k (or a smoothed search abstains).
    """

    clean: Bytes
    """The file's own pixels where claims are of the file, else those that the network is given."""
    altered: Bytes
    before: Outcome
    after: Outcome
    moves: tuple[Moved, ...]
    held: bool
    target: str | None
    threat: Threat
    seconds: float


@dataclass(frozen=True, eq=False)
class _Scene:
    """The nearest candidates of a query, and the target's place among them."""

    items: list[Item]
    vectors: Floats

    def place(self, id: str) -> int:
        return next(place for place, item in enumerate(self.items) if item.id == id)


def attack(
    served: Served,
    pixels: Bytes,
    k: int,
    threat: Threat,
    wanted: Wanted,
    target: str | None = None,
    *,
    steps: int = 50,
    own: str | None = None,
) -> Attacked:
    """Alter a picture within `threat` so that its search goes wrong in the wanted way.

    lower and raise are about `target` (lower: by default the first hit but `own`, the item that the picture
    is); misrank brings the nearest candidate of another class to the front; shift moves the vector as far as it
    goes. `pixels` are those that are altered (`data.alterable`). Ranks afterwards are those of the 8-bit picture among
    all candidates, resized as a search would.
    """
    start = time.perf_counter()
    _check(served, threat)
    # One state of the gallery for all that is compared: what others change meanwhile breaks no certificate.
    done = served.together(lambda: _attack(served, pixels, k, threat, wanted, target, steps, own))
    return replace(done, seconds=time.perf_counter() - start)


def _attack(
    served: Served,
    pixels: Bytes,
    k: int,
    threat: Threat,
    wanted: Wanted,
    target: str | None,
    steps: int,
    own: str | None,
) -> Attacked:
    spec = served.embedder.spec
    clean = fitted(pixels, spec)
    before = _before(served, clean, k, threat)
    hits = _hits(before)
    name = _NAMES.get(wanted, wanted)
    if name == "qa-" and target is None:
        first = next((hit.id for hit in hits if hit.id != own), None)
        if first is None:
            raise NotUnderstoodError("nothing was found but the picture itself; there is no hit to push away")
        target = first
    vector = served.embedder.embed(clean.pixels[None]).numpy()
    scene = served.use(lambda gallery: _scene(gallery, vector, served.name, target))
    wish = _wish(name, scene, hits, target)
    altered = _altered(served, wish, pixels, threat, steps)
    after, ranks = _after(served, fitted(altered, spec), k, [hit.id for hit in hits], target)
    if after.generation != before.generation:
        raise UnavailableError(f"gallery '{served.name}' was changed during the attack; ask again")
    moves = [Moved(hit.id, hit.rank, ranks[hit.id]) for hit in hits]
    if target is not None and target not in {hit.id for hit in hits}:
        was = served.use(lambda gallery: ranks_of(gallery, vector[0], [target]))
        moves.append(Moved(target, was[target], ranks[target]))
    return Attacked(
        pixels, altered, before, after, tuple(moves), _held(before, after, threat), target, threat, 0.0
    )


def ranks_of(gallery: AnyGallery, vector: Floats, ids: Sequence[str]) -> dict[str, int]:
    """The rank of each item among all candidates, as `Gallery.search` with a k large enough would say."""
    with gallery.snapshot():
        scan = gallery.scan(vector)
        own = gallery.vectors(ids)
        away = pair_distances(own, np.arange(len(ids))[None], scan.query[None])[0]
        found = scan.within(float(away.max()))
        ranks = {}
        for id, distance in zip(ids, away, strict=True):
            nearer, reached = (
                int(np.searchsorted(found.distances, distance, side)) for side in ("left", "right")
            )
            tied = gallery.items(found.slots[nearer:reached])
            ranks[id] = 1 + nearer + sum(item.id < id for item in tied)
    return ranks


def _check(served: Served, threat: Threat) -> None:
    if not served.attackable:
        raise NotUnderstoodError(
            f"the model of gallery '{served.name}' gives no gradients, which a live attack needs"
        )
    if threat.who != "query":
        raise NotUnderstoodError(f"a live attack alters the query; give NORM:EPS instead of '{threat}'")
    if threat.eps is None:
        raise NotUnderstoodError(f"an attack needs a number for eps, not '{threat}'")


def _before(served: Served, picture: Picture, k: int, threat: Threat) -> Outcome:
    """The search before, certified under the threat where the gallery can do that."""
    side = f"{threat.who}:{threat.norm}"
    if side in served.traits(served.known).threats:
        return served.certified(picture, k, threat)
    if isinstance(served.embedder, Smoothed):
        return served.smoothed(picture, k)
    return served.plain([(picture.pixels, k)])[0]


def _scene(gallery: AnyGallery, vector: Floats, name: str, target: str | None) -> _Scene:
    with gallery.snapshot():
        slots = gallery.nearest_arrays(vector, NEAREST)[1][0]
        items, vectors = gallery.items(slots), gallery.vectors_at(slots)
        if target is not None and all(item.id != target for item in items):
            if target not in gallery:
                raise NotThereError(f"gallery '{name}' has no item '{shortened(target)}'")
            items.append(gallery.get(target))
            vectors = np.concatenate([vectors, gallery.vectors([target])])
    return _Scene(items, vectors)


def _wish(name: str, scene: _Scene, hits: Sequence[Hit], target: str | None) -> Objective:
    vectors = torch.from_numpy(scene.vectors)
    if name in ("qa-", "qa+"):
        if target is None:
            raise NotUnderstoodError("to raise an item, say which: target is its id")
        return objective(name, Given(Candidates(vectors), targets=torch.tensor([scene.place(target)])))
    if target is not None:
        raise NotUnderstoodError("a target is for lower and raise; leave it out")
    if name == "es":
        return objective("es", Given())
    label = hits[0].label if hits else None
    classes = sorted({item.label for item in scene.items if item.label is not None})
    if label is None or len(classes) < 2:
        raise NotUnderstoodError("misrank needs a gallery with labels, of two classes at least")
    # An item without a label is of no class, and so of another one.
    numbers = torch.tensor([-1 if item.label is None else classes.index(item.label) for item in scene.items])
    given = Given(Candidates(vectors, numbers), labels=torch.tensor([classes.index(label)]))
    return objective("gtm", given)


def _altered(served: Served, wish: Objective, pixels: Bytes, threat: Threat, steps: int) -> Bytes:
    embedder = served.embedder
    if isinstance(embedder, Smoothed):
        assert isinstance(embedder.base, Embedder)
        model: Access = NoisyBox(embedder.base, embedder.sigma, embedder.seed)
    else:
        assert isinstance(embedder, Embedder)
        model = as_access(embedder)
    found = Attack(wish, Pgd(steps=steps), threat).run(
        through_file(model, pixels.shape, embedder.spec),
        torch.from_numpy(np.array(pixels))[None],
        eight_bit=True,
    )
    return np.asarray(found.bytes()[0].numpy())


def _after(
    served: Served, altered: Picture, k: int, ids: Sequence[str], target: str | None
) -> tuple[Outcome, dict[str, int]]:
    """The search for the altered picture, and the ranks of these items and the target in it."""
    if isinstance(served.embedder, Smoothed):
        after = served.smoothed(altered, k)
        assert isinstance(after.found, SmoothedHits)
        vector = _mean(served, altered.pixels, after.found.seed)
    else:
        after = served.plain([(altered.pixels, k)])[0]
        vector = served.embedder.embed(altered.pixels[None]).numpy()[0]
    wanted = list(dict.fromkeys([*ids, *([] if target is None else [target])]))

    def ranks(gallery: AnyGallery) -> dict[str, int]:
        with gallery.snapshot():
            there = [id for id in wanted if id in gallery]
            gone = dict.fromkeys(wanted, len(gallery) + 1)  # Removed meanwhile: after all others.
            return {**gone, **(ranks_of(gallery, vector, there) if there else {})}

    found = {hit.id: hit.rank for hit in _hits(after)}
    # What is not listed comes after what is, also where votes list another than the k nearest.
    others = {id: max(place, len(found) + 1) for id, place in served.use(ranks).items()}
    return replace(after, threat=None), {**others, **found}


def _mean(served: Served, pixels: Pixels, seed: int) -> Floats:
    """The mean vector of a smoothed search with this seed."""
    embedder, how = served.embedder, stored_smoothing(served.known.embedder)
    assert isinstance(embedder, Smoothed)
    assert how is not None
    image = to_unit(torch.from_numpy(np.array(pixels))[None])[0]
    total = np.zeros(embedder.dim)
    for part in embedder.sample(image, how.first, how.first + how.n, seed=seed):
        total += part.double().numpy().sum(0)
    return (total / how.n).astype(np.float32)


def _hits(outcome: Outcome) -> tuple[Hit, ...]:
    found = outcome.found
    return found.hits if isinstance(found, Hits) else tuple(entry.hit for entry in found.hits)


def _held(before: Outcome, after: Outcome, threat: Threat) -> bool:
    """Whether every hit that was certified is there; a smoothed search may also say that it is not sure."""
    if isinstance(after.found, SmoothedHits) and any(
        entry.verdict == Verdict.ABSTAIN for entry in after.found.hits
    ):
        return True
    return set(_certified(before, threat)) <= {hit.id for hit in _hits(after)}


def _certified(outcome: Outcome, threat: Threat) -> list[str]:
    """The hits of which something was promised within the threat: a radius may be shorter than that."""
    found = outcome.found
    if isinstance(found, Hits):
        return []
    proved = [entry for entry in found.hits if entry.verdict == Verdict.CERTIFIED]
    if isinstance(found, SmoothedHits) and threat.eps is not None:
        reach = {"l2": "radius", "linf": "pixel"}[threat.norm]
        proved = [entry for entry in proved if getattr(entry, reach) >= threat.eps]
    return [entry.hit.id for entry in proved]
