"""`holdfast search`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.cli.output import Json, note_threats, print_json, print_table

if TYPE_CHECKING:
    from holdfast.gallery import AnyGallery, Hits
    from holdfast.gallery.certified import CertifiedHits
    from holdfast.gallery.smoothed import SmoothedHits
    from holdfast.models import AnyEmbedder, Smoothed

Sharpness = Literal["interval", "elided", "crown"]


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
        Sharpness,
        typer.Option(
            help="How hard to try for an altered query; crown proves most, and takes seconds (minutes with linf:auto)."
        ),
    ] = "interval",
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
    from holdfast.files import atomic_write, refuse_other
    from holdfast.gallery.made_by import open_with_embedder
    from holdfast.models import Smoothed
    from holdfast.workflow import search as find

    if keep and certify is None:
        raise ConfigError("--keep keeps a certificate: say which with --certify")
    if method != "interval" and certify is None:
        raise ConfigError("--method is about certificates: say which with --certify")
    if html is not None:
        refuse_other(html, b"<!doctype html>", "page")
    opened, embedder = open_with_embedder(gallery, model, readonly=not keep)
    with opened:
        if k is not None and k > len(opened):
            raise GalleryError(
                f"{gallery} holds {len(opened)} images, fewer than -k {k}; ask for {len(opened)} or fewer"
            )
        proved: list[CertifiedHits] = []
        results: list[Hits] = []
        smooth: list[SmoothedHits] = []
        if isinstance(embedder, Smoothed):
            if keep or method != "interval":
                raise ConfigError(
                    "--keep and --method are for bounds; a smoothed gallery has samples instead"
                )
            changed = {name: value for name, value in (("n", samples), ("rule", rule)) if value is not None}
            smooth = _smoothed(opened, embedder, images, min(k or 10, len(opened)), certify, changed, seed)
        elif (samples, rule, seed) != (None, None, None):
            raise ConfigError(
                f"--samples, --rule and --seed are for a smoothed gallery, and {gallery} is not one"
            )
        elif certify is not None:
            proved = _certified(opened, embedder, images, min(k or 10, len(opened)), certify, method, keep)
        else:
            results = [find(opened, embedder, image, k or 10) for image in images]
    if html is not None:
        from holdfast.gallery.indexing import stored_image
        from holdfast.report import hits_page, thumbnail

        shown = [thumbnail(image.read_bytes()) for image in images]
        atomic_write(
            html,
            hits_page(
                smooth or proved or results, shown, lambda path: thumbnail(stored_image(path)), str(gallery)
            ),
        )
    if json:
        certified = [{**asdict(result), "threat": str(result.threat)} for result in proved]
        plain = [{"query": r.query, "hits": [asdict(hit) for hit in r.hits]} for r in results]
        print_json([asdict(result) for result in smooth] or certified or plain)
        return
    for found in smooth:
        print_smoothed_hits(found)
    for entry in proved:
        print_proved(entry)
    if keep:
        print(f"certificates kept in {gallery}: {len(proved)}")
    for result in results:
        rows = [[str(hit.rank), hit.id, hit.label or "", f"{hit.distance:.4f}"] for hit in result.hits]
        columns = ["#", "id", "label", "distance"]
        if any(hit.tied for hit in result.hits):
            columns.append("")
            rows = [[*row, "tied" if hit.tied else ""] for row, hit in zip(rows, result.hits, strict=True)]
        print_table(columns, rows, title=result.query)
    if html is not None:
        print(f"page: {html}")


def _certified(
    gallery: AnyGallery,
    embedder: AnyEmbedder,
    images: list[Path],
    k: int,
    threat: str,
    method: Sharpness,
    keep: bool,
) -> list[CertifiedHits]:
    from holdfast.data import read_image
    from holdfast.gallery.certified import certified_search
    from holdfast.threat import Threat

    wanted = Threat.parse(threat)
    note_threats(wanted)
    return [
        certified_search(
            gallery,
            embedder,
            read_image(image, embedder.spec),
            k,
            wanted,
            str(image),
            method=method,
            keep=keep,
        )
        for image in images
    ]


def _smoothed(
    gallery: AnyGallery,
    embedder: Smoothed,
    images: list[Path],
    k: int,
    threat: str | None,
    changed: dict[str, Any],
    seed: int | None,
) -> list[SmoothedHits]:
    from dataclasses import replace

    from holdfast.data import read_picture
    from holdfast.errors import ConfigError
    from holdfast.gallery.smoothed import smoothed_search, stored_smoothing
    from holdfast.threat import Threat

    wanted = Threat.parse(threat or "l2:auto")
    if wanted.norm != "l2" or wanted.who != "query":
        raise ConfigError(
            f"a smoothed gallery certifies an altered query in l2 (l2:auto or l2:EPS), not '{wanted}'; for bounds, "
            "index without --smooth"
        )
    note_threats(wanted)
    how = stored_smoothing(gallery.info.embedder)
    assert how is not None
    how = replace(how, **changed)
    found = []
    for image in images:
        picture = read_picture(image, embedder.spec)
        found.append(
            smoothed_search(
                gallery,
                embedder,
                picture.pixels,
                k,
                str(image),
                how=how,
                eps=wanted.eps,
                seed=seed,
                stretch=picture.stretch,
            )
        )
    return found


def print_smoothed_hits(result: SmoothedHits) -> None:
    """The hits of one query by noisy copies, with their radii, or why there is none."""
    from holdfast.spec import CLAIM
    from holdfast.threat import floored

    rows = [
        [
            str(entry.hit.rank),
            entry.hit.id,
            entry.hit.label or "",
            f"{entry.hit.distance:.4f}",
            *([] if entry.share is None else [f"{entry.share:.1%}"]),
            floored(entry.radius) if entry.radius > 0 else "none",
            str(entry.verdict),
            entry.reason,
        ]
        for entry in result.hits
    ]
    stays = f"stays in top {len(result.hits)} to l2"
    voted = result.rule == "votes"
    columns = ["#", "id", "label", "distance", *(["votes"] if voted else []), stays, "verdict", ""]
    by = "by votes of copies with noise" if voted else "smoothed by noise"
    asked = "" if result.eps is None else f", asked for l2:{result.eps:g}"
    print_table(columns, rows, title=f"{result.query}, {by} of {result.sigma:g}{asked}")
    if result.label is not None:
        held = f"to l2 {floored(result.label_radius)}" if result.label_radius > 0 else "not settled"
        of = " of most copies" if voted else ""
        print(f"the nearest{of} stays one of '{result.label}': {held}")
    print(CLAIM[result.picture])
    print(
        f"{result.samples:,} samples (seed {result.seed}); all of this is wrong with probability at most "
        f"{result.alpha:g}"
    )


def print_proved(result: CertifiedHits) -> None:
    """The hits of one query with their rank intervals and verdicts."""
    from holdfast.spec import CLAIM
    from holdfast.threat import floored

    auto = result.threat.eps is None
    rows = [
        [
            str(entry.hit.rank),
            entry.hit.id,
            entry.hit.label or "",
            f"{entry.hit.distance:.4f}",
            f"{entry.best}–{entry.worst}",
            "yes" if entry.verdict == "CERTIFIED" else "not proven",
            entry.verdict,
            *([floored(entry.eps) if entry.eps >= 0 else "none"] if auto else []),
        ]
        for entry in result.hits
    ]
    stays = f"stays in top {len(result.hits)}"
    columns = ["#", "id", "label", "distance", "rank interval", stays, "verdict"]
    columns += ["largest eps"] if auto else []
    print_table(columns, rows, title=f"{result.query}, under {result.threat}")
    if result.reason:
        print(f"nothing is proved: {result.reason}")
    else:
        print(CLAIM[result.picture])
        print(f"{result.examined:,} of {result.candidates:,} candidates needed the exact test")
    if result.effort is not None:
        print(_effort(result))
    if not result.sharpened:
        print("too many for the dearer method: the intervals are those of method interval")
    if result.boxes is not None and result.boxes != result.threat.eps:
        print(
            f"with the candidates' boxes for linf:{result.boxes:g}, which hold those of {result.threat.size}"
        )


def _effort(result: CertifiedHits) -> str:
    assert result.effort is not None
    proved = sum(entry.verdict == "CERTIFIED" for entry in result.hits)
    return (
        f"{proved} of {len(result.hits)} hits certified in {result.effort.seconds:.2f} s; by intervals alone "
        f"{result.effort.by_intervals} in {result.effort.interval_seconds:.2f} s"
    )
