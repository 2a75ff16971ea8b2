"""Hugging Face Accelerate: each process has its share of the tasks, and gradients are averaged.

torchrun --nproc-per-node 2 with_accelerate.py; or accelerate launch with_accelerate.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device

import metamirror as mm

accelerator = Accelerator()
rank, world = accelerator.process_index, accelerator.num_processes

torch.manual_seed(0)  # every process begins with the same learner
learner = mm.make_learner("metasgd", mm.models.MLP(1, 1), steps=1, lr=0.01)
learner = learner.to(accelerator.device)  # not prepared: no DistributedDataParallel
learned = [p for p in learner.parameters() if p.requires_grad]
optimizer = accelerator.prepare(torch.optim.Adam(learned, lr=5e-3))
tasks = mm.tasks("sinusoid", "train", shots=10, batch=8)
assert tasks.batch % world == 0  # equal shares: a mean of means is the mean

losses = []
for step in range(60):
    share = send_to_device(tasks.stack(step, range(rank, tasks.batch, world)), accelerator.device)
    (loss, _), gradient = learner.meta_gradient(share, learned)
    gradient = accelerator.reduce(gradient, reduction="mean")
    for parameter, own in zip(learned, gradient, strict=True):
        parameter.grad = own
    accelerator.clip_grad_norm_(learned, 10.0)
    optimizer.step()
    losses.append(accelerator.reduce(loss.mean(), reduction="mean").item())

first, last = sum(losses[:15]) / 15, sum(losses[-15:]) / 15
accelerator.print(f"{world} process(es): loss {first:.4f} at first, {last:.4f} at last")
assert last < first
if accelerator.is_main_process:
    mm.save(learner, "start")
accelerator.end_training()
