"""The sentences of the service, and the tables and pages of a search: a proven size is shown floored everywhere."""

from __future__ import annotations

from holdfast.certificate import BoundsProof, Radius, RankInterval, SamplingProof, Verdict
from holdfast.cli.output import print_hits
from holdfast.gallery import Hit, Hits
from holdfast.report.hits import hits_page
from holdfast.service.answers import QueryState, search_answer
from holdfast.service.engine import Outcome
from holdfast.threat import Threat

SIZE = 0.00537109375
LINF = {"threat": Threat.parse("linf:auto"), "k": 1}
L2 = {"threat": Threat.parse("l2:auto"), "k": 1}
INTERVAL = RankInterval(1, 1, SIZE, verdict=Verdict.CERTIFIED, **LINF)
RADIUS = Radius(SIZE, SIZE / 28, 0.001, verdict=Verdict.CERTIFIED, **L2)
SAMPLED = SamplingProof(**L2, sigma=0.25, alpha=0.001, samples=100, label="shoe", label_radius=SIZE)
PROVED = Hits("photo.png", (Hit(1, "shoe", 0.5),)).proved(
    BoundsProof(**LINF, examined=1, candidates=5), [INTERVAL]
)
SMOOTH = Hits("photo.png", (Hit(1, "shoe", 0.5),)).proved(SAMPLED, [RADIUS])


def test_a_proven_size_is_not_rounded_up(capsys):
    query = QueryState(name="photo.png", digest=None, id=None, image=None)
    shown = []
    for found, threat in ((PROVED, "linf:auto"), (SMOOTH, "l2:auto")):
        outcome = Outcome(found, 1, 3, 5, Threat.parse(threat))
        shown.append(search_answer(outcome, query, "shop").hits[0].reason)
        shown.append(hits_page([found], [None], lambda _: None, "shop.gallery"))
        print_hits(found)
        shown += [capsys.readouterr().out, found.table(), found.html()]
    for text in shown:
        assert "0.0053" in text
        assert "0.0054" not in text
