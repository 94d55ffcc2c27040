"""Certificates: what no attack within a threat can do to a hit. Tables, pages and JSON print what they say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

from holdfast.spec import CLAIM, PictureOf
from holdfast.threat import Threat, floored


class Verdict(StrEnum):
    """The answer to a question about an attacker; never a bare bool."""

    CERTIFIED = "CERTIFIED"
    BROKEN = "BROKEN"
    UNKNOWN = "UNKNOWN"
    ABSTAIN = "ABSTAIN"


_STAYS = {Verdict.CERTIFIED: "yes", Verdict.BROKEN: "no"}


@dataclass(frozen=True, kw_only=True)
class Certificate(ABC):
    """What no attack within `threat` can do to a hit among the first `k`, or why nothing is claimed.

    CERTIFIED: the hit stays among the first k. BROKEN: an attack is shown that removes it. UNKNOWN and ABSTAIN
    claim nothing.
    """

    threat: Threat
    k: int
    verdict: Verdict
    picture: PictureOf = "network input"
    """Whose pixels are altered: those of the file, however large it is, or those that the network is given."""
    reason: str = ""
    """Why it is not certified, where more is known than that."""

    @property
    def failure_probability(self) -> float:
        """With which probability the claim is wrong, at most."""
        return 0.0

    def promises(self, threat: Threat) -> bool:
        """Whether it claims that the hit stays among the first k under every attack within `threat`."""
        return (
            self.verdict == Verdict.CERTIFIED and threat.eps is not None and self._covers(threat, threat.eps)
        )

    def excludes(self, best: int, worst: int) -> bool:
        """Whether it claims that no attack within its threat leaves the hit at any of these ranks."""
        return False

    def broken(self) -> Self:
        """The same for a hit that an attack was shown to remove from the first k."""
        return replace(self, verdict=Verdict.BROKEN, reason="an attack is shown that removes it")

    def sentence(self) -> str:
        """What is claimed, in plain English, or why nothing is."""
        if self.verdict == Verdict.CERTIFIED:
            return self._claimed()
        if self.verdict == Verdict.BROKEN:
            return f"An attack is shown that removes this from the first {self.k}."
        return self._open()

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is not proved is null."""
        return {"verdict": str(self.verdict), "reason": self.reason}

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """Its cells of a table, by header."""

    @abstractmethod
    def lines(self) -> list[str]:
        """What stands below the hit's picture."""

    @abstractmethod
    def _covers(self, threat: Threat, eps: float) -> bool:
        """Whether what is certified holds for every attack within `threat`, whose size is `eps`."""

    @abstractmethod
    def _claimed(self) -> str: ...

    @abstractmethod
    def _open(self) -> str: ...


@dataclass(frozen=True)
class RankInterval(Certificate):
    """For every attack within the threat, the hit's rank stays between `best` and `worst`; proved by bounds."""

    best: int
    worst: int
    eps: float | None = None
    """The eps of the threat, or for `auto` the largest found at which the hit stays; None if there is none."""

    def to_dict(self) -> dict[str, Any]:
        return {"best": self.best, "worst": self.worst, "eps": self.eps, **super().to_dict()}

    def excludes(self, best: int, worst: int) -> bool:
        return best > self.worst or worst < self.best

    def columns(self) -> dict[str, str]:
        cells = {
            "rank interval": f"{self.best}–{self.worst}",
            f"stays in top {self.k}": _STAYS.get(self.verdict, "not proven"),
            "verdict": str(self.verdict),
        }
        if self.threat.eps is None:
            cells["largest eps"] = "none" if self.eps is None else floored(self.eps)
        return cells

    def lines(self) -> list[str]:
        said = [f"rank {self.best}–{self.worst}", str(self.verdict)]
        if self.threat.eps is None:
            said.append("to no ε" if self.eps is None else f"to ε {floored(self.eps)}")
        return said

    def _covers(self, threat: Threat, eps: float) -> bool:
        # The l2 ball lies inside the linf ball of the same size.
        mine, few = self.threat, self.threat.most
        altered = mine.who in (threat.who, "both") and (
            few is None or (threat.most is not None and threat.most <= few)
        )
        return altered and self.eps is not None and eps <= self.eps

    def _claimed(self) -> str:
        assert self.eps is not None
        size = (self.threat.eps is not None and self.threat.size) or floored(self.eps)
        return (
            f"However each pixel of {self.threat.altered(self.picture)} is altered by up to {size}, "
            f"this stays among the first {self.k}."
        )

    def _open(self) -> str:
        if self.threat.eps is None:
            return f"The bounds prove no size at which this stays among the first {self.k}."
        return (
            f"The bounds allow any rank from {self.best} to {self.worst}; "
            "that is no attack, but no proof that it stays either."
        )


@dataclass(frozen=True)
class Radius(Certificate):
    """The hit is among the first k for every query closer than `radius` in ℓ2; proved by noisy copies.

    CERTIFIED: to the radius that was asked for, or to any. UNKNOWN: to a smaller one. ABSTAIN: the samples
    do not settle even that it is among them now. All radii of one search together are wrong with probability
    at most `alpha`.
    """

    radius: float
    pixel: float
    """The same for every pixel by itself (ℓ∞): radius/√d."""
    alpha: float
    samples: int | None = None
    """How many samples would probably settle it; None where none that were tried would, or none are needed."""
    share: float | None = None
    """By rule `votes`: the share of the copies that voted for it."""

    @property
    def failure_probability(self) -> float:
        return self.alpha

    def to_dict(self) -> dict[str, Any]:
        proved = self.radius > 0
        return {
            "radius": self.radius if proved else None,
            "pixel": self.pixel if proved else None,
            "eps": self.threat.eps,
            "samples": self.samples,
            "share": self.share,
            **super().to_dict(),
        }

    def columns(self) -> dict[str, str]:
        return {
            **({} if self.share is None else {"votes": f"{self.share:.1%}"}),
            f"stays in top {self.k} to l2": floored(self.radius) if self.radius > 0 else "none",
            "verdict": str(self.verdict),
            "": self.reason,
        }

    def lines(self) -> list[str]:
        said = [] if self.share is None else [f"{self.share:.1%} of the votes"]
        said.append(str(self.verdict))
        if self.radius > 0:
            said.append(f"to ℓ2 {floored(self.radius)} (ℓ∞ {floored(self.pixel, 5)})")
        return [*said, self.reason] if self.reason else said

    def _covers(self, threat: Threat, eps: float) -> bool:
        return threat.who == "query" and eps <= {"l2": self.radius, "linf": self.pixel}[threat.norm]

    def _claimed(self) -> str:
        return (
            f"However {self.threat.altered(self.picture)} is altered by less than {floored(self.radius)} in l2, "
            f"this stays among the first {self.k}, up to the probability alpha."
        )

    def _open(self) -> str:
        return f"{self.reason[:1].upper()}{self.reason[1:]}."


@dataclass(frozen=True, kw_only=True)
class Proof(ABC):
    """What holds for all hits of one search together, and how it was proved."""

    threat: Threat
    k: int
    picture: PictureOf = "network input"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "threat": str(self.threat)}

    @abstractmethod
    def title(self) -> str:
        """What a title says after the query's name."""

    @abstractmethod
    def notes(self) -> list[str]:
        """The lines below a table of the hits."""

    @abstractmethod
    def meaning(self) -> list[str]:
        """What the verdicts say and what they do not, for people who see the pictures."""


@dataclass(frozen=True)
class Effort:
    """What a tighter test than by intervals was good for: hits certified, and seconds; with it, and without."""

    certified: int
    seconds: float
    by_intervals: int
    interval_seconds: float


@dataclass(frozen=True, kw_only=True)
class BoundsProof(Proof):
    """Bounds: `examined` candidates needed the exact test, of `candidates` in all."""

    examined: int
    candidates: int
    sharpened: bool = True
    """False where a tighter method was asked for, but pruning left too many candidates for it."""
    boxes: float | None = None
    """The eps of the stored candidate boxes that were used: that of the threat, or the next larger."""
    reason: str = ""
    """Why nothing could be proved, where the candidates could not be compared at all."""
    effort: Effort | None = None
    """Where a tighter test than by intervals was asked for."""

    def title(self) -> str:
        return f"under {self.threat}"

    def notes(self) -> list[str]:
        if self.reason:
            said = [f"nothing is proved: {self.reason}"]
        else:
            counted = f"{self.examined:,} of {self.candidates:,} candidates needed the exact test"
            said = [CLAIM[self.picture], counted]
        if (effort := self.effort) is not None:
            said.append(
                f"{effort.certified} of {self.k} hits certified in {effort.seconds:.2f} s; by intervals alone "
                f"{effort.by_intervals} in {effort.interval_seconds:.2f} s"
            )
        if not self.sharpened:
            said.append(
                "too many candidates for the tighter method: the intervals are those of method interval"
            )
        if self.boxes is not None and self.boxes != self.threat.eps:
            said.append(
                f"with the candidates' boxes for linf:{self.boxes:g}, which hold those of {self.threat.size}"
            )
        return said

    def meaning(self) -> list[str]:
        altered = self.threat.altered(self.picture)
        if self.threat.eps is None:
            first = (
                f"Below each hit stands the largest ε found for it: however each pixel of {altered} is "
                f"altered by up to ε, the hit stays among the first {self.k} (CERTIFIED) and its rank stays in the "
                "interval."
            )
        else:
            first = (
                f"CERTIFIED: however each pixel of {altered} is altered by up to "
                f"{self.threat.size or self.threat.eps}, the hit stays among the first {self.k}. In any case its rank "
                "stays in the interval."
            )
        return [
            first,
            CLAIM[self.picture],
            "UNKNOWN: the bounds leave it open, which is not an attack. A certificate says where a hit can "
            "stand, not whether it is right.",
        ]


@dataclass(frozen=True, kw_only=True)
class SamplingProof(Proof):
    """Noisy copies: all statements about the hits together are wrong with probability at most `alpha`."""

    sigma: float
    alpha: float
    samples: int
    """That answered; fewer than allowed where the verdicts were settled before."""
    rule: str = "mean"
    """By what the copies list hits: their mean vector, or their votes."""
    seed: int = 0
    """Of this search's noise; the same one gives the same answer again."""
    label: str | None = None
    """The class of the nearest candidate, and to which radius the nearest stays one of this class (by rule `votes`:
    that of most copies)."""
    label_radius: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "eps": self.threat.eps}

    def title(self) -> str:
        by = "by votes of copies with noise" if self.rule == "votes" else "smoothed by noise"
        asked = "" if self.threat.eps is None else f", asked for l2:{self.threat.eps:g}"
        return f"{by} of {self.sigma:g}{asked}"

    def notes(self) -> list[str]:
        said = []
        if self.label is not None:
            held = f"to l2 {floored(self.label_radius)}" if self.label_radius > 0 else "not settled"
            said.append(f"the nearest{self._most} stays one of '{self.label}': {held}")
        return [
            *said,
            CLAIM[self.picture],
            f"{self.samples:,} samples (seed {self.seed}); all of this is wrong with probability at most "
            f"{self.alpha:g}",
        ]

    def meaning(self) -> list[str]:
        copies = f"{self.samples:,} noisy copies of the query (σ = {self.sigma:g})"
        ranked = (
            f"Each of {copies} votes for its {self.k} nearest candidates; those with most votes are shown, nearest to "
            "the mean vector first. "
            if self.rule == "votes"
            else f"Hits are ranked by the mean vector of {copies}. "
        )
        label = []
        if self.label is not None and self.label_radius > 0:
            label = [
                f"The nearest{self._most} stays one of '{self.label}' to ℓ2 {floored(self.label_radius)}."
            ]
        return [
            f"{ranked}Below each stands how far the query may be altered, in ℓ2 over the whole picture, while the hit "
            f"stays among the first {self.k}; ℓ∞ is the same for every pixel by itself. All statements about one query "
            f"together are wrong with probability at most {self.alpha:g}.",
            CLAIM[self.picture],
            *label,
            "ABSTAIN: the samples do not settle whether the hit is among them at all. An attacker can force that; a "
            "wrong answer of which the search is sure only where a statement fails, which has that probability. A "
            "certificate says where a hit stands, not whether it is right. "
            f"The noise of this search has seed {self.seed}.",
        ]

    @property
    def _most(self) -> str:
        return " of most copies" if self.rule == "votes" else ""
