"""Any torch module as an embedder."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from holdfast.errors import ModelError
from holdfast.models.embedder import Embedder, placement
from holdfast.models.inference import inference
from holdfast.models.inputs import as_spec
from holdfast.models.pixels import PerChannel, pixels_for
from holdfast.models.sides import CandidateSide
from holdfast.spec import ImageSpec

WRAPPED = "wrapped"


def wrap(
    module: nn.Module,
    spec: ImageSpec | tuple[int, int, int],
    *,
    mean: PerChannel | None = None,
    std: PerChannel | None = None,
    unit_norm: bool = False,
    candidate_side: CandidateSide | None = None,
) -> Embedder:
    """`module` as an embedder of `spec` images; it is used, not copied.

    `mean` and `std` are the pixel normalisation the module was trained with, if it does not do it
    itself. `candidate_side` says how candidates' vectors are made of its output, where they are not
    the same. One dummy batch shows the embedding size and that the output is a finite vector per
    image (N×D; N×D×1×1 is flattened).
    """
    if not isinstance(module, nn.Module):
        raise ModelError(f"a torch.nn.Module can be wrapped, not {type(module).__name__}")
    if isinstance(module, Embedder):
        raise ModelError("this is an embedder already; use it as it is")
    spec = as_spec(spec)
    kind = type(module)
    embedder = Embedder(
        module,
        spec=spec,
        dim=0,
        unit_norm=unit_norm,
        pixels=pixels_for(spec, mean, std),
        architecture={"name": WRAPPED, "class": kind.__qualname__, "module": kind.__module__},
        flatten=True,
    )
    device, dtype = placement(module)
    embedder.normalise.to(device=device, dtype=dtype)
    output = _probe(embedder, device, dtype)
    embedder.dim = output.shape[1]
    if candidate_side is not None:
        candidate_side.check(embedder.dim, unit_norm)
        embedder.candidate_side = candidate_side
    embedder.architecture["layers"] = layers_digest(module)
    if output.dim() == 2:
        embedder.flatten = nn.Identity()
    embedder.training = module.training
    return embedder


def layers_digest(module: nn.Module) -> str:
    """Tells modules of one class apart by the names and types of their layers, not by their settings."""
    layers = [f"{name} {type(layer).__qualname__}" for name, layer in module.named_modules()]
    return hashlib.sha256("\n".join(layers).encode()).hexdigest()


def _probe(embedder: Embedder, device: torch.device, dtype: torch.dtype) -> Tensor:
    """What the module gives for two grey-valued images, checked to be one vector per image."""
    spec, name = embedder.spec, embedder.architecture["class"]
    images = torch.full((2, *spec.shape), 0.5, device=device, dtype=dtype)
    try:
        with inference(embedder):
            output = embedder.network(embedder.normalise(images))
    # A stranger's module may raise anything at all.
    except Exception as cause:
        why = str(cause).strip().splitlines() or [type(cause).__name__]
        raise ModelError(f"{name} cannot embed images of {spec}: {why[0]}") from cause
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
    return output
