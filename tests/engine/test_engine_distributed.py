"""Two processes on one run: the same result as one process on the joined batch, and the same after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ncsam.engine import RunConfig, train
from ncsam.engine.label_issues import SampleTable
from ncsam.engine.metrics import TIME_FIELDS
from two_processes import by_two, checkpoint, on_features, train_by_two, write_features

pytestmark = pytest.mark.slow

QUICK = ("sgd", "ncsam")
THE_REST = ("sam", "bsam")  # which tests/optim/test_optim_distributed.py compares too, without the engine
SETTLED_ON_THE_WAY = {
    "warmup": "auto",
    "flip_ratio": "auto",
    "rho": "auto",
    "epochs": 16,
    "val_share": 0.36,
    "batch_size": 32,
    "lr": 0.5,
}


@pytest.fixture(scope="module")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_features(tmp_path_factory.mktemp("data") / "small.npz")


def options(data: Path, **changes: object) -> dict[str, object]:
    return on_features(data, **{"kappa": 0.4, "telemetry_every": 1, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data_file: Path) -> Path:
    out = tmp_path_factory.mktemp("two")
    runs = [(out / name, options(data_file, optimizer=name), None) for name in QUICK]
    chosen = options(
        data_file,
        optimizer="ncsam",
        method="mixup",
        checkpoint_every=4,
        precision="32-true",
        model_options={"hidden": [8], "dropout": 0.3},
    )
    runs += [(out / "whole", chosen, None), (out / "stopped", chosen, [1, 3])]
    runs += [(out / "stopped", chosen, None)]
    settling = options(data_file, optimizer="ncsam", **SETTLED_ON_THE_WAY)
    runs += [(out / "settled", settling, None)]
    sharded = options(data_file, optimizer="ncsam", strategy="fsdp", precision="32-true")
    runs += [(out / "fsdp", sharded, None), (out / "fsdp stopped", sharded, [2, 0])]
    runs += [(out / "fsdp stopped", sharded, None)]
    train_by_two(runs)
    return out


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory, data_file: Path) -> Path:
    out = tmp_path_factory.mktemp("rest")
    train_by_two([(out / name, options(data_file, optimizer=name), None) for name in THE_REST])
    return out


def lines(folder: Path) -> list[dict[str, object]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in TIME_FIELDS} for record in records]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.stress) for name in THE_REST)])
def test_two_processes_equal_one_on_the_joined_batch(
    tmp_path: Path, request: pytest.FixtureRequest, data_file: Path, name: str
) -> None:
    folder: Path = request.getfixturevalue("folder" if name in QUICK else "rest")
    train(RunConfig.from_dict(options(data_file, optimizer=name)), tmp_path, console=False)
    first, second = checkpoint(tmp_path), checkpoint(folder / name)
    assert len(second["ranks"]) == 2
    # 80 samples in batches of 16, so that nothing is padded
    for key, value in first["learners"][0]["network"].items():
        assert torch.allclose(value, second["learners"][0]["network"][key], rtol=0, atol=1e-7), key
    for here, there in zip(lines(tmp_path), lines(folder / name), strict=True):
        for metric in ("test_accuracy", "val_accuracy", "train_accuracy_observed", "memorized", "lr"):
            assert here[metric] == there[metric], metric
        assert there["train_loss"] == pytest.approx(here["train_loss"], rel=1e-6)
        for quantity in {"grad_norm", "noise_grad_norm", "flipped", "cos_sam"} & here["telemetry"].keys():
            assert there["telemetry"][quantity] == pytest.approx(here["telemetry"][quantity], rel=1e-4), quantity
    for column in ("times_flipped", "times_forgotten", "first_learned", "evaluations"):
        assert torch.equal(first["samples"][column], second["samples"][column]), column
    assert torch.allclose(first["samples"]["margin_sum"], second["samples"]["margin_sum"])


def test_two_processes_settle_warm_up_and_flip_ratio_as_one_does(tmp_path: Path, folder: Path, data_file: Path) -> None:
    chosen = options(data_file, optimizer="ncsam", **SETTLED_ON_THE_WAY)
    alone = train(RunConfig.from_dict(chosen), tmp_path, console=False)
    together = json.loads((folder / "settled" / "summary.json").read_text())
    assert 0 < alone["warmup_epochs"] < 14
    for name in ("warmup_epochs", "flip_ratio", "warmup_noise", "last", "memorized"):
        assert together[name] == alone[name], name
    first, second = checkpoint(tmp_path), checkpoint(folder / "settled")
    for key, value in first["learners"][0]["network"].items():
        assert torch.allclose(value, second["learners"][0]["network"][key], rtol=0, atol=1e-7), key


def test_two_processes_stopped_in_the_middle_of_an_epoch_end_with_the_same_bits(folder: Path) -> None:
    one, other = checkpoint(folder / "whole"), checkpoint(folder / "stopped")
    for key, value in one["learners"][0]["network"].items():
        assert torch.equal(value, other["learners"][0]["network"][key])
    assert lines(folder / "whole") == lines(folder / "stopped")
    for rank in range(2):
        assert torch.equal(one["ranks"][rank]["random"]["torch"], other["ranks"][rank]["random"]["torch"])
    # the ranks' dropout masks differ: their generators are at different places
    assert not torch.equal(one["ranks"][0]["random"]["torch"], one["ranks"][1]["random"]["torch"])


def test_sharded_weights_equal_one_process_and_survive_a_stop(tmp_path: Path, folder: Path, data_file: Path) -> None:
    train(RunConfig.from_dict(options(data_file, optimizer="ncsam", precision="32-true")), tmp_path, console=False)
    alone, sharded, stopped = map(checkpoint, (tmp_path, folder / "fsdp", folder / "fsdp stopped"))
    for key, value in alone["learners"][0]["network"].items():
        assert torch.allclose(value, sharded["learners"][0]["network"][key], rtol=0, atol=1e-4), key
        assert torch.equal(sharded["learners"][0]["network"][key], stopped["learners"][0]["network"][key]), key
    for number, entry in sharded["learners"][0]["optimizer"]["state"].items():
        again = stopped["learners"][0]["optimizer"]["state"][number]
        assert torch.equal(entry["momentum_buffer"], again["momentum_buffer"])
    assert lines(folder / "fsdp") == lines(folder / "fsdp stopped")


def share_a_table(rank: int) -> None:
    dist.init_process_group("gloo")
    table = SampleTable(6)
    table.column("votes", (2,))
    table.column("count", dtype=torch.int64)
    table.column("untouched")
    mine = torch.tensor([0, 1]) if rank == 0 else torch.tensor([1, 2, 5])
    table.write("votes", mine, torch.full((len(mine), 2), float(rank + 1)))
    table.add("count", mine, 1)
    table.synchronize()
    assert table["votes"][:, 0].tolist() == [1, 2, 2, 0, 0, 2]  # of row 1, the higher rank's
    assert table["count"].tolist() == [1, 2, 1, 0, 0, 1]
    if rank == 1:
        table.add("count", torch.tensor([3]), 5)
    table.synchronize()
    table.synchronize()
    assert table["count"].tolist() == [1, 2, 1, 5, 0, 1]
    assert table["untouched"].tolist() == [0] * 6
    dist.destroy_process_group()


def test_a_sample_table_becomes_the_same_on_all_ranks() -> None:
    by_two(share_a_table)
