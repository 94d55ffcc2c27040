"""Embedders that are no torch modules: callables, names in Python files, ONNX files."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from holdfast.attacks import Attack, Given, objective, optimiser
from holdfast.errors import ConfigError, MissingExtraError, ModelError
from holdfast.models import CallableEmbedder, Embedder, find, opens_alone
from holdfast.spec import ImageSpec
from holdfast.threat import Threat

SPEC = ImageSpec(3, 4, 4)


def means(images):
    return images.mean((2, 3)).numpy()


def test_a_callable_embeds_arrays_tensors_and_bytes():
    embedder = CallableEmbedder(means, (3, 4, 4))
    assert (embedder.dim, embedder.spec) == (3, SPEC)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
    wanted = torch.from_numpy(pixels / 255.0).mean((2, 3)).float()
    torch.testing.assert_close(embedder.embed(pixels, batch_size=2), wanted)
    unit = CallableEmbedder(means, SPEC, unit_norm=True).embed(pixels)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(5))


def test_its_fingerprint_follows_what_it_does():
    one = CallableEmbedder(means, SPEC, source="a").fingerprint()
    assert one == CallableEmbedder(means, SPEC, source="a").fingerprint()
    others = [
        CallableEmbedder(means, SPEC, source="b"),
        CallableEmbedder(lambda x: 1.1 * means(x) + 0.1, SPEC, name="means", source="a"),
        CallableEmbedder(means, (3, 5, 4), source="a"),
        CallableEmbedder(means, SPEC, source="a", unit_norm=True),
    ]
    assert len({one, *(other.fingerprint() for other in others)}) == 5


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: x.sum(), "one vector per image"),
        (lambda x: x.mean((2, 3))[:1], "one vector per image"),
        (lambda x: x.flatten(1) > 0, "vectors of floats, found bool"),
        (lambda x: x.flatten(1) / 0, "NaN or infinity"),
        (lambda x: 1 / 0, "cannot embed images of 3x4x4: division by zero"),
        (lambda x: "text", "cannot embed"),
        (7, "a callable"),
    ],
)
def test_what_is_no_embedder_is_refused_at_once(function, says):
    with pytest.raises(ModelError, match=says):
        CallableEmbedder(function, SPEC, name="it")


def test_wrong_images_are_refused():
    embedder = CallableEmbedder(means, SPEC)
    with pytest.raises(ModelError, match="grey images"):
        embedder.embed(np.zeros((1, 1, 4, 4), np.uint8))
    with pytest.raises(ModelError, match="not in"):
        embedder.embed(np.full((1, 3, 4, 4), 2.0))


FILE = """
import holdfast
import torch
from neighbour import WIDTH

torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, WIDTH))
embedder = holdfast.wrap(module, (3, 4, 4))
def function(images):
    return images.flatten(1)[:, :WIDTH]
class Kind: pass
number = 7
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "neighbour.py").write_text("WIDTH = 6\n")
    (tmp_path / "mine.py").write_text(FILE)
    yield tmp_path / "mine.py"
    sys.modules.pop("neighbour", None)


def test_names_in_a_python_file(file):
    before = list(sys.path)
    ready = find(f"{file}:embedder")
    assert isinstance(ready, Embedder)
    module = find(f"{file}:module", SPEC)
    assert isinstance(module, Embedder)
    assert module.fingerprint() == ready.fingerprint()
    function = find(f"{file}:function", SPEC)
    assert isinstance(function, CallableEmbedder)
    assert function.dim == 6
    assert sys.path == before
    assert not opens_alone(f"{file}:function")
    assert opens_alone(file.parent)


def test_what_a_python_file_does_not_give(file):
    for named, says in (
        (f"{file}:none", "has no name 'none'"),
        (f"{file}:Kind", "is the class Kind"),
        (f"{file}:number", "is a int"),
        (f"{file}:module", r"say their size: .*mine.py:module\?size=224"),
        (str(file), "say which name"),
        (f"{file.with_name('other.py')}:x", "no Python file"),
    ):
        with pytest.raises(ModelError, match=says):
            find(named)
    file.write_text("import nothing_of_this_name\n")
    with pytest.raises(ModelError, match="ModuleNotFoundError"):
        find(f"{file}:embedder")


def write_onnx(path, shape, scale=1.0):
    """A network that takes images to `scale` times their mean colour; a size given by name is left open."""
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)
    vectors = helper.make_tensor_value_info("vectors", TensorProto.FLOAT, [shape[0], shape[1]])
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [len(shape[2:])], [*range(2, len(shape))]),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [scale]),
    ]
    nodes = [
        helper.make_node("ReduceMean", ["pixels", "axes"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "scale"], ["vectors"]),
    ]
    graph = helper.make_graph(nodes, "mean colour", [pixels], [vectors], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("shape", [["N", 3, 4, 4], [4, 3, 4, 4], ["N", 3, "H", "W"]])
def test_an_onnx_file(tmp_path, shape):
    path = tmp_path / "net.onnx"
    write_onnx(path, shape)
    embedder = find(path, SPEC if shape[2] == "H" else None)
    assert isinstance(embedder, CallableEmbedder)
    pixels = torch.rand(9, 3, 4, 4)
    torch.testing.assert_close(embedder.embed(pixels), pixels.mean((2, 3)))
    write_onnx(path, shape, scale=2.0)
    assert find(path, SPEC).fingerprint() != embedder.fingerprint()


def test_an_onnx_file_is_attacked_without_gradients(tmp_path):
    path = tmp_path / "net.onnx"
    write_onnx(path, ["N", 3, 4, 4])
    images = torch.full((2, 3, 4, 4), 0.5)
    attack = Attack(objective("es", Given()), optimiser("nes", queries=1000), Threat.parse("query:linf:0.1"))
    altered = attack.run(find(path), images)
    # Mean colour moves most, by 0.1 in every channel, when all pixels go the same way.
    moved = (altered.images.mean((2, 3)) - 0.5).norm(dim=1)
    assert (moved > 0.07 * 3**0.5).all()
    with pytest.raises(ConfigError, match="gradient"):
        Attack(objective("es", Given()), optimiser("pgd"), Threat.parse("query:linf:0.1")).run(
            find(path), images
        )


def test_onnx_files_that_do_not_fit(tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(MissingExtraError, match=r"holdfast\[onnx\]"):
            find(path)
    with pytest.raises(ModelError, match="no ONNX file"):
        find(path)
    write_onnx(path, ["N", 3, "H", "W"])
    with pytest.raises(ModelError, match=r"say it: .*net.onnx\?size=224"):
        find(path)
    write_onnx(path, ["N", 3, 8, 8])
    with pytest.raises(ModelError, match="takes images of 3x8x8"):
        find(path, SPEC)
    write_onnx(path, ["N", 48])
    with pytest.raises(ModelError, match="must take one"):
        find(path)
    path.write_bytes(b"broken")
    with pytest.raises(ModelError, match="Protobuf parsing failed"):
        find(path)
