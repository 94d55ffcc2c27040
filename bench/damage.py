"""Damaged galleries: no damage may pass into an answer unnoticed, and none may end in a traceback.

A small gallery with labels, boxes and kept certificates is damaged again and again, each time one sound copy: random
bits, bytes and pages of the file; every column of every table, with values of every storage class; rows that are
gone; a page that is as it was before the last writes, as a lost write leaves it; the files of the mapped cache. Then
everything that a user can ask for is asked: opening, search, range search, certificates of altered queries and
candidates, items by slot and by id, kept certificates, verify. Each answer must be the one of the sound gallery or a
refusal of one line.

A damage is *noticed* if something refuses or verify names it, *harmless* if all answers are the same and verify says
that it is sound. Anything else is silent, or a traceback.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from _common import report

# isort: split
import _damage
from _damage import Damage
from holdfast.gallery import Gallery
from holdfast.gallery.stores.sqlite.cache import folder_of


def tried(
    what: str, damages: Iterable[Damage], sound: Path, scratch: Path, target: Path | None = None
) -> tuple[Counter[str], int]:
    """How often each outcome came; what went wrong is printed. `target` is the damaged file, if not the gallery."""
    _damage.copied(sound, scratch)
    wanted = _damage.answers(scratch)
    assert wanted["verify"] == [], wanted["verify"]
    found: Counter[str] = Counter()
    start = time.monotonic()
    for damage in damages:
        _damage.copied(sound, scratch)
        damage.do(target or scratch)
        outcome, why = _damage.outcome(scratch, wanted)
        found[outcome] += 1
        if outcome in ("silent", "traceback"):
            print(f"{outcome}: {damage.name}: {why}", flush=True)
    told = ", ".join(f"{found[name]:,} {name}" for name in ("noticed", "harmless", "silent", "traceback"))
    print(f"{what}: {found.total():,} damages, {told}; {time.monotonic() - start:.0f} s", flush=True)
    return found, found["silent"] + found["traceback"]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--random", type=int, default=10_000)
    options.add_argument("--targeted", type=int, default=1_000, help="0: all there are")
    options.add_argument("--cache", type=int, default=500)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        sound, scratch = Path(folder) / "sound", Path(folder) / "g"
        before = Path(folder) / "before"
        _damage.filled(sound)
        _damage.copied(sound, before)
        with Gallery.open(sound) as gallery:
            more = _damage.vectors(3, 11)
            gallery.add(["image-050", "new-1", "new-2"], more, boxes=_damage.boxes(more), replace=True)
            gallery.remove(["image-021"])
        size = sound.stat().st_size
        wrong += tried("random", _damage.random_damages(size, chosen.random, chosen.seed), sound, scratch)[1]
        targeted = _damage.targeted_damages(sound, chosen.targeted, chosen.seed)
        wrong += tried("targeted", targeted, sound, scratch)[1]
        wrong += tried("lost writes", _damage.lost_writes(before, sound), sound, scratch)[1]
        if chosen.cache:
            with Gallery.open(sound) as gallery:
                gallery.write_cache()
            for file in sorted(folder_of(sound).glob("*.f4")):
                cached = folder_of(scratch) / file.name
                damages = _damage.random_damages(file.stat().st_size, max(1, chosen.cache // 4), chosen.seed)
                wrong += tried(f"cache {file.name}", damages, sound, scratch, cached)[1]
    against = "damages that changed an answer in silence, or ended in a traceback"
    return 0 if report("damage", wrong, 0, "lower", against) else 1


if __name__ == "__main__":
    sys.exit(main())
