"""What each layer does to a box, and to a linear function seen from behind it.

`interval` takes boxes to a box that holds every output. With `rounding`, the box also holds what
float32 inference computes instead of the exact output, whatever the order of its sums: an affine
layer with n terms a sum errs by at most γₙ(|W||x| + |b|), γₙ = n·u / (1 − n·u), u = 2⁻²⁴ (Higham 2002,
Eq. 3.5). The allowance is charged to the radius before it is multiplied by |W|, so that bounds with
rounding cost no third pass; `_EXTRA` pays for the arithmetic of the box itself and of the
activation that follows.

Near zero no error is a share of the result. Let η = 2⁻¹²⁶, the least normal number. Processors may flush
what is smaller to zero, as an operation's result or already as its operand (`torch.set_flush_denormal`,
oneDNN, MKL); with gradual underflow errors are smaller. So each result errs by η more, each operand by η:
a product w·x by η(1 + |w| + |x|) together, a sum by 3η. Over n terms and a bias that is at most
η(4n + 4 + Σ|w| + Σ|x|), and (1 + γₙ) times that after the sums behind it. With TINY = 64η:
- the radius gets TINY before it is multiplied by |W|, which pays for Σ|w|, and for a ReLU or reshape
  before the layer, whose result may be flushed too;
- |W| gets TINY / _EXTRA; the charged radius is at least _EXTRA(|m| + r), which pays for Σ|x|;
- the result gets (n + 4) TINY.
The same charges are paid where the box itself is computed in float32, with a centre and a radius that
underflow: each of the three sums needs less than 10 of the 64 η.

`backward` takes a linear lower bound A·y + c at a layer's output to one at its inputs (CROWN, Zhang
et al. 2018); A has the shape (specifications, images, *output). What float32 inference errs at the
layer is what `rounding` adds to its box: `error`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from holdfast.bounds.box import TINY, Box
from holdfast.bounds.threads import in_one_order, over_elements
from holdfast.errors import ModelError

UNIT = 2.0**-24
_EXTRA = 2.0**-20
_SMALLEST_WEIGHT = TINY / _EXTRA
_SMALLEST_VARIANCE = 2.0**-100
OWN = 2.0**-40
"""The share of a number that float64 sums over a layer may err."""
Statistics = tuple[Tensor, Tensor]
"""The mean and the (biased) variance of each channel of a batch."""


def allowance(terms: int, dtype: torch.dtype = torch.float32) -> float:
    """The share of |x| + r that is added to r before an affine layer with sums of that many terms.

    γ for inference. Where the box is itself computed in float32, its centre errs by γ(|W||m| + |b|) and
    its radius by the share γ, which 2γ/(1 − γ) covers all together; in float64 they err by nothing
    that counts.
    """
    n = terms + 3
    gamma = n * UNIT / (1 - n * UNIT)
    return (gamma if dtype == torch.float64 else 2 * gamma / (1 - gamma)) + _EXTRA


def charged(box: Box, share: float, *, spare: bool = False) -> Tensor:
    """r + share·(|m| + r) + TINY: the radius with the allowance for a layer's rounding; in place if `spare`."""
    if torch.is_grad_enabled() and (box.centre.requires_grad or box.radius.requires_grad):
        return torch.add(box.radius * (1 + share) + TINY, box.centre.abs(), alpha=share)
    from holdfast.bounds.kernels import charge, charge_in_place

    centre, radius = in_one_order(box.centre, box.radius)
    if spare and centre is box.centre and radius is box.radius:
        over_elements(charge_in_place, (centre, radius), share, TINY)
        return radius
    out = torch.empty_like(radius)
    over_elements(charge, (centre, radius, out), share, TINY)
    return out


def _share_of(bias: Tensor | None, share: float, like: Tensor, terms: int) -> Tensor | None:
    """share·|b| + (n + 4) TINY for each row of the weight `like`; nothing where rounding is left out."""
    if share == 0:
        return None
    least = absolute(terms)
    if bias is None:
        return torch.full(like.shape[:1], least, dtype=like.dtype)
    return share * bias.to(like.dtype).abs() + least


def absolute(terms: int) -> float:
    """What a sum of so many products may err beside the share of it."""
    return (terms + 4) * TINY


def _size(weight: Tensor, share: float, dtype: torch.dtype) -> Tensor:
    """|W|, with rounding never zero: a weight near zero may be flushed."""
    size = weight.to(dtype).abs()
    return size + _SMALLEST_WEIGHT if share else size


class Operation(ABC):
    """One step of a network."""

    fresh = False
    """Whether the tensors of its box are surely its own, and no view of its input's."""

    @abstractmethod
    def interval(self, boxes: Sequence[Box], rounding: bool) -> Box:
        """A box that holds every output for inputs in `boxes`."""

    def interval_over(self, boxes: Sequence[Box], rounding: bool) -> Box:
        """As `interval`, free to overwrite `boxes`, which nobody else needs; no gradients."""
        return self.interval(boxes, rounding)

    @abstractmethod
    def backward(self, slope: Tensor, boxes: Sequence[Box]) -> tuple[list[Tensor], Tensor | float]:
        """Slopes at the inputs, and what is added to the constant (specifications, images)."""

    def under(self, statistics: Mapping[nn.Module, Statistics]) -> Operation:
        """The operation with its layer's statistics of a batch, where it has any."""
        return self

    def unstable(self, box: Box) -> Tensor | None:
        """The numbers of its input whose bounds shape the lines of `backward`; None if tighter ones hardly would."""
        return None

    def error(self, boxes: Sequence[Box]) -> Tensor:
        """How far float32 may take this step's output from the exact one, for inputs in `boxes` (float64).

        It also pays for float64 arithmetic with slopes at this step.
        """
        held, free = (self.interval(boxes, rounding=rounding) for rounding in (True, False))
        moved = (held.centre - free.centre).abs()
        return held.radius - free.radius + moved + OWN * (held.centre.abs() + held.radius)


class Affine(Operation):
    """y = Wx + b; subclasses say what W, |W| and Wᵀ do."""

    terms: int
    bias: Tensor | None

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """Wx + b."""

    @abstractmethod
    def apply_absolute(self, x: Tensor, share: float) -> Tensor:
        """|W|x + share·|b|; where `share` is not 0, with what underflows."""

    @abstractmethod
    def transpose(self, slope: Tensor, shape: torch.Size) -> Tensor:
        """Wᵀ times each slope (rows × output shape), given the input's shape."""

    def terms_of(self, box: Box) -> int:
        """How many terms a sum over this input has at most."""
        return self.terms

    @property
    def shift(self) -> Tensor | None:
        """The bias, in a shape that broadcasts over outputs."""
        return self.bias

    def interval(self, boxes: Sequence[Box], rounding: bool) -> Box:
        return self.bounded(boxes[0], rounding, spare=False)

    def interval_over(self, boxes: Sequence[Box], rounding: bool, paid: bool = False) -> Box:
        """`paid`: the allowance for this layer's rounding is in the input's radius already."""
        return self.bounded(boxes[0], rounding, spare=True, paid=paid)

    def bounded(self, box: Box, rounding: bool, *, spare: bool, paid: bool = False) -> Box:
        """The box of the outputs; with `spare` the input's may be overwritten."""
        centre = self.apply(box.centre)
        if not rounding:
            return Box(centre, self.apply_absolute(box.radius, 0.0))
        share = allowance(self.terms_of(box), box.centre.dtype)
        radius = box.radius if paid else charged(box, share, spare=spare)
        return Box(centre, self.apply_absolute(radius, share))

    def counted(self, present: Tensor) -> Tensor | None:
        """How many of the `present` inputs (a mask) go into each sum; None where that is not known."""
        return None

    def error(self, boxes: Sequence[Box]) -> Tensor:
        """γₖ(|W||x| + |b|) with k the number of terms that can differ from zero, and what underflows.

        An input that is surely zero, behind a ReLU that is never active, adds nothing to a sum and rounds nothing,
        in whatever order: only the other terms count.
        """
        (box,) = boxes
        size = box.centre.abs() + box.radius
        terms = self.counted(size != 0)
        if terms is None:
            return super().error(boxes)
        n = terms + 3
        whole = self.apply_absolute(size, 0.0)
        if self.shift is not None:
            whole = whole + self.shift.to(whole.dtype).abs()
        most = size.flatten(1).amax(1).view(-1, *[1] * (whole.ndim - 1))
        tiny = absolute(self.terms) + self.terms * TINY * most
        tiny = tiny + self.apply_absolute(torch.full_like(size[:1], TINY), 0.0)
        return (n * UNIT / (1 - n * UNIT) + OWN) * whole + tiny

    def backward(self, slope: Tensor, boxes: Sequence[Box]) -> tuple[list[Tensor], Tensor | float]:
        (box,) = boxes
        specs, images = slope.shape[:2]
        back = self.transpose(slope.flatten(0, 1), box.centre.shape)
        constant: Tensor | float = 0.0
        if self.shift is not None:
            constant = (slope * self.shift.to(slope.dtype)).flatten(2).sum(2)
        return [back.view(specs, images, *box.centre.shape[1:])], constant


class Linear(Affine):
    """A fully connected layer."""

    fresh = True

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self.terms = layer.in_features

    @property
    def weight(self) -> Tensor:
        """Read each time, so that it follows training, and a weight that is replaced."""
        return self.layer.weight

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        return self.layer.bias

    def apply(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    def apply_absolute(self, x: Tensor, share: float) -> Tensor:
        size = _size(self.weight, share, x.dtype)
        return F.linear(x, size, _share_of(self.bias, share, size, self.terms))

    def counted(self, present: Tensor) -> Tensor:
        return present.sum(-1, keepdim=True).double()

    def transpose(self, slope: Tensor, shape: torch.Size) -> Tensor:
        return slope @ self.weight.to(slope.dtype)


class Convolution(Affine):
    """A two-dimensional convolution with any stride, padding, dilation and groups."""

    fresh = True

    def __init__(self, layer: nn.Conv2d) -> None:
        self.layer = layer
        self.terms = int(layer.weight[0].numel())

    @property
    def weight(self) -> Tensor:
        """Read each time, so that it follows training, and a weight that is replaced."""
        return self.layer.weight

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        return self.layer.bias

    @property
    def shift(self) -> Tensor | None:
        return None if self.bias is None else self.bias[:, None, None]

    def apply(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return self._convolve(x, self.weight.to(x.dtype), bias)

    def apply_absolute(self, x: Tensor, share: float) -> Tensor:
        size = _size(self.weight, share, x.dtype)
        return self._convolve(x, size, _share_of(self.bias, share, size, self.terms))

    def counted(self, present: Tensor) -> Tensor:
        return self._convolve(present.double(), torch.ones_like(self.weight, dtype=torch.float64), None)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        layer = self.layer
        return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    def transpose(self, slope: Tensor, shape: torch.Size) -> Tensor:
        layer = self.layer
        if isinstance(layer.padding, str):
            weight = self.weight.to(slope.dtype)
            options = (None, layer.stride, layer.padding, layer.dilation, layer.groups)
            return _transpose(lambda x: F.conv2d(x, weight, *options), slope, shape)
        back: Tensor = conv2d_input(  # type: ignore[no-untyped-call]
            (len(slope), *shape[1:]),
            self.weight.to(slope.dtype),
            slope,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
        )
        return back


class Scale(Affine):
    """y = s·x + t, coordinate by coordinate: batch norm, pixel normalisation, constants."""

    terms = 5  # (x − mean) · inverse · weight + bias, however it is grouped

    def __init__(self, scale: Tensor, bias: Tensor | None) -> None:
        self.scale, self.bias = scale, bias
        self.parts: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        scale, shift = self.scale.to(x.dtype), self.shift
        return x * scale if shift is None else x * scale + shift.to(x.dtype)

    def apply_absolute(self, x: Tensor, share: float) -> Tensor:
        size = x * self.size(share, x.dtype)
        if share == 0:
            return size
        own = 0.0 if self.shift is None else share * self.shift.to(x.dtype).abs()
        return size + (own + absolute(self.terms))

    def size(self, share: float, dtype: torch.dtype) -> Tensor:
        """|s|; where `share` is not 0, with what underflows."""
        return _size(self.scale, share, dtype)

    def bounded(self, box: Box, rounding: bool, *, spare: bool, paid: bool = False) -> Box:
        box = super().bounded(box, rounding, spare=spare, paid=paid)
        if rounding and self.parts is not None:
            return Box(box.centre, box.radius + allowance(self.terms, box.centre.dtype) * self.parts)
        return box

    def transpose(self, slope: Tensor, shape: torch.Size) -> Tensor:
        """Where the layer repeats a coordinate, the slopes of its copies add up."""
        return (slope * self.scale.to(slope.dtype)).sum_to_size(len(slope), *shape[1:])


class BatchNorm(Scale):
    """Batch norm by its running statistics, read each time so that it follows training, or by those of a batch.

    A layer that was traced in train mode takes no others than those of a batch (`under`).
    """

    def __init__(self, layer: nn.BatchNorm1d | nn.BatchNorm2d, statistics: Statistics | None = None) -> None:
        self.layer = layer
        self._of_batch = statistics
        self._learns = layer.training

    def under(self, statistics: Mapping[nn.Module, Statistics]) -> Operation:
        return BatchNorm(self.layer, statistics[self.layer]) if self.layer in statistics else self

    def bounded(self, box: Box, rounding: bool, *, spare: bool, paid: bool = False) -> Box:
        if box.centre.ndim != (4 if isinstance(self.layer, nn.BatchNorm2d) else 2):
            raise ModelError(
                f"bounds know {type(self.layer).__name__} on vectors (BatchNorm1d) and on images (BatchNorm2d) "
                f"alone, not on {box.centre.ndim - 1} axes"
            )
        if self._learns and self._of_batch is None:
            raise ModelError(
                "bounds of batch norm in train mode need the statistics of a batch; give them with Graph.under, or "
                "call .eval() before tracing"
            )
        return super().bounded(box, rounding, spare=spare, paid=paid)

    def _shaped(self, values: Tensor) -> Tensor:
        return values.view(-1, 1, 1) if isinstance(self.layer, nn.BatchNorm2d) else values

    @property
    def _mean(self) -> Tensor:
        mean = self.layer.running_mean if self._of_batch is None else self._of_batch[0]
        assert mean is not None
        return mean

    @property
    def _variance(self) -> Tensor:
        variance = self.layer.running_var if self._of_batch is None else self._of_batch[1]
        assert variance is not None
        return variance

    @property
    def _inverse(self) -> Tensor:
        return (self._variance + self.layer.eps).rsqrt()

    @property
    def scale(self) -> Tensor:  # type: ignore[override]
        scale = self._inverse
        return self._shaped(scale if self.layer.weight is None else scale * self.layer.weight)

    @property
    def _gain(self) -> Tensor:
        """(1 + |weight|)(1 + inverse), by which what underflows at one factor may be multiplied behind it.

        Infinite where the variance itself is near zero: it may be flushed, and then nothing is known.
        """
        gain = 1 + self._inverse.abs()
        if self.layer.weight is not None:
            gain = gain * (1 + self.layer.weight.abs())
        unsure = ~(self._variance + self.layer.eps > _SMALLEST_VARIANCE)
        return self._shaped(gain.double().masked_fill(unsure, torch.inf))

    def size(self, share: float, dtype: torch.dtype) -> Tensor:
        """The product weight · inverse may underflow as well, which counts as an error of the scale."""
        size = super().size(share, dtype)
        return size + (_SMALLEST_WEIGHT * self._gain).to(dtype) if share else size

    @property
    def _moved(self) -> Tensor:
        return self._shaped(self._mean) * self.scale

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        return -self._moved if self.layer.bias is None else self._shaped(self.layer.bias) - self._moved

    @property
    def parts(self) -> Tensor:  # type: ignore[override]
        """The two terms of the shift, which may nearly cancel and then hide their rounding."""
        own = 0.0 if self.layer.bias is None else self._shaped(self.layer.bias).abs()
        mean = self._shaped(self._mean)
        # What underflows on the way, times all that follows; the allowance is at least _EXTRA.
        return self._moved.abs() + own + _SMALLEST_WEIGHT * self._gain.to(mean.dtype) * (1 + mean.abs())


class Pooling(Affine):
    """A linear map with weights ≥ 0 given as a function: average pooling, padding with zeros."""

    bias = None

    def __init__(self, function: Callable[[Tensor], Tensor], terms: int | None) -> None:
        self.function, self._window = function, terms

    def terms_of(self, box: Box) -> int:
        """The window, or where it is not known the whole plane."""
        return self._window or box.centre.shape[-1] * box.centre.shape[-2]

    def apply(self, x: Tensor) -> Tensor:
        return self.function(x)

    def apply_absolute(self, x: Tensor, share: float) -> Tensor:
        out = self.function(x)
        return out + absolute(self._window or x.shape[-1] * x.shape[-2]) if share else out

    def transpose(self, slope: Tensor, shape: torch.Size) -> Tensor:
        return _transpose(self.function, slope, shape)


def _transpose(function: Callable[[Tensor], Tensor], slope: Tensor, shape: torch.Size) -> Tensor:
    """The transpose of a linear map given as a function: its gradient."""
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        at = torch.zeros((len(slope), *shape[1:]), dtype=slope.dtype, requires_grad=True)
        (back,) = torch.autograd.grad(function(at), at, slope, create_graph=differentiable)
    return back


@dataclass(frozen=True)
class Reshape(Operation):
    """The same numbers in another shape."""

    function: Callable[[Tensor], Tensor]

    def interval(self, boxes: Sequence[Box], rounding: bool) -> Box:
        (box,) = boxes
        return Box(self.function(box.centre), self.function(box.radius))

    def backward(self, slope: Tensor, boxes: Sequence[Box]) -> tuple[list[Tensor], Tensor | float]:
        return [slope.reshape(*slope.shape[:2], *boxes[0].centre.shape[1:])], 0.0


class Sum(Operation):
    """The sum of two branches; one may be repeated to the other's shape, image by image."""

    def interval(self, boxes: Sequence[Box], rounding: bool) -> Box:
        one, other = boxes
        if one.centre.ndim != other.centre.ndim:
            raise ModelError(
                f"bounds know sums of branches with as many axes, not {one.centre.ndim - 1} and "
                f"{other.centre.ndim - 1}; reshape one of them"
            )
        centre, radius = one.centre + other.centre, one.radius + other.radius
        if rounding:
            sizes = one.centre.abs() + other.centre.abs() + radius
            radius = torch.add(radius + TINY, sizes, alpha=_EXTRA)
        return Box(centre, radius)

    def backward(self, slope: Tensor, boxes: Sequence[Box]) -> tuple[list[Tensor], Tensor | float]:
        # Where a branch is repeated, the slopes of its copies add up.
        return [slope.sum_to_size(*slope.shape[:2], *box.centre.shape[1:]) for box in boxes], 0.0
