"""A schedule, and gradients accumulated over several stacks of tasks."""

import torch

import metamirror as mm

STEPS, WARMUP, ACCUMULATE = 60, 5, 4

torch.manual_seed(0)
tasks = mm.tasks("sinusoid", "train", shots=10, batch=4)
learner = mm.make_learner("metasgd", mm.models.MLP(1, 1), steps=1, lr=0.01, vectorize=True)
optimizer = torch.optim.Adam(learner.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=WARMUP),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS - WARMUP),
    ],
    milestones=[WARMUP],
)

means = []
for step in range(STEPS):
    total = 0.0
    for part in range(ACCUMULATE):  # 16 tasks in all, 4 of them in memory
        loss = learner.meta_loss(tasks[ACCUMULATE * step + part]) / ACCUMULATE
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    means.append(total)

first, last = sum(means[:15]) / 15, sum(means[-15:]) / 15
print(f"loss {first:.2f} at first, {last:.2f} at last; rate {schedule.get_last_lr()[0]:.1e}")
assert last < first
