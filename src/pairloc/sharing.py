"""Work shared out among the processes torchrun started; with one process, nothing is shared.

Items go to processes by cost, the largest first, and every result is broadcast by the process that made it, so that all
of them go on with the same state and the result does not depend on how many there are.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

_PATIENCE = timedelta(days=7)  # others wait while one process trains


@dataclass(frozen=True)
class Share:
    """This process among all of them."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"  # that messages travel from

    @classmethod
    def of_torchrun(cls, device: str) -> "Share":
        """The share torchrun gave this process; the whole without torchrun. Takes the process's GPU."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not distributed.is_initialized():
            store, rank, _ = next(rendezvous("env://"))
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # else addresses of dead processes are found
            distributed.init_process_group(
                "nccl" if device == "cuda" else "gloo", store=PrefixStore(f"attempt {attempt}", store),
                rank=rank, world_size=world, timeout=_PATIENCE,
            )  # fmt: skip
        return cls(distributed.get_rank(), world, device)

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for the others."""
        if self.world > 1:
            distributed.barrier()

    def owners(self, costs: Sequence[float]) -> list[int]:
        """The process of every item: the largest first, each to the process with the least to do."""
        load = [0.0] * self.world
        owner = [0] * len(costs)
        for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            owner[item] = min(range(self.world), key=lambda rank: (load[rank], rank))
            load[owner[item]] += costs[item]
        return owner

    def spread(self, tensor: Tensor, owner: int) -> Tensor:
        """The owner's tensor, of a shape all know."""
        if self.world == 1:
            return tensor
        message = tensor.detach().to(self.device).contiguous()
        distributed.broadcast(message, owner)
        return message.to(tensor.device)


ALONE = Share()
