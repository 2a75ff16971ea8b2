"""A loop written with `learn2learn`, and the same loop here: the losses agree to rounding."""

import learn2learn as l2l
import torch
from torch.nn.functional import mse_loss

import metamirror as mm

STACKS = [
    mm.Task(*(mm.Batch(part.x.double(), part.y.double()) for part in mm.tasks("sinusoid")[step]))
    for step in range(20)
]
torch.manual_seed(0)
net = mm.models.MLP(1, 1).double()
learner = mm.make_learner("maml", net, steps=3, lr=0.01)  # around a copy of net

maml = l2l.algorithms.MAML(net, lr=0.01, first_order=False)
outer = torch.optim.Adam(maml.parameters(), lr=1e-3)
theirs = []
for (sx, sy), (qx, qy) in STACKS:
    outer.zero_grad()
    total = 0.0
    for i in range(len(sx)):
        fast = maml.clone()
        for _ in range(3):
            fast.adapt(mse_loss(fast(sx[i]), sy[i]))
        total = total + mse_loss(fast(qx[i]), qy[i]) / len(sx)
    total.backward()
    outer.step()
    theirs.append(total.item())

outer = torch.optim.Adam(learner.parameters(), lr=1e-3)
ours = []
for tasks in STACKS:
    outer.zero_grad()
    loss = learner.meta_loss(tasks)
    loss.backward()
    outer.step()
    ours.append(loss.item())
assert max(abs(a - b) for a, b in zip(theirs, ours, strict=True)) < 1e-9
