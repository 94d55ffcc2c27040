"""Ways to prove what an attacker cannot do to a search; each is one file, and a name here."""

from __future__ import annotations

from holdfast.errors import ConfigError, HoldfastError
from holdfast.gallery.provers.base import Cost, Options, Prover, Query
from holdfast.gallery.provers.bounds import Bounds
from holdfast.gallery.provers.sampling import Sampling
from holdfast.gallery.values import GalleryInfo
from holdfast.models import AnyEmbedder
from holdfast.threat import Threat

PROVERS: dict[str, type[Prover]] = {kind.name: kind for kind in (Bounds, Sampling)}


class Provers:
    """The provers that serve an embedder. Making them costs nothing; the first proof may trace the network."""

    def __init__(self, embedder: AnyEmbedder) -> None:
        found = {name: kind.lacks(embedder) for name, kind in PROVERS.items()}
        self.lacking = {name: why for name, why in found.items() if why is not None}
        """Why the others do not serve it."""
        self.serving = {name: PROVERS[name](embedder) for name, why in found.items() if why is None}

    @property
    def usual(self) -> Threat | None:
        """What a search certifies where no threat is named; None: nothing."""
        return next((prover.usual for prover in self.serving.values() if prover.usual is not None), None)

    def threats(self, info: GalleryInfo) -> tuple[str, ...]:
        """What can be certified in a gallery: WHO:NORM."""
        return tuple(threat for prover in self.serving.values() for threat in prover.threats(info))

    def methods(self, info: GalleryInfo) -> tuple[str, ...]:
        """How hard a proof can try in a gallery."""
        return tuple(method for prover in self.serving.values() for method in prover.methods(info))

    def refuses(self, threat: Threat, options: Options, info: GalleryInfo) -> HoldfastError | None:
        """Why nothing can be proved of this in a gallery, as the error to raise; None where something can."""
        if error := self.foreign(options, info):
            return error
        found = [prover.refuses(threat, options, info) for prover in self._taking(options)]
        if not found:
            return ConfigError(f"nothing can be certified: {'; '.join(self.lacking.values())}")
        return None if None in found else found[0]

    def foreign(self, options: Options, info: GalleryInfo) -> HoldfastError | None:
        """The refusal of options that no prover of these takes; None where they are taken."""
        if self._taking(options):
            return None
        taken = frozenset[str]().union(*(prover.options for prover in self.serving.values()))
        owner = next((kind for kind in PROVERS.values() if (options.given() - taken) & kind.options), None)
        if owner is None:
            return None
        names = " and ".join(sorted(owner.options))
        return ConfigError(f"{names} are for {owner.words}, and {info.path} is not one")

    def prover(self, threat: Threat, options: Options, info: GalleryInfo) -> Prover:
        """The prover that answers; an error says why there is none."""
        if error := self.refuses(threat, options, info):
            raise error
        taking = self._taking(options)
        return next(prover for prover in taking if prover.refuses(threat, options, info) is None)

    def _taking(self, options: Options) -> list[Prover]:
        """The provers that take these options."""
        return [prover for prover in self.serving.values() if options.given() <= prover.options]


__all__ = ["PROVERS", "Cost", "Options", "Prover", "Provers", "Query"]
