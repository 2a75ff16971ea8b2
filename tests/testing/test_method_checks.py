"""What is wrong with a method is found, and named; methods need not be registered."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import metamirror as mm
from metamirror.methods import Parts
from metamirror.testing import check_method
from metamirror.testing.methods import (
    check_learner_gradient,
    check_learning,
    check_meta_device,
    check_start,
    check_step,
    check_vmap,
    moved,
    registered,
)
from metamirror.testing.networks import smooth_mlp, tasks_of


class Scaled(mm.Preconditioner):
    """The gradient times exp(s), with a second parameter that may rest."""

    def __init__(self, start: float = 0.0):
        super().__init__()
        self.s = nn.Parameter(torch.full((), start))
        self.idle = nn.Parameter(torch.zeros(()))

    def direction(self, grad, prepared):
        return {name: (self.s + self.idle).exp() * g for name, g in grad.items()}


class Stopped(Scaled):
    def direction(self, grad, prepared):
        # The value depends on s, its gradient is zero.
        return {name: (self.s.detach() + 0 * self.s).exp() * g for name, g in grad.items()}


class Dead(Scaled):
    def direction(self, grad, prepared):
        return {name: (self.s + 0 * self.idle).exp() * g for name, g in grad.items()}


class ForgetsAParameter(Scaled):
    def direction(self, grad, prepared):
        return dict(list(super().direction(grad, prepared).items())[:-1])


class DrawsByItself(Scaled):
    def direction(self, grad, prepared):
        return {n: g * torch.rand(()) for n, g in super().direction(grad, prepared).items()}


class BranchesOnValues(Scaled):
    def direction(self, grad, prepared):
        return super().direction(grad, prepared) if grad["head.bias"].sum().item() else grad


class MakesTensorsElsewhere(Scaled):
    def direction(self, grad, prepared):
        found = super().direction(grad, prepared)
        return {n: g * torch.ones(g.shape, dtype=g.dtype) for n, g in found.items()}


def method(make):
    return replace(
        mm.METHODS["maml"], key="toy", build=lambda model, *_: Parts(model=model, geometry=make())
    )


def test_a_method_that_is_not_registered_passes_and_stays_unknown():
    check_method(method(Scaled))
    assert "toy" not in mm.METHODS


def check_gradient(spec, model, tasks):
    check_learner_gradient(moved(spec, model, steps=3), tasks)


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (ForgetsAParameter, check_step, "must return every parameter"),
        (DrawsByItself, check_step, "adapts differently with the same seed"),
        (BranchesOnValues, check_vmap, "fails under torch.func.vmap: do not branch on values"),
        (MakesTensorsElsewhere, check_meta_device, "fails on the meta device"),
        (Stopped, check_gradient, "the meta-gradient by geometry is wrong"),
        (lambda: Scaled(0.5), check_start, "does not start as maml"),
        (Dead, check_learning, r"\['geometry.idle'\] have no gradient"),
    ],
)
def test_what_is_wrong_is_named(make, check, words):
    with registered(method(make)) as spec, pytest.raises(AssertionError, match=words):
        check(spec, smooth_mlp(), tasks_of((6,)))
