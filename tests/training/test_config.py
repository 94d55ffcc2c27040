from __future__ import annotations

import tomllib

import pytest

from holdfast.errors import ConfigError
from holdfast.training.config import differences, merge, parse, read_toml


def test_round_trip_through_toml():
    config = parse(
        {"seed": 3, "defence": {"name": "margin", "beta": 0.6}, "train": {"steps": 5, "milestones": [0.5]}}
    )
    assert parse(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"trian": {}}, "unknown config key 'trian'; known here: data, defence, model, seed, train"),
        ({"train": {"epoch": 3}}, "unknown config key 'train.epoch'; known here: average,"),
        (
            {"defence": {"name": "triplet", "beta": 3}},
            "unknown config key 'defence.beta'; known here: margin",
        ),
        ({"defence": {"name": "nothing"}}, "unknown defence 'nothing'; known: act"),
        ({"train": {"lr": -1}}, "config key 'train.lr': input should be greater than 0, found -1"),
        ({"train": {"epochs": float("inf")}}, "config key 'train.epochs'"),
        ({"defence": {"name": [1]}}, "unknown defence '[1]'"),
        ({"train": {"batch": "many"}}, "config key 'train.batch'"),
    ],
)
def test_bad_settings_are_one_line(table, said):
    with pytest.raises(ConfigError) as error:
        parse(table)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_merge_lays_changes_over():
    base = {"seed": 1, "train": {"lr": 0.1, "batch": 4}}
    assert merge(base, {"train": {"lr": 0.2, "steps": None}, "data": {}}) == {
        "seed": 1,
        "train": {"lr": 0.2, "batch": 4},
    }


def test_differences_name_keys_and_values():
    one, other = parse({}), parse({"seed": 1, "train": {"lr": 0.5}})
    assert differences(one, other) == ["seed (0 there, 1 asked)", "train.lr (0.001 there, 0.5 asked)"]
    assert differences(other, one) == [], "what was not set is not asked for"


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="no config file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = [")
    with pytest.raises(ConfigError, match="not a readable TOML"):
        read_toml(tmp_path / "bad.toml")
