from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, DataError
from holdfast.training.config import parse
from holdfast.training.defences import build_defence
from holdfast.training.samplers import ClassGroups, Shuffled, SpreadGroups


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=6),
    per_class=st.sampled_from([2, 4]),
    groups=st.integers(2, 9),
)
def test_groups_are_of_one_class_and_partners_differ(seed, counts, per_class, groups):
    labels = np.repeat(np.arange(len(counts)) * 3, counts)
    np.random.default_rng(seed).shuffle(labels)
    if max(counts) < 2:
        with pytest.raises(DataError, match="two images"):
            ClassGroups(labels, groups * per_class, per_class, seed)
        return
    sampler = ClassGroups(labels, groups * per_class, per_class, seed)
    for step in range(5):
        batch = sampler.indices(step).reshape(groups, per_class)
        chosen = torch.from_numpy(labels)[batch]
        assert (chosen == chosen[:, :1]).all()
        several = torch.from_numpy(np.bincount(labels)[labels] > 1)[batch[:, 0]]
        assert (batch[several, 1:] != batch[several, :1]).all()


def test_each_image_is_an_anchor_once_a_pass():
    labels = np.arange(60) % 5
    sampler = ClassGroups(labels, 12, 2, seed=3)
    anchors = torch.cat([sampler.indices(step)[::2] for step in range(10)])
    assert sorted(anchors.tolist()) == list(range(60))
    following = torch.cat([sampler.indices(step)[::2] for step in range(10, 20)])
    assert sorted(following.tolist()) == list(range(60))
    assert not torch.equal(anchors, following)


def test_a_batch_depends_on_its_step_alone():
    labels = np.arange(50) % 5
    forward = [ClassGroups(labels, 12, 2, seed=1).indices(step).tolist() for step in (7, 3, 8)]
    one = ClassGroups(labels, 12, 2, seed=1)
    assert forward == [one.indices(step).tolist() for step in (7, 3, 8)]
    assert forward[0] != ClassGroups(labels, 12, 2, seed=2).indices(7).tolist()


def test_partners_differ_where_the_class_has_enough():
    sampler = ClassGroups(np.repeat([0, 1], 5), 8, 4, seed=0)
    for step in range(50):
        for group in sampler.indices(step).reshape(2, 4).tolist():
            assert len(set(group)) == 4


def test_a_batch_never_holds_one_class_alone():
    labels = np.array([0] * 50 + [1] * 2)
    sampler = ClassGroups(labels, 4, 2, seed=0)
    assert all(len(set(labels[sampler.indices(step)])) == 2 for step in range(200))


def test_partners_are_drawn_evenly():
    sampler = ClassGroups(np.array([0] * 5 + [1] * 5), 4, 2, seed=0)
    pairs = torch.cat([sampler.indices(step).reshape(2, 2) for step in range(4000)])
    partners = pairs[pairs[:, 0] == 0][:, 1]
    counts = torch.bincount(partners, minlength=5)[1:5].float()
    assert (counts / counts.mean() - 1).abs().max() < 0.15


def test_bad_data_and_batches_are_refused():
    with pytest.raises(DataError, match="two classes"):
        ClassGroups(np.zeros(10, dtype=np.int64), 4, 2, 0)
    with pytest.raises(ConfigError, match="groups of 2"):
        ClassGroups(np.arange(10) % 2, 5, 2, 0)
    with pytest.raises(ConfigError, match="two whole groups"):
        ClassGroups(np.arange(10) % 2, 4, 4, 0)


def test_spread_groups_put_a_partner_of_every_first_image_behind_it():
    labels = np.repeat(np.arange(50), 6)
    batch = torch.from_numpy(labels)[SpreadGroups(labels, 40, 4, 3).indices(7)]
    first, rest = batch[:10], batch[10:]
    assert all((rest == label).sum() >= 3 for label in first)


def test_certified_rank_groups_classes_only_where_a_plain_batch_would_miss_them():
    defence = build_defence(parse({"defence": {"name": "certified-rank", "boxes": 10}}).defence, 10)
    few, many = np.repeat(np.arange(5), 60), np.repeat(np.arange(50), 6)
    assert isinstance(defence.sampler(few, 40, 0), Shuffled)
    assert isinstance(defence.sampler(many, 40, 0), SpreadGroups)
    with pytest.raises(ConfigError, match="leaves 2 images"):
        defence.sampler(few, 12, 0)
