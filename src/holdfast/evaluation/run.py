"""Clean retrieval, measured: each query against the candidates, one row per query, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.data import ImageSet
from holdfast.evaluation.draw import draw_or_all
from holdfast.evaluation.folder import RETRIEVAL, Task
from holdfast.evaluation.pictures import save_pictures, sheet
from holdfast.evaluation.spread import HERE, Spread
from holdfast.metrics import Outcomes, Summary, cluster, rank, summarise
from holdfast.models import AnyEmbedder
from holdfast.progress import bar
from holdfast.rows import ROWS, Rows, RowWriter, read_rows

KS = (1, 2, 4, 8, 10, 20, 40)


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation: its folder, its rows, and the numbers computed from them."""

    folder: Path
    rows: Rows
    summary: Summary


def evaluate(
    embedder: AnyEmbedder,
    images: ImageSet,
    out: str | Path,
    *,
    queries: int | None = None,
    candidates: int | None = None,
    seed: int = 0,
    ks: Sequence[int] = KS,
    top: int = 10,
    spread: Spread = HERE,
) -> Evaluation:
    """Search for each query among the candidates and write what was found into the folder `out`.

    With `queries` and `candidates`, disjoint sets of that size are drawn by `seed`. Without them the images' own
    roles count, if they have some, or every image is asked against all others. A stopped evaluation goes on where it
    was; a finished one of the same config is read back. `spread` computes the embeddings; ranking is one product a
    block.
    """
    out = Path(out)
    labels = images.require_labels("evaluation")
    asked, found = draw_or_all(images, queries, candidates, seed)
    ks = sorted(set(ks))
    settings = {"queries": queries, "candidates": candidates, "seed": seed, "ks": ks, "top": top}
    task = Task(out, RETRIEVAL, embedder, images, settings, spread)
    if task.finished():
        return read_evaluation(out)
    with task.writing(len(asked), _columns(ks)) as writer:
        union = np.union1d(asked, found)
        vectors = task.vectors(union)
        place = np.searchsorted(union, asked), np.searchsorted(union, found)
        sides = vectors[place[0]], embedder.as_candidates(vectors[place[1]])
        _write_rows(writer, images, labels, sides, (asked, found), settings)
        rows = writer.read()
        save_pictures(out, rows, sheet(rows), images)
        summary = summarise(rows.columns, ks)
        task.finish(writer, summary.to_json())
    return Evaluation(out, rows, summary)


def read_evaluation(folder: Path) -> Evaluation:
    """A finished evaluation from its folder."""
    rows = read_rows(folder / ROWS)
    return Evaluation(folder, rows, summarise(rows.columns, rows.header["config"]["ks"]))


def _write_rows(
    writer: RowWriter,
    images: ImageSet,
    labels: NDArray[np.int64],
    vectors: tuple[torch.Tensor, torch.Tensor],
    drawn: tuple[NDArray[np.int64], NDArray[np.int64]],
    config: dict[str, Any],
) -> None:
    asked, found = drawn
    ks: list[int] = config["ks"]
    # An image is its own match by id, wherever it stands in either list.
    where = {images.ids[c]: i for i, c in enumerate(found)}
    self_match = torch.tensor([where.get(images.ids[q], -1) for q in asked])
    queries, candidates = vectors
    clusters = cluster(queries.numpy(), len(np.unique(labels[asked])), config["seed"])
    blocks = rank(
        queries,
        candidates,
        torch.from_numpy(labels[asked]),
        torch.from_numpy(labels[found]),
        self_match=self_match,
        groups=_groups(images, asked, found),
        ks=ks,
        top=config["top"],
        start=writer.done,
    )
    with bar("ranking", len(asked), writer.done) as advance:
        for span, outcome in blocks:
            writer.append(_rows(images, labels, drawn, clusters, span, outcome, ks))
            advance(len(span))


def _groups(
    images: ImageSet, asked: NDArray[np.int64], found: NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor] | None:
    if images.roles is None:
        return None
    groups = torch.from_numpy(images.roles.group)
    return groups[asked], groups[found]


def _columns(ks: Sequence[int]) -> dict[str, str]:
    return {
        "query": "str",
        "label": "int",
        "cluster": "int",
        "relevant": "int",
        "candidates": "int",
        "first_rank": "int",
        **{f"found_{k}": "int" for k in ks},
        "average_precision": "float",
        "average_precision_at_r": "float",
        "r_precision": "float",
        "same_distances": "list",
        "other_distances": "list",
        "hits": "list",
        "hit_labels": "list",
        "hit_distances": "list",
    }


def _rows(
    images: ImageSet,
    labels: NDArray[np.int64],
    drawn: tuple[NDArray[np.int64], NDArray[np.int64]],
    clusters: NDArray[np.int64],
    span: range,
    outcome: Outcomes,
    ks: Sequence[int],
) -> list[dict[str, Any]]:
    asked, found = drawn
    rows = []
    for i, number in enumerate(span):
        top = [int(found[c]) for c in outcome.top[i].tolist() if c >= 0]
        rows.append(
            {
                "query": images.ids[asked[number]],
                "label": labels[asked[number]],
                "cluster": clusters[number],
                "relevant": int(outcome.relevant[i]),
                "candidates": int(outcome.searched[i]),
                "first_rank": int(outcome.first_rank[i]),
                **{f"found_{k}": int(outcome.found[i, column]) for column, k in enumerate(ks)},
                "average_precision": outcome.average_precision[i],
                "average_precision_at_r": outcome.average_precision_at_r[i],
                "r_precision": outcome.r_precision[i],
                "same_distances": _rounded(outcome.same_distance[i]),
                "other_distances": _rounded(outcome.other_distance[i]),
                "hits": [images.ids[c] for c in top],
                "hit_labels": [int(labels[c]) for c in top],
                "hit_distances": _rounded(outcome.top_distance[i][: len(top)]),
            }
        )
    return rows


def _rounded(values: torch.Tensor) -> list[float]:
    return [float(f"{value:.7g}") for value in values.tolist() if value == value]
