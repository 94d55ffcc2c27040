"""Progress bars on stderr: on a terminal by default, never on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]
"""Takes a line that a user should read while work goes on."""
Advance = Callable[..., None]
"""`advance(steps=1, note="")`: that many steps further; `note` is shown beside the bar."""


def note(line: str) -> None:
    """A remark on stderr, where it disturbs no output."""
    print(line, file=sys.stderr)


def shown() -> bool:
    """Whether bars are drawn: HOLDFAST_PROGRESS=1 or 0 decides, else whether stderr is a terminal.

    Of several processes that train together only the first draws one.
    """
    if os.environ.get("RANK", "0") != "0":
        return False
    wish = os.environ.get("HOLDFAST_PROGRESS", "")
    return wish == "1" if wish else sys.stderr.isatty()


@contextmanager
def bar(doing: str, total: int, done: int = 0) -> Iterator[Advance]:
    """A bar named `doing` over `total` steps, of which `done` were made in an earlier run."""
    if not shown():
        yield lambda steps=1, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
    )
    with Progress(*columns, console=Console(stderr=True), expand=True) as progress:
        task = progress.add_task(doing, total=total, completed=done, note="")

        def advance(steps: int = 1, note: str = "") -> None:
            if note:
                progress.update(task, advance=steps, note=note)
            else:
                progress.advance(task, steps)

        yield advance
