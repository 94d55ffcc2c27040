"""The page that `holdfast search --html` writes: the query and its hits as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.certify import Verdict
from holdfast.gallery import Hit, Hits
from holdfast.gallery.certified import CertifiedHit, CertifiedHits
from holdfast.gallery.smoothed import SmoothedHit, SmoothedHits
from holdfast.report.page import Picture, in_words, render
from holdfast.spec import CLAIM
from holdfast.threat import Threat, floored


def hits_page(
    results: Sequence[Hits | CertifiedHits | SmoothedHits],
    query_pictures: Sequence[bytes | None],
    picture: Callable[[str | None], bytes | None],
    gallery: str,
) -> str:
    """One row for each query; `picture` gives the content for a hit's path, or None.

    Certified hits have their rank interval and verdict below them, and the page says what they mean.
    """
    rows: list[list[Picture]] = []
    sentences: list[str] = []
    for found, shown in zip(results, query_pictures, strict=True):
        row = [Picture("query", f"query {found.query}", (found.query,), shown, "query")]
        if isinstance(found, CertifiedHits):
            sentences = _meaning(found)
            row += [_certified(entry, found.threat, picture) for entry in found.hits]
        elif isinstance(found, SmoothedHits):
            sentences = _smoothed_meaning(found)
            row += [_smoothed(entry, picture) for entry in found.hits]
        else:
            row += [_plain("hit", hit, (), picture) for hit in found.hits]
        rows.append(row)
    return render("hits.html.j2", title="Hits", subtitle=f"from {gallery}", sentences=sentences, rows=rows)


def _plain(
    kind: str, hit: Hit, more: Sequence[str], picture: Callable[[str | None], bytes | None]
) -> Picture:
    named = [hit.id] if hit.label is None else [hit.label, hit.id]
    tie = " (tied)" if hit.tied else ""
    lines = (*named, f"{hit.distance:.4f}{tie}", *more)
    return Picture(kind, f"hit {hit.rank}: {hit.id}", lines, picture(hit.path), str(hit.rank))


def _certified(entry: CertifiedHit, threat: Threat, picture: Callable[[str | None], bytes | None]) -> Picture:
    more = [f"rank {entry.best}–{entry.worst}", str(entry.verdict)]
    if threat.eps is None:
        more.append(f"to ε {floored(entry.eps)}" if entry.eps >= 0 else "to no ε")
    kind = "certified" if entry.verdict == Verdict.CERTIFIED else "hit"
    return _plain(kind, entry.hit, more, picture)


def _smoothed(entry: SmoothedHit, picture: Callable[[str | None], bytes | None]) -> Picture:
    more = [] if entry.share is None else [f"{entry.share:.1%} of the votes"]
    more.append(str(entry.verdict))
    if entry.radius > 0:
        more.append(f"to ℓ2 {floored(entry.radius)} (ℓ∞ {floored(entry.pixel, 5)})")
    kind = "certified" if entry.verdict == Verdict.CERTIFIED else "hit"
    return _plain(kind, entry.hit, [*more, *([entry.reason] if entry.reason else [])], picture)


def _smoothed_meaning(found: SmoothedHits) -> list[str]:
    """What the radii say and what they do not."""
    k = len(found.hits)
    copies = f"{found.samples:,} noisy copies of the query (σ = {found.sigma:g})"
    ranked = (
        f"Each of {copies} votes for its {k} nearest candidates; those with most votes are shown, nearest to the "
        "mean vector first. "
        if found.rule == "votes"
        else f"Hits are ranked by the mean vector of {copies}. "
    )
    most = " of most copies" if found.rule == "votes" else ""
    return [
        f"{ranked}Below each stands how far the query may be altered, in ℓ2 over the whole picture, while the hit "
        f"stays among the first {k}; ℓ∞ is the same for every pixel by itself. All statements about one query "
        f"together are wrong with probability at most {found.alpha:g}.",
        CLAIM[found.picture],
        *(
            [f"The nearest{most} stays one of '{found.label}' to ℓ2 {floored(found.label_radius)}."]
            if found.label is not None and found.label_radius > 0
            else []
        ),
        "ABSTAIN: the samples do not settle whether the hit is among them at all. An attacker can force that; a wrong "
        "answer of which the search is sure only where a statement fails, which has that probability. A certificate "
        f"says where a hit stands, not whether it is right. The noise of this search has seed {found.seed}.",
    ]


def _meaning(found: CertifiedHits) -> list[str]:
    """What the verdicts say and what they do not, for this threat."""
    threat, k, altered = found.threat, len(found.hits), in_words(found.threat, found.picture)
    if threat.eps is None:
        first = (
            f"Below each hit stands the largest ε found for it: however each pixel of {altered} is "
            f"altered by up to ε, the hit stays among the first {k} (CERTIFIED) and its rank stays in the "
            "interval."
        )
    else:
        first = (
            f"CERTIFIED: however each pixel of {altered} is altered by up to "
            f"{threat.size or threat.eps}, the hit stays among the first {k}. In any case its rank stays in the "
            "interval."
        )
    return [
        first,
        CLAIM[found.picture],
        "UNKNOWN: the bounds leave it open, which is not an attack. A certificate says where a hit can "
        "stand, not whether it is right.",
    ]
