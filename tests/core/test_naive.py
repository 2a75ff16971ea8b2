"""The meta-gradient against programs written again from the formulas, with nothing shared."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

import metamirror as mm
from metamirror.mirror_maps import BlockIAF, Composition
from metamirror.testing.methods import meta_gradient, relative_difference
from tests.networks import NETWORKS, shaken

STEPS, LR = 3, 0.1


def naive_loss(learner: mm.Learner, phi: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    log_probabilities = functional_call(learner.model, phi, (x,)).log_softmax(1)
    return -log_probabilities[torch.arange(len(y)), y].mean()


def naive_meta_loss(learner: mm.Learner, tasks: mm.Task, primal, direction) -> Tensor:
    """z <- z - alpha P(grad L(g(z))), task by task, written out."""
    total = 0.0
    (sx, sy), (qx, qy) = tasks
    for t in range(len(sx)):
        z = dict(learner.model.named_parameters())
        for _ in range(STEPS):
            phi = primal(z)
            loss = naive_loss(learner, phi, sx[t], sy[t])
            grads = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
            moves = direction(dict(zip(phi, grads, strict=True)))
            z = {name: value - LR * moves[name] for name, value in z.items()}
        total = total + naive_loss(learner, primal(z), qx[t], qy[t])
    return total / len(sx)


def same(tensors):
    return tensors


def metasgd_direction(learner):
    rates = dict(zip(learner.geometry.names, learner.geometry.rates, strict=True))
    return lambda grads: {name: rates[name] / LR * g for name, g in grads.items()}


def metacurvature_direction(learner):
    """Each tensor's Kronecker product as an explicit matrix."""
    geometry = learner.geometry
    matrices = {}
    for names, factors in zip(geometry.groups.members.values(), geometry.factors, strict=True):
        for i, name in enumerate(names):
            parts = [factor[i] for factor in factors]
            matrix = parts[0] if parts[0].dim() == 2 else torch.diag(parts[0])
            for part in parts[1:]:
                matrix = torch.kron(matrix, part)
            matrices[name] = matrix
    return lambda grads: {
        name: (matrices[name] @ g.reshape(-1)).reshape(g.shape) for name, g in grads.items()
    }


def blockiaf_primal(learner):
    """The maps one after the other; with a primal start, less the constant that moves the start."""
    g = learner.geometry.g
    stages = g.maps if isinstance(g, Composition) else [g]
    maps = [naive_flow(m) if isinstance(m, BlockIAF) else naive_mixing(m) for m in stages]

    def composed(z):
        for one in maps:
            z = one(z)
        return z

    if learner.geometry.start == "dual":
        return composed
    theta = dict(learner.model.named_parameters())
    image = composed(theta)
    return lambda z: {name: p - image[name] + theta[name] for name, p in composed(z).items()}


def naive_mixing(g):
    """Each tensor's Kronecker product of (I + L) D (I + U) as an explicit matrix."""
    matrices = {}
    for names, entries in zip(g.groups.members.values(), g.entries, strict=True):
        for i, name in enumerate(names):
            matrix = torch.ones(1, 1, dtype=entries[0].dtype)
            for stored in entries:
                n = stored.shape[-1]
                v, eye = 32 / n * stored[i], torch.eye(n, dtype=stored.dtype)
                middle = torch.diag(torch.exp(3 * torch.tanh(torch.diag(v) / 3)))
                factor = (eye + torch.tril(v, -1)) @ middle @ (eye + torch.triu(v, 1))
                matrix = torch.kron(matrix, factor)
            matrices[name] = matrix
    return lambda z: {
        name: (matrices[name] @ p.reshape(-1)).reshape(p.shape) if name in matrices else p
        for name, p in z.items()
    }


def naive_flow(g):
    """Eq. (8) block by block and tensor by tensor, with explicit matrices."""
    wide = g.decoders[0].mu.bias is None

    def layer(linear, index: int, x: Tensor) -> Tensor:
        matrix = torch.ones(1, 1, dtype=x.dtype)
        for factor in linear.factors:
            matrix = torch.kron(matrix, factor[index] / (factor.shape[-1] if wide else 1))
        product = matrix @ x
        return product if linear.bias is None else product + linear.bias[index].reshape(-1)

    def member(groups, modules, name):
        for names, module in zip(groups.members.values(), modules, strict=True):
            if name in names:
                return module, names.index(name)
        raise KeyError(name)

    def encode(name: str, z: Tensor) -> Tensor:
        module, index = member(g.encoded, g.encoders, name)
        x = z.reshape(-1) * (module.layers[0].units[index].item() if wide else 1)
        for linear in module.layers:
            x = torch.relu(layer(linear, index, x))
        return x

    def decode(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        module, index = member(g.decoded, g.decoders, name)
        for linear in module.trunk:
            x = layer(linear, index, torch.relu(x))
        x = torch.relu(x)
        mu = layer(module.mu, index, x) * (module.mu.units[index].item() if wide else 1)
        return layer(module.alpha, index, x), mu

    def primal(z):
        phi, embeddings = {}, []
        for i, block in enumerate(g.partition.blocks):
            if i > 0:
                seen, connection = torch.cat(embeddings), g.connections[i - 1]
                weight = connection.weight / (len(seen) if wide else 1)
                inputs = weight @ seen + connection.bias
            used = 0
            for j, name in enumerate(block):
                if i == 0:
                    alpha = g.first_alpha[j].reshape(-1)
                    mu = 0 if wide else g.first_mu[j].reshape(-1)
                else:
                    size = 1
                    for n in g.partition.pieces[name]:
                        size *= max(1, n // 8)
                    alpha, mu = decode(name, inputs[used : used + size])
                    used += size
                bounded = 2 / (1 + torch.exp(-alpha))
                sigma = torch.exp(3 * torch.tanh(10 * alpha / 3)) if wide else bounded
                phi[name] = (z[name].reshape(-1) * sigma + mu).reshape(z[name].shape)
            if i < len(g.partition.blocks) - 1:
                embeddings += [encode(name, z[name]) for name in block]
        return phi

    return primal


CASES = {
    "maml": (lambda learner: same, lambda learner: same),
    "metasgd": (lambda learner: same, metasgd_direction),
    "metacurvature": (lambda learner: same, metacurvature_direction),
    "blockiaf": (blockiaf_primal, lambda learner: same),
    "blockiaf:start=dual:parametrisation=standard:scale=bounded": (
        blockiaf_primal,
        lambda learner: same,
    ),
    "blockiaf:mixing=kronecker:flows=2": (blockiaf_primal, lambda learner: same),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", CASES)
def test_meta_gradient_equals_a_naive_program(method: str, network: str):
    make, make_tasks = NETWORKS[network]
    tasks = make_tasks()
    learner = shaken(mm.make_learner(method, make(), steps=STEPS, lr=LR))
    primal, direction = (make_slot(learner) for make_slot in CASES[method])
    loss = naive_meta_loss(learner, tasks, primal, direction)
    names, parameters = zip(*learner.named_parameters(), strict=True)
    expected = torch.autograd.grad(loss, parameters, materialize_grads=True)
    torch.testing.assert_close(learner.meta_loss(tasks), loss, rtol=1e-11, atol=0)
    found = meta_gradient(learner, tasks)
    assert relative_difference(found, dict(zip(names, expected, strict=True))) < 1e-10
