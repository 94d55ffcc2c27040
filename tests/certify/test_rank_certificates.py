"""Rank certificates under attack: no point of a box moves a hit out of its interval."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.bounds import Box, normalised
from holdfast.certificate import Verdict
from holdfast.certify import (
    AlteredBoth,
    AlteredCandidates,
    AlteredQuery,
    FewAlteredCandidates,
    RankBounds,
    nearest,
)


def worst_rank(distance: torch.Tensor, hit: int) -> int:
    """Ties count against: everything as near as the hit is ahead of it."""
    others = torch.cat([distance[:hit], distance[hit + 1 :]])
    return 1 + int((others <= distance[hit]).sum())


def best_rank(distance: torch.Tensor, hit: int) -> int:
    others = torch.cat([distance[:hit], distance[hit + 1 :]])
    return 1 + int((others < distance[hit]).sum())


def setting(seed: int, queries: int, candidates: int, d: int, size: float):
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(queries, d, generator=g, dtype=torch.float64)
    radius = size * torch.rand(queries, d, generator=g, dtype=torch.float64)
    vectors = torch.randn(candidates, d, generator=g, dtype=torch.float64)
    return Box(centre, radius), vectors, g


def signs(d: int) -> list[torch.Tensor]:
    """The corners of a box of d dimensions."""
    return [torch.tensor(s, dtype=torch.float64) for s in itertools.product((-1, 1), repeat=d)]


SHAPES = {
    "seed": st.integers(0, 99_999),
    "candidates": st.integers(1, 12),
    "d": st.integers(1, 6),
    "size": st.sampled_from([0.0, 0.02, 0.2, 1.0]),
}


@settings(max_examples=80, deadline=None)
@given(method=st.sampled_from(["paper", "interval"]), **SHAPES)
def test_no_altered_query_leaves_the_interval(method, seed, candidates, d, size):
    box, vectors, g = setting(seed, 2, candidates, d, size)
    hits = nearest(box.centre, vectors, candidates)
    bounds = AlteredQuery(box, vectors, method).ranks(hits)
    points = [
        box.centre + box.radius * (2 * torch.rand(2, d, generator=g, dtype=torch.float64) - 1)
        for _ in range(20)
    ]
    points += [
        box.centre + box.radius * torch.tensor(s, dtype=torch.float64)
        for s in itertools.product((-1, 1), repeat=d)
    ][:64]
    for z in points:
        distance = torch.cdist(z, vectors, compute_mode="donot_use_mm_for_euclid_dist")
        for i in range(2):
            for column, hit in enumerate(hits[i].tolist()):
                assert bounds.best[i, column] <= best_rank(distance[i], hit)
                assert worst_rank(distance[i], hit) <= bounds.worst[i, column]


@settings(max_examples=60, deadline=None)
@given(**SHAPES)
def test_the_tight_test_is_exact_for_each_pair_and_holds_all_of_the_papers(seed, candidates, d, size):
    """A candidate is not surely farther exactly if some corner of the box brings it as near."""
    box, vectors, _ = setting(seed, 1, candidates, d, size)
    hits = nearest(box.centre, vectors, candidates)
    tight, paper = (AlteredQuery(box, vectors, m).ranks(hits) for m in ("interval", "paper"))
    assert (tight.worst <= paper.worst).all()
    assert (tight.best >= paper.best).all()
    corners = torch.stack(
        [
            box.centre[0] + box.radius[0] * torch.tensor(s, dtype=torch.float64)
            for s in itertools.product((-1, 1), repeat=d)
        ]
    )
    distance = torch.cdist(corners, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    for column, hit in enumerate(hits[0].tolist()):
        lead = distance.square() - distance[:, [hit]].square()
        lead[:, hit] = 0
        assert tight.worst[0, column] == candidates - int((lead.amin(0) > 1e-9).sum())
        assert tight.best[0, column] == 1 + int((lead.amax(0) < -1e-9).sum())


@settings(max_examples=60, deadline=None)
@given(**SHAPES)
def test_no_altered_candidates_leave_the_interval_and_its_ends_are_reached(seed, candidates, d, size):
    boxes, _, g = setting(seed, candidates, 1, d, size)
    query = torch.randn(1, d, generator=g, dtype=torch.float64)
    hits = nearest(query, boxes.centre, candidates)
    bounds = AlteredCandidates(boxes, query).ranks(hits)
    far = boxes.centre + boxes.radius * torch.where(boxes.centre >= query, 1.0, -1.0)
    near = torch.minimum(torch.maximum(query, boxes.lower), boxes.upper)
    for _ in range(20):
        moved = boxes.centre + boxes.radius * (
            2 * torch.rand(boxes.centre.shape, generator=g, dtype=torch.float64) - 1
        )
        distance = (moved - query).norm(dim=1)
        for column, hit in enumerate(hits[0].tolist()):
            assert bounds.best[0, column] <= best_rank(distance, hit)
            assert worst_rank(distance, hit) <= bounds.worst[0, column]
    for column, hit in enumerate(hits[0].tolist()):
        for own, others, want in ((far, near, bounds.worst), (near, far, bounds.best)):
            moved = others.clone()
            moved[hit] = own[hit]
            distance = (moved - query).norm(dim=1)
            reached = worst_rank(distance, hit) if want is bounds.worst else best_rank(distance, hit)
            assert reached == want[0, column]


@settings(max_examples=60, deadline=None)
@given(method=st.sampled_from(["paper", "interval", "candidates"]), k=st.integers(1, 5), **SHAPES)
def test_a_certified_hit_is_there_under_attack(method, k, seed, candidates, d, size):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (candidates,), generator=g)
    if method == "candidates":
        boxes, _, g = setting(seed, candidates, 1, d, size)
        query = torch.randn(1, d, generator=g, dtype=torch.float64)
        attack = AlteredCandidates(boxes, query)
    else:
        box, vectors, g = setting(seed, 1, candidates, d, size)
        attack = AlteredQuery(box, vectors, method)
    if attack.unbeaten((labels == 1)[None])[0] >= k:
        return
    for _ in range(40):
        if method == "candidates":
            noise = 2 * torch.rand(boxes.centre.shape, generator=g, dtype=torch.float64) - 1
            distance = (boxes.centre + boxes.radius * noise.sign() - query).norm(dim=1)
        else:
            z = box.centre + box.radius * (2 * torch.rand(1, d, generator=g, dtype=torch.float64) - 1).sign()
            distance = (vectors - z).norm(dim=1)
        first = distance[labels == 1].min()
        assert int((distance[labels == 0] <= first).sum()) < k


def test_intervals_by_hand():
    """Candidates at 1, 2, 4 on a line; the query at 0 ± 0.4 can bring none past another, at 0 ± 2.1 it can."""
    vectors = torch.tensor([[1.0], [2.0], [4.0]])
    hits = torch.tensor([[0, 1, 2]])
    for radius, worst, best in (
        (0.4, [1, 2, 3], [1, 2, 3]),
        (1.6, [2, 2, 3], [1, 1, 3]),
        (3.1, [3, 3, 3], [1, 1, 1]),
    ):
        bounds = AlteredQuery(Box(torch.zeros(1, 1), torch.full((1, 1), radius)), vectors).ranks(hits)
        assert bounds.worst.tolist() == [worst]
        assert bounds.best.tolist() == [best]


def test_verify_is_two_sided():
    rank, best, worst = torch.tensor([[1, 3]]), torch.tensor([[1, 1]]), torch.tensor([[2, 4]])
    bounds = RankBounds(rank, best, worst, known=torch.ones(1, 2, dtype=torch.bool))
    assert bounds.verified(4).tolist() == [[True, False]], "rank 3 may improve by 2, more than α = 1"
    assert bounds.stays_within(4).tolist() == [[True, True]]
    assert bounds.verdicts(3) == [[Verdict.CERTIFIED, Verdict.UNKNOWN]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_unknown(bad):
    vectors, centre = torch.randn(5, 3), torch.randn(2, 3)
    radius = torch.full((2, 3), 0.01)
    radius[1, 1] = bad
    attack = AlteredQuery(Box(centre, radius), vectors)
    bounds = attack.ranks(nearest(centre, vectors, 2))
    assert bounds.known.tolist() == [[True, True], [False, False]]
    assert (bounds.best[1].tolist(), bounds.worst[1].tolist()) == ([1, 1], [5, 5])
    assert bounds.verdicts(5)[1] == [Verdict.UNKNOWN] * 2
    same = torch.tensor([True, False, False, False, False]).expand(2, 5)
    assert attack.unbeaten(same)[1] == 4
    assert attack.unbeaten(~same & same).min() > 10**9, "nothing right to find is never certified"


@pytest.mark.parametrize("method", ["paper", "interval"])
def test_a_query_without_a_direction_proves_nothing(method):
    """The zero vector has no direction: its box, however small, says nothing about normalised retrieval."""
    vectors = torch.nn.functional.normalize(torch.randn(4, 3), dim=1)
    attack = AlteredQuery(Box(torch.zeros(1, 3), torch.zeros(1, 3)), vectors, method, unit_norm=True)
    bounds = attack.ranks(torch.arange(4)[None])
    assert bounds.best.tolist() == [[1] * 4]
    assert bounds.worst.tolist() == [[4] * 4]
    assert attack.unbeaten(torch.tensor([[True, False, False, False]])).tolist() == [3]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99_999),
    candidates=st.integers(1, 6),
    most=st.integers(0, 4),
    size=st.sampled_from([0.0, 0.1, 0.5, 1.5]),
)
def test_few_altered_candidates_reach_exactly_the_interval(seed, candidates, most, size):
    """Every choice of at most m candidates, each brought to its nearest or farthest: no rank beyond, both reached."""
    boxes, _, g = setting(seed, candidates, 1, 3, size)
    query = torch.randn(1, 3, generator=g, dtype=torch.float64)
    attack = FewAlteredCandidates(boxes, boxes.centre, query, most)
    hits = nearest(query, boxes.centre, candidates)
    bounds = attack.ranks(hits)
    labels = torch.randint(0, 2, (candidates,), generator=g)
    sure = attack.unbeaten((labels == 1)[None])[0]
    clean = (boxes.centre - query).norm(dim=1)
    worst, best = [0] * candidates, [candidates] * candidates
    for count in range(min(most, candidates) + 1):
        for chosen in itertools.combinations(range(candidates), count):
            for ends in itertools.product((attack.lower[0], attack.upper[0]), repeat=count):
                distance = clean.clone()
                for c, end in zip(chosen, ends, strict=True):
                    distance[c] = end[c]
                for column, hit in enumerate(hits[0].tolist()):
                    worst[column] = max(worst[column], worst_rank(distance, hit))
                    best[column] = min(best[column], best_rank(distance, hit))
                if (labels == 1).any():
                    first = distance[labels == 1].min()
                    assert int((distance[labels == 0] <= first).sum()) <= sure
    assert bounds.worst[0].tolist() == worst
    assert bounds.best[0].tolist() == best


@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_no_altered_query_and_candidates_leave_the_interval(seed, candidates, d, size):
    queries, _, g = setting(seed, 2, 1, d, size)
    boxes, _, _ = setting(seed + 1, candidates, 1, d, size)
    hits = nearest(queries.centre, boxes.centre, candidates)
    bounds = AlteredBoth(queries, boxes).ranks(hits)
    for _ in range(30):
        z, c = (
            box.centre
            + box.radius * (2 * torch.rand(box.centre.shape, generator=g, dtype=torch.float64) - 1).sign()
            for box in (queries, boxes)
        )
        distance = torch.cdist(z, c, compute_mode="donot_use_mm_for_euclid_dist")
        for i in range(2):
            for column, hit in enumerate(hits[i].tolist()):
                assert bounds.best[i, column] <= best_rank(distance[i], hit)
                assert worst_rank(distance[i], hit) <= bounds.worst[i, column]


@settings(max_examples=60, deadline=None)
@given(method=st.sampled_from(["paper", "interval"]), **SHAPES)
def test_normalised_retrieval_is_certified_through_the_unnormalised_query(method, seed, candidates, d, size):
    box, vectors, g = setting(seed, 2, candidates, d, size)
    vectors = torch.nn.functional.normalize(vectors.float(), dim=1).double()
    deployed = torch.nn.functional.normalize(box.centre.float(), dim=1).double()
    hits = nearest(deployed, vectors, candidates)
    attack = AlteredQuery(box, vectors, method, unit_norm=True)
    bounds = attack.ranks(hits)
    paper = AlteredQuery(box, vectors, "paper", unit_norm=True).ranks(hits)
    assert (bounds.worst <= paper.worst).all()
    points = [box.centre + box.radius * sign for sign in signs(d)]
    points += [
        box.centre + box.radius * (2 * torch.rand(2, d, generator=g, dtype=torch.float64) - 1)
        for _ in range(20)
    ]
    held = normalised(box)
    for z in points:
        unit = torch.nn.functional.normalize(z.float(), dim=1).double()
        inside = ~torch.isfinite(held.radius) | ((unit - held.centre).abs() <= held.radius)
        assert inside.all()
        distance = torch.cdist(unit, vectors, compute_mode="donot_use_mm_for_euclid_dist")
        for i in range(2):
            for column, hit in enumerate(hits[i].tolist()):
                assert bounds.best[i, column] <= best_rank(distance[i], hit)
                assert worst_rank(distance[i], hit) <= bounds.worst[i, column]
