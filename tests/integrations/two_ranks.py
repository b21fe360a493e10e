"""Training by two processes, each framework against torch's own DDP and the plain two phases; run by the tests.

Each process calls `main`. Rank 0 writes what it found: the steps done, how far the ranks are apart, and how far from
the plain loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from integration_cases import batches, largest_parameter_difference, make, network, twin

BATCHES = 20


def logits_of(model: torch.nn.Module, x: Any) -> torch.Tensor:
    found = model(x)
    return found if isinstance(found, torch.Tensor) else found.logits


def by_hand(kind: str, model: torch.nn.Module, data: list, parts: int) -> None:
    """The plain loop over DDP's own wrapper."""
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = make(kind, model.parameters(), wrapped, steps=len(data) // parts)

    def backwards(group: list, first: bool) -> None:
        for number, (x, y) in enumerate(group, 1):
            with wrapped.no_sync() if number < len(group) else torch.enable_grad():
                logits = logits_of(wrapped, x)
                loss = F.cross_entropy(logits, y) / len(group)
                optimizer.backward(loss, *((logits, y) if first else ()))

    for start in range(0, len(data), parts):
        optimizer.zero_grad()
        backwards(data[start : start + parts], first=True)
        for perturbed in optimizer.perturbations():
            with perturbed:
                backwards(data[start : start + parts], first=False)
        optimizer.step()


def spread(model: torch.nn.Module) -> float:
    """How far the ranks' weights are apart."""
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(every, flat)
    return float((every[0] - every[1]).abs().max())


def compared(
    run: Callable[[torch.nn.Module], int], kind: str, parts: int, model: torch.nn.Module, data: list
) -> list[float]:
    other = twin(model)
    steps = run(model)
    apart = spread(model)
    by_hand(kind, other, data, parts)
    return [steps, apart, largest_parameter_difference(model, other)]


def lightning(rank: int, folder: str) -> dict[str, list[float]]:
    import pytorch_lightning
    from test_integrations_lightning import Manual, Net

    data = batches(BATCHES, seed=1 + rank)
    found = {}
    for name, module, kind, parts, options in (
        ("automatic sam, accumulated", Net, "sam", 2, {}),
        ("automatic auto, accumulated", Net, "auto", 2, {}),
        ("automatic ncsam", Net, "ncsam", 1, {}),
        ("automatic local", Net, "sam", 1, {"perturbation": "local"}),
        ("manual sam", Manual, "sam", 1, {}),
        ("manual ncsam", Manual, "ncsam", 1, {}),
    ):

        def run(model, module=module, kind=kind, parts=parts, options=options):
            trainer = pytorch_lightning.Trainer(
                max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", accumulate_grad_batches=parts, logger=False,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                default_root_dir=folder, use_distributed_sampler=False,
            )  # fmt: skip
            trainer.fit(module(model, kind, **options), torch.utils.data.DataLoader(data, batch_size=None))
            return trainer.global_step

        found["lightning " + name] = compared(run, kind, parts, network(), data)
    return found


def accelerate(rank: int, folder: str) -> dict[str, list[float]]:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from ncsam.integrations.accelerate import sharpness_step

    AcceleratorState._reset_state(reset_partial_state=True)  # of the process that was forked
    data = batches(BATCHES, seed=1 + rank)
    found = {}
    for name, kind, parts in (("sam, accumulated", "sam", 2), ("auto", "auto", 1), ("ncsam", "ncsam", 1)):

        def run(model, kind=kind, parts=parts):
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
            raw = make(kind, model.parameters(), model, steps=BATCHES // parts)
            wrapped, optimizer = accelerator.prepare(model, raw)

            def compute(x, y):
                logits = wrapped(x)
                return F.cross_entropy(logits, y), logits, y

            for x, y in data:
                with accelerator.accumulate(wrapped):
                    sharpness_step(accelerator, optimizer, compute, x, y, model=wrapped)
            return raw.steps

        found["accelerate " + name] = compared(run, kind, parts, network(), data)
    return found


def transformers(rank: int, folder: str) -> dict[str, list[float]]:
    from test_integrations_transformers import bert, rows, trainer

    data = rows(8 * 2 * BATCHES)
    mine = [data[i : i + 8] for i in range(8 * rank, len(data), 16)]
    own = [(torch.stack([r["input_ids"] for r in b]), torch.stack([r["labels"] for r in b])) for b in mine]
    found = {}
    for name, kind, parts in (("sam, accumulated", "sam", 2), ("ncsam", "ncsam", 1)):

        def run(model, kind=kind, parts=parts):
            client = trainer(model, data, folder, kind, gradient_accumulation_steps=parts, logging_steps=1000)
            client.train()
            return client.state.global_step

        found["transformers " + name] = compared(run, kind, parts, bert(), own)
    return found


def main(rank: int, out: Path) -> None:
    result = {}
    for framework in (lightning, accelerate, transformers):
        result |= framework(rank, str(out.parent))
    if rank == 0:
        out.write_text(json.dumps(result), encoding="utf-8")
