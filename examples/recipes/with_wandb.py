"""Weights & Biases: the loss of every step, and the accuracy on new classes now and then."""

import os

import torch
import wandb
from torch import nn

import metamirror as mm

os.environ.setdefault("WANDB_MODE", "offline")  # `wandb sync` uploads it later

torch.manual_seed(0)
y = torch.arange(60).repeat(30)  # your data: here 60 classes, told apart by 4 numbers of 32
x = torch.cat([3 * torch.randn(60, 4)[y] + torch.randn(1800, 4), torch.randn(1800, 28)], 1)
train, val = (mm.tasks((x, y), split, queries=10, batch=4) for split in ("train", "val"))
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5))
config = {"method": "metasgd", "steps": 3, "lr": 0.1, "outer_lr": 3e-3}
learner = mm.make_learner(config["method"], net, steps=config["steps"], lr=config["lr"])
optimizer = torch.optim.Adam(learner.parameters(), lr=config["outer_lr"])

with wandb.init(project="few-shot", config=config) as run:
    run.define_metric("val_accuracy", summary="max")
    for step in range(1, 101):
        optimizer.zero_grad()
        loss = learner.meta_loss(train[step])
        loss.backward()
        optimizer.step()
        figures = {"loss": loss.item()}
        if step % 25 == 0:
            found = mm.evaluate(learner, val, n=60)
            figures |= {"val_accuracy": found.mean, "val_ci95": found.ci95}
        run.log(figures, step=step)
