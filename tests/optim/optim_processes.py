"""What two gloo processes check about the optimizers. Each check runs on both ranks and raises if it fails."""

from __future__ import annotations

import json
import math
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from optim_cases import batch, network, parameters, same_bits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ncsam import BSAM, NCSAM, SAM, SANER, FriendlySAM
from ncsam.optim import MSAM, StableSAM, WeightedSAM

STEPS = 5


def smoothed(logits, targets):
    """A criterion that is asked what guessing costs, by the labels of both ranks."""
    return F.cross_entropy(logits, targets, label_smoothing=0.1)


COMPENSATED = {"rho": 0.3, "kappa": 0.6, "flip_ratio": 0.4, "refresh_every": 2}
OPTIONS = {
    "sam": (SAM, {"rho": 0.3}),
    "asam": (SAM, {"rho": 0.3, "adaptive": True, "eta": 0.01}),
    "bsam": (BSAM, {"rho": 0.3, "rho_min": 0.1}),
    "ncsam": (NCSAM, {"rho": 0.3, "kappa": 0.6, "flip_ratio": 0.4, "warmup_steps": 1}),
    "ncsam relative": (NCSAM, {"rho": 0.3, "kappa": 0.6, "compensation": "relative", "adaptive": True}),
    "sam auto": (SAM, {"rho": "auto", "warmup_steps": 1}),
    "sam auto, another criterion": (SAM, {"rho": "auto", "criterion": smoothed}),
    "bsam auto": (BSAM, {"rho": "auto", "rho_min": 0.1}),
    "ncsam auto": (NCSAM, {"rho": "auto", "kappa": 0.6, "compensation": "relative"}),
    **{f"ncsam {name}": (NCSAM, {**COMPENSATED, "estimator": name}) for name in ("fused", "looksam")},
    "sam budget": (SAM, {"rho": "budget"}),
    "msam": (MSAM, {"rho": 0.5}),
    "msam adaptive": (MSAM, {"rho": 0.5, "adaptive": True}),
    "msam auto": (MSAM, {"rho": "auto"}),
    "stablesam": (StableSAM, {"rho": 0.3}),
    "saner": (SANER, {"rho": 0.3}),
    "friendlysam": (FriendlySAM, {"rho": 0.3}),
}
WITH_SHARDS = list(OPTIONS)


def optimizer_for(network, name, **more):
    cls, options = OPTIONS[name]
    if cls is NCSAM:
        options = {**options, "generator": torch.Generator().manual_seed(5)}
    base = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    return cls(base, **{"total_steps": STEPS, **options, **more})


def mine(x, rank):
    """This rank's half of the joined batch."""
    return x.chunk(2)[rank]


def alone(name, seed=0, **more):
    """One process on the joined batch."""
    model = network("mlp", seed=seed)
    optimizer = optimizer_for(model, name, telemetry_every=1, **more)
    for i in range(STEPS):
        x, y = batch(i)
        optimizer.step(lambda rows=slice(None): model(x[rows]), y, clean_targets=y.roll(3))  # noqa: B023
    return model, optimizer


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def compare(model, expected, tolerance=1e-10):
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        difference = float((whole(p.detach()) - q.detach()).abs().max())
        assert difference < tolerance, difference


def same_on_both(model):
    for p in model.parameters():
        other = [torch.empty_like(p) for _ in range(2)]
        dist.all_gather(other, p.detach())
        assert torch.equal(other[0], other[1])


def same_report(ours, expected):
    """Radius, norms and cosines of the last step are those of one process."""
    names = (
        "rho",
        "relative_loss_increase",
        "grad_norm",
        "noise_grad_norm",
        "cos_grad_noise",
        "cos_sam",
        "cos_clean",
        "cos_clean_sam",
    )
    for name in names:
        a, b = getattr(ours, name), getattr(expected, name)
        assert (a is None) == (b is None), name
        assert a is None or abs(a - b) < 1e-8, (name, a, b)


def ddp_equals_one_process(rank, name, **ddp):
    model = DistributedDataParallel(network("mlp"), **ddp)
    optimizer = optimizer_for(model, name, telemetry_every=1)
    for i in range(STEPS):
        x, y = batch(i)
        clean = y.roll(3)
        here = mine(x, rank)
        optimizer.step(lambda rows=slice(None): model(here[rows]), mine(y, rank), clean_targets=mine(clean, rank))  # noqa: B023
    expected, reference = alone(name)
    compare(model.module, expected)
    same_on_both(model.module)
    same_report(optimizer.last_step, reference.last_step)


def weighted_ddp_equals_one_process(rank, threshold):
    """Each rank has the probabilities of its own samples."""
    shared, single = DistributedDataParallel(network("mlp")), network("mlp")
    ours, reference = (
        WeightedSAM(torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9), rho=0.3, threshold=threshold)
        for each in (shared, single)
    )
    for i in range(STEPS):
        x, y = batch(i)
        p = (torch.arange(len(x)) % 4) / 3
        ours.step(lambda: shared(mine(x, rank)), mine(y, rank), p_wrong=mine(p, rank))  # noqa: B023
        reference.step(lambda: single(x), y, p_wrong=p)  # noqa: B023
    compare(shared.module, single)
    same_on_both(shared.module)


def fsdp_equals_one_process(rank, name):
    model = network("mlp")
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model.first, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = optimizer_for(model, name, telemetry_every=1)
    for i in range(STEPS):
        x, y = batch(i)
        clean = y.roll(3)
        here = mine(x, rank)
        optimizer.step(lambda rows=slice(None): model(here[rows]), mine(y, rank), clean_targets=mine(clean, rank))  # noqa: B023
    expected, reference = alone(name)
    compare(model, expected)
    same_report(optimizer.last_step, reference.last_step)


def local_perturbation(rank):
    """m-sharpness: each rank's eps from its own half; the step on the mean of the two gradients."""
    model = DistributedDataParallel(network("mlp"))
    optimizer = optimizer_for(model, "sam", perturbation="local")
    expected = network("mlp")
    base = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    for i in range(STEPS):
        x, y = batch(i)
        optimizer.step(lambda: model(mine(x, rank)), mine(y, rank))  # noqa: B023
        total = [torch.zeros_like(p) for p in expected.parameters()]
        for r in range(2):
            w = parameters(expected)
            g = torch.autograd.grad(F.cross_entropy(expected(mine(x, r)), mine(y, r)), list(expected.parameters()))
            norm = math.sqrt(sum(float((v**2).sum()) for v in g))
            with torch.no_grad():
                for p, v in zip(expected.parameters(), g, strict=True):
                    p.add_(0.3 * v / norm)
            g = torch.autograd.grad(F.cross_entropy(expected(mine(x, r)), mine(y, r)), list(expected.parameters()))
            with torch.no_grad():
                for p, v, t, kept in zip(expected.parameters(), g, total, w, strict=True):
                    p.copy_(kept)
                    t.add_(v / 2)
        for p, t in zip(expected.parameters(), total, strict=True):
            p.grad = t
        base.step()
    compare(model.module, expected)
    same_on_both(model.module)


def local_perturbation_agrees_on_skipping(rank):
    """One rank's gradient is not a number: no rank perturbs, none waits for the other, replicas stay alike."""
    for name in ("sam", "ncsam", "bsam"):
        model = DistributedDataParallel(network("mlp"))
        optimizer = optimizer_for(model, name, perturbation="local", warmup_steps=0)
        x, y = batch()
        zero = lambda z, t: F.cross_entropy(z, t) * (0.0 if rank == 1 else 1.0)  # noqa: E731
        optimizer.criterion = zero
        optimizer.step(lambda: model(mine(x, rank)), mine(y, rank))  # noqa: B023
        assert optimizer.unperturbed_steps == 1
        same_on_both(model.module)


def local_perturbations_keep_replicas_alike(rank):
    for name in ("ncsam", "bsam", "stablesam", "msam"):
        model = DistributedDataParallel(network("mlp"))
        optimizer = optimizer_for(model, name, perturbation="local")
        for i in range(STEPS):
            x, y = batch(i)
            optimizer.step(lambda: model(mine(x, rank)), mine(y, rank))  # noqa: B023
        same_on_both(model.module)


def all_flips_on_one_rank(rank):
    """The least certain samples all sit on rank 0: rank 1 flips none, and still takes part."""
    for wrap in (DistributedDataParallel, shard):
        model = wrap(network("mlp"))
        optimizer = optimizer_for(model, "ncsam", selection="lowest_gap", flip_ratio=0.25, warmup_steps=0)
        expected = network("mlp")
        single = optimizer_for(expected, "ncsam", selection="lowest_gap", flip_ratio=0.25, warmup_steps=0)
        x, y = batch()
        x = torch.cat([x[:8] * 0.01, x[8:] * 30])  # near-zero inputs have near-zero gaps
        plain = model.module if isinstance(model, DistributedDataParallel) else model
        with torch.no_grad():
            for bias in (expected.first.bias, expected.last.bias, plain.first.bias, plain.last.bias):
                bias.zero_()
        optimizer.step(lambda: model(mine(x, rank)), mine(y, rank))  # noqa: B023
        single.step(lambda: expected(x), y)  # noqa: B023
        assert single.last_flips.index.max() < 8
        assert len(optimizer.last_flips.index) == (4 if rank == 0 else 0)
        compare(plain, expected)


def local_flips_are_each_ranks_own(rank):
    """The least certain samples all sit on rank 0: with perturbation="local" rank 1 flips as many of its own."""
    model = DistributedDataParallel(network("mlp"))
    options = {"selection": "lowest_gap", "flip_ratio": 0.25, "warmup_steps": 0}
    optimizer = optimizer_for(model, "ncsam", perturbation="local", **options)
    x, y = batch()
    x = torch.cat([x[:8] * 0.01, x[8:] * 30])
    single = network("mlp")
    for bias in (model.module.first.bias, model.module.last.bias, single.first.bias, single.last.bias):
        torch.nn.init.zeros_(bias)
    alone_here = optimizer_for(single, "ncsam", **options)
    optimizer.step(lambda: model(mine(x, rank)), mine(y, rank))
    alone_here.step(lambda: single(mine(x, rank)), mine(y, rank))
    assert len(optimizer.last_flips.index) == 2
    assert torch.equal(optimizer.last_flips.index, alone_here.last_flips.index)
    same_on_both(model.module)


def shard(model):
    return fully_shard(model, mesh=init_device_mesh("cpu", (2,)))


def accumulation(rank):
    """Two micro-batches on two ranks, all flipped: one process on the joined batch."""
    model = DistributedDataParallel(network("mlp"))
    optimizer = optimizer_for(model, "ncsam", flip_ratio=1.0, model=model)
    expected, _ = alone("ncsam", flip_ratio=1.0)
    for i in range(STEPS):
        x, y = batch(i)
        parts = list(zip(mine(x, rank).chunk(2), mine(y, rank).chunk(2), strict=True))
        optimizer.zero_grad()

        def backward(run):
            for k, (a, b) in enumerate(parts):  # noqa: B023
                if k == 0:
                    with model.no_sync():
                        run(a, b)
                else:
                    run(a, b)

        def first(a, b):
            logits = model(a)
            optimizer.backward(F.cross_entropy(logits, b) / 2, logits, b)

        backward(first)
        for perturbed in optimizer.perturbations():
            with perturbed:
                backward(lambda a, b: (F.cross_entropy(model(a), b) / 2).backward())
        optimizer.step()
    compare(model.module, expected)


def statistics(rank):
    """Pitfall 19 under DDP, which broadcasts buffers in every forward: as after clean passes alone."""
    models = [DistributedDataParallel(network("convolutional")) for _ in range(2)]
    optimizer = optimizer_for(models[0], "ncsam", warmup_steps=0)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for i in range(3):
        x, y = batch(i)
        optimizer.step(lambda: models[0](mine(x, rank)), mine(y, rank))  # noqa: B023
        models[1](mine(x, rank))
    assert same_bits(list(models[0].buffers()), list(models[1].buffers()))


def sharded_weights_are_restored(rank):
    for name in WITH_SHARDS:
        model = shard(network("mlp"))
        before = [p.to_local().detach().clone() for p in model.parameters()]
        optimizer = optimizer_for(model, name, warmup_steps=0)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        phases = set()
        for i in range(2):  # in the first step, MSAM has no momentum yet
            x, y = batch(i)
            optimizer.step(lambda: model(mine(x, rank)), mine(y, rank))  # noqa: B023
            assert same_bits(before, [p.to_local().detach() for p in model.parameters()])
            phases.add(optimizer.last_step.phase)
        assert phases != {"base"}


def sharded_parameters_refuse_local_perturbation(rank):
    model = shard(network("mlp"))
    optimizer = optimizer_for(model, "sam", perturbation="local")
    x, y = batch()
    with pytest.raises(ValueError, match="perturbation='local'"):
        optimizer.step(lambda: model(mine(x, rank)), mine(y, rank))


def uneven_batches(rank):
    """Ranks with 6 and 10 samples: m counts the joined batch, and both ranks agree on who flips."""
    model = DistributedDataParallel(network("mlp"))
    optimizer = optimizer_for(model, "ncsam", flip_ratio=0.5, warmup_steps=0)
    x, y = batch()
    part = slice(0, 6) if rank == 0 else slice(6, 16)
    optimizer.step(lambda: model(x[part]), y[part])
    counts = torch.tensor([len(optimizer.last_flips.index)])
    dist.all_reduce(counts)
    assert int(counts) == 8
    same_on_both(model.module)


def generators_of_their_own(rank):
    """Ranks seeded differently draw as the first of them does, which is what one process would have drawn."""
    model = DistributedDataParallel(network("mlp"))
    optimizer = optimizer_for(model, "ncsam", warmup_steps=0, generator=torch.Generator().manual_seed(5 + rank))
    for i in range(STEPS):
        x, y = batch(i)
        optimizer.step(lambda: model(mine(x, rank)), mine(y, rank))  # noqa: B023
    compare(model.module, alone("ncsam", warmup_steps=0)[0])
    same_on_both(model.module)


def right_labels_on_one_rank(rank):
    """All of rank 1's labels are wrong: it has nothing to add to g_clean, and still takes part."""
    x, y = batch()
    clean = torch.cat([y[:8], (y[8:] + 1) % 4])
    model, expected = DistributedDataParallel(network("mlp")), network("mlp")
    for name in ("sam", "ncsam"):
        optimizer = optimizer_for(model, name, telemetry_every=1, warmup_steps=0)
        single = optimizer_for(expected, name, telemetry_every=1, warmup_steps=0)
        optimizer.step(lambda: model(mine(x, rank)), mine(y, rank), clean_targets=mine(clean, rank))
        single.step(lambda: expected(x), y, clean_targets=clean)
        assert optimizer.last_step.cos_clean is not None
        same_report(optimizer.last_step, single.last_step)


CHECKS = {
    **{f"ddp {name}": lambda r, n=name: ddp_equals_one_process(r, n) for name in OPTIONS},
    **{f"ddp weighted {t}": lambda r, t=t: weighted_ddp_equals_one_process(r, t) for t in (0.9, None)},
    **{
        f"ddp ncsam {option}": lambda r, o=option: ddp_equals_one_process(r, "ncsam", **{o: True})
        for option in ("static_graph", "find_unused_parameters", "gradient_as_bucket_view")
    },
    **{f"fsdp {name}": lambda r, n=name: fsdp_equals_one_process(r, n) for name in WITH_SHARDS},
    "local perturbation": local_perturbation,
    "local perturbation agrees on skipping": local_perturbation_agrees_on_skipping,
    "local perturbations keep replicas alike": local_perturbations_keep_replicas_alike,
    "all flips on one rank": all_flips_on_one_rank,
    "accumulation": accumulation,
    "statistics": statistics,
    "sharded weights are restored": sharded_weights_are_restored,
    "sharded parameters refuse local perturbation": sharded_parameters_refuse_local_perturbation,
    "uneven batches": uneven_batches,
    "local flips are each rank's own": local_flips_are_each_ranks_own,
    "generators of their own": generators_of_their_own,
    "right labels on one rank": right_labels_on_one_rank,
}


def main(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo")
    results = {}
    for name, check in CHECKS.items():
        try:
            check(rank)
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
