"""Blocks computed by anyone, in any order: the same files; what is sent to another process is all that is needed."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from holdfast import data, models
from holdfast.attacks import Settings
from holdfast.errors import ConfigError, MissingExtraError, ModelError, RunError
from holdfast.evaluate import evaluate
from holdfast.evaluate import suite as suite_module
from holdfast.evaluate.cluster import Stamp, _error
from holdfast.evaluate.spread import HERE, Spread, compute, spread_over
from holdfast.evaluate.suite import attack_suite
from holdfast.models import Foreign, Smoothed, wrap
from holdfast.threat import Threat

THREAT = Threat.parse("linf:0.1")
DRAWN = {"queries": 24, "candidates": 40}


class Elsewhere(Spread):
    """Every block by a copy of the work, the last block first; what is done before the end is counted."""

    def __init__(self):
        self.made, self.closed = 0, 0

    def run(self, work, blocks):
        sent = pickle.dumps(work)
        try:
            for number in reversed(range(len(blocks))):
                yield number, pickle.loads(sent)(*blocks[number])
                self.made += 1
        finally:
            self.closed += 1


@pytest.fixture(scope="module")
def few():
    return data.load("fashion-mnist-mini").test.take(range(120))


@pytest.fixture(scope="module")
def embedder(few):
    torch.manual_seed(0)
    return wrap(nn.Sequential(nn.Flatten(), nn.Linear(784, 12)), few.spec).eval()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(suite_module, "BLOCK", 5)


def suite(embedder, few, out, **options):
    quick = Settings(steps=2, budget=46)
    return attack_suite(
        embedder,
        few,
        out,
        THREAT,
        attacks="qa+,ca-,es",
        settings=quick,
        check_black_box=3,
        **DRAWN,
        **options,
    )


def files(place):
    return {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.name != ".lock"}


def test_blocks_that_end_in_another_order_make_the_same_files(embedder, few, tmp_path):
    suite(embedder, few, tmp_path / "here")
    suite(embedder, few, tmp_path / "there", spread=Elsewhere())
    assert files(tmp_path / "here") == files(tmp_path / "there")
    assert len(files(tmp_path / "here")) == 3
    for place, spread in (("a", HERE), ("b", Elsewhere())):
        evaluate(embedder, few, tmp_path / place, **DRAWN, spread=spread)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("first", [HERE, Elsewhere()])
def test_what_was_begun_in_one_place_ends_in_another(embedder, few, tmp_path, killed_at, first):
    whole = suite(embedder, few, tmp_path / "whole")
    second = Elsewhere() if first is HERE else HERE
    with killed_at(4):
        suite(embedder, few, tmp_path / "stopped", spread=first)
    done = suite(embedder, few, tmp_path / "stopped", spread=second)
    assert files(tmp_path / "stopped") == files(tmp_path / "whole")
    assert len(done.rows) == len(whole.rows) == 3 * 24 + 3 * 3
    if second is not HERE:
        assert second.made < 18  # 3 × 5 blocks and 3 of the check, less what was there; embeddings are whole.


def test_a_stop_closes_what_is_under_way(embedder, few, tmp_path, killed_at):
    spread = Elsewhere()
    with killed_at(1):
        suite(embedder, few, tmp_path / "s", spread=spread)
    # Both of the embeddings and of the attacks, though the error is still held by the test.
    assert spread.closed == 2


def test_results_are_kept_in_turn_and_seen_as_they_come(embedder):
    @dataclass
    class Echo:
        embedder: object

        def __call__(self, what, span):
            return what, span

    class Mixed(Spread):
        def run(self, work, blocks):
            for number in (2, 0, 3, 1):
                yield number, work(*blocks[number])

    blocks = [(i, range(i)) for i in range(4)]
    kept, seen = [], []
    compute(
        Mixed(),
        Echo(embedder),
        blocks,
        lambda made: kept.append((made, len(seen))),
        lambda n, _: seen.append(n),
    )
    assert [made for made, _ in kept] == blocks
    assert seen == [2, 0, 3, 1]
    assert [when for _, when in kept] == [2, 4, 4, 4]


def test_nothing_is_written_where_nobody_can_compute(embedder, few, tmp_path):
    class Gone(Spread):
        def ready(self):
            raise RunError("nobody there")

    with pytest.raises(RunError, match="nobody there"):
        suite(embedder, few, tmp_path / "s", spread=Gone())
    assert not (tmp_path / "s").exists()


def test_a_finished_evaluation_needs_nobody(embedder, few, tmp_path):
    whole = suite(embedder, few, tmp_path / "s")
    with spread_over("ray://127.0.0.1:1") as nowhere:
        assert len(suite(embedder, few, tmp_path / "s", spread=nowhere).rows) == len(whole.rows)


@pytest.mark.parametrize(
    ("on", "workers", "says"),
    [
        ("dask", None, "ray:auto"),
        ("ray:host", None, "ray:HOST:PORT"),
        ("ray://host", None, "ray://HOST:10001"),
        ("ray", 0, "at least 1 worker"),
        ("local", 2, "--workers is for --on ray"),
    ],
)
def test_where_is_checked(on, workers, says):
    with pytest.raises(ConfigError, match=says), spread_over(on, workers):
        pass


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"holdfast\[ray\]"), spread_over("ray"):
        pass


def test_a_copy_of_a_part_holds_its_own_pixels_alone(few):
    part = few.take([7, 3, 7])
    sent = pickle.dumps(part)
    assert len(sent) < 20_000
    copy = pickle.loads(sent)
    assert copy.digest() == part.digest()
    assert copy.pixels.shape[0] == 2
    assert pickle.loads(pickle.dumps(few)).digest() == few.digest()


def test_copies_of_embedders_look_at_themselves(embedder, few):
    same = pickle.loads(pickle.dumps(embedder))
    assert same.fingerprint() == embedder.fingerprint()
    scale = torch.ones(1)
    foreign = Foreign(Scaled(scale), few.spec)
    assert pickle.loads(pickle.dumps(foreign)).fingerprint() == foreign.fingerprint()
    sent = pickle.dumps(foreign)
    Scaled.power = 2
    try:
        assert pickle.loads(sent).fingerprint() != foreign.fingerprint()
    finally:
        Scaled.power = 1
    noisy = Smoothed(embedder, 0.1, 8, bound=1000.0, backend="onnx")
    vectors = noisy.embed(few.batch([0]))
    assert torch.equal(pickle.loads(pickle.dumps(noisy)).embed(few.batch([0])), vectors)


class Scaled:
    """A function whose code decides about its vectors: another version of it is another embedder."""

    power = 1

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, images):
        return self.scale * images.flatten(1)[:, :9] ** self.power


@pytest.mark.filterwarnings("ignore")
def test_onnx_models_can_be_sent(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    path = tmp_path / "net.onnx"
    torch.onnx.export(net, (torch.zeros(1, 3, 2, 2),), path, dynamo=False)
    found = models.find(path)
    images = torch.rand(5, 3, 2, 2)
    copy = pickle.loads(pickle.dumps(found))
    assert torch.equal(copy.embed(images), found.embed(images))
    assert copy.fingerprint() == found.fingerprint()


def test_workers_that_differ_are_told_apart():
    one = Stamp({"holdfast": "1", "torch": "2"}, "abc", "f")
    assert one.differs(one) is None
    assert one.differs(Stamp({"holdfast": "1", "torch": "3"}, "abc", "f")) == "torch 3, not 2"
    assert "its files differ" in str(one.differs(Stamp(one.versions, "abd", "f")))
    assert one.differs(Stamp(one.versions, "abc", "g")) == "another embedder"


def test_errors_of_workers_keep_their_kind_and_line():
    made = _error("MissingExtraError", "the line")
    assert isinstance(made, MissingExtraError)
    assert str(made) == "the line"
    assert isinstance(_error("ModelError", "x"), ModelError)
