# %% [markdown]
# # Five letters that the start has never seen
#
# Here you use a start that was meta-learned on letters of many scripts. It meets five letters of
# scripts that were kept apart, with one example of each, and labels fifteen others.
# No training: some ten seconds on one core, most of them for drawing the letters at the first use.

# %%
import matplotlib.pyplot as plt
import torch

import metamirror as mm

plt.style.use("tableau-colorblind10")
WAYS, QUERIES, TASKS, STEPS = 5, 3, 20, 10
tasks = mm.tasks("glyphs", split="test", ways=WAYS, shots=1, queries=QUERIES, batch=TASKS)[0]

# %% [markdown]
# ## One task
#
# `fit` adapts to the examples, `predict` labels new images. A label may be anything; here it is
# the number of the class.

# %%
support, query = (mm.Batch(b.x[0], b.y[0]) for b in tasks)
classifier = mm.FewShotClassifier("glyphs-blockiaf").fit(support.x, support.y)
answers = torch.as_tensor(classifier.predict(query.x))
print(f"loss of the examples by step: {[round(loss, 2) for loss in classifier.losses_]}")
print(f"right: {int((answers == query.y).sum())} of {len(query.y)}")

# %% [markdown]
# ## Twenty tasks, step by step
#
# The learner inside the estimator gives the model after every inner step. The start alone knows
# nothing about the five classes. The first step seems to bring nothing, the next two nearly all.

# %%
learner = classifier.learner_
accuracy = torch.zeros(TASKS, STEPS + 1)
for i in range(TASKS):
    examples = mm.Batch(tasks.support.x[i], tasks.support.y[i])
    for k, adapted in enumerate(learner.adaptations(examples, steps=STEPS)):
        right = adapted(tasks.query.x[i]).argmax(1) == tasks.query.y[i]
        accuracy[i, k] = 100 * right.float().mean()
for k in (0, 1, 2, 5):
    print(f"after {k} steps: {accuracy[:, k].mean():.0f} % right")

# %% [markdown]
# ## The figure
#
# Left: the task, an example of each class above three new images. Right: the accuracy after each
# step, the mean of twenty tasks and its 95 % interval.

# %%
figure = plt.figure(figsize=(11, 4.4), layout="constrained")
left, side = figure.subfigures(1, 2, width_ratios=[1, 1.15])
cells = left.subplots(QUERIES + 1, WAYS)
for label in range(WAYS):
    shown = [support.x[support.y == label][0], *query.x[query.y == label]]
    said = [None, *answers[query.y == label].tolist()]
    for cell, image, answer in zip(cells[:, label], shown, said, strict=True):
        cell.imshow(image[0].numpy(), cmap="gray")
        cell.set(xticks=[], yticks=[])
        if answer is None:
            cell.set_title(f"class {label}", fontsize=10)
            continue
        colour = "C0" if answer == label else "C5"
        cell.set_xlabel(f"{'✓' if answer == label else '✗'} {answer}", color=colour, labelpad=2)
        cell.spines[:].set(color=colour, linewidth=2.5)
cells[0, 0].set_ylabel("example")
cells[2, 0].set_ylabel("new images")

panel = side.subplots()
mean, half = accuracy.mean(0), 1.96 * accuracy.std(0) / TASKS**0.5
panel.plot(mean, marker="o", label="glyphs-blockiaf")
panel.fill_between(range(STEPS + 1), mean - half, mean + half, alpha=0.2)
panel.axhline(100 / WAYS, color="0.3", linestyle=":", label="guessing")
panel.axvline(learner.steps, color="0.6", linestyle="--", label="steps of training")
panel.set(title=f"{TASKS} tasks", xlabel="inner step", ylabel="accuracy, %", ylim=(0, 100))
panel.legend(loc="lower right")
figure.savefig("letters.png", dpi=90)
