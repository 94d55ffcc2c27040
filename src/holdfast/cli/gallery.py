"""`holdfast gallery`: look at a gallery and keep it in order."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.output import Json, print_json, print_table

app = typer.Typer(
    help="Galleries: info, certificates, verify, upgrade, remove, compact, cache, snapshot, replace.",
    no_args_is_help=True,
)

Path_ = Annotated[
    str,
    typer.Argument(
        metavar="GALLERY", help="A gallery made by 'holdfast index': a file, or milvus://HOST:PORT/NAME."
    ),
]


@app.command()
def info(path: Path_, json: Json = False) -> None:
    """What a gallery holds and which embedder made it."""
    from holdfast.gallery import open_gallery
    from holdfast.models.sides import side_of

    with open_gallery(path, readonly=True) as gallery:
        found = gallery.info
        kept = len(gallery.certificates())
    document: dict[str, Any] = {
        "gallery": found.path,
        "images": found.count,
        "dim": found.dim,
        "created": found.created,
        "generation": found.generation,
        "embedder": found.embedder.fingerprint,
        "location": found.embedder.location,
        "architecture": found.embedder.card.get("architecture", {}).get("name"),
        "smoothed": found.embedder.card.get("smoothed"),
        "candidate_side": found.embedder.card.get("candidate_side"),
        "metric": _metric(found.embedder.card.get("metric")),
        "boxes": found.boxes,
        "index": found.index,
        "certificates": kept,
    }
    if json:
        print_json({**document, "card": found.embedder.card})
        return
    noise = document["smoothed"]
    searched = found.embedder.card.get("search", {})
    shown = {
        **({key: noise[key] for key in ("sigma", "samples", "seed", "backend")} if noise else {}),
        **searched,
    }
    document["smoothed"] = ", ".join(f"{key} {value}" for key, value in shown.items()) or "no"
    side = document["candidate_side"]
    document["candidate_side"] = (
        "that of queries" if side is None else f"{side['name']} ({side_of(side).says})"
    )
    document["boxes"] = ", ".join(f"linf:{eps:g}" for eps in found.boxes) or "none"
    print_table(["", ""], [[key, str(value)] for key, value in document.items()])


@app.command()
def certificates(
    path: Path_,
    forget: Annotated[list[str] | None, typer.Option(help="Drop those of this query instead.")] = None,
    json: Json = False,
) -> None:
    """The certificates that a gallery keeps (search --certify … --keep), as last checked."""
    from holdfast.errors import GalleryError
    from holdfast.gallery import open_gallery
    from holdfast.gallery.values import of_before

    with open_gallery(path, readonly=not forget) as gallery:
        if forget:
            names = {one.query for one in gallery.certificates()}
            missing = [name for name in forget if name not in names]
            if missing:
                raise GalleryError(f"{path} keeps no certificate of '{missing[0]}'; nothing was dropped")
            gallery.forget(forget)
        kept, generation = gallery.certificates(), gallery.info.generation
        current = gallery.info.embedder.current
    if json:
        print_json(
            [
                {
                    "query": one.query,
                    "threat": one.threat,
                    "k": one.k,
                    "current": current and one.generation == generation,
                    "hits": [asdict(hit) for hit in one.hits],
                }
                for one in kept
            ]
        )
        return
    if kept and not current:
        print(of_before(path))
    if not kept:
        print(f"{path} keeps no certificates; keep one with 'holdfast search … --certify THREAT --keep'")
        return
    rows = [
        [
            one.query,
            one.threat,
            str(one.k),
            f"{one.certified} of {len(one.hits)}",
            "no: run 'holdfast gallery upgrade'"
            if not current
            else "yes"
            if one.generation == generation
            else "no: run 'holdfast index' again",
        ]
        for one in kept
    ]
    print_table(["query", "threat", "k", "certified", "checked since the last change"], rows)


@app.command()
def verify(path: Path_, json: Json = False) -> None:
    """Read everything and compare it with its checksums; exit code 1 if something is wrong.

    Beside a sound gallery it removes what killed processes left: temporary files, and uploaded pictures that no
    item has.
    """
    from holdfast.gallery import verify_gallery
    from holdfast.gallery.leftovers import sweep
    from holdfast.gallery.stores import store_at

    problems = verify_gallery(path)
    swept = sweep(Path(path)) if not problems and store_at(path)[0].promises.files else []
    if json:
        print_json({"gallery": path, "problems": problems, "swept": swept})
    else:
        print("\n".join([*(problems or [f"{path} is sound"]), *swept]))
    if problems:
        raise typer.Exit(1)


@app.command()
def upgrade(
    path: Path_,
    model: Annotated[
        Path | None, typer.Option(help="Path to the embedder, if it has moved since indexing.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder or tar of the pictures, if they have moved since indexing.")
    ] = None,
    json: Json = False,
) -> None:
    """Check a gallery of an earlier version against its model, so that its boxes and certificates prove again.

    Every picture that is found is embedded and bounded again; what agrees is kept. A picture that is not found keeps
    its vector and loses its boxes. Kept certificates are proved again or dropped. All or nothing.
    """
    from holdfast.gallery.made_by import open_with_embedder
    from holdfast.gallery.stores import check_file
    from holdfast.gallery.upgrading import sentences
    from holdfast.gallery.upgrading import upgrade as upgraded

    check_file(path, "index the images again, into a new gallery")
    gallery, embedder = open_with_embedder(path, model, readonly=False)
    with gallery:
        location = None if model is None else str(model.resolve())
        found = upgraded(gallery, embedder, images=images, location=location)
        gallery.refresh_cache()
    if json:
        print_json({"gallery": path, **asdict(found)})
        return
    print("\n".join(sentences(found, path)))


@app.command()
def remove(
    path: Path_, ids: Annotated[list[str], typer.Argument(help="Ids to remove.")], json: Json = False
) -> None:
    """Remove images by id, all or none."""
    from holdfast.cli.index import print_rechecked
    from holdfast.errors import GalleryError
    from holdfast.gallery import open_gallery
    from holdfast.gallery.recheck import recheck

    with open_gallery(path) as gallery:
        missing = [id for id in ids if id not in gallery]
        if missing:
            raise GalleryError(f"{path} has no item '{missing[0]}'; nothing was removed")
        removed = gallery.remove(ids)
        rechecked = recheck(gallery)
    if json:
        print_json({"gallery": path, "removed": removed, "certificates": asdict(rechecked)})
        return
    print(f"removed {removed} of {path}")
    print_rechecked(rechecked)


@app.command()
def compact(path: Path_, json: Json = False) -> None:
    """Give the space of removed images back to the disk."""
    from holdfast.gallery import open_gallery

    with open_gallery(path) as gallery:
        gallery.compact()
    if json:
        print_json({"gallery": path, "bytes": Path(path).stat().st_size if Path(path).is_file() else None})
        return
    print(f"{path} is compact")


def _metric(kept: dict[str, Any] | None) -> str | None:
    """A metric in a few words."""
    return None if kept is None else f"{kept['method'] or 'a metric'}, {kept['rank']} × {kept['features']}"


@app.command()
def cache(path: Path_, json: Json = False) -> None:
    """Write the mapped cache beside a gallery, or bring it up to date: a large one then opens at once.

    Only what changed is read. A cache never changes an answer; delete its folder whenever you like.
    """
    from holdfast.gallery import open_file
    from holdfast.gallery.stores.sqlite.cache import folder_of

    with open_file(path, readonly=True) as gallery:
        written = gallery.write_cache()
    if json:
        print_json({"gallery": path, "cache": folder_of(Path(path)), **asdict(written)})
        return
    print(
        f"{folder_of(Path(path))}: {written.bytes / 1e6:,.1f} MB, {written.read:,} of {written.blocks:,} blocks new"
    )


@app.command()
def snapshot(
    path: Path_,
    out: Annotated[Path, typer.Argument(help="The copy; nothing that is there is overwritten.")],
    json: Json = False,
) -> None:
    """Copy a gallery as it is at this moment, while others may write it; the copy is verified."""
    from holdfast.gallery import open_file

    with open_file(path, readonly=True) as gallery:
        made = gallery.copy_to(out)
    size = out.stat().st_size
    if json:
        print_json(
            {
                "gallery": path,
                "snapshot": out,
                "images": made.count,
                "generation": made.generation,
                "bytes": size,
            }
        )
        return
    print(f"{out}: {made.count:,} images, {size / 1e6:,.1f} MB, sound")


@app.command()
def replace(
    new: Annotated[str, typer.Argument(metavar="NEW", help="The gallery whose content is taken; it stays.")],
    live: Annotated[
        str, typer.Argument(metavar="LIVE", help="The gallery that gets it, also while it is served.")
    ],
    json: Json = False,
) -> None:
    """Put the content of one gallery in the place of another's, all at once for whoever reads that one.

    Never rename a file over a gallery that is in use: SQLite would mix the old one's log into it.
    """
    from holdfast.gallery import open_file
    from holdfast.gallery.stores import check_file

    check_file(live)
    with open_file(new, readonly=True) as gallery:
        made = gallery.put_over(live)
    if json:
        print_json({"gallery": live, "from": new, "images": made.count, "generation": made.generation})
        return
    print(f"{live}: {made.count:,} images of {new}; a service of it reads them from the next request on")
