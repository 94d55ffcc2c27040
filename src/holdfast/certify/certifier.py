"""From an embedder, images and a threat to a certificate for rankings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.bounds import Box, Graph, Relaxation, image_box, interval_bounds, normalised, trace
from holdfast.bounds.operations import allowance
from holdfast.certify.candidates import BothAttack, CandidateAttack, FewCandidatesAttack
from holdfast.certify.crown import Backward
from holdfast.certify.pairwise import METHODS, Method
from holdfast.certify.ranking import LastLayer, QueryAttack
from holdfast.errors import ConfigError, ModelError, unknown_name
from holdfast.models import AnyEmbedder, Embedder
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
        for tensor in (*embedder.parameters(), *embedder.buffers()):
            if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
                raise ModelError(
                    f"certificates hold for float32 inference, and this embedder computes in {tensor.dtype}; "
                    "call .float()"
                )
        self._embedder, self._clip, self._rounding = embedder, clip, rounding
        self._graph: Graph = trace(embedder)
        self.split = self._graph.without_last()
        self._try()
        self._candidates: tuple[Tensor, float, Box] | None = None

    def _try(self) -> None:
        """Refuse a network that does not do what its trace says: its bounds would be of another one."""
        shape = (2, *self._embedder.spec.shape)
        images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            box = interval_bounds(self._graph, image_box(images.double(), 0.0, rounding=True), rounding=True)
            given = self._embedder.features(images).double()
        # Written so that NaN is refused too, unless the bounds say that they know nothing.
        held = ((given - box.centre).abs() <= box.radius) | ~torch.isfinite(box.radius)
        if not bool(held.all()):
            raise ModelError(
                "the network does something that cannot be seen in its trace (an operation in place, perhaps), "
                "so it cannot be bounded; write it without"
            )

    def check(self, method: Method) -> None:
        """Refuse a method that there is not."""
        if method not in METHODS:
            raise ConfigError(unknown_name("method", method, METHODS))

    def box(self, images: Tensor, eps: float | Tensor, graph: Graph | None = None) -> Box:
        """The box of the unnormalised features, or of what another part of the network gives.

        `eps` is one number, or one for each image.
        """
        check_shape(tuple(images.shape), self._embedder.spec)
        parts = []
        with torch.no_grad():
            for start in range(0, max(1, len(images)), 200):
                # In float64 the bounds pay for the rounding of inference alone, not for their own.
                part = images[start : start + 200].double()
                size = eps[start : start + 200] if isinstance(eps, Tensor) else eps
                box = image_box(part, size, clip=self._clip, rounding=self._rounding)
                parts.append(interval_bounds(graph or self._graph, box, rounding=self._rounding))
        return Box(torch.cat([p.centre for p in parts]), torch.cat([p.radius for p in parts]))

    def last(self, images: Tensor, eps: float | Tensor) -> LastLayer:
        """The last layer with the box before it."""
        assert self.split is not None
        body, layer = self.split
        hidden = self.box(images, eps, body)
        weight = layer.weight.detach().double()
        size = (hidden.centre.abs() + hidden.radius) @ weight.abs().T
        bias = None if layer.bias is None else layer.bias.detach().double()
        error = allowance(layer.terms, torch.float64) * (size if bias is None else size + bias.abs())
        return LastLayer(hidden, weight, bias, error if self._rounding else torch.zeros_like(error))

    def unit_box(self, images: Tensor, eps: float) -> Box:
        """The box of the embeddings, through the normalisation if there is one."""
        box = self.box(images, eps)
        return normalised(box) if self._embedder.unit_norm else box

    def candidates(self, images: Tensor, eps: float) -> Box:
        """The boxes of altered candidates; asked again for the same ones, they are at hand."""
        if self._candidates is None or self._candidates[0] is not images or self._candidates[1] != eps:
            self._candidates = (images, eps, self.unit_box(images, eps))
        return self._candidates[2]

    def backward(self, images: Tensor, eps: float | Tensor, ks: Sequence[int] | None = None) -> Backward:
        """Linear bounds of the features, for one image at a time."""

        def lower(number: int, spec: Tensor) -> Tensor:
            image = images[number : number + 1].double()
            size = eps[number : number + 1] if isinstance(eps, Tensor) else eps
            box = image_box(image, size, clip=self._clip, rounding=self._rounding)
            return Relaxation(self._graph, box, rounding=self._rounding).lower(spec)[0]

        with torch.no_grad():
            clean = self._embedder.features(images).double()
        return Backward(clean, torch.no_grad()(lower), ks)

    def query_attack(
        self,
        eps: float | Tensor,
        method: Method,
        queries: Tensor,
        vectors: Tensor,
        ks: Sequence[int] | None = None,
    ) -> QueryAttack:
        """What altering each query within its eps can do to the rankings of fixed candidates."""
        elided = method in ("elided", "crown") and self.split is not None
        return QueryAttack(
            self.box(queries, eps),
            vectors,
            method,
            unit_norm=self._embedder.unit_norm,
            last=self.last(queries, eps) if elided else None,
            backward=self.backward(queries, eps, ks) if method == "crown" else None,
        )

    def attack(
        self,
        threat: Threat,
        queries: Tensor,
        candidates: Tensor,
        vectors: Tensor,
        *,
        method: Method = "interval",
        ks: Sequence[int] | None = None,
    ) -> QueryAttack | CandidateAttack | FewCandidatesAttack | BothAttack:
        """What `threat` can do to the rankings of `candidates` (images, and their embeddings) for `queries`.

        `ks` are the Ks that will be asked about, where that saves work.
        """
        eps = threat.eps
        assert eps is not None
        if threat.who == "query":
            return self.query_attack(eps, method, queries, vectors, ks)
        boxes = self.candidates(candidates, eps)
        if threat.who == "both":
            return BothAttack(self.unit_box(queries, eps), boxes, method)
        fixed = self._embedder.embed(queries).double()
        if threat.most is not None:
            return FewCandidatesAttack(boxes, vectors, fixed, threat.most)
        return CandidateAttack(boxes, fixed)
