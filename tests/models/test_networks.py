from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.errors import ModelError
from holdfast.models import MODELS, Embedder, build, load, save
from holdfast.spec import ImageSpec

PLAIN = ("small", "large", "c2f2", "cnn7-narrow")


def fresh(name: str, spec: ImageSpec, dim: int | None = None) -> Embedder:
    options = {"pretrained": False} if MODELS[name].shipped else {}
    return build(name, spec=spec, dim=dim, **options)


def spec_for(name: str, height: int, width: int, channels: int = 3) -> ImageSpec:
    blueprint = MODELS[name]
    least = blueprint.min_side
    return ImageSpec(3 if blueprint.colour_only else channels, height + least - 1, width + least - 1)


# Written down from torchvision: names and shapes that its files of weights have.
TORCHVISION = {
    "resnet18": (
        11_176_512,
        120,
        {
            "conv1.weight": (64, 3, 7, 7),
            "bn1.running_var": (64,),
            "bn1.num_batches_tracked": (),
            "layer1.0.conv1.weight": (64, 64, 3, 3),
            "layer1.1.bn2.bias": (64,),
            "layer2.0.conv1.weight": (128, 64, 3, 3),
            "layer2.0.downsample.0.weight": (128, 64, 1, 1),
            "layer2.0.downsample.1.running_mean": (128,),
            "layer3.0.downsample.0.weight": (256, 128, 1, 1),
            "layer4.0.conv1.weight": (512, 256, 3, 3),
            "layer4.1.conv2.weight": (512, 512, 3, 3),
            "layer4.1.bn2.weight": (512,),
        },
    ),
    "resnet50": (
        23_508_032,
        318,
        {
            "conv1.weight": (64, 3, 7, 7),
            "layer1.0.conv1.weight": (64, 64, 1, 1),
            "layer1.0.conv2.weight": (64, 64, 3, 3),
            "layer1.0.conv3.weight": (256, 64, 1, 1),
            "layer1.0.downsample.0.weight": (256, 64, 1, 1),
            "layer1.2.bn3.running_mean": (256,),
            "layer2.3.conv1.weight": (128, 512, 1, 1),
            "layer3.0.downsample.1.weight": (1024,),
            "layer3.5.conv3.weight": (1024, 256, 1, 1),
            "layer4.0.conv1.weight": (512, 1024, 1, 1),
            "layer4.0.downsample.0.weight": (2048, 1024, 1, 1),
            "layer4.2.conv3.weight": (2048, 512, 1, 1),
        },
    ),
    "vgg11": (
        9_220_480,
        16,
        {
            "features.0.weight": (64, 3, 3, 3),
            "features.0.bias": (64,),
            "features.3.weight": (128, 64, 3, 3),
            "features.6.weight": (256, 128, 3, 3),
            "features.8.weight": (256, 256, 3, 3),
            "features.11.weight": (512, 256, 3, 3),
            "features.13.weight": (512, 512, 3, 3),
            "features.16.weight": (512, 512, 3, 3),
            "features.18.weight": (512, 512, 3, 3),
            "features.18.bias": (512,),
        },
    ),
    "vgg11-bn": (
        9_225_984,
        56,
        {
            "features.0.weight": (64, 3, 3, 3),
            "features.1.running_mean": (64,),
            "features.4.weight": (128, 64, 3, 3),
            "features.8.weight": (256, 128, 3, 3),
            "features.15.weight": (512, 256, 3, 3),
            "features.22.weight": (512, 512, 3, 3),
            "features.25.weight": (512, 512, 3, 3),
            "features.26.bias": (512,),
        },
    ),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_backbones_have_torchvisions_names_and_shapes(name: str) -> None:
    parameters, entries, shapes = TORCHVISION[name]
    network = fresh(name, ImageSpec(3, 64, 64)).network
    head = MODELS[name].classifier
    state = {key: tensor for key, tensor in network.state_dict().items() if not key.startswith(head)}
    assert len(state) == entries
    assert {key: tuple(state[key].shape) for key in shapes} == shapes
    counted = {key: value for key, value in network.named_parameters() if not key.startswith(head)}
    assert sum(value.numel() for value in counted.values()) == parameters
    strides = {key: layer.stride for key, layer in network.named_modules() if isinstance(layer, nn.Conv2d)}
    if name == "resnet50":
        assert strides["layer2.0.conv2"] == (2, 2)
        assert strides["layer2.0.conv1"] == (1, 1)


@pytest.mark.parametrize(
    ("name", "spec", "layers", "linear", "sizes"),
    [
        ("small", ImageSpec(1, 28, 28), [(16, 4, 2, 1), (32, 4, 1, 1)], 32 * 13 * 13, [128]),
        (
            "large",
            ImageSpec(3, 32, 32),
            [(64, 3, 1, 1), (64, 3, 1, 1), (128, 3, 2, 1), (128, 3, 1, 1), (128, 3, 1, 1)],
            128 * 16 * 16,
            [128],
        ),
        ("c2f2", ImageSpec(1, 28, 28), [(32, 5, 1, 2), (64, 5, 1, 2)], 64 * 7 * 7, [1024, 512]),
        (
            "cnn7-narrow",
            ImageSpec(1, 28, 28),
            [(16, 3, 1, 1), (16, 3, 1, 1), (32, 3, 2, 1), (32, 3, 1, 1), (32, 3, 1, 1)],
            32 * 14 * 14,
            [128, 128],
        ),
    ],
)
def test_plain_networks_are_the_papers(
    name: str, spec: ImageSpec, layers: list[tuple[int, int, int, int]], linear: int, sizes: list[int]
) -> None:
    embedder = fresh(name, spec)
    convs = [layer for layer in embedder.network.modules() if isinstance(layer, nn.Conv2d)]
    found = [(c.out_channels, c.kernel_size[0], c.stride[0], c.padding[0]) for c in convs]
    linears = [layer for layer in embedder.network.modules() if isinstance(layer, nn.Linear)]
    assert found == layers
    assert linears[0].in_features == linear
    assert [layer.out_features for layer in linears] == sizes
    # A ReLU between each two layers, and none after the last.
    relus = sum(isinstance(layer, nn.ReLU) for layer in embedder.network.modules())
    assert relus == len(convs) + len(linears) - 1
    assert not isinstance(list(embedder.network.modules())[-1], nn.ReLU)


@pytest.mark.parametrize("name", MODELS)
def test_defaults_are_the_blueprints(name: str) -> None:
    embedder = fresh(name, spec_for(name, 1, 1))
    assert (embedder.dim, embedder.unit_norm) == {
        "small": (128, False),
        "large": (128, False),
        "c2f2": (512, True),
        "cnn7-narrow": (128, False),
        "resnet18": (512, True),
        "resnet50": (128, True),
        "vgg11": (128, False),
        "vgg11-bn": (128, False),
        "efficientnet-lite0": (128, True),
        "efficientnet-lite1": (128, True),
        "efficientnet-lite2": (128, True),
        "mobilenet-v2": (128, True),
    }[name]
    assert (embedder.pixels is None) == (name in PLAIN)


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=15, deadline=None)
@given(
    height=st.integers(1, 25),
    width=st.integers(1, 25),
    channels=st.sampled_from([1, 3]),
    dim=st.integers(1, 9),
    count=st.integers(1, 3),
)
def test_plain_networks_take_every_size(
    name: str, height: int, width: int, channels: int, dim: int, count: int
) -> None:
    spec = spec_for(name, height, width, channels)
    embedder = fresh(name, spec, dim)
    assert embedder.embed(torch.rand(count, *spec.shape)).shape == (count, dim)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in PLAIN])
@settings(max_examples=4, deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40))
def test_backbones_take_every_size(name: str, height: int, width: int) -> None:
    spec = spec_for(name, height, width)
    embedder = fresh(name, spec, 4)
    vectors = embedder.embed(torch.rand(2, *spec.shape))
    assert vectors.shape == (2, 4)
    if embedder.unit_norm:
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].min_side > 1])
def test_smaller_images_than_a_network_can_take_are_refused(name: str) -> None:
    least = MODELS[name].min_side
    fresh(name, ImageSpec(3, least, least))
    with pytest.raises(ModelError, match=f"3x{least - 1}x{least} are too small for {name}.*{least}x{least}"):
        fresh(name, ImageSpec(3, least - 1, least))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_traceable(name: str) -> None:
    spec = spec_for(name, 12, 13)
    embedder = fresh(name, spec, 4).eval()
    images = torch.rand(2, *spec.shape)
    with torch.no_grad():
        assert torch.equal(torch.fx.symbolic_trace(embedder)(images), embedder(images))
        assert torch.equal(torch.fx.symbolic_trace(embedder.network)(images), embedder.network(images))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_learns(name: str) -> None:
    spec = spec_for(name, 12, 13)
    embedder = fresh(name, spec, 4)
    embedder(torch.rand(3, *spec.shape))[:, 0].sum().backward()
    for parameter in embedder.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg11", "efficientnet-lite0", "mobilenet-v2"])
def test_a_backbone_without_head_gives_its_features(name: str) -> None:
    width = {"resnet18": 512, "resnet50": 2048, "vgg11": 25088}.get(name, 1280)
    options = {"pretrained": False} if MODELS[name].shipped else {}
    embedder = build(name, spec=(3, 32, 32), head="none", **options)
    assert embedder.dim == width
    assert embedder.embed(torch.rand(1, 3, 32, 32)).shape == (1, width)


@pytest.mark.parametrize("name", ["small", "large"])
def test_an_embedding_can_be_rectified(name: str, tmp_path: Path) -> None:
    def built(**options: str) -> Embedder:
        torch.manual_seed(0)
        return build(name, spec=(1, 12, 12), dim=6, **options).eval()

    plain, rectified = built(), built(activation="relu")
    x = torch.rand(5, 1, 12, 12)
    assert torch.equal(rectified(x), torch.relu(plain(x)))
    # A network that leaves the option open is the one from before it had it.
    assert plain.architecture == {"name": name}
    assert plain.fingerprint() != rectified.fingerprint()
    save(rectified, tmp_path, config={}, data="none", seed=0, metrics={})
    assert torch.equal(load(tmp_path)(x), rectified(x))
    with pytest.raises(ModelError, match="relu or left out, not 'tanh'"):
        built(activation="tanh")


def test_the_seven_layer_network_normalises_all_but_its_last_layer() -> None:
    embedder = build("cnn7-narrow", spec=(1, 28, 28))
    kinds = [type(layer).__name__ for layer in embedder.network]
    assert kinds == ["Conv2d", "BatchNorm2d", "ReLU"] * 5 + [
        "Flatten",
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
    ]
    assert sum(parameter.numel() for parameter in embedder.parameters()) == 845_328
    wide = build("cnn7-narrow", spec=(3, 32, 32), width=64)
    hidden = wide.network[16]
    assert isinstance(hidden, nn.Linear)
    assert (hidden.in_features, hidden.out_features) == (128 * 16 * 16, 512), "that of Shi et al. (2021)"
    with pytest.raises(ModelError, match="a width is at least 1, not 0"):
        build("cnn7-narrow", spec=(1, 28, 28), width=0)


def test_vgg11_with_batch_norm_pools_no_more_than_it_has() -> None:
    photographs = build("vgg11-bn", spec=(3, 96, 96), dim=8)
    assert photographs.network.classifier.in_features == 512 * 3 * 3
    large = build("vgg11-bn", spec=(3, 256, 224), dim=8)
    assert large.network.classifier.in_features == 512 * 7 * 7
