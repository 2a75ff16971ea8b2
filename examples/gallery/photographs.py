# %% [markdown]
# # Five classes of photographs from four examples each
#
# Here you make a classifier from four photographs of each class, ask whether something simpler
# would do, and keep the model. It uses `photos`, a start that ships with the package: a small
# network trained on photographs, with a head that is computed from your examples. There is no
# training: some ten seconds on one core.
#
# The package has no photographs. So this script paints landscapes, which the network has never
# seen. Put the path of your own folder in their place: one sub-folder for each class.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFilter

import metamirror as mm

plt.style.use("tableau-colorblind10")
EXAMPLES, ASKED = 4, 6
SCENES = {  # with the colours of the ground and of what stands on it
    "dunes": ("#d9a45b", "#b98440"),
    "forest": ("#5f7f4f", "#1f3a22"),
    "city": ("#5a5d72", "#2a2d42"),
    "mountains": ("#7d8791", "#48525d"),
    "sea": ("#27597d", "#4b88a8"),
}
LIGHTS = (("#4f86c6", "#dfe9f4"), ("#41326b", "#f6843c"), ("#10162f", "#4b5b8b"))  # day to night


# %% [markdown]
# ## The images
#
# Time of day, horizon, brightness and shapes are drawn at random, and every pixel has noise.


# %%
def paint(scene, random):
    size, horizon = 96, int(random.integers(45, 65))
    above, below = (np.array(ImageColor.getrgb(c)) for c in LIGHTS[random.integers(3)])
    shade = np.linspace(0, 1, size)[:, None, None] + np.zeros((1, size, 1))
    image = Image.fromarray(((1 - shade) * above + shade * below).astype(np.uint8))
    ground, dark = SCENES[scene]
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, horizon, size, size), ground)
    for x in random.integers(-10, size, 5 if scene in ("dunes", "mountains") else 14):
        width, top = random.integers(6, 12), horizon - random.integers(12, 40)
        if scene == "forest":
            pen.polygon([(x, horizon + 8), (x + width, horizon + 8), (x + 5, top)], dark)
        elif scene == "city":
            pen.rectangle((x, top, x + width, horizon), dark)
        elif scene == "mountains":
            pen.polygon([(x - 25, horizon), (x + 45, horizon), (x + 10, top)], dark)
        elif scene == "dunes":
            pen.ellipse((x - 30, (2 * horizon + top) // 3, x + 50, size + 20), dark)
        else:
            y = int(random.integers(horizon, size))
            pen.line((x, y, x + 3 * width, y), dark, 2)
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(1)), dtype=float)
    light = random.uniform(0.5, 1.3) * pixels + random.normal(scale=25, size=pixels.shape)
    return Image.fromarray(light.clip(0, 255).astype(np.uint8))


random = np.random.default_rng(0)
for scene in SCENES:
    Path("images", scene).mkdir(parents=True, exist_ok=True)
    for i in range(EXAMPLES + ASKED):
        paint(scene, random).save(Path("images", scene, f"{i}.png"))

# %% [markdown]
# ## Fit and ask
#
# Files go in as they are. `held_out_accuracy_` comes from models that did not see the image.

# %%
folder = Path("images")  # or a folder of your own
files = {place.name: sorted(place.iterdir()) for place in sorted(folder.iterdir())}
examples = [(file, name) for name in files for file in files[name][:EXAMPLES]]
asked = [(file, name) for name in files for file in files[name][EXAMPLES:]]

classifier = mm.FewShotClassifier("photos").fit(*zip(*examples, strict=True))
answers = classifier.predict([file for file, _ in asked])
right = [answer == name for answer, (_, name) in zip(answers, asked, strict=True)]
print(f"held-out accuracy of the examples: {classifier.held_out_accuracy_:.0%}")
print(f"new images: {sum(right)} of {len(right)} recognised")
classifier.save("landscapes.safetensors")

# %% [markdown]
# ## Would something simpler do?
#
# `compare` puts simpler classifiers beside it, on the same features and folds, and recommends the
# simplest that is not significantly worse than the best. From the command line the whole page is
# `metamirror adapt photos --support images --out landscapes.safetensors --compare`.

# %%
compared = classifier.compare(*zip(*examples, strict=True))
print(compared)

# %%
figure = plt.figure(figsize=(12, 5), layout="constrained")
left, side = figure.subfigures(1, 2, width_ratios=[1.5, 1])
cells = left.subplots(len(files), EXAMPLES + ASKED)
left.suptitle(f"{EXAMPLES} examples of each class, then {ASKED} new images")
for row, name in zip(cells, files, strict=True):
    said = [None] * EXAMPLES + [
        a for a, (_, true) in zip(answers, asked, strict=True) if true == name
    ]
    for cell, file, answer in zip(row, files[name], said, strict=True):
        cell.imshow(Image.open(file))
        cell.set(xticks=[], yticks=[])
        if answer is not None:
            cell.spines[:].set(color="C0" if answer == name else "C1", linewidth=3)
            if answer != name:
                cell.set_xlabel(f"says {answer}", color="C5", fontsize=7, labelpad=1)
    row[0].set_ylabel(name)

bars = side.subplots()
for place, row in enumerate(compared.rows):
    mean, low, high = row.accuracy.mean, row.accuracy.low, row.accuracy.high
    bars.barh(place, mean, color="C4", height=0.5)
    bars.plot([low, min(high, 100)], [place, place], color="0.2", marker="|")
bars.axvline(100 / len(files), color="0.3", linestyle=":", label="guessing")
bars.set_yticks(
    range(len(compared.rows)), [row.name.replace(" ", "\n", 1) for row in compared.rows]
)
bars.set(title="Held-out accuracy, 95 % interval", xlabel="percent", xlim=(0, 102))
bars.legend(loc="lower left")
figure.savefig("photographs.jpg", dpi=100)
