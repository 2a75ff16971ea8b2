"""Imported by the server that test processes are forked from, so that they need not wait."""

import torch

import metamirror as mm
import metamirror.cli.adapt
import metamirror.cli.data
import metamirror.cli.experiments
import metamirror.cli.main

torch.set_num_threads(1)
# The first use of vmap imports half of torch.
mm.make_learner("maml", mm.models.MLP(1, 1), steps=1, vectorize=True).meta_loss(
    mm.tasks("sinusoid", shots=2, queries=2, batch=2)[0]
)
