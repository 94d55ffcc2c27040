"""`holdfast attack`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import Json, note_threats, print_json, print_table

if TYPE_CHECKING:
    from holdfast.evaluate.photo import AlteredPhoto


def attack(
    gallery: Annotated[Path, typer.Argument(help="A gallery made by 'holdfast index'.")],
    photo: Annotated[Path, typer.Argument(help="The picture to alter.")],
    want: Annotated[
        str,
        typer.Option(
            help="raise:ITEM_ID, lower:ITEM_ID, misrank (a first hit of another class) or shift (any change)."
        ),
    ],
    threat: Annotated[str, typer.Option(help="How far the picture may be altered, for example linf:8/255.")],
    out: Annotated[Path, typer.Option(help="The altered picture, a PNG of the picture's own size.")],
    model: Annotated[
        Path | None, typer.Option(help="The embedder, where it is no longer where it was, or FILE.py:NAME.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The picture's class, for misrank; that of its first hit if left out.")
    ] = None,
    optimiser: Annotated[
        str | None,
        typer.Option(help="pgd, pgd-plain, nes or spsa; pgd if there are gradients, else nes."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Gradient steps.")] = 100,
    restarts: Annotated[int, typer.Option(min=1, help="Starts; all but the first are random.")] = 1,
    budget: Annotated[
        int, typer.Option(min=1, help="Images that nes and spsa may show to the model.")
    ] = 2000,
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits to show.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a page that shows the pictures.")] = None,
    json: Json = False,
) -> None:
    """Alter a picture so that a search goes wrong, and see what is left of it after PNG and JPEG."""
    from holdfast.data import read_alterable
    from holdfast.errors import ConfigError
    from holdfast.evaluate.attacked import Settings
    from holdfast.evaluate.photo import attack_photo, png
    from holdfast.files import atomic_write
    from holdfast.gallery.made_by import open_with_embedder
    from holdfast.threat import Threat

    wanted = Threat.parse(threat)
    note_threats(wanted)
    if out.suffix.lower() != ".png":
        raise ConfigError(f"--out is a .png file, which keeps every pixel; found {out.name}")
    opened, embedder = open_with_embedder(gallery, model)
    with opened:
        done = attack_photo(
            opened,
            embedder,
            read_alterable(photo, embedder.spec),
            want,
            wanted,
            label=label,
            k=k,
            seed=seed,
            settings=Settings(optimiser, steps=steps, restarts=restarts, budget=budget),
        )
    atomic_write(out, png(done.altered))
    if html is not None:
        from holdfast.gallery.indexing import stored_image
        from holdfast.report import attack_page, thumbnail

        sentence = f"{photo} altered within {wanted} to get: {want}."
        atomic_write(
            html, attack_page(done, sentence, lambda path: thumbnail(stored_image(path)), str(gallery))
        )
    if json:
        print_json(
            {
                "out": out,
                "want": want,
                "threat": str(wanted),
                "item": done.item,
                "seen": [asdict(form) for form in done.seen],
                "before": [asdict(hit) for hit in done.before.hits],
                "after": [asdict(hit) for hit in done.after.hits],
            }
        )
        return
    _print(done, str(photo))
    print(f"altered picture: {out}")
    if html is not None:
        print(f"page: {html}")


def _print(done: AlteredPhoto, photo: str) -> None:
    print_table(
        ["picture", f"rank of {done.item}", "distance", "shift"],
        [[form.form, str(form.rank), f"{form.distance:.4f}", f"{form.shift:.4f}"] for form in done.seen],
        title=photo,
    )
    for title, hits in (
        ("hits of the clean picture", done.before),
        ("hits of the altered picture", done.after),
    ):
        print_table(
            ["#", "id", "label", "distance"],
            [[str(hit.rank), hit.id, hit.label or "", f"{hit.distance:.4f}"] for hit in hits.hits],
            title=title,
        )
