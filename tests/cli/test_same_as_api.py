"""The command line writes the rows that a call in Python writes, into the same folder."""

from __future__ import annotations

import json
import shutil

from command import here

from holdfast import api


def test_certify_and_evaluate(shop, tmp_path):
    run = shutil.copytree(shop.run, tmp_path / "run")
    for name, words, call in (
        (
            "certify",
            ("--threat", "query:linf:0.01", "--queries", 5, "--candidates", 20, "--k", "1,5"),
            lambda: api.certify(run, "query:linf:0.01", queries=5, candidates=20, k=(1, 5)),
        ),
        (
            "evaluate",
            (
                "--queries",
                5,
                "--attacks",
                "er-recall",
                "--threat",
                "query:linf:0.1",
                "--steps",
                2,
                "--k",
                "1",
            ),
            lambda: api.evaluate(
                run, queries=5, attacks="er-recall", threat="query:linf:0.1", steps=2, k=(1,)
            ),
        ),
        ("evaluate", ("--queries", 5), lambda: api.evaluate(run, queries=5)),
    ):
        done = here(name, run, *words, "--json")
        assert done.code == 0, done.err
        folder = call().folder
        rows = (folder / "rows.csv.gz").read_bytes()
        assert json.loads(done.out)["rows"] == str(folder / "rows.csv.gz")
        shutil.rmtree(folder)
        assert call().folder == folder
        assert (folder / "rows.csv.gz").read_bytes() == rows
