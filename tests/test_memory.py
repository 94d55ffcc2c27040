"""What tensors give back is kept: the same memory is not asked of the system again."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from holdfast.memory import keep_freed_memory

if sys.argv[1] == "keep" and not keep_freed_memory():
    print("none")
    raise SystemExit
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
layers = [torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)]
def forward():
    with torch.no_grad():
        x = torch.ones(32, 16, 64, 64)
        for layer in layers:
            x = layer(x).relu()
for _ in range(3):
    forward()
before = faults()
for _ in range(10):
    forward()
print(faults() - before)
"""


def test_freed_memory_is_kept():
    found = {
        way: subprocess.run(
            [sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, check=True
        ).stdout.strip()
        for way in ("keep", "give")
    }
    if found["keep"] == "none":
        pytest.skip("this C library has no such switch")
    assert int(found["keep"]) < int(found["give"]) / 10
