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
from holdfast.gallery.searching import search


def main(folder: str, photo: str) -> None:
    """Index `folder`, search for `photo`, and print what is proved of each hit."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 32)
    )
    embedder = holdfast.wrap(module.eval(), (3, 64, 64))
    with (
        tempfile.TemporaryDirectory() as place,
        holdfast.index(embedder, folder, Path(place) / "own.gallery") as gallery,
    ):
        for hit in search(gallery, embedder, photo, 5, certify="linf:auto"):
            print(f"{hit.rank}  {hit.id}  {hit.distance:.4f}  {hit.certificate.sentence()}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
