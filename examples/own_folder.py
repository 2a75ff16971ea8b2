# %% [markdown]
# # A folder of your own images
#
# One sub-folder for each class is all that is needed. This script makes such a folder, so that it
# runs anywhere; put the path of yours in its place. It meta-trains on some of the classes, then
# learns new ones from two images each. About half a minute on one core.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image, ImageDraw

import metamirror as mm

ITERATIONS, SIZE, WAYS = 40, 28, 3


# %% [markdown]
# ## The folder
#
# Flags, say: two colours and a pattern make a class, and no two images are alike.


# %%
def flag(pattern, colours, random):
    image = Image.new("RGB", (48, 40), colours[0])
    pen, shift = ImageDraw.Draw(image), int(random.integers(-4, 5))
    if pattern == "stripe":
        pen.rectangle((0, 14 + shift, 48, 26 + shift), colours[1])
    elif pattern == "pale":
        pen.rectangle((18 + shift, 0, 30 + shift, 40), colours[1])
    else:
        pen.ellipse((14 + shift, 10, 34 + shift, 30), colours[1])
    noise = random.normal(scale=20, size=(40, 48, 3))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


def make_folder(folder):
    random = np.random.default_rng(0)
    inks = {"red": "#b02030", "blue": "#2040a0", "gold": "#d0a020", "green": "#207040"}
    for pattern in ("stripe", "pale", "disc"):
        for ground in inks:
            for ink in inks:
                if ink != ground:
                    place = folder / f"{pattern}-{ink}-on-{ground}"
                    place.mkdir(parents=True, exist_ok=True)
                    for i in range(8):
                        image = flag(pattern, (inks[ground], inks[ink]), random)
                        image.save(place / f"{i}.png")
    return folder


images = make_folder(Path("flags"))  # your own: Path("/home/me/birds")

# %% [markdown]
# ## Meta-training
#
# The classes are split at random into train, val and test: the test classes are new to the start.
# From the command line the same is
# `metamirror train --method metasgd --data folder:flags --image-size 28 --ways 3 --shots 2`.

# %%
torch.manual_seed(0)
data = {"image_size": SIZE, "ways": WAYS, "shots": 2, "queries": 4, "batch": 2}
train = mm.tasks(f"folder:{images}", split="train", **data)
model = mm.models.Conv4(ways=WAYS, channels=3, image_size=SIZE, width=8)
learner = mm.make_learner("metasgd", model, steps=3, lr=0.1, norm="inductive")
learned = [p for p in learner.parameters() if p.requires_grad]
optimizer = torch.optim.Adam(learned, lr=3e-3)
losses = []
for step in range(ITERATIONS):
    (loss, _), gradient = learner.meta_gradient(train[step], learned)
    for parameter, own in zip(learned, gradient, strict=True):
        parameter.grad = own
    optimizer.step()
    losses.append(loss.mean().item())
print(f"query loss: {np.mean(losses[:10]):.2f} at first, {np.mean(losses[-10:]):.2f} at last")
mm.save(learner, "flags-start")

# %% [markdown]
# ## New classes
#
# A start is a folder of `mm.save`, a run folder, or the learner itself. Files go in as they are.

# %%
tests = mm.tasks(f"folder:{images}", split="test", **data)
new = tests.names(0, 0)
files = {name: sorted((images / name).glob("*.png")) for name in new}
examples = [(file, name) for name in new for file in files[name][:2]]
asked = [(file, name) for name in new for file in files[name][2:6]]

classifier = mm.FewShotClassifier("flags-start")
classifier.fit([file for file, _ in examples], [name for _, name in examples])
answers = classifier.predict([file for file, _ in asked])
right = [answer == name for answer, (_, name) in zip(answers, asked, strict=True)]
print(f"{sum(right)} of {len(right)} new images are recognised")
classifier.save("flags.safetensors")

# %%
figure, cells = plt.subplots(WAYS, 4, figsize=(8, 5), layout="constrained")
for cell, (file, _), answer, is_right in zip(cells.flat, asked, answers, right, strict=True):
    cell.imshow(Image.open(file))
    cell.set_title(answer, fontsize=8, color="tab:green" if is_right else "tab:red")
    cell.set_axis_off()
figure.savefig("own_folder.png", dpi=120)
print("written: own_folder.png, flags.safetensors")
