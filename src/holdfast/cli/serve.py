"""`holdfast serve` and `holdfast key`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Json, print_json, print_table

KeyFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys; only hashes are in it.")]

key_app = typer.Typer(help="Keys of a service: add, list, remove.", no_args_is_help=True)


def serve(
    galleries: Annotated[
        list[str], typer.Argument(metavar="[NAME=]GALLERY...", help="Galleries made by 'holdfast index'.")
    ],
    host: Annotated[
        str, typer.Option(help="The address; others than this machine need --keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8080,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only those with a key of this file are answered.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]MODEL", help="The embedder, where it is no longer where it was."),
    ] = None,
    writable: Annotated[bool, typer.Option(help="Images may be added and removed.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name by which the service may be called.")
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Keep pictures that were searched for here, also over a restart."
        ),
    ] = None,
    max_k: Annotated[int, typer.Option(min=1, help="Hits of one search, at most.")] = 1000,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a request, at most.")] = 32 * 2**20,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels of a picture, at most.")] = 40_000_000,
    max_batch: Annotated[int, typer.Option(min=1, help="Pictures of a batch search, at most.")] = 64,
    max_steps: Annotated[int, typer.Option(min=1, help="Steps of an attack, at most.")] = 200,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Plain searches of one caller that wait, at most.")
    ] = 128,
    max_bodies: Annotated[
        int,
        typer.Option(min=2, help="Requests of the largest size that are held at once; one caller has half."),
    ] = 8,
    max_connections: Annotated[int, typer.Option(min=1, help="Open connections, at most.")] = 512,
    max_connections_of_one: Annotated[
        int, typer.Option(min=1, help="Open connections of one address, at most.")
    ] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, help="A request that takes longer is stopped.")] = 30.0,
) -> None:
    """Serve galleries over HTTP: search, certified search, live attacks, adding and removing. Logs go to stderr."""
    # Read when OpenMP is loaded: threads that spin while they wait take the cores from each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from holdfast.errors import MissingExtraError
    from holdfast.service.address import check_address

    check_address(host, keys)
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError("the service", "serve") from None
    from holdfast.service.limits import Limits
    from holdfast.service.server import serve as run

    limits = Limits(
        k=max_k,
        bytes=max_bytes,
        pixels=max_pixels,
        batch=max_batch,
        attack_steps=max_steps,
        waiting=max_waiting,
        bodies=max_bodies,
        connections=max_connections,
        connections_of_one=max_connections_of_one,
        seconds=seconds,
    )
    run(
        galleries,
        host=host,
        port=port,
        keys=keys,
        models=model or (),
        writable=writable,
        hosts=allow_host or (),
        queries=queries,
        limits=limits,
    )


@key_app.command("add")
def add(
    file: KeyFile,
    name: Annotated[str, typer.Option(help="Whose key it is; the logs say so.")],
    role: Annotated[str, typer.Option(help="What it allows, of read, write and attack.")] = "read",
    rate: Annotated[float | None, typer.Option(help="Requests a second that it may make.")] = None,
    quota: Annotated[int | None, typer.Option(help="Requests a day (UTC) that it may make.")] = None,
    json: Json = False,
) -> None:
    """Make a key and print it, once: the file keeps only a hash of it."""
    from holdfast.service.keys import add_key

    roles = [part.strip() for part in role.split(",") if part.strip()]
    word = add_key(file, name, roles, rate=rate, quota=quota)
    if json:
        print_json({"name": name, "roles": roles, "rate": rate, "quota": quota, "key": word})
        return
    print(word)


@key_app.command("list")
def list_(file: KeyFile, json: Json = False) -> None:
    """Whose keys there are and what they allow."""
    from holdfast.service.keys import read_keys

    keys = read_keys(file)
    if json:
        shown = ("name", "roles", "rate", "quota", "created")
        print_json([{name: getattr(k, name) for name in shown} for k in keys])
        return
    print_table(
        ["name", "roles", "requests a second", "a day", "created"],
        [
            [
                k.name,
                ", ".join(k.roles),
                "any" if k.rate is None else f"{k.rate:g}",
                str(k.quota or "any"),
                k.created,
            ]
            for k in keys
        ],
    )


@key_app.command("remove")
def remove(
    file: KeyFile, name: Annotated[str, typer.Argument(help="Whose key.")], json: Json = False
) -> None:
    """Take a key back; a service that runs refuses it from now on."""
    from holdfast.service.keys import remove_key

    remove_key(file, name)
    if json:
        print_json({"removed": name})
        return
    print(f"removed the key of {name}")
