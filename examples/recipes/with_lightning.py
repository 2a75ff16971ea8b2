"""Lightning: its automatic optimisation differentiates `meta_loss`, and its validation adapts."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader

import metamirror as mm


class MetaLearning(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.learner = mm.make_learner("metasgd", net, steps=3, lr=0.1)

    def training_step(self, tasks):
        return self.learner.meta_loss(tasks)

    def validation_step(self, tasks):  # under torch.inference_mode
        losses, accuracies = self.learner.task_losses(tasks)
        self.log_dict({"val_loss": losses.mean(), "val_accuracy": accuracies.mean()}, batch_size=4)

    def configure_optimizers(self):
        return torch.optim.Adam(self.learner.parameters(), lr=3e-3)


def loader(tasks, steps):  # an item is a stack of tasks already
    return DataLoader(range(steps), batch_size=None, collate_fn=tasks.__getitem__)


L.seed_everything(0)
y = torch.arange(60).repeat(30)  # your data: here 60 classes, told apart by 4 numbers of 32
x = torch.cat([3 * torch.randn(60, 4)[y] + torch.randn(1800, 4), torch.randn(1800, 28)], 1)
train, val = (mm.tasks((x, y), split, queries=10, batch=4) for split in ("train", "val"))
module = MetaLearning(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5)))
trainer = L.Trainer(max_steps=100, devices=1, gradient_clip_val=10.0, logger=False)
(before,) = trainer.validate(module, loader(val, 15))
trainer.fit(module, loader(train, 100), loader(val, 15))
assert trainer.callback_metrics["val_accuracy"] > before["val_accuracy"] + 0.1
