"""BOIL is a MetaSGD whose rates are zero in the head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import metamirror as mm
from metamirror.testing.methods import meta_gradient, relative_difference
from tests.networks import NETWORKS

STEPS, LR = 3, 0.1


@pytest.mark.parametrize("network", NETWORKS)
def test_it_is_metasgd_with_rates_of_zero_in_the_head(network: str):
    make, make_tasks = NETWORKS[network]
    tasks = make_tasks()
    boil, metasgd = (
        mm.make_learner(spec, make(), steps=STEPS, lr=LR) for spec in ("boil", "metasgd")
    )
    with torch.no_grad():
        for name, rate in zip(metasgd.geometry.names, metasgd.geometry.rates, strict=True):
            rate.fill_(0.0 if name.startswith("head.") else LR)
    support = mm.Batch(*(t[0] for t in tasks.support))
    adapted, masked = boil.adapt(support), metasgd.adapt(support)
    assert set(masked.params) - set(adapted.params) == {"head.weight", "head.bias"}
    for name, phi in adapted.params.items():
        torch.testing.assert_close(phi, masked.params[name], rtol=1e-12, atol=1e-14)
    expected = meta_gradient(metasgd, tasks)
    found = meta_gradient(boil, tasks)
    assert float(found["model.head.weight"].norm()) > 0
    assert relative_difference(found, expected) < 1e-12


def test_the_head_can_be_named_and_a_model_needs_a_body():
    learner = mm.make_learner("boil:head=blocks.0.linear", mm.models.MLP(6, 3))
    assert not any(name.startswith("blocks.0.linear") for name in learner.adapts)
    assert "head.weight" in learner.adapts
    with pytest.raises(ValueError, match=r"no parameters but those of its head '1': none adapts"):
        mm.make_learner("boil", nn.Sequential(nn.Flatten()).append(nn.Linear(6, 3)))
