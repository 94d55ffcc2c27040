"""A gallery that is damaged while it is served: 503 with one sentence, never a wrong answer or a 500."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from serving import Shop, ask, problem, serving


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE items SET slot = -1 - slot", "UPDATE items SET slot = 60 + slot"],  # turned around
        ["UPDATE items SET label = x'00ff'"],
        ["UPDATE meta SET generation = 'x'"],
        ["UPDATE meta SET card = 5"],
        ["UPDATE meta SET generation = generation + 1", "UPDATE blocks SET data = 5"],
    ],
)
def test_damage_is_a_503(own_shop: Shop, tmp_path: Path, statements: list[str]) -> None:
    with serving(own_shop, tmp_path / "c") as (client, _):
        assert ask(client, own_shop.picture(), k=3).status_code == 200
        with closing(sqlite3.connect(own_shop.gallery)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        said = problem(ask(client, own_shop.picture(), k=3), 503, "")
        assert str(own_shop.gallery) not in said["detail"]
        problem(ask(client, own_shop.picture(), path="search/certified", threat="linf:0.01", k=3), 503, "")
