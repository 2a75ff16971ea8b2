# %% [markdown]
# # A sine curve from ten points
#
# Here you meta-train two methods on sine curves. Every task is a curve y = A sin(x - p) with its
# own amplitude and phase. A network that has seen many of them adapts to a new one from ten points,
# in one step. The methods are MAML, which is plain gradient descent, and MetaSGD, which learns a
# rate for every parameter. About half a minute on one core. A study would take many more iterations
# than 400.
#
# The cells open as a notebook in VS Code, in PyCharm, or with `jupytext --to notebook sinusoid.py`.

# %%
import matplotlib.pyplot as plt
import torch

import metamirror as mm

ITERATIONS = 400
plt.style.use("tableau-colorblind10")
METHODS = {"maml": "C0", "metasgd": "C1"}


# %% [markdown]
# ## Meta-training
#
# `tasks[step]` is a stack of 25 curves, the same for both methods. `meta_loss` adapts to each of
# them and returns the mean loss on their query points.


# %%
def meta_trained(method):
    torch.manual_seed(0)
    model = mm.models.MLP(1, 1)
    learner = mm.make_learner(method, model, steps=1, lr=0.01, vectorize=True)
    tasks = mm.tasks("sinusoid", split="train", shots=10, batch=25)
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    losses = []
    for step in range(ITERATIONS):
        optimizer.zero_grad()
        loss = learner.meta_loss(tasks[step])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return learner, losses


learners = {method: meta_trained(method) for method in METHODS}

# %% [markdown]
# ## Adapting to a new curve
#
# `adaptations` yields the model after 0, 1, 2, ... steps. It was trained for one step; more of
# them show where it is going.

# %%
task = mm.tasks("sinusoid", split="test", shots=10, queries=200, batch=1)[0]
support = mm.Batch(task.support.x[0], task.support.y[0])
x, order = task.query.x[0].sort(0)
truth = task.query.y[0][order.squeeze(1)]

figure, panels = plt.subplots(1, 3, figsize=(12, 4.4), layout="constrained")
for method, colour in METHODS.items():
    losses = torch.tensor(learners[method][1]).unfold(0, 25, 25).mean(1)
    panels[0].plot(25 * torch.arange(1, len(losses) + 1), losses, color=colour, label=method)
panels[0].set(title="Meta-training", xlabel="iteration", ylabel="query loss", yscale="log")
panels[0].legend()

for panel, method in zip(panels[1:], METHODS, strict=True):
    learner, _ = learners[method]
    panel.plot(x, truth, color="black", linestyle=":", label="the curve")
    for k, adapted in enumerate(learner.adaptations(support, steps=5)):
        if k in (0, 1, 5):
            error = (adapted(x) - truth).square().mean().item()
            label = f"after {k} steps: {error:.2f}"
            panel.plot(x, adapted(x), color=METHODS[method], alpha=0.3 + 0.14 * k, label=label)
            print(f"{method}: squared error after {k} steps {error:.3f}")
    panel.scatter(support.x, support.y, color="black", zorder=3, label="ten points")
    panel.set(title=f"{method}: a new curve, squared error", xlabel="x")
    panel.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))

figure.savefig("sinusoid.svg")
