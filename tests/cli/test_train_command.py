"""`holdfast train` where the machine, the budget or the preset does not fit: one line, and nothing half-written."""

from __future__ import annotations

import json
import re

import pytest
from command import here

from holdfast.rows import read_header
from holdfast.training import arithmetic, loop

SMALL = ("--data", "fashion-mnist-mini", "--model", "small", "--defence", "act", "--threat", "linf:0.05")
QUICK = ("--batch", 16, "--set", "defence.attack_steps=1", "--set", "data.validation=0")


@pytest.fixture
def faster(monkeypatch):
    """Says how many times as fast bfloat16 is here."""
    return lambda gain: monkeypatch.setattr(arithmetic, "speed_up", lambda *rest: gain)


def test_bfloat16_where_it_is_slower_is_done_and_the_ratio_is_said(faster, tmp_path):
    faster(1 / 35)
    done = here("train", *SMALL, *QUICK, "--steps", 1, "--precision", "bfloat16", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert "bfloat16 is 35.0 times as slow as float32 on this machine; training in it, as asked" in done.err
    assert json.loads((tmp_path / "run" / "card.json").read_text())["precision"] == "bfloat16@0"


def test_a_run_goes_on_in_another_precision_only_if_it_is_asked_for(faster, tmp_path, monkeypatch):
    run, words = tmp_path / "run", ("train", *SMALL, *QUICK, "--steps", 3)
    faster(3.0)

    class Killed(Exception):
        pass

    def killed(path, *rest):
        before(path, *rest)
        if rest[-1]["step"] == 2:
            raise Killed

    before = loop.save_state
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_state", killed)
        with pytest.raises(Killed):
            here(*words, "--set", "train.checkpoint_seconds=0", "--out", run)
    faster(1 / 4)
    log = (run / "log.jsonl").read_text()
    done = here("train", "--out", run)
    assert done.code == 2
    (said,) = re.findall(r"error: (.*)", done.err)
    assert "begun in bfloat16, and float32 is 4.0 times as fast here: another kind of machine" in said
    assert "train.precision=float32 or bfloat16" in said
    assert (run / "log.jsonl").read_text() == log
    assert not (run / "card.json").exists()
    done = here("train", "--out", run, "--precision", "float32")
    assert done.code == 0, done.err
    assert "from step 2 on in float32 instead of bfloat16: the result is not the same to the bit" in done.err
    assert json.loads((run / "card.json").read_text())["precision"] == "bfloat16@0 float32@2"
    done = here("evaluate", run, "--queries", 5, "--candidates", 20)
    assert done.code == 0, done.err
    (rows,) = run.glob("evaluations/*/rows.csv.gz")
    assert read_header(rows)["trained_in"] == "bfloat16@0 float32@2"


def test_more_pgd_steps_than_the_budget_allows_is_said_before_it_starts(tmp_path):
    run = tmp_path / "run"
    done = here(
        "train", *SMALL, "--batch", 16, "--set", "defence.attack_steps=100", "--gradients", 1600, "--out", run
    )
    assert done.code == 2
    assert "a step of 16 images takes 1,624 image gradients, more than the budget of 1,600" in done.err
    assert "lower defence.attack_steps" in done.err
    assert not run.exists()
    done = here("train", *SMALL, *QUICK, "--gradients", 130, "--out", run)
    assert done.code == 0, done.err
    assert "3 steps of 16, 120 image gradients" in done.err, (
        "8 pairs, 2 images of each in one step, 3 in the loss"
    )


def test_a_preset_brings_its_defence(tmp_path):
    words = ("train", "--data", "fashion-mnist-mini", "--model", "small", "--preset", "laptop", "--steps", 1)
    done = here(*words, "--threat", "linf:0.1", *QUICK, "--out", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    made = json.loads(done.out)["card"]["config"]
    assert (made["defence"]["name"], made["defence"]["eps"], made["defence"]["start"]) == ("act", 0.1, "kept")
    assert (made["defence"]["attack_steps"], made["train"]["batch"]) == (1, 16), "given by hand"
    for wrong, said in (
        (("--preset", "lab"), "unknown preset 'lab'; known: laptop"),
        (("--preset", "laptop", "--defence", "margin"), "the preset laptop is for "),
        (("--preset", "paper"), "the preset paper brings no defence of its own; name one of "),
    ):
        done = here("train", "--data", "fashion-mnist-mini", *wrong, "--out", tmp_path / "none")
        assert done.code == 2
        assert said in done.err
        assert not (tmp_path / "none").exists()
