"""Where an evaluation's blocks are computed: in this process, or on the workers of a Ray cluster.

A block's result depends on its place alone, not on who computes it or when: each evaluation is a `Work`, a value
that can be sent to another process, and a function of (what, which rows). Results may come in any order and are
kept in that of the blocks, so that the rows are the same wherever they were made, and a folder that was begun in
one place can be finished in another.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Protocol, TypeVar

from holdfast.errors import ConfigError
from holdfast.models import AnyEmbedder

What = TypeVar("What")
Made = TypeVar("Made")
Results = Generator[tuple[int, Made], None, None]
"""Numbers of blocks, and what was made of them."""
W = TypeVar("W", contravariant=True)
M = TypeVar("M", covariant=True)


class Work(Protocol[W, M]):
    """What every block of an evaluation needs; called, it computes one of them. It can be pickled."""

    @property
    def embedder(self) -> AnyEmbedder: ...

    def __call__(self, what: W, span: range, /) -> M: ...


class Spread:
    """Whoever computes blocks; by itself, this process, one block after the other."""

    def ready(self) -> None:
        """Called before anything is written: raises what would keep blocks from being computed."""

    def run(self, work: Work[What, Made], blocks: Sequence[tuple[What, range]]) -> Results[Made]:
        """Each block's number and result, in whatever order they end. Closed early, it stops what is under way."""
        for number, block in enumerate(blocks):
            yield number, work(*block)

    def close(self) -> None:
        """Let go of what was started for this."""


HERE = Spread()


def compute(
    spread: Spread,
    work: Work[What, Made],
    blocks: Sequence[tuple[What, range]],
    keep: Callable[[Made], None],
    arrived: Callable[[int, Made], None] = lambda number, made: None,
) -> None:
    """Compute all blocks; `keep` gets the results in the order of the blocks, `arrived` as they come."""
    waiting: dict[int, Made] = {}
    turn = 0
    with closing(spread.run(work, blocks)) as results:
        for number, made in results:
            arrived(number, made)
            waiting[number] = made
            while turn in waiting:
                keep(waiting.pop(turn))
                turn += 1


@contextmanager
def spread_over(on: str = "local", workers: int | None = None) -> Iterator[Spread]:
    """`local`; `ray` (started on this machine for the time being); `ray:auto`, `ray:HOST:PORT` or `ray://HOST:PORT`.

    At most `workers` blocks are computed at a time, each with one thread; without it, one on each processor.
    """
    if on == "local":
        if workers is not None:
            raise ConfigError(
                "only a Ray cluster has workers; without one everything is computed in one process",
                option="workers",
            )
        yield HERE
        return
    if on.partition(":")[0] != "ray":
        raise ConfigError(
            f"evaluations run on local, ray, ray:auto, ray:HOST:PORT or ray://HOST:PORT, not on '{on}'"
        )
    from holdfast.evaluate.cluster import RaySpread

    spread = RaySpread(on, workers)
    try:
        yield spread
    finally:
        spread.close()
