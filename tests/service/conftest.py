"""A gallery of real pictures, and a service of it that most tests ask."""

from __future__ import annotations

import shutil

import pytest
from serving import Shop, serving

from holdfast import data, models
from holdfast.data.export import export_images
from holdfast.gallery.building import open_and_index

MODEL = """
import torch
from torch import nn
from holdfast.models.wrap import wrap
from holdfast.spec import ImageSpec

torch.manual_seed(0)
net = wrap(nn.Sequential(nn.Flatten(), nn.Linear(784, 24)), ImageSpec(1, 28, 28), unit_norm=True)
other = wrap(nn.Sequential(nn.Flatten(), nn.Linear(784, 24)), ImageSpec(1, 28, 28), unit_norm=True)
"""


@pytest.fixture(scope="session")
def shop(tmp_path_factory) -> Shop:
    folder = tmp_path_factory.mktemp("served")
    (folder / "model.py").write_text(MODEL)
    made = Shop(folder, folder / "pictures", folder / "shop.gallery", f"{folder}/model.py:net")
    export_images(data.load("fashion-mnist-mini").test, made.pictures, limit=6)
    gallery, _ = open_and_index(models.find(made.model), made.pictures, made.gallery, boxes=0.02)
    gallery.close()
    return made


@pytest.fixture
def own_shop(shop, tmp_path) -> Shop:
    """A copy that may be changed."""
    shutil.copy(shop.gallery, tmp_path / "own.gallery")
    return Shop(tmp_path, shop.pictures, tmp_path / "own.gallery", shop.model)


@pytest.fixture(scope="session")
def service(shop, tmp_path_factory):
    with serving(shop, tmp_path_factory.mktemp("cache")) as (client, desk):
        yield client, desk


@pytest.fixture(scope="session")
def client(service):
    return service[0]
