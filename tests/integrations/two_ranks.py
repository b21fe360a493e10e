"""Training by two processes, each framework against torch's own DDP and the plain two phases; run by the tests.

`python two_ranks.py lightning OUT` in each process, with torchrun's variables. Rank 0 writes what it found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from integration_cases import batches, largest_parameter_difference, make, network, twin

STEPS, PARTS = 10, 2


def own_batches(rank: int) -> list:
    return batches(STEPS * PARTS, seed=1 + rank)


def by_hand(kind: str, model: torch.nn.Module, data: list, parts: int) -> torch.optim.Optimizer:
    """The plain loop over DDP's own wrapper."""
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = make(kind, model.parameters(), wrapped, steps=len(data) // parts)

    def backwards(group: list, first: bool) -> None:
        for number, (x, y) in enumerate(group, 1):
            quiet = wrapped.no_sync() if number < len(group) else torch.enable_grad()
            with quiet:
                logits = wrapped(x)
                loss = F.cross_entropy(logits, y) / len(group)
                optimizer.backward(loss, *((logits, y) if first else ()))

    for start in range(0, len(data), parts):
        optimizer.zero_grad()
        backwards(data[start : start + parts], first=True)
        for perturbed in optimizer.perturbations():
            with perturbed:
                backwards(data[start : start + parts], first=False)
        optimizer.step()
    return optimizer


def spread(model: torch.nn.Module) -> float:
    """How far the ranks' weights are apart."""
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(every, flat)
    return float((every[0] - every[1]).abs().max())


def lightning(rank: int, folder: str) -> dict:
    import pytorch_lightning
    from test_integrations_lightning import Manual, Net

    found = {}
    data = own_batches(rank)
    for name, module, kind, parts, options in (
        ("automatic sam", Net, "sam", 2, {}),
        ("automatic auto", Net, "auto", 2, {}),
        ("automatic ncsam", Net, "ncsam", 1, {}),
        ("automatic local", Net, "sam", 1, {"perturbation": "local"}),
        ("manual sam", Manual, "sam", 1, {}),
        ("manual ncsam", Manual, "ncsam", 1, {}),
    ):
        model = network()
        other = twin(model)
        trainer = pytorch_lightning.Trainer(
            max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", accumulate_grad_batches=parts, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
            use_distributed_sampler=False,
        )  # fmt: skip
        trainer.fit(module(model, kind, **options), torch.utils.data.DataLoader(data, batch_size=None))
        steps = trainer.global_step
        apart = spread(model)
        if options:
            found[name] = [steps, apart, largest_parameter_difference(model, other)]
            continue
        by_hand(kind, other, data, parts)
        found[name] = [steps, apart, largest_parameter_difference(model, other)]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    framework, out = sys.argv[1:]
    import os

    rank = int(os.environ["RANK"])
    result = globals()[framework](rank, str(Path(out).parent))
    if rank == 0:
        Path(out).write_text(json.dumps(result), encoding="utf-8")
