"""`--on ray`, as a user would run it."""

from __future__ import annotations

import json

import pytest
from command import here, holdfast

FEW = ("--queries", 12, "--candidates", 40, "--steps", 2, "--check-black-box", 0)
MODEL = """
import torch
import holdfast
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(784, 5)
    def forward(self, images):
        return self.layer(images.flatten(1))
embedder = holdfast.wrap(Net(), (1, 28, 28))
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--on", "ray://127.0.0.1:1"), "no Ray cluster answers at ray://127.0.0.1:1 (Connection refused)"),
        (("--on", "ray:127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1 (Connection refused)"),
        (("--on", "dask"), "not on 'dask'"),
        (("--on", "ray:somewhere"), "not 'ray:somewhere'"),
        (("--workers", 2), "only a Ray cluster has workers"),
    ],
)
def test_a_place_that_is_not_there_is_one_line_and_nothing_is_written(shop, tmp_path, words, says):
    commands = [
        ("evaluate", shop.run, "--attacks", "qa+", *FEW),
        ("certify", shop.run, "--threat", "query:linf:0.01", *FEW[:4]),
        ("evaluate", shop.run, *FEW[:4]),
    ]
    for command in commands:
        done = here(*command, *words, "--out", tmp_path / "out")
        lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
        assert (done.code, len(lines), done.out) == (2, 1, ""), done.err
        assert says in lines[0]
        assert not (tmp_path / "out").exists()


def test_a_model_of_a_file_is_attacked_on_ray(shop, tmp_path):
    pytest.importorskip("ray")
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    command = ("evaluate", f"{model}:embedder", "--data", "fashion-mnist-mini", "--attacks", "es", *FEW)
    assert holdfast(*command, "--out", tmp_path / "local").code == 0
    done = holdfast(*command, "--out", tmp_path / "ray", "--on", "ray", "--workers", 1, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["rows"] == str(tmp_path / "ray" / "rows.csv.gz")
    # What was read, its classes, and what it costs; nothing of Ray's.
    assert len(done.err.splitlines()) == 3, done.err
    for name in ("rows.csv.gz", "summary.json", "pictures.zip"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
