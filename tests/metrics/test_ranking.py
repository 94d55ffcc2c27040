"""Rankings and their scores against a slow reference that reads like the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DataError
from holdfast.metrics import hit_rate, rank, summarise, true_recall
from holdfast.metrics.ranking import Outcomes


def naive(queries, candidates, query_labels, candidate_labels, self_match, ks):
    """One query at a time, in plain Python: sort by (distance, same-class last), then count."""
    out = []
    for i, query in enumerate(queries):
        entries = []
        for j, candidate in enumerate(candidates):
            if j == self_match[i]:
                continue
            distance = math.dist(query, candidate)
            entries.append((distance, bool(query_labels[i] == candidate_labels[j]), j))
        entries.sort(key=lambda entry: (entry[0], entry[1]))
        hits = [same for _, same, _ in entries]
        total = sum(hits)
        precisions = [sum(hits[: p + 1]) / (p + 1) for p in range(len(hits))]
        out.append(
            {
                "relevant": total,
                "first_rank": hits.index(True) + 1 if total else 0,
                "found": [sum(hits[:k]) for k in ks],
                "ap": sum(p for p, hit in zip(precisions, hits, strict=True) if hit) / total
                if total
                else math.nan,
                "ap_r": sum(p for p, hit in zip(precisions[:total], hits, strict=False) if hit) / total
                if total
                else math.nan,
                "rp": sum(hits[:total]) / total if total else math.nan,
                "same": min((d for d, same, _ in entries if same), default=math.nan),
                "other": min((d for d, same, _ in entries if not same), default=math.nan),
            }
        )
    return out


def collect(*args, **kwargs) -> Outcomes:
    parts = [outcome for _, outcome in rank(*args, **kwargs)]
    return Outcomes(
        **{name: torch.cat([getattr(p, name) for p in parts]) for name in Outcomes.__dataclass_fields__}
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_queries=st.integers(1, 9),
    n_candidates=st.integers(1, 25),
    classes=st.integers(1, 5),
    grid=st.booleans(),
    itself=st.booleans(),
    block=st.sampled_from([1, 2000, 2**28]),
)
def test_rank_agrees_with_naive_reference(seed, n_queries, n_candidates, classes, grid, itself, block):
    g = torch.Generator().manual_seed(seed)
    candidates = torch.randn(n_candidates, 3, generator=g)
    queries = torch.randn(n_queries, 3, generator=g)
    if grid:  # many exact ties
        candidates, queries = candidates.round(), queries.round()
    candidate_labels = torch.randint(classes, (n_candidates,), generator=g)
    query_labels = torch.randint(classes, (n_queries,), generator=g)
    self_match = torch.full((n_queries,), -1)
    if itself:
        n = min(n_queries, n_candidates)
        self_match[:n] = torch.randperm(n_candidates, generator=g)[:n]
    ks = (1, 3, 1000)
    got = collect(
        queries, candidates, query_labels, candidate_labels, self_match=self_match, ks=ks, block_bytes=block
    )
    want = naive(
        queries.double().tolist(),
        candidates.double().tolist(),
        query_labels,
        candidate_labels,
        self_match,
        ks,
    )
    assert got.relevant.tolist() == [w["relevant"] for w in want]
    assert got.first_rank.tolist() == [w["first_rank"] for w in want]
    assert got.found.tolist() == [w["found"] for w in want]
    for field, name in [
        ("average_precision", "ap"),
        ("average_precision_at_r", "ap_r"),
        ("r_precision", "rp"),
    ]:
        np.testing.assert_allclose(getattr(got, field), [w[name] for w in want], rtol=1e-6)
    np.testing.assert_allclose(got.same_distance[:, 0], [w["same"] for w in want], atol=1e-6)
    np.testing.assert_allclose(got.other_distance[:, 0], [w["other"] for w in want], atol=1e-6)
    for row, excluded in zip(got.top.tolist(), self_match.tolist(), strict=True):
        listed = [c for c in row if c >= 0]
        assert excluded not in listed
        assert len(set(listed)) == len(listed) == min(10, n_candidates - (excluded >= 0))


def test_ties_count_against_the_search():
    candidates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    outcome = collect(torch.zeros(1, 2), candidates, torch.tensor([7]), torch.tensor([7, 8, 9]), ks=(1, 3))
    assert outcome.first_rank.tolist() == [3]
    assert outcome.found.tolist() == [[0, 1]]


def test_ties_are_seen_through_rounding():
    """Equal vectors far from the origin tie although the expanded form of the distance rounds."""
    candidates = (torch.tensor([[1.0, 2.0, 3.0]]) * 1e3 + 0.1).repeat(40, 1)
    labels = torch.tensor([1] + [0] * 39)
    outcome = collect(torch.randn(5, 3), candidates, torch.ones(5), labels)
    assert outcome.first_rank.tolist() == [40] * 5


def test_a_collapsed_embedder_finds_nothing():
    vectors = torch.full((40, 8), 0.3)
    labels = torch.arange(40) % 2
    outcome = collect(vectors, vectors, labels, labels, self_match=torch.arange(40))
    assert outcome.first_rank.tolist() == [21] * 40


@pytest.mark.parametrize("offset", [0.0, 8.0, 1024.0, 1e4])
def test_ties_count_against_the_search_far_from_the_origin(offset):
    """Candidates that mirror each other at the query are exactly as far from it."""
    g = torch.Generator().manual_seed(0)
    step = (torch.randn(200, 128, generator=g) * 64).round() / 64
    query = torch.full((1, 128), offset)
    for s in step:
        candidates = torch.stack([query[0] + s, query[0] - s])
        outcome = collect(query, candidates, torch.tensor([1]), torch.tensor([1, 0]), ks=(1,))
        assert outcome.first_rank.tolist() == [2]


def test_close_distances_far_from_the_origin_keep_their_order():
    g = torch.Generator().manual_seed(1)
    centre = torch.full((16,), 1e3)
    candidates = centre + 0.01 * torch.randn(60, 16, generator=g)
    queries = centre + 0.01 * torch.randn(40, 16, generator=g)
    got = collect(queries, candidates, torch.zeros(40), torch.arange(60) % 3)
    want = torch.cdist(queries.double(), candidates.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.equal(got.top, want.argsort(1)[:, :10])


def test_start_resumes_in_the_middle():
    g = torch.Generator().manual_seed(0)
    data = torch.randn(50, 4, generator=g), torch.randn(30, 4, generator=g)
    labels = torch.arange(50) % 3, torch.arange(30) % 3
    whole = collect(*data, *labels, block_bytes=1)
    rest = collect(*data, *labels, block_bytes=1, start=20)
    assert torch.equal(whole.top[20:], rest.top)
    assert torch.equal(whole.average_precision[20:], rest.average_precision)


def test_quantiles_are_those_of_the_same_class():
    candidates = torch.arange(1.0, 9.0)[:, None]
    labels = torch.tensor([0, 1] * 4)
    outcome = collect(torch.zeros(1, 1), candidates, torch.tensor([0]), labels, quantiles=4)
    np.testing.assert_allclose(outcome.same_distance[0], [1, 1, 3, 5, 7])
    np.testing.assert_allclose(outcome.other_distance[0], [2, 2, 4, 6, 8])


def test_nothing_to_find_is_defined():
    outcome = collect(torch.zeros(1, 2), torch.ones(3, 2), torch.tensor([5]), torch.tensor([0, 1, 2]))
    assert outcome.relevant.tolist() == [0]
    assert outcome.first_rank.tolist() == [0]
    assert outcome.average_precision.isnan().all()


@pytest.mark.parametrize("bad", [torch.full((2, 2), torch.nan), torch.zeros(2, 3), torch.zeros(0, 2)])
def test_bad_embeddings_are_refused(bad):
    with pytest.raises(DataError):
        collect(bad, torch.ones(3, 2), torch.zeros(len(bad)), torch.zeros(3))


def test_summary_leaves_unanswerable_queries_out():
    columns = {
        "relevant": np.array([2, 0, 4]),
        "first_rank": np.array([1, 0, 3]),
        "found_1": np.array([1, 0, 0]),
        "found_10": np.array([2, 0, 3]),
        "average_precision": np.array([1.0, np.nan, 0.5]),
        "average_precision_at_r": np.array([1.0, np.nan, 0.25]),
        "r_precision": np.array([1.0, np.nan, 0.5]),
        "label": np.array([0, 1, 2]),
    }
    summary = summarise(columns, (1, 10))
    assert (summary.queries, summary.unanswerable) == (3, 1)
    assert summary.hit_rate == {1: 0.5, 10: 1.0}
    assert summary.recall == {1: 0.25, 10: 0.875}
    assert (summary.map, summary.map_at_r, summary.nmi) == (0.75, 0.625, None)
    assert hit_rate(np.array([0, 0]), 1) is None
    assert true_recall(np.array([0]), np.array([0])) is None


def test_candidates_of_the_querys_class_and_group_are_not_ranked():
    """As person re-identification measures: the same person by the same camera is neither found nor in the way."""
    g = torch.Generator().manual_seed(3)
    queries, candidates = torch.randn(7, 3, generator=g), torch.randn(30, 3, generator=g)
    labels = torch.randint(3, (37,), generator=g)
    groups = torch.randint(-1, 3, (37,), generator=g)
    got = collect(
        queries, candidates, labels[:7], labels[7:], groups=(groups[:7], groups[7:]), ks=(1, 5), top=30
    )
    for i in range(7):
        same = (labels[7:] == labels[i]) & (groups[7:] == groups[i]) & (groups[i] >= 0)
        left = torch.nonzero(~same).squeeze(1)
        alone = collect(
            queries[i : i + 1], candidates[left], labels[i : i + 1], labels[7:][left], ks=(1, 5), top=30
        )
        assert got.searched[i] == len(left) == alone.searched[0]
        assert got.relevant[i] == alone.relevant[0]
        assert got.first_rank[i] == alone.first_rank[0]
        assert got.found[i].tolist() == alone.found[0].tolist()
        torch.testing.assert_close(got.average_precision[i], alone.average_precision[0], equal_nan=True)
        assert [c for c in got.top[i].tolist() if c >= 0] == left[alone.top[0]].tolist()
