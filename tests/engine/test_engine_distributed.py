"""Two processes on one run: the same result as one process on the joined batch, and the same after a restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from ncsam.engine import RunConfig, train
from ncsam.engine.metrics import TIME_FIELDS
from ncsam.engine.samples import SampleTable

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, json, torch
torch.set_num_threads(1)
from ncsam.engine import RunConfig, train
from ncsam.engine.loop import Trainer

save, stop = Trainer.save, None
def saving(self):
    save(self)
    if stop is not None and [self.epoch, self.batch] == stop:
        raise ZeroDivisionError
Trainer.save = saving
for out, options, stop in json.loads(sys.argv[1]):
    try:
        train(RunConfig.from_dict(options), out, console=False)
    except ZeroDivisionError:
        pass
"""
OPTIMIZERS = ("sgd", "sam", "bsam", "ncsam")


@pytest.fixture(scope="module")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    y = np.arange(140) % 4
    x = (rng.normal(size=(140, 6)) + 1.5 * np.eye(6)[y]).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez(path, x=x[:100], y=y[:100], x_test=x[100:], y_test=y[100:])
    return path


def options(data: Path, **changes: object) -> dict[str, object]:
    small = {"model": "mlp", "model_options": {"hidden": [8]}, "epochs": 4, "batch_size": 16, "accelerator": "cpu"}
    noise = {"data": str(data), "noise": "symmetric", "rate": 0.3, "precision": "64-true", "telemetry_every": 1}
    return {**small, **noise, "rho": 0.2, "kappa": 0.4, "val_share": 0.2, **changes}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data_file: Path) -> Path:
    """All runs of two processes, which are started once, as torchrun starts them: importing takes longer than they."""
    out = tmp_path_factory.mktemp("two")
    runs = [(str(out / name), options(data_file, optimizer=name), None) for name in OPTIMIZERS]
    chosen = options(
        data_file,
        optimizer="ncsam",
        method="mixup",
        checkpoint_every=4,
        precision="32-true",
        model_options={"hidden": [8], "dropout": 0.3},
    )
    runs += [(str(out / "whole"), chosen, None), (str(out / "stopped"), chosen, [1, 3])]
    runs += [(str(out / "stopped"), chosen, None)]
    sharded = options(data_file, optimizer="ncsam", strategy="fsdp", precision="32-true")
    runs += [(str(out / "fsdp"), sharded, None), (str(out / "fsdp stopped"), sharded, [2, 0])]
    runs += [(str(out / "fsdp stopped"), sharded, None)]
    place = {"GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "test"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 20000 + os.getpid() % 20000}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(runs)],
            env={**os.environ, **{k: str(v) for k, v in {**place, **where, "RANK": r, "LOCAL_RANK": r}.items()}},
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    for process in running:
        _, words = process.communicate(timeout=240)
        assert process.returncode == 0, words
    return out


def state_of(folder: Path) -> dict[str, object]:
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)


def lines(folder: Path) -> list[dict[str, object]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in TIME_FIELDS} for record in records]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_processes_equal_one_on_the_joined_batch(tmp_path: Path, folder: Path, data_file: Path, name: str) -> None:
    train(RunConfig.from_dict(options(data_file, optimizer=name)), tmp_path, console=False)
    first, second = state_of(tmp_path), state_of(folder / name)
    assert len(second["ranks"]) == 2
    # 80 samples in batches of 16, so that nothing is padded
    for key, value in first["learners"][0]["network"].items():
        assert torch.allclose(value, second["learners"][0]["network"][key], rtol=0, atol=1e-7), key
    for here, there in zip(lines(tmp_path), lines(folder / name), strict=True):
        for metric in ("test_accuracy", "val_accuracy", "train_accuracy_observed", "memorised", "lr"):
            assert here[metric] == there[metric], metric
        assert there["train_loss"] == pytest.approx(here["train_loss"], rel=1e-6)
        for quantity in {"grad_norm", "noise_grad_norm", "flipped", "cos_sam"} & here["telemetry"].keys():
            assert there["telemetry"][quantity] == pytest.approx(here["telemetry"][quantity], rel=1e-4), quantity
    for column in ("times_flipped", "times_forgotten", "first_learned", "evaluations"):
        assert torch.equal(first["samples"][column], second["samples"][column]), column
    assert torch.allclose(first["samples"]["margin_sum"], second["samples"]["margin_sum"])


def test_two_processes_stopped_in_the_middle_of_an_epoch_end_with_the_same_bits(folder: Path) -> None:
    one, other = state_of(folder / "whole"), state_of(folder / "stopped")
    for key, value in one["learners"][0]["network"].items():
        assert torch.equal(value, other["learners"][0]["network"][key])
    assert lines(folder / "whole") == lines(folder / "stopped")
    for rank in range(2):
        assert torch.equal(one["ranks"][rank]["random"]["torch"], other["ranks"][rank]["random"]["torch"])
    # the ranks' dropout masks differ: their generators are at different places
    assert not torch.equal(one["ranks"][0]["random"]["torch"], one["ranks"][1]["random"]["torch"])


def test_sharded_weights_equal_one_process_and_survive_a_stop(tmp_path: Path, folder: Path, data_file: Path) -> None:
    train(RunConfig.from_dict(options(data_file, optimizer="ncsam", precision="32-true")), tmp_path, console=False)
    alone, sharded, stopped = map(state_of, (tmp_path, folder / "fsdp", folder / "fsdp stopped"))
    for key, value in alone["learners"][0]["network"].items():
        assert torch.allclose(value, sharded["learners"][0]["network"][key], rtol=0, atol=1e-4), key
        assert torch.equal(sharded["learners"][0]["network"][key], stopped["learners"][0]["network"][key]), key
    for number, entry in sharded["learners"][0]["optimizer"]["state"].items():
        again = stopped["learners"][0]["optimizer"]["state"][number]
        assert torch.equal(entry["momentum_buffer"], again["momentum_buffer"])
    assert lines(folder / "fsdp") == lines(folder / "fsdp stopped")


def share_a_table(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    table = SampleTable(6)
    table.column("votes", (2,))
    table.column("count", dtype=torch.int64)
    table.column("untouched")
    mine = torch.tensor([0, 1]) if rank == 0 else torch.tensor([1, 2, 5])
    table.write("votes", mine, torch.full((len(mine), 2), float(rank + 1)))
    table.add("count", mine, 1)
    table.synchronise()
    assert table["votes"][:, 0].tolist() == [1, 2, 2, 0, 0, 2]  # of row 1, the higher rank's
    assert table["count"].tolist() == [1, 2, 1, 0, 0, 1]
    if rank == 1:
        table.add("count", torch.tensor([3]), 5)
    table.synchronise()
    table.synchronise()
    assert table["count"].tolist() == [1, 2, 1, 5, 0, 1]
    assert table["untouched"].tolist() == [0] * 6
    dist.destroy_process_group()


def test_a_sample_table_becomes_the_same_on_all_ranks() -> None:
    port = 20000 + (os.getpid() + 7) % 20000
    torch.multiprocessing.start_processes(share_a_table, (port,), nprocs=2, start_method="fork")
