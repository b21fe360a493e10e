"""Two processes, one of which runs out of batches, computes NaN, or raises: all end, none hangs; in DDP and FSDP2."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from itertools import product

from torture.tally import Tally

_PATIENCE = 600  # seconds; two processes import torch, on a machine that may be busy
_CASES = [
    *product(("ddp", "fsdp"), ("sam", "ncsam", "bsam"), ("nan", "raise")),
    *product(("ddp",), ("sam", "ncsam"), ("uneven",)),
]
#: How it must end: both ranks at their end, or both with an error.
_FINE = {"nan": {0}, "uneven sam": {0}, "uneven ncsam": {1}, "raise": {1}}


def run(tally: Tally, trials: int | None = None) -> None:
    for number, (strategy, name, fault) in enumerate(_CASES):
        if number and (not tally.time_left if trials is None else number >= trials):
            break
        codes = trial(strategy, name, fault)
        wanted = _FINE.get(f"{fault} {name}", _FINE.get(fault, {0}))
        tally.held(set(codes) == wanted, f"ranks, {strategy}, {name}, {fault}: ended with {codes}, not {wanted}")


def trial(strategy: str, name: str, fault: str) -> list[int | None]:
    """The exit codes of two processes; `None` for one that had to be killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "torture.ranks", strategy, name, fault],
            env={**os.environ, **place, "RANK": str(rank), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    until = time.monotonic() + _PATIENCE
    codes: list[int | None] = []
    for process in running:
        try:
            code = process.wait(max(1.0, until - time.monotonic()))
            codes.append(int(code != 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            codes.append(None)
    return codes


def one_rank(strategy: str, name: str, fault: str) -> None:
    """What a process does: eight steps, unless something happens to it."""
    from contextlib import nullcontext

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.join import Join
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from ncsam import optim

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    if strategy == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model)
    base = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = optim.get(name)(base, rho=0.1, model=model, total_steps=8)
    join = Join([model]) if fault == "uneven" else nullcontext()  # type: ignore[list-item]
    with join:
        for step in range(8):
            if fault == "uneven" and rank == 1 and step == 5:
                break
            x, y = torch.randn(6, 4), torch.arange(6) % 3
            if fault == "nan" and rank == 1 and step == 3:
                x = x * float("nan")
            if fault == "raise" and rank == 1 and step == 3:
                raise ZeroDivisionError
            optimizer.step(lambda x=x: model(x), y)  # type: ignore[misc]
    dist.destroy_process_group()


if __name__ == "__main__":
    one_rank(*sys.argv[1:])
