"""Kept certificates after a gallery has changed: each is made again, and what differs is said."""

from __future__ import annotations

from itertools import zip_longest

from holdfast.gallery.certified import certify_again
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.kept import Changed, Kept, KeptHit, Rechecked


def recheck(gallery: Gallery) -> Rechecked:
    """Make every kept certificate again that is older than the gallery, keep the new ones, say what changed.

    Stopped on the way, the next call finds the same certificates old and says the same. One that another process
    keeps or forgets meanwhile is left as that process has it.
    """
    kept = gallery.certificates()
    if not gallery.info.embedder.current:  # They prove nothing, and are checked when it is upgraded.
        return Rechecked(len(kept))
    generation = gallery.info.generation
    old = [one for one in kept if one.generation != generation]
    new = [certify_again(gallery, one) for one in old]
    if new:
        gallery.keep(new, instead_of=old)
    compared = [(one, differences(one, again)) for one, again in zip(old, new, strict=True)]
    changed = tuple(Changed(one.query, one.threat, one.k, lines) for one, lines in compared if lines)
    return Rechecked(len(kept), changed)


def differences(old: Kept, new: Kept) -> tuple[str, ...]:
    """What a certificate says otherwise than before, hit by hit."""
    pairs = enumerate(zip_longest(old.hits, new.hits), start=1)
    lines = ((rank, _difference(before, after)) for rank, (before, after) in pairs)
    return tuple(f"hit {rank}: {line}" for rank, line in lines if line)


def _difference(old: KeptHit | None, new: KeptHit | None) -> str:
    if old is None or new is None:
        return f"'{old.id}' is gone" if old is not None else f"'{new.id}' is new" if new is not None else ""
    said = []
    if old.id != new.id:
        said.append(f"'{old.id}' is replaced by '{new.id}'")
    if (old.best, old.worst) != (new.best, new.worst):
        said.append(f"{old.best}–{old.worst} → {new.best}–{new.worst}")
    if old.verdict != new.verdict:
        said.append(f"{old.verdict} → {new.verdict}")
    return ", ".join(said)
