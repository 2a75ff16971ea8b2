# %% [markdown]
# # Comparing methods
#
# Here you compare several methods by one command and one protocol: the same tasks, the same start
# of the network, the same number of outer steps. The data are the sinusoid's.
# About a minute on one core. That is long enough to see the differences at this training length,
# and too short to say which method is best in the end.

# %%
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt

plt.style.use("tableau-colorblind10")
METHODS, SEEDS, ITERATIONS = "maml,metasgd,metacurvature,gradnet", 2, 200

# %% [markdown]
# ## The command
#
# `compare` trains methods x seeds in processes of their own, evaluates all of them on the same
# test tasks, and writes tables and a report. Started again it goes on where it stopped.

# %%
words = f"compare --data sinusoid --methods {METHODS} --seeds {SEEDS} --iterations {ITERATIONS}"
words += " --shots 10 --steps 1 --lr 0.01 --outer-lr 0.003 --tasks-per-step 25 --vectorize True"
words += " --validate-every 0 --test-tasks 200 --no-controls --jobs 1 --out compared"
command = [sys.executable, "-m", "metamirror", *words.split()]
subprocess.run(command, check=True, capture_output=True)
rows = json.loads(Path("compared/table.json").read_text())["rows"]
print(Path("compared/table.md").read_text().strip())

# %% [markdown]
# ## Reading the table
#
# An error without an interval says little. The intervals here are for other tasks *and* other
# seeds. The difference to MAML is paired: both methods are evaluated on the same tasks, so that
# easy and hard tasks cancel. A difference whose interval contains zero is not significant.

# %%
figure, (errors, differences) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
for place, row in enumerate(rows):
    errors.errorbar(row["mse"], place, xerr=row["ci95"], fmt="o", color="C0", capsize=4)
    errors.plot([cell["mse"] for cell in row["seeds"]], [place] * SEEDS, "|", color="C1", ms=12)
    if (less := row["difference_to_maml"]) is not None:
        low, high = less["low"], less["high"]
        differences.plot([low, high], [place, place], color="C0", marker="|")
        differences.plot(less["mean"], place, "o", color="C0")
titles = [f"{row['method']}\n{row['extra_parameters']:,} extra" for row in rows]
errors.set_yticks(range(len(rows)), titles)
differences.set_yticks(range(len(rows)), ["the reference"] + [""] * (len(rows) - 1))
differences.axvline(0, color="0.3", linestyle=":")
errors.plot([], [], "o", color="C0", label="mean and 95 % interval")
errors.plot([], [], "|", color="C1", ms=12, label="one seed")
errors.legend(loc="center right")
errors.set(title="Error on new curves", xlabel="mean squared error after one step", xlim=(0, None))
differences.set(title="Difference to MAML, same tasks", xlabel="mean squared error less MAML's")
for panel in (errors, differences):
    panel.set_ylim(len(rows) - 0.6, -0.4)
    panel.grid(axis="x", alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
figure.savefig("comparing.svg")
