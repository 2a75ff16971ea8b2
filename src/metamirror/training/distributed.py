"""One run over many processes, under torchrun.

A rank takes its share of the tasks of a step, and one flat vector is all-reduced: the meta-gradient
with a few figures behind it. There is no wrapper around the learner, since the reducer of
DistributedDataParallel does not know graphs of higher order.
"""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from metamirror.training.device import choose_device

SECONDS_TO_MEET = 600


@dataclass(frozen=True)
class Ranks:
    """This process among those of its run; alone, unless torchrun started it."""

    device: torch.device  # where it computes.
    rank: int = 0  # its number.
    world: int = 1  # how many there are.
    store: Any = None  # the key-value store that they share.

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Return this rank's indices of `count`; none where there are more ranks than that."""
        return range(self.rank, count, self.world)

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over the ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def agree(self, number: int) -> bool:
        """Return whether all ranks have the same number."""
        numbers = torch.zeros(self.world, dtype=torch.float64, device=self.device)
        numbers[self.rank] = number
        return bool((self.all_reduce(numbers) == number).all())

    def from_first(self, content: bytes | None) -> bytes:
        """Return what the first rank holds: only its machine needs the run folder."""
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

    def part(self) -> None:
        """Wait until every rank is done: one that exits early may cut off what others read."""
        if self.world > 1:
            self.store.set(f"done/{self.rank}", "yes")
            everyone = [f"done/{rank}" for rank in range(self.world)]
            self.store.wait(everyone, timedelta(seconds=SECONDS_TO_MEET))


ALONE = Ranks(torch.device("cpu"))


@contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Join the process group that torchrun's environment describes, if there is one."""
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        yield Ranks(choose_device(device))
        return
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "mps":
        raise ValueError("torch.distributed does not know device 'mps': choose cpu")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    try:
        store, rank, world = next(rendezvous("env://"))
        store = _of_this_attempt(store, rank, world)
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
        yield Ranks(chosen, rank, world, store)
    except RuntimeError as error:
        if "onnect" not in str(error) and not isinstance(error, dist.DistError):
            raise
        raise ConnectionError("another rank exited; see its log") from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _of_this_attempt(store: Any, rank: int, world: int) -> Any:
    """Return a part of the store that none but the present processes have written to.

    torchrun keeps its store when it starts the ranks again, and in it the addresses of those that
    died: a new rank that reads one before it is replaced waits for nobody. So each process shows a
    name that nobody had before, the first rank says which names it sees, and all go on once
    everyone in one such list has answered to it.
    """
    own = uuid.uuid4().hex
    store.set(f"present/{rank}", own)
    deadline = time.monotonic() + SECONDS_TO_MEET
    while time.monotonic() < deadline:
        if rank == 0:
            names = [store.get(f"present/{r}").decode() for r in range(world)]
            store.set("attempt", ",".join(names))
        attempt = store.get("attempt").decode()
        if own in attempt.split(","):
            store.set(f"{attempt}/{rank}", "here")
            if store.check([f"{attempt}/{r}" for r in range(world)]):
                return dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]
        time.sleep(0.02)
    raise ConnectionError(f"rank {rank} of {world} waited {SECONDS_TO_MEET} s for the others")
