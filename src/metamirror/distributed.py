"""One run over many processes, under torchrun: who does what, and one sum.

A rank takes its share of the tasks of a step, and the ranks add up one flat vector: the
meta-gradient with a few figures behind it. There is no wrapper around the learner, since the
reducer of DistributedDataParallel does not know graphs of higher order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from metamirror.device import choose_device


@dataclass(frozen=True)
class Ranks:
    """This process among those of its run; alone, unless torchrun started it.

    Attributes:
        device: where it computes.
        rank: its number.
        world: how many there are.
    """

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """This rank's indices of `count`; none, where there are more ranks than that."""
        return range(self.rank, count, self.world)

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def from_first(self, content: bytes | None) -> bytes:
        """What the first rank holds, on every rank: only its machine needs the run folder."""
        if self.world == 1:
            return content or b""
        size = torch.tensor([len(content or b"")], device=self.device)
        dist.broadcast(size, 0)
        buffer = torch.zeros(int(size), dtype=torch.uint8, device=self.device)
        if self.first and content:
            buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        if buffer.numel():
            dist.broadcast(buffer, 0)
        return buffer.cpu().numpy().tobytes()


@contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """This process's place, from the environment that torchrun sets."""
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        yield Ranks(choose_device(device))
        return
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "mps":
        raise ValueError("torch.distributed does not know device 'mps': choose cpu")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Ranks(chosen, dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        if "onnection" not in str(error) and not isinstance(error, dist.DistError):
            raise
        raise ConnectionError(f"another rank has gone: {str(error).splitlines()[0]}") from error
    finally:
        dist.destroy_process_group()


def restarted() -> bool:
    """Whether torchrun has started this process again, after a rank died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
