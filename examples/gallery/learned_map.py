# %% [markdown]
# # What a learned map looks like, layer by layer
#
# Here you look inside two learned maps: which layers move far, which move each other, and how much
# the map bends. They lead from `z`, which descends, to `φ`, with which the network runs, and belong
# to two starts that ship with the package. About half a minute on one core.
#
# The two starts were trained for different numbers of iterations. This page compares what their
# maps look like, not how good they are.

# %%
import matplotlib.pyplot as plt
import torch
from matplotlib.colors import LogNorm

import metamirror as mm
from metamirror.experiments.inspection import inspect_learner

plt.style.use("tableau-colorblind10")
STARTS = {"gradnet": "glyphs-gradnet", "blockiaf": "glyphs-blockiaf"}
tasks = mm.tasks("glyphs", split="val", ways=5, shots=1, queries=5, batch=1)
examples = mm.Batch(*(part[0] for part in tasks[0].support))


def learner_of(start):
    return mm.FewShotClassifier(start).fit(examples.x, examples.y).learner_.double()


learners = {method: learner_of(start) for method, start in STARTS.items()}

# %% [markdown]
# ## Is it a mirror map?
#
# `inspect_learner` is what `metamirror inspect RUN` prints. `gradnet` is the gradient of a convex
# function by construction. `blockiaf` is invertible, but layers move only those after them: its
# Jacobian is not symmetric, so that it is the gradient of no function.

# %%
found = {method: inspect_learner(learner, tasks, tasks=2) for method, learner in learners.items()}
for method, facts in found.items():
    print(f"{method}: mirror map: {facts['is_mirror_map']}, {facts['proof']}")
    print(f"  slopes from {facts['map_bounds'][0]:.3g} to {facts['map_bounds'][1]:.3g}")

# %% [markdown]
# ## How far a layer moves, and how much the map bends
#
# A linear map has the same slope everywhere. To see how far a map is from that, walk from the
# start along the first gradient of one layer, and measure the slope of that layer on the way.

# %%
support = mm.Batch(examples.x.double(), examples.y)


def slopes(learner, layer, distances):
    g = learner.geometry.g
    first, second = learner.adapt(support, steps=1, keep=True).path.states
    way = {
        name: (second.z[name] - z).detach() * name.startswith(layer) for name, z in first.z.items()
    }
    length = torch.stack([w.square().sum() for w in way.values()]).sum()
    measured = []
    for t in distances.tolist():
        point = {name: (first.z[name] + t * way[name]).detach() for name in way}
        _, change = torch.func.jvp(g, (point,), (way,))
        measured.append(sum((change[name] * way[name]).sum() for name in way) / length)
    return torch.stack(measured).detach()


distances = torch.linspace(-10, 10, 21, dtype=torch.float64)
bends = {}
for layer in found["gradnet"]["dependencies"]:
    measured = slopes(learners["gradnet"], layer, distances)
    bends[layer] = 100 * (measured / measured[10] - 1)
    print(f"{layer}: slope {measured[10]:.2f}, bends by {bends[layer].abs().max():.1f} %")

# %% [markdown]
# ## The figure
#
# Top left: how far each layer moves for a gradient of length 1. `gradnet` has learned to slow the
# first layers and to speed up the last ones. Bottom left: how the slope of `gradnet` changes along
# the gradient of a layer. The map bends little: around this start it is nearly a preconditioner.
#
# Right: how strongly layer i of `φ` moves with layer j of `z`, for one number of each layer. The
# influence of a mirror map is mutual. That of `blockiaf` goes one way.

# %%
figure = plt.figure(figsize=(12, 7.6), layout="constrained")
panels = figure.subplot_mosaic([["steps", "gradnet"], ["bends", "blockiaf"]])
short = [name.replace("blocks.", "block ").removesuffix(".conv") for name in bends]

for i, (method, facts) in enumerate(found.items()):
    sizes = list(facts["effective_step_sizes"].values())
    places = torch.arange(len(sizes)) + 0.4 * i - 0.2
    panels["steps"].barh(places, sizes, height=0.38, label=method)
panels["steps"].axvline(facts["lr"], color="0.3", linestyle=":", label="step size α")
panels["steps"].set_yticks(range(len(short)), short)
panels["steps"].invert_yaxis()
panels["steps"].set(title="Effective step size of each layer", xlabel="|Δφ| / |∇L|", xscale="log")
panels["steps"].legend()

for layer, change, marker in zip(short, bends.values(), "osD^v", strict=True):
    panels["bends"].plot(distances, change, marker=marker, markevery=5, label=layer)
panels["bends"].set(
    title="gradnet: how the slope of a layer changes",
    xlabel="distance from the start, in inner steps",
    ylabel="change of ∂φ/∂z, %",
)
panels["bends"].legend()

for method in STARTS:
    panel, table = panels[method], found[method]["dependencies"]
    values = torch.tensor([list(row.values()) for row in table.values()])
    shown = values.where(values > 1e-6, torch.nan)
    image = panel.imshow(shown.numpy(), cmap="cividis", norm=LogNorm(1e-4, 10), aspect="auto")
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            text = "0" if value < 1e-6 else f"{value:.2g}"
            colour = "w" if 1e-6 < value < 0.02 else "k"
            panel.text(j, i, text, ha="center", va="center", color=colour)
    panel.set_xticks(range(len(short)), short)
    panel.set_yticks(range(len(short)), short)
    panel.set(title=f"{method}: which layer moves which", xlabel="layer j of z")
    panel.set_ylabel("layer i of φ")
    figure.colorbar(image, ax=panel, label="strength")

figure.savefig("learned_map.png", dpi=90)
