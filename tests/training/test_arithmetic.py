"""Precision and layout of training: measured, recorded, resumed to the same bits, and never left behind."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from holdfast import models
from holdfast.errors import ConfigError, RunError
from holdfast.evaluate import evaluate
from holdfast.rows import read_header
from holdfast.spec import ImageSpec
from holdfast.training import arithmetic, loop, parse, train
from holdfast.training.arithmetic import Arithmetic, Computed, channels_last, choose, speed_up
from holdfast.training.defences import DEFENCES, build_defence
from holdfast.training.log import read_log

SPEC = ImageSpec(3, 12, 12)


def quiet(line: str) -> None:
    pass


def network(unit_norm: bool = True) -> models.Embedder:
    torch.manual_seed(0)
    return models.build("small", spec=SPEC, dim=8, unit_norm=unit_norm)


def config(**train_section):
    section = {"steps": 6, "batch": 16, "log_every": 1, "checkpoint_seconds": 0, **train_section}
    return parse(
        {
            "data": {"name": "fashion-mnist-mini", "validation": 0},
            "defence": {"name": "act", "eps": 0.05, "attack_steps": 2},
            "train": section,
        }
    )


def cut_at(step, made, folder):
    """The run, stopped right after it saved the state of `step`."""

    class Stopped(Exception):
        pass

    def stops(path, *rest):
        before(path, *rest)
        if rest[-1]["step"] == step:
            raise Stopped

    before = loop.save_state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save_state", stops)
        with pytest.raises(Stopped):
            train(made, folder, say=quiet)


@pytest.fixture
def faster(monkeypatch):
    """Says how many times as fast bfloat16 is here."""
    return lambda gain: monkeypatch.setattr(arithmetic, "speed_up", lambda *rest: gain)


@pytest.mark.parametrize("unit_norm", [True, False])
def test_what_training_runs_is_the_embedder(unit_norm):
    embedder, images = network(unit_norm).eval(), torch.rand(5, *SPEC.shape)
    plain = embedder(images)
    order = [p.stride() for p in embedder.parameters()]
    with channels_last(embedder):
        weight = next(p for p in embedder.parameters() if p.ndim == 4)
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert not weight.is_contiguous()
        exact, rounded = (Computed(embedder, p)(images) for p in ("float32", "bfloat16"))
    assert [p.stride() for p in embedder.parameters()] == order
    torch.testing.assert_close(exact, plain, atol=1e-6, rtol=1e-5)
    assert exact.dtype == rounded.dtype == torch.float32
    gap = (rounded - plain).abs().max() / plain.abs().max()
    assert 1e-6 < gap < 0.05
    if unit_norm:
        torch.testing.assert_close(rounded.norm(dim=1), torch.ones(5), atol=1e-6, rtol=0)


def test_gradients_flow_through_both_precisions_alike():
    embedder, images = network().eval(), torch.rand(5, *SPEC.shape)
    found = {}
    for precision in ("float32", "bfloat16"):
        model = Computed(embedder, precision)
        with torch.no_grad():
            model(images)  # A pass without gradients leaves nothing behind that the next one would take.
        embedder.zero_grad()
        at = images.clone().requires_grad_()
        model(at).square().cumsum(1).sum().backward()
        found[precision] = [at.grad, *(p.grad for p in embedder.parameters())]
        assert all(p.dtype == torch.float32 for p in (*embedder.parameters(), *found[precision]))
    for one, other in zip(*found.values(), strict=True):
        assert torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.99


def test_the_faster_precision_is_chosen_and_said(faster):
    said: list[str] = []
    images = torch.rand(4, *SPEC.shape)

    def chosen(wanted="auto", lower="measured", begun=None, step=0):
        return choose(network(), images, wanted, lower, begun, step, say=said.append)

    faster(2.0)
    assert str(chosen()) == "bfloat16@0"
    assert said == ["bfloat16 is 2.0 times as fast as float32 on this machine; training in bfloat16"]
    assert str(chosen(lower="on request")) == "float32@0"
    assert str(chosen("bfloat16", "on request")) == "bfloat16@0"
    assert str(chosen("float32")) == "float32@0"
    assert chosen(lower="never") is None
    with pytest.raises(ConfigError, match="bounds trains in float32"):
        chosen("bfloat16", "never")
    faster(1.05)
    assert str(chosen()) == "float32@0"
    faster(1 / 35)
    assert str(chosen("bfloat16")) == "bfloat16@0"
    assert said[-1] == "bfloat16 is 35.0 times as slow as float32 on this machine; training in it, as asked"


def test_a_run_is_not_resumed_in_another_precision_unless_it_is_asked_for(faster):
    begun, said = Arithmetic(((0, "bfloat16"),)), []

    def resumed(wanted, begun=begun):
        images = torch.rand(4, *SPEC.shape)
        return choose(network(), images, wanted, "measured", begun, 70, say=said.append)

    faster(1 / 35)
    with pytest.raises(RunError, match=r"begun in bfloat16, and float32 is 35\.0 times as fast here"):
        resumed("auto")
    assert resumed("bfloat16") == begun
    assert str(resumed("float32")) == "bfloat16@0 float32@70"
    assert "not the same to the bit" in said[-1]
    faster(1.2)
    assert resumed("auto") == begun
    faster(1.6)
    with pytest.raises(RunError, match=r"begun in float32, and bfloat16 is 1\.6 times"):
        resumed("auto", Arithmetic())


def test_precisions_are_written_and_read():
    found = Arithmetic(((0, "bfloat16"), (40, "float32")))
    assert Arithmetic.parse(str(found)) == found
    assert Arithmetic.parse("") == Arithmetic()
    with pytest.raises(RunError, match="unknown precision 'float8@0'"):
        Arithmetic.parse("float8@0")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("start", ["clean", "kept"])
def test_a_resumed_run_has_the_same_bits(precision, start, tmp_path):
    made = config(precision=precision)
    made = parse({**made.model_dump(), "defence": {**made.defence.model_dump(), "start": start}})
    whole = train(made, tmp_path / "whole", say=quiet)
    cut_at(3, made, tmp_path / "cut")
    again = train(made, tmp_path / "cut", say=quiet)
    for one, other in zip(whole.embedder.parameters(), again.embedder.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.is_contiguous()
        assert one.dtype == torch.float32
    assert json.loads((tmp_path / "cut" / "card.json").read_text())["precision"] == f"{precision}@0"
    assert read_log(tmp_path / "cut" / "log.jsonl")[0]["precision"] == precision


def test_a_change_of_precision_is_on_the_card_and_in_the_rows(tmp_path):
    cut_at(3, config(precision="bfloat16"), tmp_path / "run")
    train(config(precision="float32"), tmp_path / "run", say=quiet)
    embedder = models.load(tmp_path / "run")
    assert embedder.card["precision"] == "bfloat16@0 float32@3"
    from holdfast import data

    images = data.load("fashion-mnist-mini").test.take(range(30))
    result = evaluate(embedder, images, tmp_path / "rows")
    assert read_header(result.folder / "rows.csv.gz")["trained_in"] == "bfloat16@0 float32@3"


def test_the_state_of_the_optimiser_lies_as_its_weights_do(tmp_path):
    """The fused optimiser walks through memory: another order would give each weight another one's average."""
    from holdfast.training.config import TrainSection

    class Images:
        def __len__(self):
            return 32

        def batch(self, indices):
            generator = torch.Generator().manual_seed(0)
            pixels = torch.randint(0, 256, (32, *SPEC.shape), generator=generator, dtype=torch.uint8)
            return pixels[indices]

    labels = np.arange(32) // 8

    def fit(embedder, steps, folder):
        folder.mkdir(exist_ok=True)
        defence = build_defence(parse({"defence": {"name": "triplet"}}).defence, 4)
        sampler = defence.sampler(labels, 16, 0)
        section = TrainSection(steps=steps, batch=16, schedule="constant")
        with channels_last(embedder):
            rest = {"seed": 0, "folder": folder, "arithmetic": Arithmetic()}
            loop.fit(embedder, Images(), labels, sampler, defence, section, **rest)

    whole = network()
    fit(whole, 4, tmp_path / "whole")
    cut = network()
    fit(cut, 2, tmp_path / "cut")
    again = network()
    fit(again, 4, tmp_path / "cut")
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_measurement_is_short_and_changes_nothing():
    embedder = network()
    before = [p.clone() for p in embedder.parameters()]
    gain = speed_up(embedder, torch.rand(3, *SPEC.shape))
    assert 0 < gain < 100
    assert embedder.training
    assert all(torch.equal(one, other) for one, other in zip(before, embedder.parameters(), strict=True))
    assert all(p.grad is None and p.is_contiguous() for p in embedder.parameters())


def test_every_defence_says_which_precision_it_takes():
    assert {name for name, kind in DEFENCES.items() if kind.lower == "never"} >= {"tbt", "certified-rank"}
    assert {name for name, kind in DEFENCES.items() if kind.lower == "measured"} >= {"act", "hm", "ca-tride"}
    parts = [{"name": "act", "eps": 0.1}, {"name": "certified-margin", "eps": 0.1}]
    mixed = parse({"defence": {"name": "mixed", "parts": parts, "weights": [1, 1]}})
    assert build_defence(mixed.defence, 3).lower == "never"
