"""Each claim of a mirror map that does not hold is found, and named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from metamirror.mirror_maps import Identity, MirrorMap
from metamirror.testing import check_mirror_map

Z = {"w": torch.ones(3, 2), "b": torch.ones(3)}


class Right(MirrorMap):
    """phi = exp(s) z + c."""

    is_gradient = is_linear = True

    def __init__(self):
        super().__init__()
        self.shapes = {name: tuple(t.shape) for name, t in Z.items()}
        self.s, self.c = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def prepare(self):
        return {"scale": self.s.exp()}

    def forward(self, z, prepared=None):
        scale = (prepared or self.prepare())["scale"]
        return {name: scale * t + self.c for name, t in z.items()}

    def inverse(self, phi):
        return {name: (p - self.c) / self.s.exp() for name, p in phi.items()}

    def potential(self, z):
        return sum(self.s.exp() * t.square().sum() / 2 + self.c * t.sum() for t in z.values())

    def bounds(self, *, current=False):
        return (self.s.exp().item(),) * 2 if current else (0.0, float("inf"))

    def constants(self):
        return [self.c]


class FlatOutput(Right):
    def forward(self, z, prepared=None):
        return {name: t.reshape(-1) for name, t in super().forward(z, prepared).items()}


class ForgetsWhatWasPrepared(Right):
    def forward(self, z, prepared=None):
        return super().forward(z, {"scale": 2.0} if prepared else None)


class StopsTheGradient(Right):
    def prepare(self):
        return {"scale": self.s.detach().exp()}


class StopsTheSecondDerivative(Right):
    def forward(self, z, prepared=None):
        return {name: FirstOrderSine.apply(t) for name, t in z.items()}


class FirstOrderSine(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].detach().clone())

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos()


class NotFinite(Right):
    def forward(self, z, prepared=None):
        return {name: t / 0 for name, t in z.items()}


class BranchesOnValues(Right):
    def forward(self, z, prepared=None):
        return super().forward(z, prepared) if z["b"].sum().item() else z


class MakesTensorsElsewhere(Right):
    def forward(self, z, prepared=None):
        return {n: t + torch.zeros(t.shape) for n, t in super().forward(z, prepared).items()}


class Rotates(Right):
    def forward(self, z, prepared=None):
        return {**super().forward(z, prepared), "b": z["b"].roll(1) + 2 * z["b"]}


class Decreases(Right):
    def forward(self, z, prepared=None):
        return {name: -t for name, t in super().forward(z, prepared).items()}


class Bends(Right):
    def forward(self, z, prepared=None):
        return {name: t + t**3 for name, t in super().forward(z, prepared).items()}

    def bounds(self, *, current=False):
        return 0.0, float("inf")


class ClaimsTooMuch(Right):
    def bounds(self, *, current=False):
        return 1.0, 1.0


class DoesNotInvert(Right):
    def inverse(self, phi):
        return phi


class HasAnotherPotential(Right):
    def potential(self, z):
        return 3 * super().potential(z)


class CallsItsScaleConstant(Right):
    def constants(self):
        return [self.s]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (FlatOutput, "must have the form of z"),
        (ForgetsWhatWasPrepared, "differs from g"),
        (StopsTheGradient, "first derivative of g by the map's parameters is wrong"),
        (StopsTheSecondDerivative, "second derivative of g by z is wrong"),
        (NotFinite, "g\\(z\\) is not finite"),
        (BranchesOnValues, "under torch.func.vmap g\\(z\\) fails: do not branch"),
        (MakesTensorsElsewhere, "on the meta device fails"),
        (Rotates, "differs from its transpose by"),
        (Decreases, "has the eigenvalue -"),
        (Bends, "is_linear is True, but the Jacobian changes"),
        (ClaimsTooMuch, r"bounds\(current=False\) is \(1, 1\)"),
        (DoesNotInvert, "inverse must undo forward"),
        (HasAnotherPotential, "g must be its gradient"),
        (CallsItsScaleConstant, "does more than add a constant"),
    ],
)
def test_what_is_wrong_is_named(wrong, words):
    check_mirror_map(Right())
    with pytest.raises(AssertionError, match=words):
        check_mirror_map(wrong())


def test_what_a_map_leaves_out_is_not_checked():
    class Bare(MirrorMap):
        def forward(self, z, prepared=None):
            return {name: 2 * t + t.tanh() for name, t in z.items()}

    check_mirror_map(Bare(), Z)
    with pytest.raises(AssertionError, match="Linear is no MirrorMap"):
        check_mirror_map(nn.Linear(2, 2), Z)


def test_the_map_is_left_as_it_was():
    g = Right()
    check_mirror_map(g)
    assert {p.dtype for p in g.parameters()} == {torch.float32}
    assert all(p.item() == 0 for p in g.parameters())


def test_a_point_is_asked_for_and_must_be_small():
    with pytest.raises(ValueError, match="give a point z"):
        check_mirror_map(Identity())
    with pytest.raises(ValueError, match="2001 entries"):
        check_mirror_map(Identity(), {"w": torch.ones(2001)})
