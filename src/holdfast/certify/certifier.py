"""From an embedder, images and a threat to a certificate for rankings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from holdfast.bounds import (
    Box,
    Graph,
    Intermediate,
    Relaxation,
    image_box,
    interval_bounds,
    normalised,
    trace,
)
from holdfast.bounds.interval import charged_box
from holdfast.certify.agreement import check_agreement, check_held, check_place, contradicted, features
from holdfast.certify.altered_candidates import AlteredBoth, AlteredCandidates, FewAlteredCandidates
from holdfast.certify.altered_query import AlteredQuery, LastLayer
from holdfast.certify.crown import Backward
from holdfast.certify.files import at_network
from holdfast.certify.pairwise import slack_of
from holdfast.certify.values import Alteration
from holdfast.errors import ModelError
from holdfast.methods import bound_method
from holdfast.models import AnyEmbedder, Embedder
from holdfast.models.inference import inference
from holdfast.models.inputs import check_shape
from holdfast.threat import Threat


class Certifier:
    """What attackers within a threat can do to an embedder's rankings; candidates' boxes are computed once an eps.

    With `clip` off the box of images leaves [0, 1], as the paper's does; with `rounding` off the float32
    rounding of inference is left out of the bounds, as in the paper.
    """

    def __init__(self, embedder: AnyEmbedder, *, clip: bool = True, rounding: bool = True) -> None:
        if not isinstance(embedder, Embedder):
            raise ModelError(
                "certificates need a network that can be looked into: a run, a checkpoint or a torch module"
            )
        check_place(embedder)
        self._embedder, self._clip, self._rounding = embedder, clip, rounding
        self.unit_norm = embedder.unit_norm
        self._settings = embedder.settings()
        self._graph: Graph = trace(embedder)
        self.split = self._graph.without_last()
        check_agreement(embedder, self._graph)
        self._candidates: tuple[Tensor, float, Box] | None = None

    def box(self, images: Tensor, eps: float | Tensor, graph: Graph | None = None) -> Box:
        """The box of the unnormalised features, or of what another part of the network gives.

        `eps` is one number, or one for each image.
        """
        check_shape(tuple(images.shape), self._embedder.spec.shape)
        self._check_unchanged()
        parts = []
        with inference(self._embedder):
            for start in range(0, max(1, len(images)), 200):
                # In float64 the bounds pay for the rounding of inference alone, not for their own.
                part = images[start : start + 200].double()
                size = eps[start : start + 200] if isinstance(eps, Tensor) else eps
                box = image_box(part, self._at_network(size), clip=self._clip, rounding=self._rounding)
                parts.append(interval_bounds(graph or self._graph, box, rounding=self._rounding))
        found = Box(torch.cat([p.centre for p in parts]), torch.cat([p.radius for p in parts]))
        if graph is None and self._rounding:
            # One image at many sizes is one image.
            count = 1 if len(images) and images.stride(0) == 0 else len(images)
            for start in range(0, count, 200):
                rows = slice(start, min(start + 200, count))
                check_held(found.take(rows), features(self._embedder, images[rows]))
        return found

    def linear_box(self, images: Tensor, eps: float | Tensor) -> Box:
        """As `box`, intersected with CROWN's: far tighter on a network that was not trained for intervals.

        It costs a backward pass for each feature and each open activation, one image at a time.
        """
        wide = self.box(images, eps)
        with inference(self._embedder):
            parts = [self._relaxed(images, eps, n, "crown").box() for n in range(len(images))]
        found = Box(torch.cat([p.centre for p in parts]), torch.cat([p.radius for p in parts]))
        if self._rounding:
            found = charged_box(found)
        lower, upper = torch.maximum(found.lower, wide.lower), torch.minimum(found.upper, wide.upper)
        known = torch.isfinite(lower) & torch.isfinite(upper)
        centre, radius = (lower + upper) / 2, (upper - lower) / 2
        tight = Box(
            torch.where(known, centre, wide.centre),
            torch.where(known, radius.clamp(min=0) * (1 + 2.0**-40), wide.radius),
        )
        if self._rounding:
            check_held(tight, features(self._embedder, images))
        return tight

    def _check_unchanged(self) -> None:
        """Refuse a network whose settings are others than when it was traced; its weights are read as they are."""
        if self._embedder.settings() != self._settings:
            raise ModelError(
                "a setting or an attribute of the network changed since it was traced (one that counts its calls, "
                "perhaps); trace it anew, or write it without"
            )

    def _at_network(self, eps: float | Tensor) -> float | Tensor:
        """The eps of the network's input, for a threat that alters the file; as it is where rounding is left out."""
        return at_network(eps, self._embedder.spec) if self._rounding else eps

    def last(self, images: Tensor, eps: float | Tensor) -> LastLayer:
        """The last layer with the box before it."""
        assert self.split is not None
        body, layer = self.split
        hidden = self.box(images, eps, body)
        with inference(self._embedder):
            weight = layer.weight.detach().double()
            bias = None if layer.bias is None else layer.bias.detach().double()
            error = layer.error([hidden])
        return LastLayer(hidden, weight, bias, error if self._rounding else torch.zeros_like(error))

    def unit_box(self, images: Tensor, eps: float) -> Box:
        """The box of the embeddings, through the normalisation if there is one."""
        box = self.box(images, eps)
        return normalised(box) if self.unit_norm else box

    def candidate_box(self, images: Tensor, eps: float) -> Box:
        """The box of the vectors that images have as candidates."""
        side = self._embedder.candidate_side
        if side is None:
            return self.unit_box(images, eps)
        box = self.box(images, eps)
        lower, upper = side.bounds(box.lower, box.upper)
        # More than halving and adding again can lose.
        radius = (upper - lower) / 2 + 2.0**-50 * (lower.abs() + upper.abs())
        # A code is bounded whatever the scores are; where nothing is known of them, nothing is claimed of it.
        known = (torch.isfinite(box.centre) & torch.isfinite(box.radius)).all(1, keepdim=True)
        return Box((lower + upper) / 2, torch.where(known, radius, torch.inf))

    def candidates(self, images: Tensor, eps: float) -> Box:
        """The boxes of altered candidates; asked again for the same ones, they are at hand."""
        if self._candidates is None or self._candidates[0] is not images or self._candidates[1] != eps:
            self._candidates = (images, eps, self.candidate_box(images, eps))
        return self._candidates[2]

    def backward(self, images: Tensor, eps: float | Tensor, ks: Sequence[int] | None = None) -> Backward:
        """Linear bounds of the features, for one image at a time."""

        self._check_unchanged()
        clean = features(self._embedder, images)

        def by(intermediate: Intermediate) -> Callable[[int, Tensor], Tensor]:
            last: list[tuple[int, Relaxation]] = []

            def lower(number: int, spec: Tensor) -> Tensor:
                with inference(self._embedder):
                    if not last or last[0][0] != number:
                        last[:] = [(number, self._relaxed(images, eps, number, intermediate))]
                    bound = last[0][1].lower(spec)[0]
                reached = spec.double() @ clean[number]
                room = slack_of(spec.shape[1]) * (spec.double().abs() @ clean[number].abs())
                if self._rounding and bool((bound > reached + room).any()):
                    raise contradicted()
                return bound

            return torch.no_grad()(lower)

        return Backward(clean, by("interval"), ks, tighter=by("crown"))

    def _relaxed(
        self, images: Tensor, eps: float | Tensor, number: int, intermediate: Intermediate
    ) -> Relaxation:
        """The network's lines for one image."""
        image = images[number : number + 1].double()
        size = eps[number : number + 1] if isinstance(eps, Tensor) else eps
        box = image_box(image, self._at_network(size), clip=self._clip, rounding=self._rounding)
        return Relaxation(self._graph, box, rounding=self._rounding, intermediate=intermediate)

    def altered_query(
        self,
        eps: float | Tensor,
        method: str,
        queries: Tensor,
        vectors: Tensor,
        ks: Sequence[int] | None = None,
    ) -> AlteredQuery:
        """What altering each query within its eps can do to the rankings of fixed candidates."""
        how = bound_method(method)
        return AlteredQuery(
            self.box(queries, eps),
            vectors,
            method,
            unit_norm=self.unit_norm,
            last=self.last(queries, eps) if how.last_layer and self.split is not None else None,
            backward=self.backward(queries, eps, ks) if how.linear else None,
        )

    def alteration(
        self,
        threat: Threat,
        queries: Tensor,
        candidates: Tensor,
        vectors: Tensor,
        *,
        method: str = "interval",
        ks: Sequence[int] | None = None,
    ) -> Alteration:
        """What `threat` can do to the rankings of `candidates` (images, and their embeddings) for `queries`.

        `ks` are the Ks that will be asked about, where that saves work.
        """
        eps = threat.eps
        assert eps is not None
        if threat.who == "query":
            return self.altered_query(eps, method, queries, vectors, ks)
        boxes = self.candidates(candidates, eps)
        if threat.who == "both":
            return AlteredBoth(self.unit_box(queries, eps), boxes, method)
        fixed = self._embedder.embed(queries).double()
        if threat.most is not None:
            return FewAlteredCandidates(boxes, vectors, fixed, threat.most)
        return AlteredCandidates(boxes, fixed)
