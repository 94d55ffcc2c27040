"""Counting over parts of a gallery says what counting over all of it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.bounds import Box
from holdfast.certify import AlteredQuery, blocks, nearest, query_ranks
from holdfast.certify.blocks import ranks_in_blocks


def setting(seed, count, d, size, unit_norm, k):
    """Clusters, so that some hits are close together, and duplicates."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((4, d))[rng.integers(0, 4, count)] + 0.3 * rng.standard_normal((count, d))
    vectors[rng.random(count) < 0.1] = vectors[0]
    if unit_norm:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors.astype(np.float32)
    centre = torch.from_numpy(vectors[rng.integers(count)] * 1.5 + 0.2 * rng.standard_normal(d))[None]
    box = Box(centre, torch.from_numpy(size * rng.random((1, d))))
    deployed = torch.nn.functional.normalize(centre, dim=1) if unit_norm else centre
    hits = nearest(deployed, torch.from_numpy(vectors), min(k, count))
    return box, vectors, hits


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 99_999),
    count=st.integers(1, 150),
    d=st.integers(1, 70),
    size=st.sampled_from([0.0, 0.01, 0.05, 0.3, 2.0]),
    unit_norm=st.booleans(),
    k=st.integers(1, 12),
)
def test_one_pass_counts_what_the_exact_test_counts(seed, count, d, size, unit_norm, k):
    box, vectors, hits = setting(seed, count, d, size, unit_norm, k)
    whole = AlteredQuery(box, torch.from_numpy(vectors), unit_norm=unit_norm).ranks(hits)
    others = np.setdiff1d(np.arange(count), hits[0].numpy())
    norm = float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())
    found = query_ranks(
        box,
        vectors,
        hits[0].numpy(),
        others,
        torch.arange(1, hits.shape[1] + 1)[None],
        count,
        max_norm=norm,
        unit_norm=unit_norm,
    )
    assert found.best.tolist() == whole.best.tolist()
    assert found.worst.tolist() == whole.worst.tolist()


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_blocks_add_up(block, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", block)
    box, vectors, hits = setting(1, 100, 5, 0.1, False, 6)
    candidates = torch.from_numpy(vectors)
    whole = AlteredQuery(box, candidates).ranks(hits)
    assert whole.worst.max() > 6
    others = np.setdiff1d(np.arange(100), hits[0].numpy())
    found = ranks_in_blocks(
        lambda slots: AlteredQuery(box, candidates[slots]),
        hits[0].numpy(),
        others,
        torch.arange(1, 7)[None],
        100,
    )
    assert (found.best.tolist(), found.worst.tolist()) == (whole.best.tolist(), whole.worst.tolist())


def test_one_pass_by_hand():
    """Candidates at 1, 2, 4, 9 on a line: the example of the documentation, and one far away."""
    vectors = np.array([[1.0], [2.0], [4.0], [9.0]], dtype=np.float32)
    for radius, worst, best in (
        (0.4, [1, 2, 3], [1, 2, 3]),
        (1.6, [2, 2, 3], [1, 1, 3]),
        (3.1, [3, 3, 3], [1, 1, 1]),
    ):
        box = Box(torch.zeros(1, 1), torch.full((1, 1), radius))
        slots = np.arange(4)
        found = query_ranks(
            box, vectors, slots[:3], slots[3:], torch.tensor([[1, 2, 3]]), 4, max_norm=9.0, unit_norm=False
        )
        assert (found.worst.tolist(), found.best.tolist()) == ([worst], [best])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_unknown(bad):
    vectors, slots = np.eye(4, dtype=np.float32), np.arange(4)
    box = Box(torch.zeros(1, 4), torch.tensor([[0.1, bad, 0.1, 0.1]]))
    found = query_ranks(
        box, vectors, slots[:2], slots[2:], torch.tensor([[1, 2]]), 9, max_norm=1.0, unit_norm=False
    )
    assert (found.best.tolist(), found.worst.tolist()) == ([[1, 1]], [[9, 9]])
    assert not found.known.any()


def test_threads_count_the_same():
    box, vectors, hits = setting(3, 9000, 8, 0.1, False, 10)
    others = np.setdiff1d(np.arange(9000), hits[0].numpy())
    threads = torch.get_num_threads()
    counts = []
    for number in (1, 2):
        torch.set_num_threads(number)
        try:
            found = query_ranks(
                box,
                vectors,
                hits[0].numpy(),
                others,
                torch.arange(1, 11)[None],
                9000,
                max_norm=20.0,
                unit_norm=False,
            )
        finally:
            torch.set_num_threads(threads)
        counts.append((found.best.tolist(), found.worst.tolist()))
    assert counts[0] == counts[1]
