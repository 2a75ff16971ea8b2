"""One meta-iteration, and one adaptation, in metamirror and in what else people use.

Each peer is written as its documentation advises and as lean as it allows: torch's own layers, no
biases in front of a normalisation, each task's graph freed before the next one begins.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import metamirror as mm
from metamirror.experiments.cost import Workload, pool_as_trained
from metamirror.parallel.allocator import spare_memory_for

LR = 0.05
Gradient = list[Tensor]


@dataclass(frozen=True)
class Features:
    """Tasks on the features of a frozen network, for a linear layer or an MLP that all share."""

    inputs: int = 640
    hidden: tuple[int, ...] = ()
    ways: int = 5
    shots: int = 1
    queries: int = 15
    steps: int = 5
    tasks: int = 32

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.inputs,)

    def net(self, dtype: torch.dtype) -> mm.models.MLP:
        torch.manual_seed(0)
        return mm.models.MLP(self.inputs, self.ways, self.hidden).to(dtype)

    def stack(self) -> mm.Task:
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(self.tasks, self.ways, 1, self.inputs, generator=generator)

        def batch(count: int) -> mm.Batch:
            size = (self.tasks, self.ways, count, self.inputs)
            x = centres + torch.randn(size, generator=generator)
            labels = torch.arange(self.ways).repeat_interleave(count)
            return mm.Batch(x.flatten(1, 2), labels.expand(self.tasks, -1).contiguous())

        return mm.Task(batch(self.shots), batch(self.queries))


def network(work: Workload | Features, dtype: torch.dtype) -> nn.Module:
    """The network in torch's layers, as the peers run it."""
    if isinstance(work, Features):
        net = work.net(dtype)
        layers = [(block.linear, nn.ReLU()) for block in net.blocks]
        return nn.Sequential(*itertools.chain(*layers), net.head)
    return sequential(conv4(work, dtype))


def conv4(work: Workload, dtype: torch.dtype) -> mm.models.Conv4:
    """Our network. Scales and shifts are moved off 1 and 0, so that all derivatives count."""
    model = work.model().to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p += 0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype)
    return model


def sequential(model: mm.models.Conv4) -> nn.Sequential:
    """The same network of torch's layers. Biases that a normalisation removes are left out."""
    layers: list[nn.Module] = []
    for block in model.blocks:
        filters, channels, _, _ = block.conv.weight.shape
        layers += [
            nn.Conv2d(channels, filters, 3, padding=1, bias=False),
            nn.BatchNorm2d(filters, track_running_stats=False),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        ]
    layers += [nn.Flatten(), nn.Linear(model.head.in_features, model.head.out_features)]
    net = nn.Sequential(*layers).to(model.head.weight.dtype)
    ours = [p for name, p in model.named_parameters() if not name.endswith("conv.bias")]
    with torch.no_grad():
        for theirs, p in zip(net.parameters(), ours, strict=True):
            theirs.copy_(p)
    return net


def pictures(work: Workload | Features, dtype: torch.dtype) -> mm.Task:
    (sx, sy), (qx, qy) = work.stack()
    return mm.Task(mm.Batch(sx.to(dtype), sy), mm.Batch(qx.to(dtype), qy))


def each(tasks: mm.Task) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    (sx, sy), (qx, qy) = tasks
    return list(zip(sx, sy, qx, qy, strict=True))


# The meta-gradient of a stack of tasks


def maml(work: Workload | Features, dtype: torch.dtype) -> tuple[mm.Learner, list[str], mm.Task]:
    """Our learner, the names of what it learns, and its tasks."""
    on_features = isinstance(work, Features)
    model = work.net(dtype) if on_features else conv4(work, dtype)
    # As `metamirror train` decides: all tasks at once, where nothing is a convolution.
    learner = mm.make_learner("maml", model, steps=work.steps, lr=LR, vectorize=on_features)
    names = [name for name, p in learner.model.named_parameters() if p.requires_grad]
    return learner, names, pictures(work, dtype)


def metamirror(work: Workload | Features, dtype: torch.dtype) -> Callable[[], Gradient]:
    learner, names, tasks = maml(work, dtype)
    pool = None if isinstance(work, Features) else pool_as_trained(learner, work)

    def iterate() -> Gradient:
        _, gradient = learner.meta_gradient(tasks, pool=pool)
        found = zip(names, gradient, strict=True)
        return [grad for name, grad in found if not name.endswith("conv.bias")]

    return iterate


Peer = Callable[[nn.Module, int, float], Callable[[mm.Task], Gradient]]
"""From a network, the number of inner steps and their size to the meta-gradient of tasks."""


def plain(net: nn.Module, steps: int, lr: float) -> Callable[[mm.Task], Gradient]:
    start = dict(net.named_parameters())

    def gradient(tasks: mm.Task) -> Gradient:
        net.zero_grad()
        for sx, sy, qx, qy in each(tasks):
            phi = start
            for _ in range(steps):
                loss = F.cross_entropy(torch.func.functional_call(net, phi, sx), sy)
                grads = torch.autograd.grad(loss, tuple(phi.values()), create_graph=True)
                phi = {n: p - lr * g for (n, p), g in zip(phi.items(), grads, strict=True)}
            loss = F.cross_entropy(torch.func.functional_call(net, phi, qx), qy)
            (loss / len(tasks.support.x)).backward()
        return [p.grad for p in net.parameters()]

    return gradient


def higher(net: nn.Module, steps: int, lr: float) -> Callable[[mm.Task], Gradient]:
    from higher import innerloop_ctx

    optimizer = torch.optim.SGD(net.parameters(), lr=lr)

    def gradient(tasks: mm.Task) -> Gradient:
        net.zero_grad()
        for sx, sy, qx, qy in each(tasks):
            with innerloop_ctx(net, optimizer, copy_initial_weights=False) as (fast, inner):
                for _ in range(steps):
                    inner.step(F.cross_entropy(fast(sx), sy))
                (F.cross_entropy(fast(qx), qy) / len(tasks.support.x)).backward()
        return [p.grad for p in net.parameters()]

    return gradient


def torchopt(net: nn.Module, steps: int, lr: float) -> Callable[[mm.Task], Gradient]:
    from torchopt import MetaSGD, extract_state_dict, recover_state_dict

    optimizer = MetaSGD(net, lr=lr)
    start = list(net.parameters())
    states = [(part, extract_state_dict(part, by="reference")) for part in (net, optimizer)]

    def gradient(tasks: mm.Task) -> Gradient:
        for p in start:
            p.grad = None
        for sx, sy, qx, qy in each(tasks):
            for _ in range(steps):
                optimizer.step(F.cross_entropy(net(sx), sy))
            (F.cross_entropy(net(qx), qy) / len(tasks.support.x)).backward()
            for part, state in states:
                recover_state_dict(part, state)
        return [p.grad for p in start]

    return gradient


PEERS: dict[str, Peer] = {"torchopt": torchopt, "higher": higher, "plain torch": plain}


def iteration(peer: Peer, work: Workload | Features, dtype: torch.dtype) -> Callable[[], Gradient]:
    gradient = peer(network(work, dtype), work.steps, LR)
    return partial(gradient, pictures(work, dtype))


META_GRADIENTS = {
    "metamirror": metamirror,
    **{name: partial(iteration, peer) for name, peer in PEERS.items()},
}


# Adapting to one new task and predicting its queries: nothing is differentiated afterwards


def adapt_metamirror(work: Workload, dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    learner = mm.make_learner("maml", conv4(work, dtype), steps=work.steps, lr=LR)
    ((sx, sy, qx, _), *_) = each(pictures(work, dtype))
    support = mm.Batch(sx, sy)
    return lambda: [learner.adapt(support)(qx)]


def adapt_higher(work: Workload, dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    from higher import innerloop_ctx

    net = sequential(conv4(work, dtype))
    ((sx, sy, qx, _), *_) = each(pictures(work, dtype))
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)

    def adapt() -> list[Tensor]:
        with innerloop_ctx(net, optimizer, track_higher_grads=False) as (fast, inner):
            for _ in range(work.steps):
                inner.step(F.cross_entropy(fast(sx), sy))
            with torch.no_grad():
                return [fast(qx)]

    return adapt


def adapt_plain(work: Workload, dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    net = sequential(conv4(work, dtype))
    ((sx, sy, qx, _), *_) = each(pictures(work, dtype))
    start = dict(net.named_parameters())

    def adapt() -> list[Tensor]:
        phi = {name: p.detach().clone().requires_grad_() for name, p in start.items()}
        for _ in range(work.steps):
            loss = F.cross_entropy(torch.func.functional_call(net, phi, sx), sy)
            grads = torch.autograd.grad(loss, tuple(phi.values()))
            with torch.no_grad():
                for p, grad in zip(phi.values(), grads, strict=True):
                    p.sub_(grad, alpha=LR)
        with torch.no_grad():
            return [torch.func.functional_call(net, phi, qx)]

    return adapt


ADAPTATIONS = {
    "metamirror": adapt_metamirror,
    "higher": adapt_higher,
    "plain torch": adapt_plain,
}


def installed(programs: dict[str, Callable]) -> tuple[str, ...]:
    """The programs whose library is there."""
    found = []
    for name in programs:
        with contextlib.suppress(ModuleNotFoundError):
            if name in ("torchopt", "higher"):
                __import__(name)
            found.append(name)
    return tuple(found)


def prepare(program: Callable, tune: bool, work: Workload | Features) -> Callable[[], object]:
    """What a process of the measurement runs, in float32."""
    if tune:
        mm.tune_allocator()
        spare_memory_for(work.shape)
    return program(work, torch.float32)


def largest_difference(
    programs: dict[str, Callable], names: tuple[str, ...], work: Workload | Features
) -> dict[str, float]:
    """By how much each program's float64 result differs from the plain loop's.

    Relative to the largest entry of each tensor, at the worst tensor.
    """
    reference = programs["plain torch"](work, torch.float64)()
    differences = {}
    for name in names:
        if name != "plain torch":
            found = programs[name](work, torch.float64)()
            pairs = zip(found, reference, strict=True)
            differences[name] = max(((f - g).abs().max() / g.abs().max()).item() for f, g in pairs)
    return differences
