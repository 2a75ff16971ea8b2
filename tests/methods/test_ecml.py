import pytest
import torch

import metamirror as mm
from metamirror.methods.ecml import log_eigenvalue_variance
from networks import (
    WAYS,
    image_tasks,
    meta_gradient,
    point_tasks,
    relative_difference,
    smooth_conv,
    smooth_mlp,
)


def support(tasks):
    return mm.Batch(*(t[0] for t in tasks.support))


def test_weight_zero_is_maml_in_value_and_gradient():
    tasks = point_tasks()
    ecml = mm.make_learner("ecml:gamma=0", smooth_mlp(), lr=0.1)
    maml = mm.make_learner("maml", smooth_mlp(), lr=0.1)
    assert torch.equal(ecml.meta_loss(tasks), maml.meta_loss(tasks))
    assert relative_difference(meta_gradient(ecml, tasks), meta_gradient(maml, tasks)) == 0


@pytest.mark.parametrize("shots", [1, 2, 7])
def test_the_closed_form_equals_the_jacobian(shots: int):
    """Also where there are more examples than features, so that the matrix is rank-deficient."""
    model = mm.models.MLP(6, WAYS, hidden=(8,), activation="tanh").double()
    data = support(point_tasks(shots=shots))
    closed, brute = (mm.make_learner("ecml", model, closed_form=flag) for flag in (True, False))
    torch.testing.assert_close(
        closed.objective.condition(closed, closed.start(), data),
        brute.objective.condition(brute, brute.start(), data),
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


def test_zero_eigenvalues_give_finite_values_and_gradients():
    gram = torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
    log_eigenvalue_variance(gram, 3).backward()
    assert bool(torch.isfinite(gram.grad).all())


def test_residuals_lose_one_direction_an_example():
    learner = mm.make_learner("ecml:subset=all:outputs=residuals", smooth_conv())
    data = support(image_tasks())
    gram, rank = learner.objective._jacobian_gram(learner, learner.start(), data)
    assert rank == len(data.y) * (WAYS - 1)
    values = torch.linalg.eigvalsh(gram.detach())
    assert float(values[-rank - 1]) < 1e-12 * float(values[-1]) < float(values[-rank])
