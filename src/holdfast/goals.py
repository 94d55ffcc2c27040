"""What an attacker of one picture can want of its search: the goals that command line, service and page offer.

A new goal is an entry of `GOALS`. It names an objective of `holdfast.attacks`, says what it is about, and when it is
reached; everything else follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import ConfigError, unknown_name

About = Literal["hit", "item", "list", "query"]


@dataclass(frozen=True)
class Place:
    """Where a candidate stands in a search: its rank, and the best and the worst that ties leave open."""

    rank: int
    best: int
    worst: int


@dataclass(frozen=True)
class Result:
    """What the search for an altered picture shows of a goal."""

    k: int
    places: tuple[Place, ...]
    """Of what the goal is about: the item, or the whole list of before."""
    label: str | None
    """The class of the picture."""
    firsts: tuple[str | None, ...]
    """The class of the first hit; those of all that tie with it."""


@dataclass(frozen=True)
class Goal:
    """Something to want of the search for an altered picture."""

    name: str
    words: str
    """What the attacker wants to do."""
    objective: str
    """The objective of `holdfast.attacks` that seeks it."""
    reached: Callable[[Result], bool | None]
    """Whether it was reached, a tie counting against the attacker; None where it is no yes or no."""
    about: About = "query"
    """A hit (the first unless another is named), an item that is named, the whole list of hits, or the query alone."""
    labels: bool = False
    """Whether it needs candidates of two classes."""
    aliases: tuple[str, ...] = ()
    """Names of earlier versions."""

    @property
    def usage(self) -> str:
        """How it is written."""
        return self.name + {"item": ":ITEM_ID", "hit": "[:ITEM_ID]"}.get(self.about, "")


def _out(result: Result) -> bool:
    return bool(result.places) and all(place.best > result.k for place in result.places)


def _in(result: Result) -> bool:
    return all(place.worst <= result.k for place in result.places)


def _other_class(result: Result) -> bool:
    return bool(result.firsts) and result.label not in result.firsts


def _any(result: Result) -> None:
    return None


GOALS: dict[str, Goal] = {
    goal.name: goal
    for goal in (
        Goal("push-out", "push a hit out of the top k", "qa-", _out, "hit", aliases=("lower", "qa-")),
        Goal("pull-in", "bring an item into the top k", "qa+", _in, "item", aliases=("raise", "qa+")),
        Goal("misrank", "make the first hit one of another class", "gtm", _other_class, labels=True, aliases=("gtm",)),
        Goal("replace", "replace all hits by others", "qa-", _out, "list"),
        Goal("shift", "move the query's vector as far as it goes", "es", _any, aliases=("es",)),
    )
}  # fmt: skip


def parse_goal(text: str) -> tuple[Goal, str | None]:
    """The goal that `text` names, and the item it is about: NAME or NAME:ITEM_ID."""
    name, colon, item = text.strip().partition(":")
    named = {old: goal for goal in GOALS.values() for old in (goal.name, *goal.aliases)}
    if name not in named:
        raise ConfigError(unknown_name("goal", name, (goal.usage for goal in GOALS.values())))
    goal = named[name]
    if goal.about == "item" and not item:
        raise ConfigError(f"{goal.name} needs an item: say which, as {goal.usage}")
    if colon and goal.about not in ("hit", "item"):
        raise ConfigError(f"{goal.name} is about no single item; leave ':{item[:80]}' out")
    return goal, item or None


def goal_rows() -> list[dict[str, str]]:
    """One row for each goal, as docs/attacks.md shows them."""
    about = {"hit": "a hit", "item": "an item", "list": "all hits", "query": "the query"}
    return [
        {
            "goal": f"`{goal.usage}`",
            "the attacker wants to": goal.words,
            "objective": f"`{goal.objective}`",
            "labels": "yes" if goal.labels else "–",
            "about": about[goal.about],
        }
        for goal in GOALS.values()
    ]


def goals_in_words() -> str:
    """All goals in one line, for a help text."""
    return "; ".join(f"{goal.usage} ({goal.words})" for goal in GOALS.values())
