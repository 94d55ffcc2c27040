"""What a certificate says of itself: whom it protects, in which words, and what an attack makes of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from holdfast.certificate import BoundsProof, Effort, Radius, RankInterval, SamplingProof, Verdict
from holdfast.gallery import Hit, Hits
from holdfast.threat import Threat


def interval(threat="linf:0.1", verdict=Verdict.CERTIFIED, eps=0.1):
    return RankInterval(1, 3, eps, threat=Threat.parse(threat), k=5, verdict=verdict)


def radius(threat="l2:auto", verdict=Verdict.CERTIFIED, reason="", **more):
    return Radius(0.2, 0.01, 0.001, threat=Threat.parse(threat), k=5, verdict=verdict, reason=reason, **more)


@pytest.mark.parametrize("make", [interval, radius])
def test_only_what_is_certified_is_promised(make):
    attack = Threat.parse("l2:0.01")
    assert make().promises(attack)
    for verdict in (Verdict.UNKNOWN, Verdict.ABSTAIN, Verdict.BROKEN):
        assert not make(verdict=verdict).promises(attack)
    assert not make().promises(Threat.parse("l2:auto"))


@pytest.mark.parametrize(
    ("proved", "attack", "held"),
    [
        ("linf:0.1", "linf:0.1", True),
        ("linf:0.1", "linf:0.11", False),
        ("linf:0.1", "l2:0.1", True),
        ("linf:0.1", "candidates:linf:0.1", False),
        ("linf:0.1", "both:linf:0.1", False),
        ("both:linf:0.1", "linf:0.1", True),
        ("both:linf:0.1", "candidates:linf:0.1:m=3", True),
        ("candidates:linf:0.1", "candidates:linf:0.1:m=3", True),
        ("candidates:linf:0.1:m=3", "candidates:linf:0.1:m=3", True),
        ("candidates:linf:0.1:m=3", "candidates:linf:0.1:m=4", False),
        ("candidates:linf:0.1:m=3", "candidates:linf:0.1", False),
        ("candidates:linf:0.1", "linf:0.1", False),
    ],
)
def test_a_rank_interval_promises_what_its_threat_holds(proved, attack, held):
    assert interval(proved).promises(Threat.parse(attack)) is held


def test_a_radius_promises_an_altered_query_in_either_norm():
    for attack, held in (("l2:0.2", True), ("l2:0.21", False), ("linf:0.01", True), ("linf:0.02", False)):
        assert radius().promises(Threat.parse(attack)) is held
    assert not radius().promises(Threat.parse("candidates:linf:0.01"))


def test_an_attack_that_is_shown_breaks_a_certificate():
    for one in (interval(verdict=Verdict.UNKNOWN), radius(verdict=Verdict.ABSTAIN)):
        broken = one.broken()
        assert broken.verdict == Verdict.BROKEN
        assert broken.sentence() == "An attack is shown that removes this from the first 5."
        assert "BROKEN" in broken.lines()
        assert "BROKEN" in broken.columns().values()
        assert replace(broken, verdict=one.verdict, reason=one.reason) == one
    assert interval().broken().columns()["stays in top 5"] == "no"


def test_what_is_certified_is_said_with_its_size_and_picture():
    assert interval("both:linf:1/10").sentence() == (
        "However each pixel of the query and every candidate, as the network sees it, is altered by up to 1/10, "
        "this stays among the first 5."
    )
    found = replace(interval("linf:auto", eps=0.0123456), picture="file").sentence()
    assert (
        found
        == "However each pixel of the query file is altered by up to 0.0123, this stays among the first 5."
    )
    assert "altered by less than 0.2000 in l2" in radius().sentence()
    assert interval(verdict=Verdict.UNKNOWN).sentence().startswith("The bounds allow any rank from 1 to 3")
    assert interval("linf:auto", Verdict.UNKNOWN, None).sentence().startswith("The bounds prove no size")
    assert radius(verdict=Verdict.ABSTAIN, reason="too close").sentence() == "Too close."


def test_a_proof_is_wrong_with_what_probability():
    assert (interval().failure_probability, radius().failure_probability) == (0.0, 0.001)


def test_json_has_the_fields_of_hit_certificate_and_proof():
    threat = Threat.parse("linf:auto")
    proof = BoundsProof(threat=threat, k=5, examined=2, candidates=9, effort=Effort(1, 0.5, 0, 0.1))
    unproved = replace(interval("linf:auto"), eps=None, verdict=Verdict.UNKNOWN)
    hits = Hits("q.png", (Hit(1, "a", 0.5, "shoe"),)).proved(proof, [unproved])
    found = json.loads(hits.to_json())
    assert found["threat"] == "query:linf:auto"
    assert (found["examined"], found["candidates"], found["effort"]["by_intervals"]) == (2, 9, 0)
    (hit,) = found["hits"]
    assert (hit["id"], hit["label"], hit["best"], hit["worst"], hit["eps"]) == ("a", "shoe", 1, 3, None)
    assert "certificate" not in hit
    assert json.loads(Hits("q", (Hit(1, "a", 0.5),)).to_json()) == {
        "query": "q",
        "hits": [{"rank": 1, "id": "a", "distance": 0.5, "label": None, "path": None, "tied": False}],
    }


def test_a_table_has_a_line_for_each_hit_and_what_holds_for_all():
    threat = Threat.parse("l2:0.1")
    proof = SamplingProof(threat=threat, k=2, sigma=0.25, alpha=0.01, samples=400, rule="votes", seed=7)
    certificates = [radius("l2:0.1", share=0.9), radius("l2:0.1", Verdict.ABSTAIN, "too close", share=0.1)]
    hits = Hits("q.png", (Hit(1, "a", 0.5, tied=True), Hit(2, "b", 0.5, tied=True))).proved(
        proof, certificates
    )
    title, header, first, second, *notes = hits.table().splitlines()
    assert title == "q.png, by votes of copies with noise of 0.25, asked for l2:0.1"
    assert header.split() == [
        "#",
        "id",
        "label",
        "distance",
        "votes",
        "stays",
        "in",
        "top",
        "5",
        "to",
        "l2",
        "verdict",
    ]
    assert first.split() == ["1", "a", "0.5000", "tied", "90.0%", "0.2000", "CERTIFIED"]
    assert second.endswith("ABSTAIN    too close")
    assert notes[-1] == "400 samples (seed 7); all of this is wrong with probability at most 0.01"
    assert (len(hits), hits[0].id, hits.certified, [hit.rank for hit in hits]) == (2, "a", 1, [1, 2])


def test_html_escapes_what_others_wrote():
    page = Hits("<q>", (Hit(1, "<script>", 0.5, "<b>"),)).html()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<b>&lt;q&gt;</b>" in page
