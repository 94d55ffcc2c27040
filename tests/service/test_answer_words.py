"""The sentences of the service, and the tables and pages of a search: a proven size is shown floored everywhere."""

from __future__ import annotations

from holdfast.certify import Verdict
from holdfast.cli.search import print_proved, print_smoothed_hits
from holdfast.gallery import Hit
from holdfast.gallery.certified import CertifiedHit, CertifiedHits
from holdfast.gallery.smoothed import SmoothedHit, SmoothedHits
from holdfast.report.hits import hits_page
from holdfast.service.answers import QueryState, search_answer
from holdfast.service.engine import Outcome
from holdfast.threat import Threat

SIZE = 0.00537109375
HIT = Hit(1, "shoe", 0.5)
PROVED = CertifiedHits(
    "photo.png", Threat.parse("linf:auto"), (CertifiedHit(HIT, 1, 1, Verdict.CERTIFIED, SIZE),), 1, 5
)
SMOOTH = SmoothedHits(
    "photo.png",
    (SmoothedHit(HIT, Verdict.CERTIFIED, SIZE, SIZE / 28),),
    0.25,
    0.001,
    100,
    label="shoe",
    label_radius=SIZE,
)


def test_a_proven_size_is_not_rounded_up(capsys):
    query = QueryState(name="photo.png", digest=None, id=None, image=None)
    shown = [hits_page([found], [None], lambda _: None, "shop.gallery") for found in (PROVED, SMOOTH)]
    for found, threat in ((PROVED, "linf:auto"), (SMOOTH, "l2:auto")):
        outcome = Outcome(found, 1, 3, 5, Threat.parse(threat))
        shown.append(search_answer(outcome, query, "shop").hits[0].reason)
    print_proved(PROVED)
    shown.append(capsys.readouterr().out)
    print_smoothed_hits(SMOOTH)
    shown.append(capsys.readouterr().out)
    for text in shown:
        assert "0.0053" in text
        assert "0.0054" not in text
