"""Live attacks on what is served: the limits of a service around `holdfast.gallery.attacking`."""

from __future__ import annotations

from holdfast.attacks import Settings
from holdfast.gallery.attacking import AttackedPicture, Pixels, attack_picture
from holdfast.gallery.found import Found
from holdfast.goals import parse_goal
from holdfast.service.engine import Outcome, Served
from holdfast.service.problems import NotUnderstoodError
from holdfast.threat import Threat


def attack(
    served: Served,
    pixels: Pixels,
    k: int,
    threat: Threat,
    goal: str,
    *,
    steps: int = 50,
    own: str | None = None,
) -> AttackedPicture:
    """Alter a picture within `threat` so that its search reaches `goal`; `own` is the item that the picture is.

    `pixels` are those that are altered (`data.alterable`).
    """
    if not served.attackable:
        raise NotUnderstoodError(
            f"the model of gallery '{served.name}' gives no gradients, which a live attack needs"
        )
    if (target := parse_goal(goal)[1]) is not None:
        served.item(target)  # An error that names neither paths nor commands where there is none.
    return served.held(
        lambda gallery: attack_picture(
            gallery,
            served.embedder,
            pixels,
            goal=goal,
            threat=threat,
            k=k,
            own=own,
            settings=Settings(steps=steps),
            jpegs=(),
            provers=served.provers,
        )
    )


def outcome(done: AttackedPicture, found: Found) -> Outcome:
    """One of the two searches of an attack, as every other search is answered."""
    info = done.gallery
    return Outcome(found.answer, done.k, info.generation, info.count, found.threat, found.seconds, info.uid)
