"""Proofs are of the function that inference runs: its mode, its precision, and nothing that a trace leaves out."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from holdfast import wrap
from holdfast.bounds import image_box, interval_bounds, trace
from holdfast.certificate import Verdict
from holdfast.errors import ModelError
from holdfast.gallery import Gallery
from holdfast.gallery.indexing import embedder_info, index_images
from holdfast.gallery.searching import search
from holdfast.models import Smoothed, evaluating
from holdfast.models.inference import inference, plain_arithmetic
from holdfast.proofs.certifier import Certifier
from holdfast.threat import Threat

SHAPE = (1, 6, 6)


class Branching(nn.Module):
    """Gives less while it trains, as torch leaves every new module."""

    def __init__(self, seed: int = 0, share: float = 0.4) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 6))
        self.share = share

    def forward(self, x):
        z = self.body(x)
        return self.share * z if self.training else z


class Child(nn.Module):
    """Reads the mode of a layer beside it, and a keyword's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.flat, self.layer, self.flag = nn.Flatten(), nn.Linear(36, 6), nn.Identity()

    def forward(self, x):
        z = self.layer(self.flat(x))
        if self.flag.training:
            z = F.dropout(z, 0.5, training=self.training)
        return z


@pytest.mark.parametrize(("method", "size"), [("interval", 0.5), ("last-layer", 1), ("crown", 4)])
def test_a_module_wrapped_in_train_mode_is_certified_as_it_is_searched(tmp_path, method, size):
    """Wrapped as torch leaves it, indexed from a folder, searched with certificates, attacked as deployed."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(24):
        pixels = rng.integers(0, 256, (6, 6), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number:02d}.png")
    module = Branching()
    embedder = wrap(module, SHAPE)
    assert module.training
    eps, k = size / 255, 3
    certified = 0
    with Gallery.create(tmp_path / "shop.gallery", dim=6, embedder=embedder_info(embedder)) as gallery:
        index_images(embedder, tmp_path / "photos", gallery)
        slots = np.arange(len(gallery))
        vectors = torch.from_numpy(gallery.vectors_at(slots)).double()
        ids = [item.id for item in gallery.items(slots)]
        for _ in range(12):
            pixels = rng.integers(0, 256, SHAPE, dtype=np.uint8)
            found = search(
                gallery, embedder, pixels, k, certify=Threat.parse(f"linf:{size}/255"), method=method
            )
            claims = {ids.index(e.id): e.certificate for e in found.hits}
            certified += sum(claim.verdict is Verdict.CERTIFIED for claim in claims.values())
            for z in altered(
                embedder, torch.from_numpy(pixels).float()[None] / 255, eps, vectors, list(claims)
            ):
                distance = torch.cdist(z, vectors)
                for slot, claim in claims.items():
                    rank = (distance <= distance[:, slot : slot + 1]).sum(1)
                    assert int(rank.max()) <= claim.worst, f"{claim.verdict} and left"
    assert certified > 5
    assert module.training
    assert all(layer.training for layer in module.modules())


def altered(embedder, image, eps, vectors, hits):
    """Embeddings, as inference gives them, of corners of the image's box, steepest ones among them."""
    low, high = (image - eps).clamp(min=0), (image + eps).clamp(max=1)
    yield embedder.embed(torch.where(torch.rand(50, *SHAPE) < 0.5, low, high)).double()
    for hit in hits:
        for rival in range(len(vectors)):
            x = image.clone().requires_grad_(True)
            with evaluating(embedder):
                gain = (embedder(x).double() @ (vectors[rival] - vectors[hit])).sum()
            (gradient,) = torch.autograd.grad(gain, x)
            yield embedder.embed(torch.where(gradient > 0, high, low)).double()


@pytest.mark.parametrize("make", [Branching, Child])
def test_a_trace_is_of_eval_mode_and_leaves_the_modes_alone(make):
    module = make().train()
    module.eval()
    wanted = interval_bounds(trace(module), image_box(torch.ones(1, *SHAPE) / 2, 0.0))
    module.train()
    list(module.modules())[-1].training = False
    modes = [layer.training for layer in module.modules()]
    found = interval_bounds(trace(module), image_box(torch.ones(1, *SHAPE) / 2, 0.0))
    assert [layer.training for layer in module.modules()] == modes
    assert torch.equal(found.centre, wanted.centre)
    Certifier(wrap(module, SHAPE))


def test_training_on_bounds_reads_the_modes_as_they_are():
    module = Branching().train()
    box = image_box(torch.rand(1, *SHAPE), 0.0)
    less, whole = interval_bounds(trace(module, as_is=True), box), interval_bounds(trace(module), box)
    torch.testing.assert_close(less.centre, 0.4 * whole.centre)


def test_overlapping_threads_find_no_network_in_train_mode():
    module = Branching().train()
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with evaluating(module):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with evaluating(module):
        leave.set()
        thread.join(10)
        assert not module.training
    assert all(layer.training for layer in module.modules())


class Sly(nn.Module):
    """A linear layer, and something beside it."""

    def __init__(self, beside) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.flat, self.layer, self.beside, self.calls = nn.Flatten(), nn.Linear(36, 6), beside, 0

    def forward(self, x):
        self.calls += 1
        return self.beside(self, self.layer(self.flat(x)))


def by_calls(net, z):
    return z * 2.0 if net.calls % 3 == 0 else z


def by_chance(net, z):
    return z * (1 + float(torch.rand(1)))


def by_tensor(net, z):
    return z * 2.0 if isinstance(z, torch.Tensor) else z


@pytest.mark.parametrize("beside", [by_calls, by_chance, by_tensor])
def test_what_python_does_beside_the_trace_is_refused(beside):
    embedder = wrap(Sly(lambda net, z: z).eval(), SHAPE)
    embedder.network.beside = (
        beside  # Wrapped as it is, a model that changes from call to call is refused already.
    )
    with pytest.raises(ModelError, match="cannot be seen in its trace") as error:
        Certifier(embedder)
    assert "\n" not in str(error.value)


def test_a_network_that_changes_after_its_trace_is_refused_at_its_next_image():
    elsewhere = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(36, 6)

        def forward(self, x):
            z = self.layer(x.flatten(1))
            return z * 2.0 if elsewhere else z

    embedder = wrap(Net().eval(), SHAPE)
    certifier = Certifier(embedder)
    certifier.box(torch.rand(1, *SHAPE), 0.01)
    elsewhere.append("switched")
    with pytest.raises(ModelError, match="cannot be seen in its trace"):
        certifier.box(torch.rand(1, *SHAPE), 0.01)
    with pytest.raises(ModelError, match="cannot be seen in its trace"):
        certifier.backward(torch.rand(1, *SHAPE), 0.0).lower(0, torch.eye(6).double())


def test_new_weights_are_those_that_are_bounded():
    """A layer's weight that is replaced, not overwritten, is read anew."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval()
    graph, box = trace(net), image_box(torch.rand(1, *SHAPE), 0.0)
    net[1].weight = nn.Parameter(torch.ones(4, 36))
    torch.testing.assert_close(interval_bounds(graph, box).centre, net(box.centre))


def test_relatives_of_known_layers_and_hooks_on_everything_are_refused():
    quantised = torch.ao.nn.qat.Linear(36, 4, qconfig=torch.ao.quantization.get_default_qat_qconfig())
    with pytest.raises(ModelError, match="Linear"):
        trace(nn.Sequential(nn.Flatten(), quantised).eval())
    embedder = wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval(), SHAPE)
    hook = embedder.register_forward_hook(lambda module, given, out: 2 * out)
    with pytest.raises(ModelError, match="forward hook"):
        Certifier(embedder)
    hook.remove()
    hook = nn.modules.module.register_module_forward_hook(lambda module, given, out: out)
    with pytest.raises(ModelError, match="forward hook on all layers"):
        Certifier(embedder)
    hook.remove()
    embedder.features = lambda images: images.flatten(1)
    with pytest.raises(ModelError, match="forward of its own"):
        Certifier(embedder)


def settings_now():
    precisions = [torch._C._get_fp32_precision_getter(*at) for at in PLACES]
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:
        legacy = "mixed"
    return [*precisions, legacy, torch._C._get_nnpack_enabled(), torch.is_autocast_enabled("cpu")]


PLACES = [("generic", "all"), *((b, o) for b in ("mkldnn", "cuda") for o in ("matmul", "conv", "rnn"))]


@pytest.fixture
def untouched():
    """Puts back what a test sets for the whole process."""
    before = [torch._C._get_fp32_precision_getter(*at) for at in PLACES]
    yield
    torch.set_float32_matmul_precision("highest")
    for at, precision in zip(PLACES, before, strict=True):
        torch._C._set_fp32_precision_setter(*at, precision)


def by_old_interface():
    torch.set_float32_matmul_precision("medium")


def by_products():
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def by_convolutions():
    torch.backends.mkldnn.conv.fp32_precision = "bf16"


def by_everything():
    torch.backends.fp32_precision = "tf32"


@pytest.mark.parametrize("switch", [by_old_interface, by_products, by_convolutions, by_everything])
def test_precision_settings_are_full_inside_inference_and_put_back(untouched, switch):
    switch()
    before = settings_now()
    seen = []
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval()
    embedder = wrap(net, SHAPE)
    net.register_forward_hook(lambda *_: seen.append(settings_now()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embedder.embed(torch.rand(2, *SHAPE))
        Smoothed(embedder, 0.1, 4, bound=100.0).embed(torch.rand(1, *SHAPE))
        assert torch.is_autocast_enabled("cpu")
    assert len(seen) == 2
    for found in seen:
        assert set(found[:4]) == {"ieee"}
        assert found[-3:] == ["highest", False, False]
    assert settings_now() == before


def test_autocast_around_a_search_changes_nothing():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6)).eval()
    embedder, images = wrap(net, SHAPE), torch.rand(8, *SHAPE)
    wanted = embedder.embed(images)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        found = embedder.embed(images)
        box = Certifier(embedder).box(images, 0.0)
    assert torch.equal(found, wanted)
    assert ((wanted.double() - box.centre).abs() <= box.radius).all()


def test_convolutions_by_transforms_are_not_used():
    """NNPACK, which torch takes where oneDNN is switched off, errs more than any order of sums can."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Flatten()).eval()
    embedder, images = wrap(net, (1, 32, 32)), torch.rand(32, 1, 32, 32)
    torch._C._set_mkldnn_enabled(False)
    try:
        box = Certifier(embedder).box(images, 0.0)
        vectors = embedder.embed(images).double()
        with inference(embedder):
            assert not torch._C._get_nnpack_enabled()
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert ((vectors - box.centre).abs() <= box.radius).all()
    assert torch._C._get_nnpack_enabled()


class Inside(nn.Module):
    """Computes in bfloat16 in the middle, which torch.fx does not record."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.layer = nn.Flatten(), nn.Linear(36, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = self.layer(self.flat(x))
        return z + 0.0


def test_half_precision_inside_is_refused_and_still_searchable():
    for module in (Inside(), nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).bfloat16()):
        embedder = wrap(module.eval(), SHAPE)
        assert embedder.embed(torch.rand(3, *SHAPE)).shape == (3, 4)
        with pytest.raises(ModelError, match=r"float32 inference.*bfloat16"):
            Certifier(embedder)


@pytest.mark.parametrize("mode", ["BF16", "any"])
def test_lower_precision_by_the_environment_is_refused(monkeypatch, mode):
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", mode)
    embedder = wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval(), SHAPE)
    with pytest.raises(ModelError, match=f"ONEDNN_DEFAULT_FPMATH_MODE={mode}"):
        Certifier(embedder)
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "strict")
    Certifier(embedder)


def test_another_device_is_refused():
    embedder = wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval(), SHAPE).to("meta")
    with pytest.raises(ModelError, match="on the CPU, and this embedder is on meta"):
        Certifier(embedder)


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("method", ["interval", "last-layer", "crown"])
def test_a_float64_module_is_certified(unit, method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)).double().eval()
    embedder = wrap(net, SHAPE, unit_norm=unit)
    images, pool = torch.rand(2, *SHAPE), torch.rand(9, *SHAPE)
    vectors = embedder.embed(pool)
    assert vectors.dtype == torch.float64
    attack = Certifier(embedder).alteration(Threat.parse("linf:0.0001"), images, pool, vectors, method=method)
    distance = torch.cdist(embedder.embed(images), vectors)
    hits = distance.argsort(1)
    ranks = attack.ranks(hits)
    assert bool((ranks.worst == torch.arange(1, 10)).any())
    assert bool((ranks.worst >= torch.arange(1, 10)).all())


def test_pixels_are_float32_whatever_the_default_is():
    embedder = wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval(), SHAPE)
    pixels = torch.arange(36, dtype=torch.uint8).view(1, *SHAPE)
    wanted = embedder.embed(pixels)
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float16, torch.float64):
            torch.set_default_dtype(dtype)
            assert torch.equal(embedder.embed(pixels), wanted)
            Certifier(embedder).box(pixels.float() / 255, 0.01)
    finally:
        torch.set_default_dtype(before)


def test_settings_are_put_back_by_the_last_thread(untouched):
    torch.set_float32_matmul_precision("medium")
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with plain_arithmetic():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with plain_arithmetic():
        leave.set()
        thread.join(10)
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "medium"


def test_settings_changed_after_the_trace_are_refused():
    embedder = wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.LeakyReLU(0.1)).eval(), SHAPE)
    certifier, image = Certifier(embedder), torch.full((1, *SHAPE), 0.5)
    certifier.box(image, 0.01)
    embedder.network[2].negative_slope = 0.9
    for ask in (lambda: certifier.box(image, 0.01), lambda: certifier.backward(image, 0.01)):
        with pytest.raises(ModelError, match="changed since it was traced"):
            ask()


def test_a_proof_leaves_a_network_with_spectral_norm_as_it_is():
    """In train mode every look at its weight is a step of a power iteration."""
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(36, 6))
    embedder = wrap(nn.Sequential(nn.Flatten(), layer), SHAPE)
    images = torch.rand(2, *SHAPE)
    before, printed = embedder.embed(images), embedder.fingerprint()
    certifier = Certifier(embedder)
    certifier.last(images, 0.01)
    assert torch.equal(embedder.embed(images), before)
    assert embedder.fingerprint() == printed


@pytest.mark.parametrize(
    "forward", [lambda z, x: z * x.size(0), lambda z, x: z / x.shape[0], lambda z, x: z * 1j]
)
def test_arithmetic_with_what_is_no_real_constant_is_refused(forward):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(36, 4)

        def forward(self, x):
            return forward(self.layer(x.flatten(1)), x)

    with pytest.raises(ModelError, match="real constant"):
        trace(Net())
