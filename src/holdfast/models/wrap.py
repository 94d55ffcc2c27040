"""Any torch module, model of another library, or callable as an embedder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn

from holdfast.errors import ModelError
from holdfast.models.callable import CallableEmbedder
from holdfast.models.embedder import Embedder, placement
from holdfast.models.inference import inference
from holdfast.models.inputs import as_spec
from holdfast.models.outputs import Pool, Pooled, understood, usual_pool
from holdfast.models.pixels import PerChannel, pixels_for
from holdfast.models.sides import CandidateSide
from holdfast.models.steady import check_steady
from holdfast.spec import ImageSpec

WRAPPED = "wrapped"
Spec = ImageSpec | tuple[int, int, int]


@overload
def wrap(
    module: nn.Module,
    spec: Spec | None = None,
    *,
    size: int | None = None,
    mean: PerChannel | None = None,
    std: PerChannel | None = None,
    unit_norm: bool = False,
    pool: Pool | None = None,
    candidate_side: CandidateSide | None = None,
) -> Embedder: ...


@overload
def wrap(
    module: Callable[[Tensor], Any],
    spec: Spec | None = None,
    *,
    size: int | None = None,
    mean: PerChannel | None = None,
    std: PerChannel | None = None,
    unit_norm: bool = False,
) -> CallableEmbedder: ...


def wrap(
    module: nn.Module | Callable[[Tensor], Any],
    spec: Spec | None = None,
    *,
    size: int | None = None,
    mean: PerChannel | None = None,
    std: PerChannel | None = None,
    unit_norm: bool = False,
    pool: Pool | None = None,
    candidate_side: CandidateSide | None = None,
) -> Embedder | CallableEmbedder:
    """`module` as an embedder of `spec` images, or of colour images of `size` pixels; it is used, not copied.

    `mean` and `std` are the pixel normalisation the module was trained with, if it does not do it
    itself. `candidate_side` says how candidates' vectors are made of its output, where they are not
    the same. A few dummy images show the embedding size, that the output is a finite vector per
    image (N×D; N×D×1×1 is flattened), and that an image's vector is always the same. Of a network that gives an
    object of several outputs, as those of Hugging Face do, `pool` says which is the vector. A callable that is no
    module is a black box (`CallableEmbedder`).
    """
    if isinstance(module, Embedder):
        raise ModelError("this is an embedder already; use it as it is")
    if not callable(module) or isinstance(module, type):
        raise ModelError(
            f"a torch.nn.Module or a callable from images to vectors can be wrapped, not {type(module).__name__}"
        )
    if (spec is None) == (size is None):
        raise ModelError("say which images it takes: size=224, or a spec such as (3, 224, 224)")
    spec = as_spec((3, size, size) if size is not None else spec)  # type: ignore[arg-type]
    if not isinstance(module, nn.Module):
        if candidate_side is not None or pool is not None:
            raise ModelError("a candidate side and a pooling are for torch modules, not for a plain callable")
        return CallableEmbedder(module, spec, mean=mean, std=std, unit_norm=unit_norm)
    return embedder_of(
        module, spec, mean=mean, std=std, unit_norm=unit_norm, pool=pool, candidate_side=candidate_side
    )


def embedder_of(
    module: nn.Module,
    spec: ImageSpec,
    *,
    mean: PerChannel | None = None,
    std: PerChannel | None = None,
    unit_norm: bool = False,
    pool: Pool | None = None,
    candidate_side: CandidateSide | None = None,
    architecture: Mapping[str, Any] | None = None,
) -> Embedder:
    """A torch module as an embedder; `architecture` is what makes it again where that is not its class."""
    if not isinstance(module, Pooled) and (pool is not None or hasattr(module, "get_image_features")):
        module = Pooled(module, pool or usual_pool(module))
    made = _embedder(module, spec, mean, std, unit_norm, architecture)
    output = _probe(made)
    if understood(output):
        inner: nn.Module = module
        made = _embedder(Pooled(inner, usual_pool(inner)), spec, mean, std, unit_norm, architecture)
        output = _probe(made)
    made.dim = _checked(output, _kind(module).__qualname__)
    if candidate_side is not None:
        candidate_side.check(made.dim, unit_norm)
        made.candidate_side = candidate_side
    if architecture is None:
        made.architecture["layers"] = layers_digest(made.network)
    with inference(made):
        device, dtype = placement(made)
        check_steady(
            lambda images: made.features(images.to(device, dtype)).cpu(),
            spec.shape,
            _kind(module).__qualname__,
        )
    if output.dim() == 2:
        made.flatten = nn.Identity()
    made.training = module.training
    return made


def _embedder(
    module: nn.Module,
    spec: ImageSpec,
    mean: PerChannel | None,
    std: PerChannel | None,
    unit_norm: bool,
    architecture: Mapping[str, Any] | None,
) -> Embedder:
    kind = _kind(module)
    own = {"name": WRAPPED, "class": kind.__qualname__, "module": kind.__module__}
    made = Embedder(
        module,
        spec=spec,
        dim=0,
        unit_norm=unit_norm,
        pixels=pixels_for(spec, mean, std),
        architecture=own if architecture is None else architecture,
        flatten=True,
    )
    device, dtype = placement(module)
    made.normalise.to(device=device, dtype=dtype)
    return made


def _kind(module: nn.Module) -> type[nn.Module]:
    """The class that a user knows."""
    return type(module.model if isinstance(module, Pooled) else module)


def layers_digest(module: nn.Module) -> str:
    """Tells modules of one class apart by the names and types of their layers, not by their settings."""
    layers = [f"{name} {type(layer).__qualname__}" for name, layer in module.named_modules()]
    return hashlib.sha256("\n".join(layers).encode()).hexdigest()


def _probe(embedder: Embedder) -> Any:
    """What the module gives for two grey-valued images."""
    device, dtype = placement(embedder)
    images = torch.full((2, *embedder.spec.shape), 0.5, device=device, dtype=dtype)
    try:
        with inference(embedder):
            return embedder.network(embedder.normalise(images))
    except ModelError:
        raise
    # A stranger's module may raise anything at all.
    except Exception as cause:
        why = str(cause).strip().splitlines() or [type(cause).__name__]
        name = _kind(embedder.network).__qualname__
        raise ModelError(f"{name} cannot embed images of {embedder.spec}: {why[0]}") from cause


def _checked(output: Any, name: str) -> int:
    """The size of the vectors, one for each of two images."""
    wanted = f"{name} must give one vector per image (2 x D for 2 images)"
    if not isinstance(output, Tensor):
        raise ModelError(f"{wanted}, found a {type(output).__name__}; wrap a module that returns the tensor")
    found = "x".join(str(side) for side in output.shape) or "a single number"
    if output.dim() < 2 or len(output) != 2 or output.numel() != 2 * output.shape[1] or not output.numel():
        raise ModelError(f"{wanted}, found {found}; add pooling or flattening to it")
    if not output.is_floating_point():
        raise ModelError(f"{wanted} of floats, found {str(output.dtype).removeprefix('torch.')}")
    if not bool(output.isfinite().all()):
        raise ModelError(f"{name} gives NaN or infinity for a plain grey image; check its weights")
    return int(output.shape[1])
