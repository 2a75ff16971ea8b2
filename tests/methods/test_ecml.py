import pytest
import torch

import metamirror as mm
from metamirror.methods.ecml import log_eigenvalue_variance
from metamirror.testing.methods import meta_gradient, relative_difference
from metamirror.testing.networks import WAYS, smooth_conv, smooth_mlp
from tests.networks import image_tasks, point_tasks


def support(tasks):
    return mm.Batch(*(t[0] for t in tasks.support))


def test_weight_zero_is_maml_in_value_and_gradient():
    tasks = point_tasks()
    ecml = mm.make_learner("ecml:gamma=0", smooth_mlp(), lr=0.1)
    maml = mm.make_learner("maml", smooth_mlp(), lr=0.1)
    assert torch.equal(ecml.meta_loss(tasks), maml.meta_loss(tasks))
    assert relative_difference(meta_gradient(ecml, tasks), meta_gradient(maml, tasks)) == 0


def condition(learner: mm.Learner, data: mm.Batch) -> torch.Tensor:
    return learner.objective.condition(learner.episode(mm.Task(data, data)), learner.theta())


@pytest.mark.parametrize("shots", [1, 2, 7])
def test_the_closed_form_equals_the_jacobian(shots: int):
    """Also where there are more examples than features, so that the matrix is rank-deficient."""
    model = mm.models.MLP(6, WAYS, hidden=(8,), activation="tanh").double()
    data = support(point_tasks(shots=shots))
    closed, brute = (mm.make_learner("ecml", model, closed_form=flag) for flag in (True, False))
    torch.testing.assert_close(
        condition(closed, data),
        condition(brute, data),
        rtol=1e-6,
        atol=0,
    )


def test_the_condition_loss_does_not_change_with_the_scale_of_the_jacobian():
    rows = torch.randn(6, 9, dtype=torch.float64)
    gram = rows @ rows.T
    expected = log_eigenvalue_variance(gram, 6)
    for scale in (1e-8, 1e8):
        torch.testing.assert_close(log_eigenvalue_variance(scale * gram, 6), expected)


def test_the_condition_loss_is_zero_only_for_equal_eigenvalues():
    eye = torch.eye(4, dtype=torch.float64)
    assert float(log_eigenvalue_variance(3 * eye, 4)) == pytest.approx(0, abs=1e-20)
    values = torch.tensor([1.0, 1.0, 1.0, 2.0], dtype=torch.float64)
    expected = float(values.log().var(correction=0))
    assert float(log_eigenvalue_variance(torch.diag(values), 4)) == pytest.approx(expected)


def test_the_floor_stands_by_default_and_must_be_below_one():
    assert mm.METHODS["ecml"].options().floor == 1e-4
    with pytest.raises(ValueError, match=r"ecml:floor is 1\.0; it must lie in \[0, 1\)"):
        mm.make_learner("ecml:floor=1.0", smooth_mlp())


@pytest.mark.parametrize("floor", [0.0, 1e-4])
@pytest.mark.parametrize("subset", ["head", "all"])
def test_the_objective_is_the_query_loss_plus_gamma_times_the_mean_over_visited_points(
    subset, floor
):
    """Written out: k = 0..K-1, the Jacobian row by row, the variance of its log-eigenvalues."""
    tasks = point_tasks(count=1)
    options = {"gamma": 0.3, "subset": subset, "floor": floor}
    learner = mm.make_learner("ecml", smooth_mlp(), steps=3, lr=0.1, **options)
    data = support(tasks)
    path = learner.adapt(data, keep=True).path
    variances = []
    for phi in path.points[:-1]:
        names = [n for n in phi if subset == "all" or n.startswith("head.")]
        leaves = {n: p.clone().requires_grad_() for n, p in phi.items()}
        logits = torch.func.functional_call(learner.model, leaves, data.x).reshape(-1)
        rows = [
            torch.cat(
                [
                    g.reshape(-1)
                    for g in torch.autograd.grad(
                        row, [leaves[n] for n in names], retain_graph=True, materialize_grads=True
                    )
                ]
            )
            for row in logits
        ]
        values = torch.linalg.eigvalsh(torch.stack(rows) @ torch.stack(rows).T)
        assert len(values) == len(data.y) * WAYS
        variances.append((values + floor * values.max()).log().var(correction=0))
    task = mm.Task(*(mm.Batch(*(t[0] for t in b)) for b in tasks))
    expected = learner.episode(task).query_loss(path.phi) + 0.3 * torch.stack(variances).mean()
    torch.testing.assert_close(learner.meta_loss(tasks), expected, rtol=1e-8, atol=0)


class Odd(torch.nn.Module):
    """Heads for which the closed form does not hold."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.body = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, WAYS, bias=kind != "no bias")
        if kind == "tied bias":
            self.body = torch.nn.Linear(6, WAYS)
            self.body.bias = self.head.bias
            self.head.weight = torch.nn.Parameter(torch.randn(WAYS, WAYS))
        self.scale = torch.nn.Parameter(torch.tensor([1.0, 2.0, 0.5]))
        if kind == "frozen bias":
            self.head.bias.requires_grad_(False)
        if kind == "frozen weight":
            self.head.weight.requires_grad_(False)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        if self.kind == "called twice":
            return self.head(x) + self.head(x.roll(1, 1))
        return self.head(x) * self.scale if self.kind == "scaled" else self.head(x)


KINDS = ["plain", "no bias", "frozen bias", "frozen weight", "scaled", "called twice", "tied bias"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_closed_form_is_used_only_where_it_holds(kind):
    torch.manual_seed(0)
    model = Odd(kind).double()
    data = support(point_tasks())
    closed, brute = (mm.make_learner("ecml", model, closed_form=flag) for flag in (True, False))
    torch.testing.assert_close(
        condition(closed, data),
        condition(brute, data),
        rtol=1e-6,
        atol=1e-12,
    )


@pytest.mark.parametrize("closed_form", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_repeated_examples_take_eigenvalues_away(closed_form, dtype):
    """The non-zero eigenvalues of a set with a copy are finite, not the logarithm of rounding."""
    learner = mm.make_learner("ecml", smooth_mlp().to(dtype), closed_form=closed_form)
    x, y = support(point_tasks())
    x = x.to(dtype)
    twice = mm.Batch(torch.cat([x, x[:1]]), torch.cat([y, y[:1]]))
    once = float(condition(learner, mm.Batch(x, y)).detach())
    value = float(condition(learner, twice).detach())
    assert value < 3 * once + 1


def test_features_that_are_all_off_give_zero():
    zero = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
    value = log_eigenvalue_variance(zero, 4)
    value.backward()
    assert value.item() == 0
    assert bool(torch.isfinite(zero.grad).all())


def test_residuals_need_classes():
    learner = mm.make_learner("ecml:outputs=residuals", mm.models.MLP(1, 1))
    with pytest.raises(ValueError, match="two classes"):
        learner.meta_loss(mm.tasks("sinusoid", shots=5, batch=1)[0])


def test_all_parameters_need_no_head():
    class Headless(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(6, WAYS, dtype=torch.float64))

        def forward(self, x):
            return x @ self.w

    mm.make_learner("ecml:subset=all", Headless()).meta_loss(point_tasks()).backward()


def test_zero_eigenvalues_give_finite_values_and_gradients():
    gram = torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
    log_eigenvalue_variance(gram, 3).backward()
    assert bool(torch.isfinite(gram.grad).all())


def test_residuals_lose_one_direction_an_example():
    learner = mm.make_learner("ecml:subset=all:outputs=residuals", smooth_conv())
    data = support(image_tasks())
    gram, rank = learner.objective._jacobian_gram(
        learner.episode(mm.Task(data, data)), learner.theta()
    )
    assert rank == len(data.y) * (WAYS - 1)
    values = torch.linalg.eigvalsh(gram.detach())
    assert float(values[-rank - 1]) < 1e-12 * float(values[-1]) < float(values[-rank])
