"""A training loop of your own: tasks, meta-gradient, optimiser, validation, a file."""

import torch
from torch import nn

import metamirror as mm

torch.manual_seed(0)
y = torch.arange(60).repeat(30)  # your data: here 60 classes, told apart by 4 numbers of 32
x = torch.cat([3 * torch.randn(60, 4)[y] + torch.randn(1800, 4), torch.randn(1800, 28)], 1)
sizes = {"ways": 5, "shots": 1, "queries": 10, "batch": 4}
train, val = (mm.tasks((x, y), split, **sizes) for split in ("train", "val"))

net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5))
learner = mm.make_learner("metasgd", net, steps=3, lr=0.1)  # around a copy of net
learned = [p for p in learner.parameters() if p.requires_grad]
optimizer = torch.optim.Adam(learned, lr=3e-3)

before = mm.evaluate(learner, val, n=40)
for step in range(60):
    (losses, accuracies), gradient = learner.meta_gradient(train[step], learned)
    for parameter, own in zip(learned, gradient, strict=True):
        parameter.grad = own
    nn.utils.clip_grad_norm_(learned, 10.0)
    optimizer.step()
    if step % 20 == 0:
        print(f"{step}: loss {losses.mean():.3f}, accuracy {100 * accuracies.mean():.1f} %")

after = mm.evaluate(learner, val, n=40)
print(f"new classes: {before.mean:.1f} % before, {after.mean:.1f} ± {after.ci95:.1f} % after")
assert after.mean > before.mean + 10
mm.save(learner, "start")  # mm.load("start", model=net) brings it back
