import torch

import metamirror as mm
from metamirror.testing.networks import smooth_mlp
from tests.networks import point_tasks


def test_gradient_of_the_rates_after_one_step_is_minus_the_product_of_gradients():
    learner = mm.make_learner("metasgd", smooth_mlp(), steps=1, lr=0.1)
    tasks = point_tasks(count=1)
    (sx, sy), (qx, qy) = tasks
    learner.meta_loss(tasks).backward()
    maml = mm.make_learner("maml", smooth_mlp(), steps=1, lr=0.1)
    start = maml.theta()

    def gradient(phi, x, y):
        loss = torch.nn.functional.cross_entropy(torch.func.functional_call(maml.model, phi, x), y)
        return torch.autograd.grad(loss, list(phi.values()))

    support = gradient(start, sx[0], sy[0])
    moved = {n: p - 0.1 * g for (n, p), g in zip(start.items(), support, strict=True)}
    query = gradient(moved, qx[0], qy[0])
    for rate, g, q in zip(learner.geometry.rates, support, query, strict=True):
        torch.testing.assert_close(rate.grad, -g * q, rtol=1e-10, atol=1e-14)


def test_positive_rates_stay_positive():
    learner = mm.make_learner("metasgd:positive=true", smooth_mlp(), lr=0.1)
    with torch.no_grad():
        for rate in learner.geometry.rates:
            rate.fill_(-20.0)
    assert all(bool((m > 0).all()) for m in learner.geometry.prepare(None).values())


def test_rates_of_zero_on_all_but_the_head_give_anil():
    metasgd = mm.make_learner("metasgd", smooth_mlp(), steps=3, lr=0.1)
    with torch.no_grad():
        for name, rate in zip(metasgd.geometry.names, metasgd.geometry.rates, strict=True):
            if not name.startswith("head."):
                rate.zero_()
    anil = mm.make_learner("anil", smooth_mlp(), steps=3, lr=0.1)
    support = mm.Batch(*(t[0] for t in point_tasks().support))
    ours, theirs = metasgd.adapt(support), anil.adapt(support)
    assert set(theirs.params) == {"head.weight", "head.bias"}
    for name, phi in theirs.params.items():
        torch.testing.assert_close(ours.params[name], phi)
