# %% [markdown]
# # Your own geometry on a two-dimensional loss
#
# Here you write a mirror map in 25 lines, check it, learn it, and see what it does. The model has
# two parameters, so that every path can be drawn. About a minute on one core.
#
# The tasks are small regressions of counts: the logarithm of a rate is `level + slope * t`, and a
# task gives the counts at five times `t`. Where rates are high the loss is steep, and where they
# are low it is flat. A step size that is safe at the steep side crawls at the flat one.

# %%
import json
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from torch import nn

import metamirror as mm
from metamirror.core.geometry import GradientDescent
from metamirror.testing import check_mirror_map

plt.style.use("tableau-colorblind10")
torch.set_default_dtype(torch.float64)
times = torch.linspace(-0.3, 0.9, 5)
random = torch.Generator().manual_seed(0)
LR, STEPS, ITERATIONS = 0.3, 8, 400


class Rates(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Parameter(torch.zeros(2))  # level and slope

    def forward(self, t):
        return self.phi[0] + self.phi[1] * t


def draw_tasks(n):
    """Counts are given by their expected values, so that each minimum is known."""
    level, slope = 3 * torch.rand(2, n, 1, generator=random) - 1.5
    counts = mm.Batch(times.expand(n, 5), torch.exp(level + slope * times))
    return mm.Task(counts, counts)


# %% [markdown]
# ## The map
#
# `g(z) = A z + Σ w u tanh(<u, z> + b)` is the gradient of a strictly convex function if `A` is
# positive definite and every `w` is positive. Without the sum it is a constant preconditioner.
# With it, the preconditioner `∂g` depends on the place. Newton's method inverts it.


# %%
class Ridges(mm.mirror_maps.MirrorMap):
    is_gradient = True

    def __init__(self, terms):
        super().__init__()
        self.root = nn.Parameter(torch.eye(2))
        self.u = nn.Parameter(torch.randn(terms, 2, generator=random))
        self.b = nn.Parameter(torch.randn(terms, generator=random))
        self.log_w = nn.Parameter(torch.full((terms,), -2.0))

    def prepare(self):
        floor = 0.01 * torch.eye(2).to(self.root)
        return {"A": self.root @ self.root.T + floor, "w": self.log_w.exp()}

    def forward(self, z, prepared=None):
        p, z = prepared or self.prepare(), z["phi"]
        return {"phi": p["A"] @ z + (p["w"] * torch.tanh(self.u @ z + self.b)) @ self.u}

    def jacobian(self, z):
        p, slopes = self.prepare(), 1 - torch.tanh(self.u @ z["phi"] + self.b) ** 2
        return p["A"] + self.u.T @ torch.diag(p["w"] * slopes) @ self.u

    def inverse(self, phi):
        z = {"phi": torch.zeros(2)}
        for _ in range(100):
            error = self(z)["phi"] - phi["phi"]
            newton = torch.linalg.solve(self.jacobian(z).detach(), error)
            if error.norm() < 1e-12:  # this last step carries the derivatives
                return {"phi": z["phi"] - newton}
            z = {"phi": (z["phi"] - newton / (1 + newton.norm())).detach()}
        raise ValueError(f"no inverse was found at {phi['phi'].tolist()}")


check_mirror_map(Ridges(4), {"phi": torch.ones(2)})

# %% [markdown]
# ## The geometry
#
# Mirror descent steps in `z` and runs the model with `φ = g(z)`. All tasks share their start, so
# that it is inverted once, in `prepare`. A geometry is these four methods, and nothing else.


# %%
class Mirror(mm.Geometry):
    def __init__(self, g):
        super().__init__()
        self.g = g

    def prepare(self, theta):
        return MirrorState(self.g.inverse(theta), self.g.prepare())

    def begin(self, theta, prepared, noise):
        return prepared

    def primal(self, state):
        return self.g(state.z, state.prepared)

    def step(self, state, grad, *, lr, loss, k):
        return MirrorState({"phi": state.z["phi"] - lr * grad["phi"]}, state.prepared)


class MirrorState(NamedTuple):
    z: dict
    prepared: dict


# %% [markdown]
# ## Learning it
#
# A learner takes the geometry as it is: `mm.Learner(Rates(), geometry=Mirror(g), steps=8, lr=0.3)`.
# Adam then trains `g.parameters()` on `learner.meta_loss(draw_tasks(16))` for 400 iterations.
#
# The start is not learned here: each outer step draws another, so that the map has to serve them
# all. The objective is the mean loss over the path. The same loop learns the preconditioner.
# Both multiply a step size. It is the one that serves gradient descent best, to be fair to it.


# %% [not listed]
def mean_over_path(episode):
    points = episode.descend(keep=True).points[1:]
    return torch.stack([episode.query_loss(phi) for phi in points]).mean()


def learner_with(geometry, lr=LR):
    how = {"loss": nn.functional.poisson_nll_loss, "objective": mean_over_path, "vectorize": True}
    return mm.Learner(Rates(), geometry=geometry, steps=STEPS, lr=lr, **how)


def learned(g):
    learner = learner_with(Mirror(g))
    optimizer = torch.optim.Adam(g.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ITERATIONS)
    for _ in range(ITERATIONS):
        learner.model.phi.data = 4 * torch.rand(2, generator=random) - 2
        optimizer.zero_grad()
        learner.meta_loss(draw_tasks(16)).backward()
        nn.utils.clip_grad_norm_(g.parameters(), 10)
        optimizer.step()
        schedule.step()
    return learner


for lr in (0.2, 0.25, 0.3, 0.35, 0.4):
    random.manual_seed(1)
    learner, losses = learner_with(GradientDescent(), lr), []
    for _ in range(50):
        learner.model.phi.data = 4 * torch.rand(2, generator=random) - 2
        losses.append(learner.meta_loss(draw_tasks(16)).item())
    print(f"gradient descent with step size {lr}: {sum(losses) / 50:.3f}")

learners = {
    "gradient descent": learner_with(GradientDescent()),
    "learned preconditioner": learned(Ridges(0)),
    "learned mirror map": learned(Ridges(12)),
}

# %% [markdown]
# ## How fast they come down
#
# Loss above the minimum, for 60 pairs of a new task and a new start. A constant preconditioner is
# either fast where the loss is flat or stable where it is steep. The map can be both. The figure
# has two tasks with their level sets, and the loss along all 60 paths; the dotted line is the
# slowest tenth. [The idea](../idea.md) has these paths in a figure that you can move.


# %% [not listed]
def paths(start, counts, steps=12):
    found = {}
    for name, learner in learners.items():
        learner.model.phi.data = start
        found[name] = [
            adapted.params["phi"].detach()
            for adapted in learner.adaptations(mm.Batch(times, counts), steps=steps)
        ]
    return found


def above_minimum(phi, counts):
    poisson = nn.functional.poisson_nll_loss
    return poisson(phi[0] + phi[1] * times, counts) - poisson(counts.log(), counts)


gaps = {name: [] for name in learners}
for _ in range(60):
    counts = draw_tasks(1).support.y[0]
    for name, points in paths(4 * torch.rand(2, generator=random) - 2, counts).items():
        gaps[name].append(torch.stack([above_minimum(phi, counts) for phi in points]))
for name, curves in gaps.items():
    after = torch.stack(curves)[:, STEPS]
    print(f"{name}: median {after.median():.5f} after {STEPS} steps, worst {after.max():.3f}")

# %% [not listed]
figure, panels = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
looks = dict(zip(learners, (("0.35", "o"), ("C1", "s"), ("C0", "D")), strict=True))
grid = torch.stack(torch.meshgrid(*[torch.linspace(-2.2, 2.2, 120)] * 2, indexing="xy"))
cases = [((-1.2, 1.0), (1.8, 1.3)), ((1.0, -1.2), (-1.9, 1.4))]
for panel, (minimum, start) in zip(panels, cases, strict=False):
    counts = torch.exp(minimum[0] + minimum[1] * times)
    heights = torch.stack([above_minimum(phi, counts) for phi in grid.flatten(1).T]).view(
        grid.shape[1:]
    )
    levels = torch.logspace(-2.5, 1.2, 12).tolist()
    panel.contour(*grid, heights, levels=levels, colors="0.75", linewidths=0.8)
    for name, points in paths(torch.tensor(start), counts).items():
        colour, marker = looks[name]
        panel.plot(*torch.stack(points).T, marker=marker, markersize=4, color=colour, label=name)
    panel.plot(*minimum, "*", color="k", markersize=13, label="minimum")
    panel.set(xlim=(-2.2, 2.2), ylim=(-2.2, 2.2), xlabel="level", ylabel="slope")
panels[0].set_title("From the steep side")
panels[1].set_title("From the flat side")
panels[0].legend(fontsize="small", loc="lower left")

for name, curves in gaps.items():
    together, (colour, marker) = torch.stack(curves), looks[name]
    panels[2].plot(together.median(0).values, color=colour, marker=marker, label=name)
    panels[2].plot(together.quantile(0.9, dim=0), color=colour, linestyle=":")
panels[2].set(title="60 tasks and starts", xlabel="inner step", ylabel="loss above the minimum")
panels[2].set_yscale("log")
panels[2].legend(fontsize="small", loc="lower left")
figure.savefig("own_geometry.svg")

# %% [not listed]
metric, ridges = (
    learners["learned preconditioner"].geometry.g,
    learners["learned mirror map"].geometry.g,
)
parameters = {"times": times, "lr": torch.tensor(LR), "P": metric.prepare()["A"]}
parameters |= {**ridges.prepare(), "u": ridges.u, "b": ridges.b}
numbers = {name: value.detach().tolist() for name, value in parameters.items()}
Path("idea.json").write_text(json.dumps(numbers))
