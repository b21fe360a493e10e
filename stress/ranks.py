"""Two processes (DDP, FSDP2), one of which runs out of batches, computes NaN, raises or is killed: both end."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from itertools import product

import torch
import torch.distributed as dist
from torch import nn

from ncsam import optim
from stress.harness import Tally

_PATIENCE = 240  # seconds; two processes import torch, on a machine that may be busy
_CASES = list(product(("ddp", "fsdp"), ("uneven", "nan", "raise", "die"), ("sam", "ncsam", "bsam")))
#: Expected ends of the two ranks: 0 finished, 1 with an error or killed. Under `Join` SAM with a fixed radius continues
#: alone and the others refuse to start; FSDP2 has no `Join`, so the remaining rank must get an error.
_EXPECTED = {
    "nan": [0, 0],
    "raise": [1, 1],
    "die": [1, 1],
    "uneven ddp": [0, 0],
    "uneven ddp ncsam": [1, 1],
    "uneven fsdp": [1, 0],
}


def run(tally: Tally, trials: int | None = None) -> None:
    """Every case once, in random order, until time is up; at least one."""
    cases = list(_CASES)
    random.Random(tally.seed).shuffle(cases)
    for number, (strategy, fault, name) in enumerate(cases):
        if number and not tally.goes_on(number, trials):
            break
        codes = trial(strategy, name, fault)
        keys = (f"{fault} {strategy} {name}", f"{fault} {strategy}", fault)
        wanted = next(_EXPECTED[key] for key in keys if key in _EXPECTED)
        problem = None if codes == wanted else f"ended with {codes}, expected {wanted}"
        tally.held(problem, f"ranks, `python -m stress.ranks {strategy} {name} {fault}`")


def trial(strategy: str, name: str, fault: str) -> list[int | None]:
    """The exit codes of two processes; `None` for one that hung."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    place |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "stress.ranks", strategy, name, fault],
            env={**os.environ, **place, "RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    until = time.monotonic() + _PATIENCE
    codes: list[int | None] = []
    for process in running:
        try:
            codes.append(int(process.wait(max(1.0, until - time.monotonic())) != 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            codes.append(None)
    return codes


def steps(strategy: str, name: str, fault: str, rank: int) -> None:
    """Eight steps of one rank, unless a fault stops it."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    if strategy == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model)
    base = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = optim.get(name)(base, rho=0.1, model=model, total_steps=8)
    with Join([model]) if fault == "uneven" and strategy == "ddp" else nullcontext():  # type: ignore[list-item]
        for step in range(8):
            x, y = torch.randn(6, 4), torch.arange(6) % 3
            if rank == 1 and step == 5 and fault == "uneven":
                break
            if rank == 1 and step == 3 and fault == "nan":
                x = x * float("nan")
            elif rank == 1 and step == 3 and fault == "raise":
                raise ZeroDivisionError
            elif rank == 1 and step == 3 and fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step(lambda x=x: model(x), y)  # type: ignore[misc]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps(*sys.argv[1:], dist.get_rank())
    gc.collect()  # the model is freed while the ranks are still connected: torch's own cleanup may hang otherwise
    dist.destroy_process_group()
