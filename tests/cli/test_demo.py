"""The demo, with a training of a few steps: what it prints and leaves, and that it goes on from what is there."""

from __future__ import annotations

import json

from command import holdfast


def test_demo_prints_proofs_and_leaves_pages(tmp_path):
    done = holdfast("demo", "--steps", 4, "--queries", 12, cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out.count("rank interval  stays in top 10  verdict") == 2
    assert "median largest eps" in done.out
    page = (tmp_path / "demo/hits.html").read_text()
    assert page.count('class="query"') == 10
    assert page.count("data:image/") == 110
    assert page.count("<br>rank ") == 100
    report = (tmp_path / "demo/run/report.html").read_text()
    for part in ("Retrieval on", "Certified numbers on", "How far the proofs reach on", "The weakest proofs"):
        assert part in report
    again = holdfast("demo", "--steps", 4, "--queries", 12, "--json", cwd=tmp_path)
    assert again.code == 0, again.err
    found = json.loads(again.out)
    assert all(line["certified_hit_rate"] <= line["recall"] for line in found["certified"])
    assert all(line["certified"][0] <= line["clean"] for line in found["curve"])
    assert "training small" not in again.err
    other = holdfast("demo", "--steps", 5, cwd=tmp_path)
    assert other.code == 2
    assert "--fresh" in other.err
