"""Live attacks: allowed as 8 bits, ranks exact, certified hits held."""

from __future__ import annotations

import base64
import time

import httpx
import numpy as np
import pytest
from serving import ask, png, problem, serving

from holdfast.certificate import Verdict
from holdfast.data import decode, fitted
from holdfast.gallery import Gallery, attacking
from holdfast.gallery.made_by import open_with_embedder
from holdfast.goals import GOALS
from holdfast.service.attacking import attack
from holdfast.service.engine import Engine
from holdfast.service.limits import Limits
from holdfast.threat import Threat


def pixels_of(url):
    kind, _, text = url.partition(",")
    assert kind == "data:image/png;base64"
    return decode(base64.b64decode(text), None)


@pytest.mark.parametrize(
    ("goal", "threat"), [("push-out", "linf:32/255"), ("qa-", "l2:1.5"), ("shift", "linf:4/255")]
)
def test_the_picture_is_altered_within_the_threat_and_measured_exactly(client, shop, goal, threat):
    content = shop.picture(7)
    done = ask(client, content, path="attack", threat=threat, goal=goal, k=5, steps=10).json()
    clean, altered = decode(content, None).astype(float), pixels_of(done["altered"]).astype(float)
    change = altered - clean
    assert np.abs(change).max() > 0
    if threat.startswith("linf"):
        assert np.abs(change).max() <= int(threat[5:-4])
        assert done["before"]["threat"] == f"query:{threat}"
        assert done["before"]["hits"][0]["verdict"] is not None
    else:
        assert np.linalg.norm(change / 255) <= 1.5 + 1e-6
        assert done["before"]["threat"] is None
    shown = pixels_of(done["difference"]).astype(float)
    assert np.abs(shown - (128 + done["amplify"] * change)).max() <= 0.51
    gallery, embedder = open_with_embedder(shop.gallery, shop.model)
    with gallery:
        vector = embedder.embed(pixels_of(done["altered"])[None]).numpy()
        every = {hit.id: hit.rank for hit in gallery.nearest(vector, 60)[0].hits}
    assert {move["id"]: move["after"] for move in done["moves"]} == {
        hit["id"]: every[hit["id"]] for hit in done["before"]["hits"]
    }
    assert [hit["id"] for hit in done["after"]["hits"]] == list(every)[:5]
    if goal == "shift":
        assert done["reached"] is None
    else:
        assert done["goal"] == "push-out"
        assert done["reached"] == (done["moves"][0]["after"] > 5)
        assert done["moves"][0]["after"] > 1
        assert done["target"] == done["before"]["hits"][0]["id"]


def test_a_chosen_item_is_raised(client, shop):
    far = ask(client, shop.picture(7), k=60).json()["hits"][40]["id"]
    done = ask(
        client,
        shop.picture(7),
        path="attack",
        threat="linf:0.2",
        goal="pull-in",
        target=far,
        k=3,
        steps=20,
    ).json()
    move = done["moves"][-1]
    assert (move["id"], move["before"]) == (far, 41)
    assert move["after"] < 20


def test_the_old_name_and_words_of_goals_are_understood(client, shop):
    done = ask(
        client, shop.picture(7), path="attack", threat="linf:8/255", objective="gtm", k=2, steps=2
    ).json()
    assert (done["goal"], done["objective"]) == ("misrank", "gtm")


def test_what_was_not_certified_and_left_is_broken(client, shop):
    done = ask(
        client, shop.picture(7), path="attack", threat="linf:32/255", goal="replace", k=3, steps=20
    ).json()
    left = {hit["id"] for hit in done["before"]["hits"]} - {hit["id"] for hit in done["after"]["hits"]}
    assert left
    for hit in done["before"]["hits"]:
        assert (hit["verdict"] == "BROKEN") == (hit["id"] in left)
        assert ("An attack is shown" in hit["reason"]) == (hit["id"] in left)
    assert done["held"]
    assert done["contradicted"] == []


def test_the_status_says_which_goals_there_are(client):
    goals = {goal["name"]: goal for goal in client.get("/api/v1/status").json()["goals"]}
    assert list(goals) == list(GOALS)
    assert goals["pull-in"]["about"] == "item"
    assert goals["misrank"]["labels"]


def test_another_class_comes_first(client, shop):
    done = ask(client, shop.picture(7), path="attack", threat="linf:0.3", goal="misrank", k=1, steps=20)
    assert done.json()["before"]["hits"][0]["label"] != done.json()["after"]["hits"][0]["label"]


@pytest.mark.parametrize("number", [1, 20, 41])
def test_what_is_certified_holds(client, shop, number):
    done = ask(client, shop.picture(number), path="attack", threat="linf:1/255", k=2, steps=20).json()
    certified = [hit["id"] for hit in done["before"]["hits"] if hit["verdict"] == "CERTIFIED"]
    assert certified
    assert done["held"]
    assert set(certified) <= {hit["id"] for hit in done["after"]["hits"]}


def test_an_item_is_not_pushed_from_itself(client):
    own = ask(client, png(), k=1).json()["hits"][0]["id"]
    done = ask(client, None, path="attack", id=own, threat="linf:0.05", k=3, steps=5).json()
    assert done["before"]["hits"][0]["id"] == own
    assert done["target"] == done["before"]["hits"][1]["id"]


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"threat": "candidates:linf:0.1"}, 422, "alters the query"),
        ({"threat": "linf:auto"}, 422, "needs a number"),
        ({"threat": "l2:1000"}, 422, "whole image domain"),
        ({"threat": "l2:inf"}, 422, ""),
        ({"threat": "linf:0.1", "steps": 100_000}, 422, "at most 200 steps"),
        ({"threat": "linf:0.1", "steps": 0}, 422, "steps"),
        ({"threat": "linf:0.1", "goal": "destroy"}, 422, "unknown goal 'destroy'; known: misrank"),
        ({"threat": "linf:0.1", "objective": "destroy"}, 422, "unknown goal"),
        ({"threat": "linf:0.1", "objective": "lower", "goal": "shift"}, 422, "send goal alone"),
        ({"threat": "linf:0.1", "goal": "pull-in"}, 422, "say which"),
        ({"threat": "linf:0.1", "goal": "pull-in:none"}, 404, "no item 'none'"),
        ({"threat": "linf:0.1", "objective": "raise"}, 422, "say which"),
        ({"threat": "linf:0.1", "objective": "raise", "target": "none"}, 404, "no item 'none'"),
        ({"threat": "linf:0.1", "goal": "shift", "target": "x"}, 422, "about no single item"),
    ],
)
def test_attacks_that_cannot_be(client, fields, status, says):
    problem(ask(client, png(), path="attack", **fields), status, says)


def test_an_attack_that_outlives_its_time_really_stops(shop, tmp_path):
    with serving(shop, tmp_path, limits=Limits(seconds=0.6, attack_steps=10**6)) as (client, desk):
        answer = ask(client, png(), path="attack", threat="linf:0.1", steps=10**6)
        problem(answer, 504, "longer than 0.6 seconds")
        for _ in range(100):
            if desk.attacks.gate.inside == 0:
                break
            client.get("/healthz")
        assert desk.attacks.gate.inside == 0
        assert client.get("/healthz").status_code == 200


def test_an_attack_for_someone_who_has_gone_stops(shop, tmp_path):
    with serving(shop, tmp_path, limits=Limits(seconds=600, attack_steps=10**9)) as (client, desk):
        with pytest.raises(httpx.ReadTimeout):
            client.post(
                "/api/v1/attack",
                files={"image": ("q", png())},
                data={"threat": "linf:0.1", "steps": 10**9},
                timeout=0.8,
            )
        for _ in range(600):
            if desk.attacks.gate.inside == 0:
                break
            time.sleep(0.02)
        assert desk.attacks.gate.inside == 0


def test_what_others_remove_meanwhile_breaks_no_certificate(own_shop, monkeypatch):
    engine = Engine.open([str(own_shop.gallery)], [own_shop.model])
    served, found = engine.get(None), []

    plain = attacking.access_to

    def meddling(embedder):
        with Gallery.open(own_shop.gallery) as gallery:
            gallery.remove(found[:1])
        return plain(embedder)

    pixels = decode(own_shop.picture(), None)
    before = served.certified(fitted(pixels, served.embedder.spec), 3, Threat.parse("linf:0"))
    found += [entry.id for entry in before.found.hits if entry.certificate.verdict == Verdict.CERTIFIED]
    monkeypatch.setattr(attacking, "access_to", meddling)
    done = attack(served, pixels, 3, Threat.parse("linf:0"), "shift")
    assert found
    assert done.held
    assert {move.before for move in done.moves} == {1, 2, 3}
    assert all(move.before == move.after for move in done.moves)
    assert served.info().count == 59
    engine.close()
