"""Search with a model that runs somewhere else, behind HTTP.

    holdfast index http_model.py:model photos/ --out shop.gallery
    holdfast search shop.gallery photo.jpg --model http_model.py:model

The service takes a batch of pictures as JSON (8-bit values, N x 3 x 224 x 224) and answers with one vector for
each. Put in your own address and format. Such a model gives no gradients: it can be searched with, evaluated,
attacked as a black box, and smoothed.
"""

from __future__ import annotations

import json
import os
import urllib.request

import torch
from torch import Tensor

import holdfast

URL = os.environ.get("EMBEDDING_SERVICE", "http://127.0.0.1:8500/embed")


def embed(images: Tensor) -> Tensor:
    """The vectors of pictures with values in [0, 1], as the service gives them."""
    pixels = (images * 255).round().to(torch.uint8).tolist()
    body = json.dumps({"images": pixels}).encode()
    request = urllib.request.Request(URL, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return torch.tensor(json.load(answer)["vectors"])


model = holdfast.wrap(embed, size=224, unit_norm=True)
