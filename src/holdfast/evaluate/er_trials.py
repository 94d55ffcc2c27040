"""The attacks of ER-Recall (Kakizaki et al., Eq. 23 and 24), and where they leave the nearest right hit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from holdfast.attacks import Altered, Attack, Given, Objective, Settings, er_sources, objective
from holdfast.evaluate.attacked import Numbers, Scene, late
from holdfast.metrics import unit_shift
from holdfast.models import AnyEmbedder
from holdfast.threat import Threat


@dataclass(frozen=True)
class ErAttempt:
    """An attacker: whom it attacks, within what, and how it searches. Columns hold one entry a query."""

    embedder: AnyEmbedder
    scene: Scene
    threat: Threat
    settings: Settings
    seed: int
    batch_size: int | None

    def on_queries(self, span: range) -> tuple[dict[str, list[Any]], Tensor]:
        """Eq. 23: each query is brought to one random candidate of another class; also the altered queries."""
        scene, part = self.scene, slice(span.start, span.stop)
        numbers = scene.asked[part].tolist()
        about = Given(scene.gallery, scene.query_labels[part])
        wish = objective("er-query", about, seed=self.seed, numbers=numbers)
        altered, vectors = self._run(wish, scene.asked[part], numbers)
        assert wish.given.targets is not None
        columns = {
            "target": [scene.images.ids[scene.found[t]] for t in wish.given.targets.flatten().tolist()],
            "altered": [1] * len(span),
            "first_rank": scene.first_ranks(part, vectors).tolist(),
            "shift": unit_shift(scene.queries[part], vectors).tolist(),
            **_search(altered, 1),
        }
        return columns, altered.images

    def on_candidates(self, span: range, sources: int) -> dict[str, list[Any]]:
        """Eq. 24: `sources` random candidates of other classes are brought to each query."""
        scene, part = self.scene, slice(span.start, span.stop)
        numbers = scene.asked[part].tolist()
        about = Given(scene.gallery, labels=scene.query_labels[part], queries=scene.queries[part])
        given = er_sources(about, seed=self.seed, numbers=numbers, count=sources)
        assert given.own is not None
        chosen = scene.found[given.own.numpy()]
        # A candidate that is altered for two queries starts from other random points for each.
        total = len(scene.images)
        each = [int(c) + total * (1 + numbers[i // sources]) for i, c in enumerate(chosen)]
        altered, vectors = self._run(objective("er-candidates", given), chosen, each)
        shift = unit_shift(scene.candidates[given.own], vectors)
        first = []
        for i, query in enumerate(span):
            mine = slice(i * sources, (i + 1) * sources)
            moved = scene.candidates.clone()
            moved[given.own[mine]] = vectors[mine]
            one = slice(query, query + 1)
            first.append(int(scene.first_ranks(one, scene.queries[one], moved)[0]))
        return {
            "target": [""] * len(span),
            "altered": [sources] * len(span),
            "first_rank": first,
            "shift": shift.view(len(span), -1).mean(1).tolist(),
            **_search(altered, sources),
        }

    def _run(self, wish: Objective, images: Numbers, numbers: list[int]) -> tuple[Altered, Tensor]:
        """The altered images, and their vectors by a fresh `embed`."""
        assert self.threat.eps is not None
        attack = Attack(wish, self.settings.make(self.threat.eps), self.threat)
        pixels = self.scene.images.batch(images)
        altered = attack.run(
            self.embedder, pixels, seed=self.seed, numbers=numbers, batch_size=self.batch_size
        )
        if wish.alters == "candidates":
            return altered, self.embedder.embed_candidates(altered.images)
        return altered, self.embedder.embed(altered.images)


def _search(altered: Altered, each: int) -> dict[str, list[Any]]:
    """How the search went, as means over the images altered for a query."""

    def mean(values: Tensor) -> list[Any]:
        return values.double().view(-1, each).mean(1).tolist()

    start, nearly, end = late(altered.trajectory)
    return {
        "zero_gradient": mean(altered.zero_gradient),
        "gradients": altered.gradients.view(-1, each).sum(1).tolist(),
        "looks": altered.queries.view(-1, each).sum(1).tolist(),
        "loss_start": mean(start),
        "loss_late": mean(nearly),
        "loss_end": mean(end),
    }
