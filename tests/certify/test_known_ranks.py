"""Rank certificates whose right answer is known: ties, slack, and what each kind of attacker can reach, by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from holdfast import wrap
from holdfast.bounds import Box
from holdfast.certificate import Verdict
from holdfast.certify import (
    AlteredBoth,
    AlteredCandidates,
    AlteredQuery,
    Backward,
    FewAlteredCandidates,
    LastLayer,
    RankBounds,
    largest_eps,
    query_ranks,
)
from holdfast.certify.blocks import few_in_blocks
from holdfast.certify.certifier import Certifier
from holdfast.certify.files import Way, at_network
from holdfast.certify.pairwise import Apart
from holdfast.certify.values import rank_bounds
from holdfast.errors import DataError
from holdfast.spec import ImageSpec


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def box(at: torch.Tensor, *radius: float) -> Box:
    return Box(at, column(*radius).expand_as(at))


def intervals(bounds: RankBounds) -> list[tuple[int, int]]:
    return list(zip(bounds.best[0].tolist(), bounds.worst[0].tolist(), strict=True))


def level(*distances: float) -> Apart:
    """Exactly these distances, without the room that is kept for rounding."""
    attack = Apart(*(torch.tensor([distances]).double() for _ in range(2)), terms=1)
    attack.upper = attack.lower = torch.tensor([distances]).double()
    return attack


def test_a_tie_is_on_no_side():
    """Distances 1, 2, 2, 3: neither of the two in the middle is surely farther or closer than the other."""
    found = level(1, 2, 2, 3).ranks(torch.tensor([[0, 1, 2, 3]]))
    assert intervals(found) == [(1, 1), (2, 3), (2, 3), (4, 4)]
    assert level(1, 1, 1).ranks(torch.tensor([[2]]), torch.tensor([[2]])).worst.tolist() == [[3]]
    same = torch.tensor([[False, True, False, False]])
    assert level(1, 2, 2, 3).unbeaten(same).tolist() == [2], "the rival at the same distance counts as ahead"


def test_a_tie_of_altered_queries_and_candidates_is_on_no_side():
    """Candidates at 1 and −1 and the query at 0: no method may order them, however small the boxes."""
    at, hits = column(1, -1, 5), torch.tensor([[0, 1]])
    query = Box(torch.zeros(1, 1).double(), torch.zeros(1, 1).double())
    still = box(at, 0, 0, 0)
    for attack in (
        AlteredQuery(query, at),
        AlteredQuery(query, at, "paper"),
        AlteredCandidates(still, query.centre),
        FewAlteredCandidates(still, at, query.centre, 0),
        FewAlteredCandidates(still, at, query.centre, 1),
        AlteredBoth(query, still),
        AlteredBoth(query, still, "paper"),
    ):
        assert intervals(attack.ranks(hits)) == [(1, 2), (1, 2)], type(attack).__name__
        assert attack.unbeaten(torch.tensor([[True, False, False]])).tolist() == [1], type(attack).__name__
    found = query_ranks(
        query,
        at.float().numpy(),
        np.array([0, 1]),
        np.array([2]),
        torch.tensor([[1, 2]]),
        3,
        max_norm=5.0,
        unit_norm=False,
    )
    assert intervals(found) == [(1, 2), (1, 2)]


@pytest.mark.parametrize("terms", [1, 128, 10**6])
def test_bounds_of_distances_have_room_on_both_sides(terms):
    """For float64 sums of so many terms, and near zero for vectors that are read as zero."""
    share = max(2.0**-40, 8 * terms * 2.0**-53)
    room = Apart(*(torch.tensor([[1.0, 0.0]]).double() for _ in range(2)), terms=terms)
    assert room.upper[0, 0] >= 1 + share
    assert room.lower[0, 0] <= 1 - share
    assert room.upper[0, 1] >= terms * 2.0**-126
    assert room.lower[0, 1] <= -terms * 2.0**-126
    assert float((room.upper - room.lower).max()) <= 4 * share


def test_what_is_no_candidate_is_refused():
    """Compiled loops would read beyond their arrays."""
    for number in (-1, 2):
        with pytest.raises(DataError, match="0 to 1"):
            level(1, 2).ranks(torch.tensor([[number]]))


def test_every_candidate_altered_by_hand():
    """1 ± 0.6, 2 ± 0.3, 4 ± 0.5, 9 ± 5 from 0: which can pass which is read off the ends."""
    at = column(1, 2, 4, 9)
    found = AlteredCandidates(box(at, 0.6, 0.3, 0.5, 5), torch.zeros(1, 1)).ranks(
        torch.tensor([[0, 1, 2, 3]])
    )
    assert intervals(found) == [(1, 1), (2, 2), (3, 4), (3, 4)]


ALIKE, HIT_FIXED = (1.6, 1.6, 1.6, 1.6), (0.0, 1.6, 2.6, 0.0)


@pytest.mark.parametrize(
    ("radii", "most", "expected"),
    [
        (ALIKE, 0, [(1, 1), (2, 2), (3, 3), (4, 4)]),
        # The first: another comes before it, or it goes back to 2.6, behind the second alone.
        (ALIKE, 1, [(1, 2), (1, 3), (2, 4), (3, 4)]),
        # It goes back to 2.6 and the third or fourth comes before it, or two come before it where it is.
        (ALIKE, 2, [(1, 3), (1, 4), (1, 4), (2, 4)]),
        # The first cannot be altered: it is passed by those who can, where it is.
        (HIT_FIXED, 1, [(1, 2), (1, 3), (1, 4), (3, 4)]),
        (HIT_FIXED, 2, [(1, 3), (1, 3), (1, 4), (3, 4)]),
    ],
)
def test_few_altered_candidates_by_hand(radii, most, expected):
    """Candidates at 1, 2, 3 and 4 from the query, of which some may move by so much."""
    at, reach = column(1, 2, 3, 4), column(*radii)
    hits = torch.tensor([[0, 1, 2, 3]])
    found = FewAlteredCandidates(Box(at, reach), at, torch.zeros(1, 1), most).ranks(hits)
    assert intervals(found) == slow(at.flatten().tolist(), radii, most)
    assert intervals(found) == expected

    def distances(slots: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        return (at + reach)[slots, 0], (at - reach)[slots, 0].clamp(min=0)

    parts = few_in_blocks(
        distances, at.flatten().numpy(), np.arange(4), np.array([], dtype=np.int64), hits + 1, most, 4
    )
    assert intervals(parts) == expected


def slow(at: list[float], radii: tuple[float, ...], most: int) -> list[tuple[int, int]]:
    """Every choice of altered candidates, each at its nearest, its farthest or where it was."""
    found = []
    for hit in range(len(at)):
        ranks = []
        for moves in product((-1, 0, 1), repeat=len(at)):
            if sum(move != 0 for move in moves) <= most:
                away = [max(a + move * r, 0.0) for a, move, r in zip(at, moves, radii, strict=True)]
                others = [value for number, value in enumerate(away) if number != hit]
                ranks.append(1 + sum(value < away[hit] for value in others))
                ranks.append(1 + sum(value <= away[hit] for value in others))
        found.append((min(ranks), max(ranks)))
    return found


def test_query_and_candidates_altered_by_hand():
    """Query at 0 ± r, candidates at 2 and 5, each ± ½: level where 2(2.5 + ½ + r) meets 2(4.5 − …): at r = 1."""
    at, hits = column(2, 5), torch.tensor([[0, 1]])
    for radius, expected in ((0.9, [(1, 1), (2, 2)]), (1.1, [(1, 2), (1, 2)])):
        query = Box(torch.full((1, 1), 2.0).double(), torch.full((1, 1), radius).double())
        assert intervals(AlteredBoth(query, box(at, 0.5, 0.5)).ranks(hits)) == expected
    # A query box to the far side alone: the end that matters is the upper one, then the lower one.
    for centre, expected in ((2.4, [(1, 2), (1, 2)]), (1.6, [(1, 1), (2, 2)])):
        query = Box(torch.full((1, 1), centre).double(), torch.full((1, 1), 0.8).double())
        assert intervals(AlteredBoth(query, box(at, 0.5, 0.5)).ranks(hits)) == expected
        mirrored = Box(-query.centre, query.radius)
        assert intervals(AlteredBoth(mirrored, box(-at, 0.5, 0.5)).ranks(hits)) == expected


@pytest.mark.parametrize("method", ["interval", "paper"])
def test_the_query_altered_by_hand(method):
    """Candidates at 1, 2 and 4, the query at 0 ± r: the first two meet at 1½, the last two at 3."""
    at, hits = column(1, 2, 4), torch.tensor([[0, 1, 2]])
    query = Box(torch.zeros(1, 1).double(), torch.full((1, 1), 1.49).double())
    found = intervals(AlteredQuery(query, at, method).ranks(hits))
    assert found == ([(1, 1), (2, 2), (3, 3)] if method == "interval" else [(1, 2), (1, 3), (2, 3)])
    query = Box(torch.zeros(1, 1).double(), torch.full((1, 1), 1.51).double())
    assert intervals(AlteredQuery(query, at).ranks(hits)) == [(1, 2), (1, 2), (3, 3)]


@pytest.mark.parametrize("beside", [0.0, 1000.0])
def test_comparisons_keep_their_slack(beside):
    """Two candidates at 1000, on either side, whose distances differ by less than float64 sums may err."""
    at = torch.tensor([[0.0, 1000.0], [0.0, -1000.0 * (1 + 2.0**-45)]], dtype=torch.float64)
    query = Box(torch.tensor([[beside, 0.0]]).double(), torch.zeros(1, 2).double())
    still, hits = Box(at, torch.zeros(2, 2).double()), torch.tensor([[0, 1]])
    nothing = Backward(query.centre, lambda _, spec: torch.zeros(len(spec)))
    for attack in (
        AlteredQuery(query, at),
        AlteredCandidates(still, query.centre),
        AlteredBoth(query, still),
        AlteredQuery(query, at, "crown", backward=nothing),
    ):
        assert intervals(attack.ranks(hits)) == [(1, 2), (1, 2)], type(attack).__name__


@pytest.mark.parametrize(
    ("beside", "max_norm", "expected"),
    [(0.0, 2.0, [(1, 1), (2, 2)]), (0.0, 1e6, [(1, 2), (1, 2)]), (1e6, 1e6, [(1, 2), (1, 2)])],
)
def test_one_pass_keeps_its_slack(beside, max_norm, expected):
    """Neighbours in float32 at 1: told apart, unless query or gallery have vectors whose sums err by more."""
    vectors = np.array([[0.0, 1.0], [0.0, -np.nextafter(np.float32(1), np.float32(2))]], dtype=np.float32)
    found = query_ranks(
        Box(torch.tensor([[beside, 0.0]]).double(), torch.zeros(1, 2).double()),
        vectors,
        np.array([0, 1]),
        np.array([], dtype=np.int64),
        torch.tensor([[1, 2]]),
        2,
        max_norm=max_norm,
        unit_norm=False,
    )
    assert intervals(found) == expected


@pytest.mark.parametrize("method", ["one pass", "query", "both"])
def test_slack_is_that_of_the_farthest_point(method):
    """Candidates at 1 and 1 + 10⁻⁶ from 0, on either side: told apart there, not from 10⁶ away, where the box ends."""
    vectors = np.array([[0.0, 1.0], [0.0, -1.0 - 1e-6]], dtype=np.float32)
    for radius, expected in ((1e-3, [(1, 1), (2, 2)]), (1e6, [(1, 2), (1, 2)])):
        query = Box(torch.zeros(1, 2).double(), torch.tensor([[radius, 0.0]]).double())
        candidates = torch.from_numpy(vectors).double()
        if method == "query":
            found = AlteredQuery(query, candidates).ranks(torch.tensor([[0, 1]]))
        elif method == "both":
            still = Box(candidates, torch.zeros(2, 2).double())
            found = AlteredBoth(query, still).ranks(torch.tensor([[0, 1]]))
        else:
            found = query_ranks(
                query,
                vectors,
                np.array([0, 1]),
                np.array([], dtype=np.int64),
                torch.tensor([[1, 2]]),
                2,
                max_norm=1.1,
                unit_norm=False,
            )
        assert intervals(found) == expected


@pytest.mark.parametrize("one_pass", [True, False])
def test_norms_that_differ_are_paid_for(one_pass):
    """Rounded unit vectors: z·c is larger for (1 + 2⁻¹⁰, 0), and (1, 0) is nearer to z = (1, 0) all the same."""
    vectors = np.array([[1.0, 0.0], [1.0 + 2.0**-10, 0.0], [-1.0, 0.0]], dtype=np.float32)
    query = Box(torch.tensor([[1.0, 0.0]]).double(), torch.full((1, 2), 0.01).double())
    if one_pass:
        found = query_ranks(
            query,
            vectors,
            np.array([0]),
            np.array([1, 2]),
            torch.tensor([[1]]),
            3,
            max_norm=1.001,
            unit_norm=True,
        )
    else:
        found = AlteredQuery(query, torch.from_numpy(vectors), unit_norm=True).ranks(torch.tensor([[0]]))
    assert intervals(found) == [(1, 2)]


@pytest.mark.parametrize("one_pass", [True, False])
def test_the_rounded_division_is_paid_for(one_pass):
    """A lead of 2⁻²¹ of the query's norm is less than float32 may lose where it divides by that norm."""
    turn = 2.0**-22
    vectors = np.array([[1.0, turn / 2], [1.0, -turn / 2]], dtype=np.float32)
    query = Box(torch.tensor([[0.0, 1.0]]).double(), torch.zeros(1, 2).double())
    if one_pass:
        found = query_ranks(
            query,
            vectors,
            np.array([0, 1]),
            np.array([], dtype=np.int64),
            torch.tensor([[1, 2]]),
            2,
            max_norm=1.0,
            unit_norm=True,
        )
    else:
        found = AlteredQuery(query, torch.from_numpy(vectors), unit_norm=True).ranks(torch.tensor([[0, 1]]))
    assert intervals(found) == [(1, 2), (1, 2)]


def before_last(error: float, bias: float = 0.0, weight: float = 1.0) -> list[tuple[int, int]]:
    """Candidates at ±1, the query's features 0.5 by the box of h alone; its own box leaves everything open."""
    last = LastLayer(
        Box(torch.full((1, 1), 0.5).double(), torch.full((1, 1), 0.1).double()),
        torch.full((1, 1), weight).double(),
        torch.full((1,), bias).double(),
        torch.full((1, 1), error).double(),
    )
    open_box = Box(torch.full((1, 1), 0.5).double(), torch.full((1, 1), 9.0).double())
    found = AlteredQuery(open_box, column(1, -1), "last-layer", last=last).ranks(torch.tensor([[0, 1]]))
    return intervals(found)


def test_the_box_before_the_last_layer_by_hand():
    """z = h + b with h ∈ [0.4, 0.6] is surely above 0 while b > −0.4 and inference errs by less than that."""
    apart, open_ = [(1, 1), (2, 2)], [(1, 2), (1, 2)]
    assert before_last(0.0) == apart
    assert before_last(0.0, bias=-0.35) == apart
    assert before_last(0.0, bias=-0.45) == open_
    assert before_last(0.0, weight=-1.0, bias=0.7) == apart
    assert before_last(0.0, weight=-1.0, bias=0.5) == open_
    assert before_last(0.5) == open_
    assert before_last(0.05) == apart


def test_linear_bounds_of_a_pair_by_hand():
    """Candidates at 1 and 4 and z ≤ 2.4 proved, 2½ is where they meet; z ≤ 2.6 proves nothing, nor does half a lead."""
    at, query = column(1, 4), Box(torch.full((1, 1), 1.0).double(), torch.full((1, 1), 9.0).double())
    for most, expected in ((2.4, [(1, 1), (2, 2)]), (2.6, [(1, 2), (1, 2)])):
        backward = Backward(query.centre, lambda _, spec, z=most: (spec * z).flatten())
        found = AlteredQuery(query, at, "crown", backward=backward).ranks(torch.tensor([[0, 1]]))
        assert intervals(found) == expected


def test_counts_become_ranks():
    """Of ten, three surely farther and two surely closer: ranks 3 to 7; unknown bounds leave 1 to 10."""
    rank, sure = torch.tensor([[4]]), torch.ones(1, 1, dtype=torch.bool)
    found = rank_bounds(rank, torch.tensor([[3]]), torch.tensor([[2]]), 10, sure)
    assert intervals(found) == [(3, 7)]
    assert found.verdicts(7) == [[Verdict.CERTIFIED]]
    assert found.verdicts(6) == [[Verdict.UNKNOWN]]
    unknown = rank_bounds(rank, torch.tensor([[3]]), torch.tensor([[2]]), 10, ~sure)
    assert intervals(unknown) == [(1, 10)]
    assert unknown.verdicts(10) == [[Verdict.UNKNOWN]]


def test_the_largest_eps_is_one_that_was_proved():
    """Claims that hold up to 0.3, to 0, nowhere and everywhere."""
    most = torch.tensor([0.3, 0.0, -1.0, 2.0])
    asked = []

    def certified(eps: torch.Tensor) -> torch.Tensor:
        asked.append(eps)
        return eps <= most

    found = largest_eps(certified, 4)
    assert found[0] <= 0.3 < found[0] + 2.0**-11
    assert found[1:].tolist() == [0.0, -1.0, 1.0]
    assert any(torch.equal(eps[0], found[0]) for eps in asked)


FILE, NETWORK = ImageSpec(1, 1, 3), ImageSpec(1, 1, 3, resample="bicubic")


@pytest.mark.parametrize("eps", [0.3 / 255, 8 / 255, 0.5])
def test_an_altered_file_is_covered_at_the_network(eps):
    """Pictures are computed to 2⁻²³ a pixel, two of them may differ by 2⁻²² more than the file did."""
    assert at_network(eps, FILE) >= eps * (1 + 2.0**-27) + 2.0**-22
    assert at_network(eps, FILE) <= eps + 2.0**-20
    assert at_network(torch.tensor([eps, 0.0], dtype=torch.float64), FILE).tolist() == [
        at_network(eps, FILE),
        0.0,
    ]
    assert at_network(0.0, FILE) == 0.0
    assert at_network(eps, NETWORK) == eps


def test_an_altered_file_is_covered_in_every_bound():
    """The box of the features and their linear bounds are of the file: wider than of the network's own input."""
    layer = nn.Linear(3, 1, bias=False)
    layer.weight.data = torch.tensor([[1.0, -1.0, 1.0]])
    net, images = nn.Sequential(nn.Flatten(), layer), torch.full((1, 1, 1, 3), 0.5)
    eps, spec = 8 / 255, torch.ones(1, 1)
    wide, narrow = (Certifier(wrap(net, size)) for size in (FILE, NETWORK))
    more = 3 * (at_network(eps, FILE) - eps)
    grown = wide.box(images, eps).radius - narrow.box(images, eps).radius
    assert grown.item() == pytest.approx(more, rel=1e-3)
    lowered = narrow.backward(images, eps).lower(0, spec) - wide.backward(images, eps).lower(0, spec)
    assert lowered.item() == pytest.approx(more, rel=1e-3)
    sizes = torch.tensor([eps], dtype=torch.float64)
    lowered = narrow.backward(images, sizes).lower(0, spec) - wide.backward(images, sizes).lower(0, spec)
    assert lowered.item() == pytest.approx(more, rel=1e-3)


def test_a_radius_is_divided_by_the_stretch_of_its_file():
    """A picture that grows fourfold: what is proved to 1 at the network is proved to a little under ¼ of the file."""
    spec = ImageSpec(3, 8, 8)
    errors = 192**0.5 * 2.0**-22
    way = Way(spec, 4.0)
    assert (way.picture, Way(spec).picture) == ("file", "network input")
    assert way.at_network(0.25) >= 1 + errors
    assert way.at_network(0.25) == pytest.approx(1, rel=1e-4)
    assert way.of_file(1.0) <= (1 - errors) / 4
    assert way.of_file(1.0) == pytest.approx(0.25, rel=1e-4)
    assert way.at_network(way.of_file(1.0)) <= 1.0
    assert way.of_file(errors / 2) == 0.0
    # For every pixel by itself nothing is stretched, but each is computed with an error.
    assert way.pixel(1.0) <= 192**-0.5 - 2.0**-22
    assert way.pixel(1.0) == pytest.approx(192**-0.5, rel=1e-4)
    assert (Way(spec).at_network(0.3), Way(spec).of_file(0.3)) == (0.3, 0.3)
