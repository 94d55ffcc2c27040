"""A new goal, added as CONTRIBUTING says: one entry of `GOALS` reaches command, Python, page and service."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import holdfast
from holdfast.cli import main
from holdfast.goals import GOALS, Goal, goal_rows, goals_in_words, parse_goal
from holdfast.service.app import create_app
from holdfast.service.desk import Desk
from holdfast.service.engine import Engine
from holdfast.service.limits import Limits
from holdfast.service.pictures import QueryStore

MODEL = """
import torch, holdfast
torch.manual_seed(0)
net = holdfast.wrap(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5)), (3, 8, 8))
"""


def swapped(result):
    return all(place.best > 1 for place in result.places)


# What would be an entry of src/holdfast/goals.py.
DETHRONE = Goal("dethrone", "take the first place from a hit", "qa-", swapped, "hit")


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(GOALS, DETHRONE.name, DETHRONE)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    (folder / "model.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    for i in range(20):
        (folder / "photos").mkdir(exist_ok=True)
        Image.fromarray(rng.integers(90, 160, (8, 8, 3), dtype=np.uint8)).save(folder / f"photos/{i:02}.png")
    place = Path(f"{folder}/model.py:net")
    model = holdfast.models.find(str(place))
    holdfast.index(model, folder / "photos", folder / "g.gallery").close()
    return folder


def test_from_python(shop):
    model = holdfast.models.find(f"{shop}/model.py:net")
    with holdfast.open_gallery(shop / "g.gallery") as gallery:
        done = holdfast.attack(
            gallery, model, shop / "photos/03.png", goal="dethrone", threat="linf:0.2", k=3
        )
    assert done.target == "03.png"
    assert done.reached == (done.moves[0].after > 1) is True


def test_from_the_command_line(shop, tmp_path, monkeypatch, capsys):
    words = [
        "attack",
        shop / "g.gallery",
        shop / "photos/03.png",
        "--goal",
        "dethrone",
        "--threat",
        "linf:0.2",
    ]
    words += ["--model", f"{shop}/model.py:net", "--out", tmp_path / "a.png", "--html", tmp_path / "a.html"]
    monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, words), "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    done = json.loads(capsys.readouterr().out)
    assert (done["goal"], done["reached"]) == ("dethrone", True)
    assert "to take the first place from a hit (03.png)" in (tmp_path / "a.html").read_text()


def test_over_http(shop, tmp_path):
    engine = Engine.open([str(shop / "g.gallery")], [f"{shop}/model.py:net"])
    desk = Desk(engine, Limits(), QueryStore(tmp_path / "queries", 2**20))
    try:
        client = TestClient(create_app(desk, None, hosts=["testserver"]))
        told = {goal["name"]: goal for goal in client.get("/api/v1/status").json()["goals"]}
        assert told["dethrone"]["words"] == DETHRONE.words
        assert told["dethrone"]["about"] == "hit"
        fields = {"threat": "linf:0.2", "goal": "dethrone", "k": 3}
        content = (shop / "photos/03.png").read_bytes()
        answer = client.post("/api/v1/attack", files={"image": ("q.png", content)}, data=fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["goal"] == "dethrone"
        assert answer.json()["reached"] == (answer.json()["moves"][0]["after"] > 1)
    finally:
        desk.close()


def test_in_help_and_documentation():
    assert "dethrone[:ITEM_ID] (take the first place from a hit)" in goals_in_words()
    assert goal_rows()[-1]["goal"] == "`dethrone[:ITEM_ID]`"
    assert parse_goal("dethrone:some:id") == (DETHRONE, "some:id")
