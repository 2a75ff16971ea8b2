# %% [markdown]
# # Five letters that nobody has seen before
#
# A start that was meta-learned on letters of many scripts ships with the package. Here it meets
# five letters of scripts that were kept apart, one example of each, and is asked about fifteen
# others. The plot shows the task, the answers, and what every step of the adaptation brings. No
# training: some ten seconds, most of them for drawing the letters at the first use.

# %%
import matplotlib.pyplot as plt
import torch

import metamirror as mm

WAYS, QUERIES, TASKS = 5, 3, 20
STARTS = ("glyphs-maml", "glyphs-blockiaf")
tasks = mm.tasks("glyphs", split="test", ways=WAYS, shots=1, queries=QUERIES, batch=TASKS)[0]

# %% [markdown]
# ## One task
#
# `fit` adapts, `predict` asks. A label may be anything; here it is the place of the class.

# %%
support, query = (mm.Batch(b.x[0], b.y[0]) for b in tasks)
classifier = mm.FewShotClassifier("glyphs-blockiaf").fit(support.x, support.y)
answers = torch.as_tensor(classifier.predict(query.x))
print(f"loss of the examples by step: {[round(loss, 2) for loss in classifier.losses_]}")
print(f"right: {int((answers == query.y).sum())} of {len(query.y)}")

# %% [markdown]
# ## Many tasks, step by step
#
# The learner inside the estimator gives the model after every step. Normalisation is inductive, as
# everywhere in the estimators: a prediction does not depend on the other queries.


# %%
def accuracy_by_step(start, steps=10):
    learner = mm.FewShotClassifier(start).fit(support.x, support.y).learner_
    right = torch.zeros(steps + 1)
    for i in range(TASKS):
        examples = mm.Batch(tasks.support.x[i], tasks.support.y[i])
        for k, adapted in enumerate(learner.adaptations(examples, steps=steps)):
            right[k] += (adapted(tasks.query.x[i]).argmax(1) == tasks.query.y[i]).float().mean()
    return 100 * right / TASKS


curves = {start: accuracy_by_step(start) for start in STARTS}
for start, curve in curves.items():
    print(f"{start}: {curve[0]:.0f} % before the first step, {curve[5]:.0f} % after five")

# %% [markdown]
# ## The plot

# %%
figure = plt.figure(figsize=(11, 4.2), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1, 1.15])
cells = left.subplots(QUERIES + 1, WAYS)
for label in range(WAYS):
    shown = [support.x[support.y == label][0], *query.x[query.y == label]]
    said = [None, *answers[query.y == label].tolist()]
    for row, (image, answer) in enumerate(zip(shown, said, strict=True)):
        cell = cells[row, label]
        cell.imshow(image[0].numpy(), cmap="gray")
        cell.set_xticks([])
        cell.set_yticks([])
        if answer is None:
            cell.set_title(f"class {label}", fontsize=9)
        else:
            colour = "tab:green" if answer == label else "tab:red"
            cell.set_xlabel(f"says {answer}", color=colour, fontsize=8, labelpad=1)
            cell.spines[:].set(color=colour, linewidth=2)
cells[0, 0].set_ylabel("support", fontsize=9)
cells[1, 0].set_ylabel("query", fontsize=9)

panel = right.subplots()
for start, curve in curves.items():
    panel.plot(curve, marker="o", label=start)
panel.axhline(100 / WAYS, color="grey", linestyle=":", label="guessing")
panel.set(xlabel="inner step", ylabel=f"accuracy over {TASKS} tasks, %", ylim=(0, 100))
panel.legend(loc="lower right")

figure.savefig("glyphs.png", dpi=120)
print("written: glyphs.png")
