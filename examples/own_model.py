"""Search a folder of images with any torch module, and see how far each hit can be trusted.

    python examples/own_model.py FOLDER PHOTO

The module here is a small untrained network, so the hits are by texture and colour; put your own in
its place. Anything that torch.fx can trace and that is made of the layers in docs/certificates.md can
be certified; any module at all can be searched with.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import holdfast
from holdfast.data import read_image
from holdfast.gallery.certified import certified_search
from holdfast.threat import Threat, floored


def main(folder: str, photo: str) -> None:
    """Index `folder`, search for `photo`, and print each hit with the largest eps at which it stays."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 32)
    )
    embedder = holdfast.wrap(module.eval(), (3, 64, 64))
    with (
        tempfile.TemporaryDirectory() as place,
        holdfast.index(embedder, folder, Path(place) / "own.gallery") as gallery,
    ):
        pixels = read_image(Path(photo), embedder.spec)
        for entry in certified_search(
            gallery, embedder, pixels, min(5, len(gallery)), Threat.parse("linf:auto")
        ).hits:
            size = f"stays up to eps {floored(entry.eps)}" if entry.eps >= 0 else "not proven"
            print(f"{entry.hit.rank}  {entry.hit.id}  {entry.hit.distance:.4f}  {size}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
