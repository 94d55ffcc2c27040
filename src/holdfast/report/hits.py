"""The page that `holdfast search --html` writes: the query and its hits as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.certificate import Verdict
from holdfast.gallery import Hit, Hits
from holdfast.report.page import Picture, render


def hits_page(
    results: Sequence[Hits],
    query_pictures: Sequence[bytes | None],
    picture: Callable[[str | None], bytes | None],
    gallery: str,
) -> str:
    """One row for each query; `picture` gives the content for a hit's path, or None.

    Certified hits have what is proved of them below, and the page says what that means.
    """
    rows: list[list[Picture]] = []
    sentences: list[str] = []
    for found, shown in zip(results, query_pictures, strict=True):
        sentences = sentences if found.proof is None else found.proof.meaning()
        query = Picture("query", f"query {found.query}", (found.query,), shown, "query")
        rows.append([query, *(shown_hit(hit, picture) for hit in found)])
    return render("hits.html.j2", title="Hits", subtitle=f"from {gallery}", sentences=sentences, rows=rows)


def shown_hit(hit: Hit, picture: Callable[[str | None], bytes | None]) -> Picture:
    """A hit with what is proved of it."""
    sure = hit.certificate is not None and hit.certificate.verdict == Verdict.CERTIFIED
    content, name = picture(hit.path), f"hit {hit.rank}: {hit.id}"
    return Picture("certified" if sure else "hit", name, tuple(hit.lines()), content, str(hit.rank))
