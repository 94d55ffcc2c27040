"""One attacked picture: inside its threat as 8 bits, measured by the deployed search, refused where it must be."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from noisy_circle import HOW, make
from PIL import Image
from torch import nn

from holdfast.attacks import OBJECTIVES, Settings
from holdfast.certificate import Radius, Verdict
from holdfast.data import decode
from holdfast.data.encode import jpeg, png
from holdfast.errors import ConfigError, DataError, GalleryError
from holdfast.gallery import EmbedderInfo, Gallery, Hit, Hits, attacking
from holdfast.gallery.attacking import attack_picture, contradicted, places_of
from holdfast.gallery.found import Found, find
from holdfast.gallery.searching import search
from holdfast.gallery.stores.base import ChangedError
from holdfast.goals import GOALS, Place, Result, parse_goal
from holdfast.models import Foreign, wrap
from holdfast.report import attack_page
from holdfast.spec import ImageSpec
from holdfast.threat import Threat
from holdfast.workflow import attack, index

SPEC = ImageSpec(3, 8, 8)
THREAT = Threat.parse("linf:16/255")
QUICK = Settings(steps=20)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photo")
    rng = np.random.default_rng(0)
    for i in range(30):
        path = folder / "pictures" / "ab"[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(90, 160, (8, 8, 3), dtype=np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def embedder():
    torch.manual_seed(0)
    return wrap(nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), SPEC)


@pytest.fixture(scope="module")
def gallery(place, embedder):
    with index(embedder, place / "pictures", place / "g.gallery") as opened:
        yield opened


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(5).integers(90, 160, (3, 8, 8), dtype=np.uint8)


def searched(gallery, embedder, pixels, k=30):
    return gallery.nearest(embedder.embed(pixels[None]).numpy(), k)[0].hits


def rank_of(gallery, embedder, pixels, item):
    return next(hit.rank for hit in searched(gallery, embedder, pixels) if hit.id == item)


@pytest.mark.parametrize("name", [*GOALS, "lower", "raise"])
def test_the_saved_picture_is_allowed_and_does_what_is_said(gallery, embedder, pixels, name, tmp_path):
    first = searched(gallery, embedder, pixels)
    item = {"pull-in": first[20].id, "raise": first[20].id, "lower": first[0].id}.get(name)
    text = f"{name}:{item}" if item else name
    done = attack_picture(gallery, embedder, pixels, goal=text, threat=THREAT, settings=QUICK)
    assert np.abs(done.altered.astype(int) - pixels).max() <= 16
    done.save(tmp_path / "altered.png")
    assert (decode((tmp_path / "altered.png").read_bytes(), None) == done.altered).all()
    saved = decode(png(done.altered), SPEC)
    forms = {form.form: form for form in done.forms}
    assert list(forms) == ["clean", "PNG", "JPEG 95", "JPEG 75"]
    assert forms["clean"].rank == rank_of(gallery, embedder, pixels, done.followed)
    assert forms["PNG"].rank == rank_of(gallery, embedder, saved, done.followed)
    assert forms["JPEG 75"].rank == rank_of(
        gallery, embedder, decode(jpeg(done.altered, 75), SPEC), done.followed
    )
    assert {move.id: move.after for move in done.moves} == {
        move.id: rank_of(gallery, embedder, saved, move.id) for move in done.moves
    }
    before, after = forms["clean"].rank, forms["PNG"].rank
    if done.goal.name == "pull-in":
        assert (before, after) == (21, 1)
        assert done.after.hits[0].id == item
    elif done.goal.name == "push-out":
        assert done.target == first[0].id
        assert before == 1
        assert after > 15
    elif name == "misrank":
        assert done.before.hits[0].label != done.after.hits[0].label
    assert forms["PNG"].shift > 0.05
    assert done.held
    left = {hit.id for hit in done.before.hits} - {hit.id for hit in done.after.hits}
    assert set(done.removed) == left
    if name == "replace":
        assert done.reached == (len(left) == 10)
        assert len(left) > 5
    elif name == "shift":
        assert done.reached is None
    else:
        assert done.reached
        assert f"Goal {done.goal.name}" in done.sentences()[0]


def test_replace_gets_a_whole_list_replaced(gallery, embedder, pixels):
    done = attack_picture(gallery, embedder, pixels, goal="replace", threat=THREAT, k=3, settings=QUICK)
    assert done.reached
    assert len(done.removed) == 3


@pytest.mark.parametrize("goal", GOALS.values(), ids=GOALS)
def test_every_goal_fits_its_objective(goal):
    needs = OBJECTIVES[goal.objective].needs
    assert OBJECTIVES[goal.objective].alters == "query"
    assert goal.labels == ("labels" in needs)
    assert (goal.about != "query") == ("targets" in needs)
    assert all(parse_goal(f"{old}:x" if goal.about == "item" else old)[0] is goal for old in goal.aliases)


@pytest.mark.parametrize(
    ("goal", "place", "firsts", "reached"),
    [
        ("push-out", Place(4, 3, 4), (), False),
        ("push-out", Place(4, 4, 4), (), True),
        ("pull-in", Place(3, 3, 4), (), False),
        ("pull-in", Place(2, 1, 3), (), True),
        ("replace", Place(4, 3, 4), (), False),
        ("replace", Place(5, 4, 6), (), True),
        ("misrank", Place(1, 1, 1), ("b", "a"), False),
        ("misrank", Place(1, 1, 1), ("b", "c"), True),
        ("misrank", Place(1, 1, 1), (), False),
        ("shift", Place(1, 1, 1), ("b",), None),
    ],
)
def test_ties_count_against_who_says_that_a_goal_was_reached(goal, place, firsts, reached):
    assert GOALS[goal].reached(Result(3, (place,), "a", firsts)) is reached


def test_ties_are_ranked_as_a_search_ranks_them(tmp_path):
    with Gallery.create(tmp_path / "g", dim=2, embedder=EmbedderInfo("0" * 64)) as gallery:
        rows = np.array([[1, 0], [0, 1], [1, 0], [0, -1], [2, 0], [0.5, 0]], dtype=np.float32)
        gallery.add(list("badcfe"), rows)
        every = {hit.id: hit.rank for hit in gallery.nearest(np.zeros(2), 6)[0].hits}
        here = Found(Hits("q", ()), np.zeros(2, dtype=np.float32), None, 0.0)
        places = places_of(gallery, here, list("abcdef"))
        assert {id: place.rank for id, place in places.items()} == every
        assert {(place.best, place.worst) for place in places.values()} == {(1, 1), (2, 5), (6, 6)}


def test_an_attack_that_removes_what_is_not_certified_breaks_it(gallery, embedder, pixels):
    done = attack_picture(gallery, embedder, pixels, threat=THREAT, k=3, settings=QUICK)
    verdicts = {hit.id: hit.certificate.verdict for hit in done.before.hits}
    assert done.removed
    assert {id for id, verdict in verdicts.items() if verdict == Verdict.BROKEN} == set(done.removed)
    small = attack_picture(gallery, embedder, pixels, threat=Threat.parse("linf:0"), k=3, settings=QUICK)
    assert small.before.answer.certified == 3
    assert "Held: all 3" in " ".join(small.sentences())
    quiet = attack_picture(gallery, embedder, pixels, threat=THREAT, k=3, settings=QUICK, certify=False)
    assert not quiet.before.answer.certificates
    assert (quiet.altered == done.altered).all()


@pytest.mark.parametrize("claim", ["verdict", "interval"])
def test_a_certificate_that_an_attack_refutes_shows(gallery, embedder, pixels, monkeypatch, claim):
    def boasting(*words, threat=None, **options):
        found = find(*words, threat=threat, **options)
        if threat is None:
            return found
        if claim == "verdict":
            said = [replace(one, verdict=Verdict.CERTIFIED) for one in found.answer.certificates]
        else:
            said = [replace(hit.certificate, worst=hit.rank) for hit in found.hits]
        return replace(found, answer=found.answer.proved(found.answer.proof, said))

    monkeypatch.setattr(attacking, "find", boasting)
    done = attack_picture(gallery, embedder, pixels, threat=THREAT, k=3, settings=QUICK)
    assert done.before.hits[0].id in done.contradicted
    assert not done.held
    assert "ERROR" in done.sentences()[1]
    assert "ERROR" in attack_page(done, "photo", lambda path: None, "g.gallery")


@pytest.mark.parametrize(
    ("verdict", "threat", "held"),
    [
        (Verdict.ABSTAIN, "l2:0.05", True),
        (Verdict.UNKNOWN, "l2:0.05", False),
        (Verdict.UNKNOWN, "l2:0.2", True),
        (Verdict.UNKNOWN, "linf:0.005", False),
        (Verdict.UNKNOWN, "linf:0.05", True),
    ],
)
def test_a_smoothed_search_breaks_only_what_it_promised(verdict, threat, held):
    def found(id, verdict):
        radius = Radius(0.1, 0.01, 0.001, threat=Threat.parse("l2:auto"), k=1, verdict=verdict)
        answer = Hits("q", (Hit(1, id, 0.5, certificate=radius),))
        return Found(answer, np.zeros(2, dtype=np.float32), None, 0.0)

    wrong = contradicted(
        found("a", Verdict.CERTIFIED), found("b", verdict), {"a": Place(2, 2, 2)}, Threat.parse(threat)
    )
    assert wrong == ([] if held else ["a"])


@pytest.mark.parametrize("rule", ["mean", "votes"])
def test_a_smoothed_gallery_is_attacked_and_measured_as_it_is_searched(tmp_path, rule):
    """The embedder of `noisy_circle` as a torch module: images only turn."""

    class Turning(nn.Module):
        def forward(self, images):
            angle = images.flatten(1).sum(1) / 4
            return torch.stack([angle.cos(), angle.sin()], 1)

    base = wrap(Turning(), ImageSpec(1, 4, 4), unit_norm=True)
    gallery, smooth = make(
        tmp_path / "g", base, np.array([1.0, 1.6, 2.9, -1.0]), ["a", "b", "b", "b"], replace(HOW, rule=rule)
    )
    pixels = np.full((1, 4, 4), 64, dtype=np.uint8)
    with gallery:
        done = attack_picture(
            gallery, smooth, pixels, goal="misrank", threat=Threat.parse("l2:0.6"), k=1, noise=3,
            settings=QUICK,
        )  # fmt: skip
        for found, shown, eps in ((done.before, pixels, 0.6), (done.after, done.altered, None)):
            asked = None if eps is None else Threat("l2", eps)
            again = search(gallery, smooth, shown.astype(np.float32) / 255, 1, seed=3, certify=asked)
            assert [hit.id for hit in again] == [hit.id for hit in found.hits]
            assert [hit.distance for hit in again] == [hit.distance for hit in found.hits]
            assert abs(found.hits[0].distance - np.linalg.norm(found.vector - own(gallery, found))) < 1e-9
    assert done.before.hits[0].id == "c000"
    assert done.reached
    assert done.after.hits[0].label == "b"
    assert [one.verdict for one in done.before.answer.certificates] == [Verdict.BROKEN]
    assert done.held
    # The clean picture's vector has length 1, a mean of noisy copies is shorter.
    assert np.linalg.norm(done.after.vector) < 0.99


def own(gallery, found):
    return gallery.vectors([found.hits[0].id])[0].astype(np.float64)


def test_a_change_meanwhile_ends_it_unless_one_state_is_held(place, embedder, pixels, monkeypatch, tmp_path):
    with index(embedder, place / "pictures", tmp_path / "own.gallery") as own:
        first = searched(own, embedder, pixels)[0].id
        plain = attacking.access_to

        def meddling(embedder):
            with Gallery.open(tmp_path / "own.gallery") as other:
                other.remove([first])
            return plain(embedder)

        monkeypatch.setattr(attacking, "access_to", meddling)
        with own.snapshot():
            done = attack_picture(own, embedder, pixels, threat=Threat.parse("linf:0"), settings=QUICK)
        assert done.held
        assert all(move.before == move.after for move in done.moves)
        assert len(own) == 29
        first = searched(own, embedder, pixels)[0].id
        with pytest.raises(ChangedError, match="during the attack"):
            attack_picture(own, embedder, pixels, threat=Threat.parse("linf:0"), settings=QUICK)


def test_only_the_nearest_are_looked_at_and_all_are_ranked(gallery, embedder, pixels):
    far = searched(gallery, embedder, pixels)[28].id
    done = attack_picture(
        gallery, embedder, pixels, goal=f"pull-in:{far}", threat=THREAT, nearest=5, settings=QUICK
    )
    assert done.forms[0].rank == 29
    assert done.forms[1].rank == rank_of(gallery, embedder, done.altered, far) < 15


def test_jpeg_is_a_real_round_trip(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(buffer, "JPEG", quality=75)
    assert jpeg(pixels, 75) == buffer.getvalue()
    assert (decode(jpeg(pixels, 75), None) != pixels).any()


def test_a_black_box_can_be_attacked(place, pixels):
    torch.manual_seed(0)
    linear = nn.Linear(192, 6)
    black = Foreign(lambda x: linear(x.flatten(1)).detach().numpy(), SPEC, name="linear")
    with index(black, place / "pictures", place / "black.gallery") as gallery:
        item = searched(gallery, black, pixels)[20].id
        done = attack(gallery, black, pixels, f"pull-in:{item}", THREAT, settings=Settings(budget=600))
        assert done.forms[1].rank < 8
        with pytest.raises(ConfigError, match="use nes or spsa"):
            attack(gallery, black, pixels, "shift", THREAT, settings=Settings(optimiser="pgd"))


def test_bad_goals(gallery, embedder, pixels, tmp_path):
    for goal, threat, error, says in (
        ("pull-in:nothing", "linf:0.1", GalleryError, "no item 'nothing'"),
        ("raise:", "linf:0.1", ConfigError, "pull-in needs an item: say which, as pull-in:ITEM_ID"),
        ("misrank:x", "linf:0.1", ConfigError, "about no single item"),
        (
            "destroy",
            "linf:0.1",
            ConfigError,
            r"unknown goal 'destroy'; known: misrank, pull-in:ITEM_ID, push",
        ),
        ("shift", "candidates:linf:0.1", ConfigError, "alters the query"),
        ("shift", "linf:auto", ConfigError, "needs a number"),
        ("shift", "l2:30", ConfigError, "whole image domain"),
    ):
        with pytest.raises(error, match=says):
            attack(gallery, embedder, pixels, goal, threat, settings=QUICK)
    with pytest.raises(ConfigError, match="no item of the gallery is of class 'z'"):
        attack(gallery, embedder, pixels, "misrank", THREAT, label="z", settings=QUICK)
    with pytest.raises(DataError, match="8 bits"):
        attack(gallery, embedder, pixels / 255.0, "shift", THREAT)
    done = attack(gallery, embedder, pixels, "shift", THREAT, settings=Settings(steps=1))
    with pytest.raises(ConfigError, match=r"saved as \.png"):
        done.save(tmp_path / "altered.jpg")
    assert list(tmp_path.iterdir()) == []


def test_misrank_needs_labels(place, embedder, pixels, tmp_path):
    with (
        index(embedder, place / "pictures" / "a", tmp_path / "flat.gallery") as flat,
        pytest.raises(ConfigError, match="needs a gallery with labels"),
    ):
        attack_picture(flat, embedder, pixels, goal="misrank", threat=THREAT, settings=QUICK)


def test_an_empty_gallery_is_refused(embedder, place, pixels, tmp_path):
    with index(embedder, place / "pictures", tmp_path / "g.gallery") as gallery:
        gallery.remove(list(gallery.ids()))
        with pytest.raises(ConfigError, match="is empty"):
            attack_picture(gallery, embedder, pixels, threat=THREAT)


def test_before_is_certified_as_a_search_certifies(gallery, embedder, pixels):
    small = Threat.parse("linf:1/255")
    done = attack_picture(gallery, embedder, pixels, threat=small, k=5, settings=QUICK)
    alone = search(gallery, embedder, pixels, 5, certify=small)
    kept = {hit.id: hit.certificate.verdict for hit in alone if hit.id not in done.removed}
    assert kept == {hit.id: hit.certificate.verdict for hit in done.before.hits if hit.id in kept}


def test_the_page_shows_both_pictures_and_their_difference(gallery, embedder, pixels):
    done = attack_picture(gallery, embedder, pixels, goal="shift", threat=THREAT, k=3, settings=QUICK)
    page = attack_page(done, "<b>x</b>", lambda path: None, "g.gallery")
    assert page.count("data:image/") == 5
    assert "difference ×" in page
    assert "<b>x</b>" not in page
    assert "to move the query" in page
    assert "moved the vector by" in page
    assert "after JPEG 75 rank" in page
