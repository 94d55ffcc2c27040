"""Every objective against a slow reference written from its definition, and the traps they have."""

from __future__ import annotations

import pytest
import torch

from holdfast.attacks import OBJECTIVES, Candidates, Given, er_sources, objective
from holdfast.attacks.draw import near_targets, other_class, random_targets
from holdfast.errors import ConfigError, DataError

N, B, D, C = 23, 7, 4, 3
ALL = slice(0, B)


def relu(x):
    return max(float(x), 0.0)


def dist(a, b):
    return float((a - b).norm())


@pytest.fixture(params=[False, True], ids=["free norms", "unit norms"])
def scene(request):
    source = torch.Generator().manual_seed(3)
    vectors = torch.randn((N, D), generator=source, dtype=torch.float64) + 2
    altered = vectors[:B] + 0.3 * torch.randn((B, D), generator=source, dtype=torch.float64)
    if request.param:
        vectors, altered = (torch.nn.functional.normalize(v, dim=1) for v in (vectors, altered))
    labels = torch.arange(N) % C
    # Some images are candidates themselves, others are not.
    own = torch.tensor([0, 1, -1, 3, -1, 5, 6])
    return vectors, altered, labels, own


def built(name, scene, **more):
    vectors, _, labels, own = scene
    given = Given(Candidates(vectors, labels), labels[:B], own=own, **more)
    return objective(name, given)


@pytest.mark.parametrize("name", ["qa+", "qa-"])
def test_query_rank(scene, name):
    vectors, altered, _, own = scene
    targets = torch.tensor([[9, 2], [4, 8], [5, 7], [1, 20], [0, 3], [22, 21], [11, 10]])
    sign = 1 if name == "qa+" else -1
    wish = built(name, scene, targets=targets).bind(ALL, vectors[:B])
    z = altered.clone().requires_grad_()
    live = wish.assess(z)
    state = live.detach()
    for b in range(B):
        others = [x for x in range(N) if x != own[b]]
        terms = [
            sum(relu(sign * (dist(altered[b], vectors[t]) - dist(altered[b], vectors[x]))) for x in others)
            for t in targets[b]
        ]
        assert float(state.loss[b]) == pytest.approx(sum(terms) / 2 / len(others), rel=1e-9)
        before = [
            sum(dist(altered[b], vectors[x]) < dist(altered[b], vectors[t]) for x in others)
            for t in targets[b]
        ]
        assert float(state.score[b]) == pytest.approx(sign * sum(before) / 2 / N)
    again = altered.clone().requires_grad_()
    total = 0.0
    for b in range(B):
        keep = torch.tensor([x for x in range(N) if x != own[b]])
        d = (again[b] - vectors).norm(dim=1)
        total = total + torch.relu(sign * (d[targets[b]][:, None] - d[keep][None])).mean(1).mean()
    (ours,) = torch.autograd.grad(live.loss.sum(), z)
    (theirs,) = torch.autograd.grad(total, again)
    assert torch.allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize("name", ["ca+", "ca-"])
def test_candidate_rank(scene, name):
    vectors, altered, _, own = scene
    queries = torch.randn((5, D), generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 2
    targets = torch.tensor([[0, 1], [1, 2], [3, 4], [4, 4], [2, 0], [0, 3], [1, 1]])
    sign = 1 if name == "ca+" else -1
    wish = built(name, scene, targets=targets, queries=queries).bind(ALL, vectors[:B])
    z = altered.clone().requires_grad_()
    state = wish.assess(z)
    (ours,) = torch.autograd.grad(state.loss.sum(), z)
    again = altered.clone().requires_grad_()
    total, scores = 0.0, []
    for b in range(B):
        keep = [x for x in range(N) if x != own[b]]
        rivals = (queries[targets[b]][:, None] - vectors[keep][None]).norm(dim=2)
        mine = (queries[targets[b]] - again[b]).norm(dim=1)
        loss = torch.relu(sign * (mine[:, None] - rivals)).mean()
        assert float(state.loss[b].detach()) == pytest.approx(float(loss.detach()), rel=1e-9)
        scores.append(float((rivals < mine[:, None]).double().sum(1).mean()) / N)
        total = total + loss
    assert torch.allclose(state.score, sign * torch.tensor(scores, dtype=torch.float64))
    (theirs,) = torch.autograd.grad(total, again)
    assert torch.allclose(ours, theirs, atol=1e-10)


def test_tma_and_es(scene):
    vectors, altered, _, _ = scene
    targets = torch.arange(B) + 9
    tma = built("tma", scene, targets=targets).bind(ALL, vectors[:B]).loss(altered)
    assert torch.allclose(tma, 1 - torch.nn.functional.cosine_similarity(altered, vectors[targets]))
    es = built("es", scene).bind(ALL, vectors[:B]).loss(altered)
    assert torch.allclose(es, -(altered - vectors[:B]).norm(dim=1))


def test_ltm_leaves_the_query_itself_out(scene):
    vectors, altered, labels, own = scene
    state = built("ltm", scene).bind(ALL, vectors[:B]).assess(altered)
    for b in range(B):
        match = [dist(altered[b], vectors[x]) for x in range(N) if labels[x] == labels[b] and x != own[b]]
        other = [dist(altered[b], vectors[x]) for x in range(N) if labels[x] != labels[b]]
        assert float(state.loss[b]) == pytest.approx(relu(max(other) - min(match)), rel=1e-9)
        assert bool(state.success[b]) == (min(other) < min(match))
    # Unaltered, the image is its own nearest match at distance 0; only without it is anything measured.
    clean = built("ltm", scene).bind(ALL, vectors[:B]).loss(vectors[:B])
    with_self = (vectors[0] - vectors[labels != 0]).norm(dim=1).max()
    assert float(clean[0]) < float(with_self)


def test_gtm_takes_the_nearest_other_class_of_a_sorted_gallery():
    """In a gallery sorted by class, a number within the other-class part is never the gallery's number."""
    vectors = torch.tensor([[0.0], [0.2], [5.0], [1.0], [7.0], [9.0]])
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    clean = torch.tensor([[0.1], [6.5], [0.9]])
    given = Given(Candidates(vectors, labels), torch.tensor([0, 1, 1]))
    wish = objective("gtm", given).bind(slice(0, 3), clean)
    assert wish.target.tolist() == [3, 4, 1]
    state = wish.assess(torch.tensor([[0.7], [6.9], [0.55]]))
    assert torch.allclose(state.loss, torch.tensor([0.3, 0.1, 0.35]))
    assert state.success.tolist() == [True, True, True]
    assert wish.assess(clean).score.tolist() == [1.0, 0.0, 1.0]


def test_published_gtm_takes_a_place_among_others_for_a_number_among_all():
    vectors = torch.tensor([[0.0], [0.2], [5.0], [1.0], [7.0], [9.0]])
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    clean = torch.tensor([[0.1], [6.5], [0.9]])
    given = Given(Candidates(vectors, labels), torch.tensor([0, 1, 1]))
    # Meant are 3, 4 and 1: of the others (2, 3, 4, 5), (0, 1, 4, 5) and (0, 1, 4, 5) the second, third and second.
    assert objective("gtm-published", given).bind(slice(0, 3), clean).target.tolist() == [1, 2, 1]


def test_a_class_of_one_has_nothing_to_break():
    given = Given(
        Candidates(torch.rand(3, 2), torch.tensor([0, 1, 1])), torch.tensor([0]), own=torch.tensor([0])
    )
    for name in ("ltm", "gtm"):
        assert objective(name, given).bind(slice(0, 1), torch.rand(1, 2)).success(
            torch.rand(1, 2)
        ).tolist() == [False]


def test_gtt_pushes_the_first_result_but_not_the_query_itself():
    vectors = torch.tensor([[0.0], [0.1], [0.3], [0.6], [1.0], [1.5]])
    given = Given(Candidates(vectors), own=torch.tensor([0]))
    wish = objective("gtt", given, k=2).bind(slice(0, 1), vectors[:1])
    assert wish.targets.tolist() == [[1]]
    # 0.9 is nearest to 1.0, 0.6, then 0.3 and 1.5; the query at 0.0 does not count.
    assert wish.assess(torch.tensor([[0.9]])).success.tolist() == [True]
    assert wish.assess(torch.tensor([[0.2]])).success.tolist() == [False]


def test_kept_results_are_the_clean_querys_own_and_hold_the_loss_up(scene):
    vectors, altered, labels, own = scene
    given = Given(Candidates(vectors, labels), targets=torch.full((B,), 9), own=own)
    plain = objective("qa-", given).bind(ALL, vectors[:B])
    held = objective("qa-", given, keep=3, xi=2.0).bind(ALL, vectors[:B])
    for b in range(B):
        order = (vectors[b] - vectors).norm(dim=1).argsort().tolist()
        assert held.kept[b].tolist() == [x for x in order if x != own[b] and x != 9][:3]
    raised = objective("qa+", Given(Candidates(vectors), targets=held.kept, own=own)).bind(ALL, vectors[:B])
    assert torch.allclose(held.loss(altered), plain.loss(altered) + 2 * raised.loss(altered))


def test_ties_count_against_the_attacker():
    vectors = torch.zeros(5, 2)
    for name, score in (("qa+", 4 / 5), ("qa-", 0.0)):
        wish = objective(name, Given(Candidates(vectors), targets=torch.tensor([2])), k=1)
        state = wish.bind(slice(0, 1), vectors[:1]).assess(vectors[:1])
        assert float(state.score) == pytest.approx(score)
        assert state.success.tolist() == [False]


def test_er_attacks_draw_other_classes_by_image_number(scene):
    vectors, _, labels, _ = scene
    candidates = Candidates(vectors, labels)
    whole = objective("er-query", Given(candidates, labels[:B]), seed=5).given.targets
    assert (labels[whole.flatten()] != labels[:B]).all()
    part = objective("er-query", Given(candidates, labels[2:4]), seed=5, numbers=[2, 3]).given.targets
    assert torch.equal(part, whole[2:4])
    assert not torch.equal(objective("er-query", Given(candidates, labels[:B]), seed=6).given.targets, whole)

    given = er_sources(Given(candidates, labels[:3], queries=vectors[:3]), count=9)
    assert given.targets.tolist() == [0] * 9 + [1] * 9 + [2] * 9
    assert (labels[given.own] != labels[given.targets]).all()
    assert len(set(given.own[:9].tolist())) == 9
    wish = objective("er-candidates", given).bind(slice(0, 27), vectors[given.own])
    assert wish.raising


def test_draws():
    own = torch.tensor([0, 3, -1])
    drawn = torch.stack([random_targets(seed, range(3), 4, own) for seed in range(60)])
    assert set(drawn[:, 0].tolist()) == {1, 2, 3}
    assert set(drawn[:, 1].tolist()) == {0, 1, 2}
    assert set(drawn[:, 2].tolist()) == {0, 1, 2, 3}
    line = torch.arange(300.0)[:, None]
    near = torch.stack(
        [near_targets(s, [0], line[:1], Candidates(line), torch.tensor([0])) for s in range(40)]
    )
    assert set(near.flatten().tolist()) == {1, 2, 3}
    with pytest.raises(DataError, match="image 7 has 1 candidates of other classes, 2 are needed"):
        other_class(0, [7], torch.tensor([0]), torch.tensor([0, 0, 1]), 2)


def test_wishes_can_be_taken_in_any_order(scene):
    vectors, altered, labels, own = scene
    rows = torch.tensor([4, 1, 1, 6])
    targets = torch.arange(B)[:, None] % 5
    more = {"targets": targets, "queries": vectors[:5]}
    for name in OBJECTIVES:
        given = Given(Candidates(vectors, labels), labels[:B], own=own, **more)
        wish = objective(name, given).bind(ALL, vectors[:B])
        assert torch.allclose(wish.take(rows).loss(altered[rows]), wish.loss(altered)[rows]), name


def test_lists_alone():
    labels = torch.tensor([0, 0, 1, 1, 2])
    given = Given(
        labels=torch.tensor([0, 1]),
        targets=torch.tensor([4, 2]),
        own=torch.tensor([0, -1]),
        candidate_labels=labels,
    )
    clean = torch.tensor([[0, 1, 3, 4], [3, 2, 1, -1]])
    # Places are worth 1, 3/4, 1/2, 1/4.
    expected = {
        "qa+": ([-0.25, -0.75], [True, True]),
        "qa-": ([0.25, 0.75], [False, False]),
        "tma": ([-0.25, -0.75], [False, False]),
        "ltm": ([0.75, 1.75], [True, False]),
        "gtt": ([0.75, 1.0], [False, False]),
        "es": ([2.5, 2.25], [False, False]),
    }
    for name, (loss, success) in expected.items():
        state = objective(name, given).bind_lists(slice(0, 2), clean).assess(clean)
        assert state.loss.tolist() == loss, name
        assert state.success.tolist() == success, name
    queries = Given(Candidates(torch.eye(5)), given.labels, given.targets, queries=torch.eye(5))
    with pytest.raises(ConfigError, match="needs vectors"):
        objective("ca+", queries).bind_lists(slice(0, 2), clean)


def test_what_is_missing_or_wrong_is_said():
    candidates = Candidates(torch.rand(4, 2))
    with pytest.raises(ConfigError, match="gtm needs labels"):
        objective("gtm", Given(candidates, torch.tensor([0])))
    with pytest.raises(ConfigError, match="needs a target"):
        objective("qa+", Given(candidates))
    with pytest.raises(ConfigError, match="needs the candidates"):
        objective("gtt", Given()).bind(slice(0, 1), torch.rand(1, 2))
    with pytest.raises(ConfigError, match="needs the vectors of the queries"):
        objective("ca+", Given(candidates, targets=torch.tensor([0])))
    with pytest.raises(DataError, match="target 4 is not one of the 4 candidates"):
        objective("qa+", Given(candidates, targets=torch.tensor([1, 4])))
    with pytest.raises(ConfigError, match="unknown attack 'qa'; known: ca"):
        objective("qa", Given(candidates))
    with pytest.raises(ConfigError, match=r"unknown option of qa. 'steps'; known: k, keep, xi"):
        objective("qa+", Given(candidates, targets=torch.tensor([1])), steps=3)
    with pytest.raises(DataError, match="NaN"):
        Candidates(torch.tensor([[torch.nan]]))
    with pytest.raises(DataError, match="the embedder gives 3 dimensions, the candidates have 2"):
        objective("gtt", Given(candidates), k=1).bind(slice(0, 1), torch.rand(1, 3))
    with pytest.raises(DataError, match="differ in number"):
        objective("qa+", Given(candidates, targets=torch.tensor([1]), own=torch.tensor([1, 2])))
