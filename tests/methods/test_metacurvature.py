import torch

import metamirror as mm
from metamirror.testing.networks import smooth_mlp
from tests.networks import conv4, shaken


def test_diagonal_factors_are_a_rank_one_metasgd():
    learner = mm.make_learner("metacurvature", smooth_mlp())
    random = torch.Generator().manual_seed(0)
    grad = {
        name: torch.randn(p.shape, generator=random, dtype=torch.float64)
        for name, p in learner.theta().items()
    }
    expected = {}
    with torch.no_grad():
        for names, factors in zip(
            learner.geometry.groups.members.values(), learner.geometry.factors, strict=True
        ):
            for i, name in enumerate(names):
                sizes = [f[i].shape[0] for f in factors]
                rates = [torch.rand(n, generator=random, dtype=torch.float64) for n in sizes]
                for factor, rate in zip(factors, rates, strict=True):
                    factor[i] = torch.diag(rate) if factor.dim() == 3 else rate
                outer = rates[0] if len(rates) == 1 else torch.outer(*rates)
                expected[name] = outer * grad[name]
    for name, found in learner.geometry.direction(grad, None).items():
        torch.testing.assert_close(found, expected[name])


def test_mc1_leaves_output_units_unmixed():
    geometry = shaken(mm.make_learner("metacurvature:variant=mc1", conv4())).geometry
    grad = {name: torch.zeros_like(p) for name, p in conv4().named_parameters() if p.requires_grad}
    grad["blocks.1.conv.weight"][3] = 1.0
    rows = geometry.direction(grad, None)["blocks.1.conv.weight"].flatten(1).abs().sum(1)
    assert [i for i, value in enumerate(rows) if value > 0] == [3]


def test_folded_head_has_the_cheap_count():
    model = mm.models.Conv4()
    dense, folded = (
        sum(
            p.numel() for p in mm.make_learner("metacurvature", model, head=h).geometry.parameters()
        )
        for h in ("dense", "folded")
    )
    assert dense == 2_589_803
    assert dense - folded == 5**2 + 1600**2 - 4_746
