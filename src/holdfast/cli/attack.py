"""`holdfast attack`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import Json, note_threats, print_json, print_table
from holdfast.goals import goals_in_words

if TYPE_CHECKING:
    from holdfast.gallery.attacking import AttackedPicture


def attack(
    gallery: Annotated[Path, typer.Argument(help="A gallery made by 'holdfast index'.")],
    photo: Annotated[Path, typer.Argument(help="The picture to alter.")],
    threat: Annotated[str, typer.Option(help="How far the picture may be altered, for example linf:8/255.")],
    out: Annotated[Path, typer.Option(help="The altered picture, a PNG of the picture's own size.")],
    goal: Annotated[
        str, typer.Option("--goal", "--want", help=f"What the attacker wants: {goals_in_words()}.")
    ] = "push-out",
    model: Annotated[
        Path | None,
        typer.Option(help="Path to the embedder, if it has moved since indexing, or FILE.py:NAME."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="The picture's class, if the goal asks for it; that of its first hit if left out."),
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
    k: Annotated[
        int,
        typer.Option("-k", min=1, help="How long the list of hits is that goals and certificates are about."),
    ] = 5,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a page that shows the pictures.")] = None,
    json: Json = False,
) -> None:
    """Alter a picture so that its search goes wrong, and see what is left of it after PNG and JPEG.

    The exit code is 1 if the attack did what a certificate excludes.
    """
    from holdfast.attacks import Settings
    from holdfast.data import read_alterable
    from holdfast.errors import ConfigError
    from holdfast.files import atomic_write
    from holdfast.gallery.attacking import attack_picture
    from holdfast.gallery.made_by import open_with_embedder
    from holdfast.threat import Threat

    wanted = Threat.parse(threat)
    note_threats(wanted)
    if out.suffix.lower() != ".png":
        raise ConfigError(f"--out is a .png file, which keeps every pixel; found {out.name}")
    opened, embedder = open_with_embedder(gallery, model)
    with opened, opened.snapshot():
        done = attack_picture(
            opened,
            embedder,
            read_alterable(photo, embedder.spec),
            goal=goal,
            threat=wanted,
            label=label,
            k=k,
            seed=seed,
            noise=seed,
            settings=Settings(optimiser, steps=steps, restarts=restarts, budget=budget),
        )
    done.save(out)
    if html is not None:
        from holdfast.gallery.indexing import stored_image
        from holdfast.report import attack_page, thumbnail

        atomic_write(
            html,
            attack_page(done, str(photo), lambda path: thumbnail(stored_image(path)), str(gallery)),
        )
    if json:
        print_json({"out": out, **_document(done)})
    else:
        _print(done, str(photo))
        print(f"altered picture: {out}")
        if html is not None:
            print(f"page: {html}")
    if not done.held:
        raise typer.Exit(1)


def _document(done: AttackedPicture) -> dict[str, object]:
    return {
        "goal": done.goal.name,
        "target": done.target,
        "threat": str(done.threat),
        "k": done.k,
        "reached": done.reached,
        "held": done.held,
        "contradicted": done.contradicted,
        "removed": done.removed,
        "followed": done.followed,
        "forms": [asdict(form) for form in done.forms],
        "moves": [asdict(move) for move in done.moves],
        "before": done.before.answer.to_dict(),
        "after": done.after.answer.to_dict(),
    }


def _print(done: AttackedPicture, photo: str) -> None:
    print_table(
        ["picture", f"rank of {done.followed}", "distance", "shift"],
        [[form.form, str(form.rank), f"{form.distance:.4f}", f"{form.shift:.4f}"] for form in done.forms],
        title=photo,
    )
    for title, found in (
        ("hits of the clean picture", done.before),
        ("hits of the altered picture", done.after),
    ):
        print_table(*found.answer.cells(), title=title)
    for sentence in done.sentences():
        print(sentence)
