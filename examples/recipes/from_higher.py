"""A loop written with `higher`, and the same loop here: the losses agree to rounding."""

import higher
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

inner = torch.optim.SGD(net.parameters(), lr=0.01)
outer = torch.optim.Adam(net.parameters(), lr=1e-3)
theirs = []
for (sx, sy), (qx, qy) in STACKS:
    outer.zero_grad()
    theirs.append(0.0)
    for i in range(len(sx)):
        with higher.innerloop_ctx(net, inner, copy_initial_weights=False) as (fast, steps):
            for _ in range(3):
                steps.step(mse_loss(fast(sx[i]), sy[i]))
            loss = mse_loss(fast(qx[i]), qy[i]) / len(sx)
            loss.backward()
        theirs[-1] += loss.item()
    outer.step()

outer = torch.optim.Adam(learner.parameters(), lr=1e-3)
ours = []
for tasks in STACKS:
    outer.zero_grad()
    loss = learner.meta_loss(tasks)
    loss.backward()
    outer.step()
    ours.append(loss.item())
assert max(abs(a - b) for a, b in zip(theirs, ours, strict=True)) < 1e-9
