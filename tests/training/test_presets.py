"""Presets: one registry, which brings a defence or is for some, and goes behind what is given by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import train, training
from holdfast.errors import ConfigError
from holdfast.presets import PRESETS, in_words, settings
from holdfast.spec import ImageSpec
from holdfast.training import parse, under
from holdfast.training.defences import build_defence
from reproduction import read_plan

ROOT = Path(__file__).parents[2]
SMALL, LARGE = ImageSpec(1, 28, 28), ImageSpec(3, 224, 224)


@pytest.mark.parametrize(
    ("name", "defence"), [(name, defence) for name in PRESETS for defence in (*PRESETS[name].defences, None)]
)
def test_every_preset_is_a_config_for_each_of_its_defences(name, defence):
    preset = PRESETS[name]
    if defence is None and preset.brings is None:
        with pytest.raises(ConfigError, match=f"the preset {name} brings no defence of its own; name one of"):
            settings(name, None, SMALL)
        return
    table = settings(name, defence, SMALL)
    config = parse(table)
    assert config.defence.name == (defence or preset.brings)
    # Its steps reach as far as eps allows: an adversary that stops on the way is none.
    for part in getattr(config.defence, "parts", [config.defence]):
        if hasattr(part, "attack_steps"):
            made = build_defence(part, 3)
            assert made.step * part.attack_steps >= 0.999 * part.eps
    table["train"]["batch"] = 1
    assert settings(name, defence, SMALL)["train"]["batch"] != 1, "the registry is not changed by its users"
    pixels = settings(name, defence, LARGE).get("data", {}).get("image_size")
    assert pixels == preset.most_pixels


def test_what_a_preset_is_not_for_is_refused():
    with pytest.raises(ConfigError, match="unknown preset 'lab'; known: laptop"):
        settings("lab", "act", SMALL)
    with pytest.raises(
        ConfigError, match=r"the preset laptop is for .*, not triplet; name one of them \(or none, for act\)"
    ):
        settings("laptop", "triplet", SMALL)
    with pytest.raises(ConfigError, match=r"the preset paper is for .*, not triplet; name one of them$"):
        settings("paper", "triplet", SMALL)


def test_what_is_given_goes_before(tmp_path):
    given = {"data": {"name": "fashion-mnist-mini"}, "defence": {"name": "est"}}
    assert under("laptop", given)["defence"] == {
        "margin": 0.2,
        "attack_steps": 4,
        "start": "kept",
        "name": "est",
    }
    run = train(
        "fashion-mnist-mini",
        tmp_path / "run",
        preset="laptop",
        model={"name": "small"},
        defence={"attack_steps": 1, "eps": 0.1},
        train={"steps": 1, "batch": 16},
    )
    made = training.read_config(tmp_path / "run")
    assert (made.defence.name, made.defence.attack_steps, made.defence.start) == ("act", 1, "kept")
    assert (made.train.batch, made.train.steps, made.train.schedule) == (16, 1, "constant")
    assert made.model.unit_norm
    assert run.outcome.finished


def test_whole_classes_are_held_out_of_a_run(tmp_path):
    data = {"name": "fashion-mnist-mini", "validation": 0.3, "held_out": "classes"}
    said: list[str] = []
    made = parse({"data": data, "train": {"steps": 1, "batch": 16}})
    training.train(made, tmp_path / "run", say=said.append)
    assert "7 classes, for example" in said[1]
    assert "on 5,600 images" in said[2], "of 8,000, in 10 classes"
    held = training.held_out(tmp_path / "run")
    assert len({*held.require_labels("held out").tolist()}) == 3


def test_robust_is_the_recipe_of_its_row():
    (job,) = read_plan(ROOT / "reproduce" / "ca-tride", "full").jobs(only="*-robust-s0")
    table = settings("robust", None, SMALL)
    made, row = parse(table), parse(job.config)
    assert made.defence == row.defence
    assert made.train == row.train
    assert (made.model, made.seed) == (row.model, row.seed)


def test_help_and_docs_are_those_of_the_registry():
    page = (ROOT / "docs" / "training.md").read_text()
    help_ = " ".join((ROOT / "docs" / "cli.md").read_text().split())
    assert in_words() in help_
    for name, preset in PRESETS.items():
        assert f"| `{name}` | {preset.about} |" in page


def test_a_length_that_is_given_takes_the_place_of_the_preset_s():
    """A budget of gradients and a number of steps do not stand side by side."""
    given = {"data": {"name": "fashion-mnist-mini"}, "train": {"steps": 5}}
    assert not {"gradients", "epochs"} & set(under("robust", given)["train"])
    assert under("robust", {"data": given["data"]})["train"]["gradients"] == 11_000_000
