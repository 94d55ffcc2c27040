"""`holdfast search`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from holdfast.cli.output import Json, method_option, note_threats, print_hits, print_json
from holdfast.methods import IN_SEARCH

if TYPE_CHECKING:
    from holdfast.gallery import Hits


def search(
    gallery: Annotated[
        str, typer.Argument(help="A gallery made by 'holdfast index': a file, or milvus://HOST:PORT/NAME.")
    ],
    images: Annotated[list[Path], typer.Argument(help="The pictures to ask about.")],
    k: Annotated[int | None, typer.Option("-k", min=1, help="How many hits.  [default: 10]")] = None,
    model: Annotated[
        Path | None, typer.Option(help="The embedder, where it is no longer where it was.")
    ] = None,
    certify: Annotated[
        str | None,
        typer.Option(
            help="Prove where each hit can stand if images were altered: [query|candidates|both:]linf:EPS[:m=M], "
            "or linf:auto; in a smoothed gallery l2:auto or l2:EPS."
        ),
    ] = None,
    method: Annotated[
        str | None,
        method_option(
            IN_SEARCH,
            "How hard to try for an altered query. crown proves most and takes seconds (minutes with linf:auto).  "
            "[default: interval]",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Samples of each query, in a smoothed gallery.  [default: the gallery's]"),
    ] = None,
    rule: Annotated[
        Literal["mean", "votes"] | None,
        typer.Option(
            help="In a smoothed gallery: list hits by the mean of the noisy copies, or by their votes.  "
            "[default: the gallery's]"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Repeat a search of a smoothed gallery: the seed that it printed."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(help="Keep the certificate in the gallery; later changes say what became of it."),
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page that shows the pictures.")] = None,
    json: Json = False,
) -> None:
    """Find the images of a gallery that are nearest to a picture."""
    from holdfast.errors import ConfigError, GalleryError
    from holdfast.files import refuse_other
    from holdfast.gallery.made_by import open_with_embedder
    from holdfast.gallery.provers import Provers
    from holdfast.gallery.searching import search as find
    from holdfast.threat import Threat

    if certify is None and (keep or method is not None):
        raise ConfigError("--keep and --method are about certificates: say which with --certify")
    if html is not None:
        refuse_other(html, b"<!doctype html>", "page")
    threat = None if certify is None else Threat.parse(certify)
    if threat is not None:
        note_threats(threat)
    opened, embedder = open_with_embedder(gallery, model, readonly=not keep)
    with opened:
        if k is not None and k > len(opened):
            raise GalleryError(
                f"{gallery} holds {len(opened)} images, fewer than -k {k}; ask for {len(opened)} or fewer"
            )
        chosen = {"method": method, "keep": keep, "samples": samples, "rule": rule, "seed": seed}
        provers = Provers(embedder)
        results = [
            find(opened, embedder, image, k or 10, certify=threat, provers=provers, **chosen)  # type: ignore[arg-type]
            for image in images
        ]
    if html is not None:
        _write_page(html, results, images, gallery)
    if json:
        print_json([found.to_dict() for found in results])
        return
    for found in results:
        print_hits(found)
    if keep:
        print(f"certificates kept in {gallery}: {len(results)}")
    if html is not None:
        print(f"page: {html}")


def _write_page(html: Path, results: list[Hits], images: list[Path], gallery: str) -> None:
    from holdfast.files import atomic_write
    from holdfast.gallery.indexing import stored_image
    from holdfast.report import hits_page, thumbnail

    shown = [thumbnail(image.read_bytes()) for image in images]
    atomic_write(html, hits_page(results, shown, lambda path: thumbnail(stored_image(path)), gallery))
