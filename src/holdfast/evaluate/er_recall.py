"""ER-Recall (Kakizaki et al., Eq. 22–24): recall when queries, or 100 candidates of a query, are altered; resumable."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import data
from holdfast.attacks import Settings
from holdfast.attacks.objectives.er_recall import SOURCES
from holdfast.data import ImageSet
from holdfast.errors import ConfigError
from holdfast.evaluate.attacked import Scene, probe, set_scene
from holdfast.evaluate.cases import Cases, worst_of
from holdfast.evaluate.draw import KS, ordered_ks
from holdfast.evaluate.er_trials import ErAttempt
from holdfast.evaluate.folder import ER_RECALL, Block, Task
from holdfast.evaluate.spread import HERE, Spread
from holdfast.evaluate.validity import check_rows
from holdfast.metrics import bootstrap, chance_of_draw
from holdfast.models import AnyEmbedder
from holdfast.rows import ROWS, Finding, Rows, read_rows
from holdfast.threat import Threat

QUERY_BLOCK = 100
CANDIDATE_BLOCK = 5


@dataclasses.dataclass(frozen=True)
class Attacked:
    """The numbers of one threat at one K."""

    threat: str
    k: int
    queries: int
    chance: float
    """Recall of a random order, if classes are as frequent among the candidates as among the queries."""
    recall: float
    """Without an attack: the top K hold a same-class candidate (Eq. 22)."""
    er_recall: float
    """Under the attack (Eq. 23, 24). It can be above `recall`: a target of another class may help by chance."""
    robust_recall: float
    """Before and under the attack; never above `recall`, since an attacker may leave an image alone."""
    interval: dict[str, tuple[float, float]]
    """Bootstrap intervals of the three, over queries."""


@dataclasses.dataclass(frozen=True)
class ErRecall:
    """A finished evaluation: its folder, its rows, the numbers computed from them, and what is wrong with them."""

    folder: Path
    rows: Rows
    table: tuple[Attacked, ...]
    findings: tuple[Finding, ...]


def er_recall(
    embedder: AnyEmbedder,
    images: ImageSet,
    out: str | Path,
    threats: Sequence[Threat],
    *,
    queries: int = 1000,
    candidates: int = 1000,
    ca_queries: int = 100,
    sources: int = SOURCES,
    seed: int = 0,
    ks: Sequence[int] = KS,
    settings: Settings | None = None,
    batch_size: int | None = None,
    spread: Spread = HERE,
) -> ErRecall:
    """Attack disjoint queries and candidates, drawn by `seed` as for certificates, under each threat.

    A threat to the query brings each query to one random candidate of another class. A threat to the
    candidates brings `sources` random candidates of other classes to the query, for the first
    `ca_queries` queries. By default our own optimiser with 100 steps; `Settings(optimiser="paper")` takes the
    last of 100 plain steps of eps/10. Ranks are measured on the altered images by a fresh `embed`.
    Stopped, it goes on where it was.
    """
    out = Path(out)
    labels = images.require_labels("ER-Recall")
    ks = ordered_ks(ks, candidates)
    settings = (settings or Settings(steps=100)).named(embedder)
    _check(threats, sources)
    asked, found = data.draw(images, queries, candidates, seed)
    counts = [queries if threat.who == "query" else min(ca_queries, queries) for threat in threats]
    for threat in threats:
        probe(embedder, images, threat, settings)
    _check_sources(labels, asked, found, threats, counts, sources)
    config = {
        "threats": [str(threat) for threat in threats],
        "queries": queries,
        "candidates": candidates,
        "ca_queries": ca_queries,
        "sources": sources,
        "seed": seed,
        "ks": ks,
        "search": [settings.config(float(threat.eps or 0)) for threat in threats],
    }
    task = Task(out, ER_RECALL, embedder, images, config, spread)
    if task.finished():
        return read_er_recall(out)
    sizes = [QUERY_BLOCK if threat.who == "query" else CANDIDATE_BLOCK for threat in threats]
    parts = list(zip(range(len(threats)), counts, sizes, strict=True))
    with task.writing(sum(counts), _columns(ks)) as writer:
        scene, cases = set_scene(task, asked, found), Cases(out)
        work = _Attempts(embedder, scene, tuple(threats), settings, sources, seed, tuple(ks), batch_size)
        task.fill(writer, "attacking", work, parts, cases)
        rows = writer.read()
        cases.pack([f"query {i}" for i, threat in enumerate(threats) if threat.who == "query"], images)
        task.finish(writer, [dataclasses.asdict(line) for line in _table(rows)])
        cases.clear()
    return read_er_recall(out)


@dataclasses.dataclass(frozen=True, eq=False)
class _Attempts:
    """What every block of queries needs."""

    embedder: AnyEmbedder
    scene: Scene
    threats: tuple[Threat, ...]
    settings: Settings
    sources: int
    seed: int
    ks: tuple[int, ...]
    batch_size: int | None

    def __call__(self, number: int, span: range) -> Block:
        """Some queries under the threat of that number."""
        threat, scene = self.threats[number], self.scene
        attempt = ErAttempt(self.embedder, scene, threat, self.settings, self.seed, self.batch_size)
        worst = None
        if threat.who == "query":
            columns, altered = attempt.on_queries(span)
            lost = _first_loss(columns, scene, span, self.ks)
            asked = scene.asked[span.start : span.stop].tolist()
            worst = worst_of(f"query {number}", span.start, asked, lost, altered)
        else:
            columns = attempt.on_candidates(span, self.sources)
        labels = scene.images.require_labels("ER-Recall")
        return Block(_rows(scene, span, threat, columns, self.ks, labels), str(threat), worst)


def read_er_recall(folder: Path) -> ErRecall:
    """A finished evaluation from its folder."""
    rows = read_rows(folder / ROWS)
    return ErRecall(folder, rows, _table(rows), tuple(check_rows(rows)))


def _check(threats: Sequence[Threat], sources: int) -> None:
    if not threats:
        raise ConfigError("an attacked evaluation needs at least one threat, for example query:linf:0.1")
    for threat in threats:
        if threat.who == "both":
            raise ConfigError("ER-Recall alters the query or the candidates; ask for each by itself")
        if threat.most is not None and sources > threat.most:
            raise ConfigError(
                f"{threat} allows {threat.most} altered candidates, not the {sources} of ER-Recall"
            )
    if sources < 1:
        raise ConfigError(f"at least 1 candidate is altered for a query, not {sources}")


def _check_sources(
    labels: Any, asked: Any, found: Any, threats: Sequence[Threat], counts: Sequence[int], sources: int
) -> None:
    """Refuse a draw in which some query has too few candidates of other classes."""
    for threat, count in zip(threats, counts, strict=True):
        need = 1 if threat.who == "query" else sources
        for label in np.unique(labels[asked[:count]]):
            there = int((labels[found] != label).sum())
            if there < need:
                raise ConfigError(
                    f"a query has {there} candidates of other classes, fewer than the {need} that are needed; "
                    "draw more candidates"
                )


def _first_loss(columns: dict[str, list[Any]], scene: Scene, span: range, ks: Sequence[int]) -> Any:
    """How far down the nearest right hit of each query went, where it left one of the Ks."""
    before = scene.first_ranks(slice(span.start, span.stop), scene.queries[span.start : span.stop]).numpy()
    after = np.array(columns["first_rank"])
    lost = np.any([(before <= k) & (after > k) for k in ks], axis=0)
    return np.where(lost, after - before, 0).astype(np.float64)


def _columns(ks: Sequence[int]) -> dict[str, str]:
    named = {
        "threat": "str",
        "trial": "int",
        "query": "str",
        "label": "int",
        "target": "str",
        "altered": "int",
    }
    named |= {"rank_before": "int", "rank_after": "int"}
    for k in ks:
        named |= dict.fromkeys((f"recall_{k}", f"attacked_{k}", f"robust_{k}"), "int")
    named |= {"shift": "float", "zero_gradient": "float", "gradients": "int", "looks": "int"}
    return named | dict.fromkeys(("loss_start", "loss_late", "loss_end"), "float")


def _rows(
    scene: Scene, span: range, threat: Threat, columns: dict[str, list[Any]], ks: Sequence[int], labels: Any
) -> list[dict[str, Any]]:
    part = slice(span.start, span.stop)
    clean = scene.first_ranks(part, scene.queries[part]).tolist()
    rows = []
    for i, query in enumerate(span):
        row = {name: values[i] for name, values in columns.items() if name != "first_rank"}
        number = scene.asked[query]
        row |= {"threat": str(threat), "trial": query, "query": scene.images.ids[number]}
        row |= {"label": int(labels[number]), "rank_before": clean[i], "rank_after": columns["first_rank"][i]}
        for k in ks:
            before, after = (1 <= rank <= k for rank in (clean[i], columns["first_rank"][i]))
            row |= {
                f"recall_{k}": int(before),
                f"attacked_{k}": int(after),
                f"robust_{k}": int(before and after),
            }
        rows.append(row)
    return rows


def _table(rows: Rows) -> tuple[Attacked, ...]:
    lines = []
    for threat in rows.header["config"]["threats"]:
        mine = rows.columns["threat"] == threat
        for k in rows.header["config"]["ks"]:
            part = {name: rows.columns[f"{name}_{k}"][mine] for name in ("recall", "attacked", "robust")}
            means = {name: float(np.mean(values)) for name, values in part.items()}
            spans = {
                "recall": bootstrap(part["recall"]),
                "er_recall": bootstrap(part["attacked"]),
                "robust_recall": bootstrap(part["robust"]),
            }
            lines.append(
                Attacked(
                    threat,
                    k,
                    int(mine.sum()),
                    chance_of_draw(rows.columns["label"][mine], rows.header["config"]["candidates"], k),
                    means["recall"],
                    means["attacked"],
                    means["robust"],
                    spans,
                )
            )
    return tuple(lines)
