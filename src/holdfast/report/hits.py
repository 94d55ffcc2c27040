"""The page that `holdfast search --html` writes: the query and its hits as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.gallery import Hits
from holdfast.report.page import Picture, render


def hits_page(
    results: Sequence[Hits],
    query_pictures: Sequence[bytes | None],
    picture: Callable[[str | None], bytes | None],
    gallery: str,
) -> str:
    """One row for each query; `picture` gives the content for a hit's path, or None."""
    rows = []
    for hits, shown in zip(results, query_pictures, strict=True):
        row = [Picture("query", f"query {hits.query}", (hits.query,), shown, "query")]
        for hit in hits.hits:
            lines = [hit.id] if hit.label is None else [hit.label, hit.id]
            tie = " (tied)" if hit.tied else ""
            row.append(
                Picture(
                    "hit",
                    f"hit {hit.rank}: {hit.id}",
                    (*lines, f"{hit.distance:.4f}{tie}"),
                    picture(hit.path),
                    str(hit.rank),
                )
            )
        rows.append(row)
    return render("hits.html.j2", title="Hits", subtitle=f"from {gallery}", rows=rows)
