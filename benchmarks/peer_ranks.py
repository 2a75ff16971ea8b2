"""metamirror's meta-iteration over two processes, one thread each: what `torchrun` makes of a run.

The first rank is the process that imports this; it starts the second, which runs this file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch import Tensor

import metamirror as mm
import peer_programs as peers
from metamirror.distributed import Ranks
from metamirror.experiments.cost import Workload

RANKS = 2


def two_ranks(work: Workload, dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    """As `peer_programs.metamirror`, the tasks shared out over two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [port, json.dumps(asdict(work)), str(dtype).removeprefix("torch.")]
    other = subprocess.Popen([sys.executable, __file__, *words])
    iterate = _rank(0, port, work, dtype)

    def step() -> list[Tensor]:
        if other.poll() is not None:
            raise RuntimeError(f"the second rank ended with {other.returncode}")
        dist.broadcast(torch.ones(1), 0)
        return iterate()

    return step


def _rank(rank: int, port: str, work: Workload, dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    torch.set_num_threads(1)
    if not dist.is_initialized():
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    learner, names, tasks = peers.maml(work, dtype)
    share = Ranks(torch.device("cpu"), rank, RANKS).share(work.tasks)
    own = mm.Task(*(mm.Batch(x[share.start :: RANKS], y[share.start :: RANKS]) for x, y in tasks))

    def iterate() -> list[Tensor]:
        _, gradient = learner.meta_gradient(own)
        flat = torch.cat([grad.flatten() for grad in gradient]) * (len(share) / work.tasks)
        dist.all_reduce(flat)
        parts = flat.split([grad.numel() for grad in gradient])
        found = zip(names, parts, gradient, strict=True)
        return [part.view_as(g) for name, part, g in found if not name.endswith("conv.bias")]

    return iterate


def main() -> None:
    port, work, dtype = sys.argv[1:]
    mm.tune_allocator()
    settings = json.loads(work)
    settings["shape"] = tuple(settings["shape"])
    iterate = _rank(1, port, Workload(**settings), getattr(torch, dtype))
    # When the first rank has gone, there is nothing more to do.
    with contextlib.suppress(RuntimeError):
        while True:
            dist.broadcast(torch.zeros(1), 0)
            iterate()
    os._exit(0)


if __name__ == "__main__":
    main()
