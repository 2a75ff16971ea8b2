r"""A convolutional block with closed-form first and second derivatives, for speed on CPUs.

`max_pool(relu(batch_norm(conv(x))))` spends most of its time moving memory. Here the pooling comes
first, so that scale, shift, ReLU and all their derivatives act on a quarter of the numbers:
for a scale $\gamma \ge 0$,

$$\mathrm{pool}(\mathrm{relu}(\gamma \hat y + \beta)) =
  \mathrm{relu}(\gamma\,(\mathrm{pool}(y) - \mathrm{mean}(y))/\mathrm{std}(y) + \beta),$$

since an increasing function and a maximum can change places; a channel whose scale is negative
gets its filter and its scale multiplied by -1 beforehand. The result and all derivatives are those
of the plain formula; at a scale of exactly zero only the result is, as the derivative in it then
depends on which element the pooling picks.

Everything stays in the channels-last layout, in which pooling and reductions are fastest. Each
backward is a function with a backward of its own; a third derivative is refused, not wrong.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

# The overloads themselves: finding one by its arguments costs more than a small operation.
max_pool = torch.ops.aten.max_pool2d_with_indices.default
batch_norm_backward = torch.ops.aten.native_batch_norm_backward.default
where_open = torch.ops.aten.threshold_backward.default
convolution_backward = torch.ops.aten.convolution_backward.default
batch_statistics = torch.ops.aten.batch_norm_update_stats.default


def _adjoints(
    grad: Tensor, x: Tensor, weight: Tensor, groups: int, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return a convolution's derivatives in x and in its weight, those that are wanted."""
    few = wanted[1] and groups == 1 and grad.numel() <= FEW * grad.shape[1]
    mask = [wanted[0], wanted[1] and not few, False]
    by_x, by_weight, _ = convolution_backward(
        grad, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups, mask
    )
    return by_x, _by_weight(grad, x) if few else by_weight


FEW = 256
"""Up to this many places, torch's derivative of a convolution in its weight is slow to start."""


def _by_weight(grad: Tensor, x: Tensor) -> Tensor:
    """Return the derivative in the weight as one matrix product with the unfolded input."""
    channels, filters = x.shape[1], grad.shape[1]
    patches = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 4, 5, 1)
    product = patches.reshape(-1, 9 * channels).t() @ flat(grad).view(-1, filters)
    return product.view(3, 3, channels, filters).permute(3, 2, 0, 1).contiguous()


class Convolve(Function):
    """torch's own second derivative of a convolution leaves the channels-last layout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, groups: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.groups = groups
        return F.conv2d(x, weight, padding=1, groups=groups)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        wanted = ctx.needs_input_grad[:2]
        return *ConvolveBackward.apply(grad, *ctx.saved_tensors, ctx.groups, wanted), None  # type: ignore[no-untyped-call]


class ConvolveBackward(Function):
    """Both derivatives of a convolution, bilinear in the gradient and in x or the weight."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, groups: int, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(grad, x, weight)
        ctx.set_materialize_grads(False)
        ctx.groups = groups
        return _adjoints(grad, x, weight, groups, wanted)

    @staticmethod
    def backward(ctx: Any, by_x: Tensor | None, by_weight: Tensor | None) -> Any:
        refuse_a_third_derivative()
        grad, x, weight = ctx.saved_tensors
        in_grad: Tensor | None = None
        if by_x is not None:
            in_grad = F.conv2d(by_x, weight, padding=1, groups=ctx.groups)
        if by_weight is not None:
            other = F.conv2d(x, by_weight, padding=1, groups=ctx.groups)
            in_grad = other if in_grad is None else in_grad + other
        wanted = (by_weight is not None, by_x is not None)
        u_x, u_weight = x if by_x is None else by_x, weight if by_weight is None else by_weight
        in_x, in_weight = _adjoints(grad, u_x, u_weight, ctx.groups, wanted)
        return in_grad, in_x, in_weight, None, None


def refuse_a_third_derivative() -> None:
    """Raise inside the second derivative where a graph of it is asked for."""
    # torch's once_differentiable would be passed over in silence by torch.autograd.grad.
    if torch.is_grad_enabled():
        raise RuntimeError(
            "Conv4's fast block can be differentiated twice, not three times: build it with "
            "Conv4(..., fast=False)"
        )


def flat(x: Tensor) -> Tensor:
    """Return a channels-last tensor as the vector that it is in memory."""
    return x.permute(0, 2, 3, 1).reshape(-1)


def places_in_memory(y: Tensor, places: Tensor) -> Tensor:
    """Convert max-pooling's indices within an image to places in channels-last memory."""
    # Whole numbers of 32 bits, where they suffice, are multiplied several at a time.
    kind = torch.int32 if y.numel() < 2**31 else torch.int64
    starts = _starts(*y.shape, y.device, kind)
    return flat(places.to(kind).mul_(y.shape[1]).add_(starts))


@lru_cache(maxsize=64)
def _starts(
    examples: int, channels: int, height: int, width: int, device: torch.device, kind: torch.dtype
) -> Tensor:
    images = torch.arange(examples, device=device) * (height * width * channels)
    starts = images.view(-1, 1, 1, 1) + torch.arange(channels, device=device).view(-1, 1, 1)
    return starts.to(kind)


def _by_channel(vector: Tensor) -> Tensor:
    return vector.view(1, -1, 1, 1)


def _sums(a: Tensor, b: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Sum a and a * (b - centre) over each channel, in one pass over memory.

    They are what batch normalisation's own backward computes for its shift and scale.
    """
    one = torch.ones_like(centre)
    _, products, total = batch_norm_backward(
        a, b, one, None, None, centre, one, True, 0.0, [False, True, True]
    )
    return total, products


MOST_PLACES = 1 << 10
"""That are added up one by one. torch does so for a channel of a channels-last tensor, and rounds
each time: of ten thousand equal squares (an image's ground) the fourth digit is wrong, and with it
the maxima and ReLUs that are nearly ties."""


def channel_statistics(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and (biased) variance of each channel of a channels-last y, in one pass."""
    images, channels, height, width = y.shape
    if images * height * width <= MOST_PLACES:
        mean, var = batch_statistics(y, None, None, 0.0)
        return mean, var
    # Each place of a few rows is a channel of its own; those of one channel are then put together.
    divisors = (d for d in range(1, height + 1) if height % d == 0)
    rows = next(d for d in divisors if d == height or images * height // d <= MOST_PLACES)
    apart = y.permute(0, 2, 3, 1).reshape(-1, rows * width * channels, 1, 1)
    means, variances = (
        each.view(-1, channels) for each in batch_statistics(apart, None, None, 0.0)
    )
    mean = means.mean(0)
    distance = means - mean
    return mean, torch.addcmul(variances, distance, distance).mean(0)


class PoolAndStatistics(Function):
    """y -> (pooled, mean, variance)."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = channel_statistics(y)
        pooled, places = max_pool(y, [2, 2])
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(y, mean, places_in_memory(y, places))
        return pooled, mean, var

    @staticmethod
    def backward(ctx: Any, by_pooled: Tensor, by_mean: Tensor, by_var: Tensor) -> Any:
        y, mean, places = ctx.saved_tensors
        # y alone carries the derivative: the mean's dependence on it is part of the formulas.
        return PoolAndStatisticsBackward.apply(  # type: ignore[no-untyped-call]
            y, mean.detach(), places, by_pooled, by_mean, by_var
        )


class PoolAndStatisticsBackward(Function):
    """by_y = by_mean / n + by_var * 2 (y - mean) / n, plus by_pooled at the maxima."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        y, mean, places, by_pooled, by_mean, by_var = given
        n = y.numel() // y.shape[1]
        slope = by_var * (2 / n)
        constant = torch.addcmul(by_mean / n, slope, mean, value=-1)
        by_y = torch.addcmul(_by_channel(constant), _by_channel(slope), y)
        flat(by_y).index_add_(0, places, flat(by_pooled))
        ctx.save_for_backward(y, mean, places, by_var)
        ctx.pooled_shape = by_pooled.shape
        return by_y

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Any:
        refuse_a_third_derivative()
        y, mean, places, by_var = ctx.saved_tensors
        n = y.numel() // y.shape[1]
        examples, channels, height, width = ctx.pooled_shape
        u = u.contiguous(memory_format=torch.channels_last)
        total, products = _sums(u, y, mean)
        at_maxima = flat(u).index_select(0, places).view(examples, height, width, channels)
        slope = by_var * (2 / n)
        u_mean = total / n
        in_y = torch.addcmul(_by_channel(-slope * u_mean), _by_channel(slope), u)
        return in_y, None, None, at_maxima.permute(0, 3, 1, 2), u_mean, products * (2 / n)


class NormalisedRelu(Function):
    """relu(scale * (pooled - mean) * r + shift) with r = 1 / sqrt(var + eps), by channel.

    `without_effect` is a parameter that has none, and gets a derivative of zero rather than none.
    """

    @staticmethod
    def forward(ctx: Any, eps: float, without_effect: Tensor | None, *given: Tensor) -> Tensor:
        pooled, mean, var, scale, shift = given
        r = torch.rsqrt(var + eps)
        slope = scale * r
        constant = torch.addcmul(shift, mean, slope, value=-1)
        out = torch.addcmul(_by_channel(constant), pooled, _by_channel(slope)).clamp_min_(0)
        ctx.save_for_backward(pooled, mean, var, scale, out, r, slope)
        ctx.without_effect = without_effect
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        pooled, mean, var, scale, out, r, slope = ctx.saved_tensors
        found = NormalisedReluBackward.apply(  # type: ignore[no-untyped-call]
            torch.is_grad_enabled(), grad, pooled, mean, var, scale, out.detach(), r, slope
        )
        nothing = None if ctx.without_effect is None else torch.zeros_like(ctx.without_effect)
        return None, nothing, *found


class NormalisedReluBackward(Function):
    r"""The first derivatives, and below them the second.

    With g the gradient where the ReLU is open, $S = \sum g$ and $P = \sum g\,(p - m)$,

    $$g_p = \gamma r g, \quad g_m = -\gamma r S, \quad g_v = -\tfrac12 \gamma r^3 P, \quad
      g_\gamma = r P, \quad g_\beta = S.$$

    r and the slope $\gamma r$ are functions of the variance and the scale, which the second
    derivatives take into account: no gradient comes to them.
    """

    @staticmethod
    def forward(ctx: Any, again: bool, *given: Tensor) -> tuple[Tensor, ...]:
        grad, pooled, mean, _, scale, out, r, slope = given
        g = where_open(grad, out, 0)
        total, products = _sums(g, pooled, mean)
        by_scale = r * products
        if again:
            # To be differentiated again: g is needed as it is.
            ctx.save_for_backward(g, pooled, mean, scale, out, r, slope, total, products)
            by_pooled = g * _by_channel(slope)
        else:
            by_pooled = g.mul_(_by_channel(slope))
        by_mean = torch.neg(slope * total)
        by_var = torch.mul(slope * r, by_scale).mul_(-0.5)
        return by_pooled, by_mean, by_var, by_scale, total

    @staticmethod
    def backward(
        ctx: Any, u_pooled: Tensor, u_mean: Tensor, u_var: Tensor, u_scale: Tensor, u_shift: Tensor
    ) -> Any:
        refuse_a_third_derivative()
        # The derivatives of Q, the inner product of the five results with the five arguments:
        # Q = slope * (sum(g u_pooled) - S u_mean) + S u_shift + P (r u_scale - slope r^2 u_var / 2)
        g, pooled, mean, scale, out, r, slope, total, products = ctx.saved_tensors
        u_pooled = u_pooled.contiguous(memory_format=torch.channels_last)
        _, crossed = _sums(g, u_pooled, torch.zeros_like(mean))
        crossed = torch.addcmul(crossed, u_mean, total, value=-1)
        half = torch.mul(r * r, u_var).mul_(0.5)
        bent = scale * half
        by_products = r * (u_scale - bent)
        constant = torch.addcmul(u_shift, slope, u_mean, value=-1)
        constant = constant.addcmul_(by_products, mean, value=-1)
        in_g = torch.addcmul(_by_channel(constant), pooled, _by_channel(by_products))
        in_g = in_g.addcmul_(u_pooled, _by_channel(slope))
        in_r = torch.addcmul(scale * crossed, products, torch.sub(u_scale, bent, alpha=3))
        return (
            None,
            where_open(in_g, out, 0),
            g * _by_channel(by_products),
            torch.neg(by_products * total),
            (r * r * r).mul_(in_r).mul_(-0.5),
            r * torch.addcmul(crossed, half, products, value=-1),
            *[None] * 3,
        )
