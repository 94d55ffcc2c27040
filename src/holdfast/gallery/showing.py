"""Hits as pictures, in one piece of HTML that needs nothing from outside."""

from __future__ import annotations

import base64
import io
from html import escape

from holdfast.data.fit import to_image
from holdfast.data.images import decode_small
from holdfast.errors import ImageError
from holdfast.gallery.indexing import stored_image
from holdfast.gallery.values import Hits

SIDE = 128


def html(hits: Hits) -> str:
    """The query and its hits side by side, what is proved below each, and what holds for all of them."""
    figures = [
        _figure(hits.query, ["query"]),
        *(_figure(hit.path, [f"{hit.rank}", *hit.lines()]) for hit in hits),
    ]
    notes = "".join(f"<p>{escape(line)}</p>" for line in hits.notes)
    row = '<div style="display: flex; flex-wrap: wrap; gap: 1em; align-items: flex-end">'
    return f"<div><p><b>{escape(hits.title)}</b></p>{row}{''.join(figures)}</div>{notes}</div>"


def _figure(path: str | None, lines: list[str]) -> str:
    content = _thumbnail(path)
    shown = f'<img src="data:image/png;base64,{base64.b64encode(content).decode()}">' if content else ""
    said = "<br>".join(map(escape, lines))
    return (
        f'<figure style="margin: 0; max-width: {SIDE + 32}px">{shown}<figcaption>{said}</figcaption></figure>'
    )


def _thumbnail(path: str | None) -> bytes | None:
    """A small PNG; None where there is nothing that can be shown."""
    content = stored_image(path)
    if content is None:
        return None
    try:
        image = to_image(decode_small(content, SIDE))
    except ImageError:
        return None
    page = io.BytesIO()
    image.save(page, "PNG")
    return page.getvalue()
