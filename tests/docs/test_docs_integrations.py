"""The code of the page on integrations runs as it stands, with a small network and a few batches around it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ncsam
from ncsam import NCSAM, SAM
from ncsam.engine import recipes

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")


def blocks(heading: str) -> list[str]:
    section = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert section is not None, heading
    found = re.findall(r"^```python\n(.*?)^```", section[1], flags=re.DOTALL | re.MULTILINE)
    assert found
    return found


def surroundings(**more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(3)]
    names = {"torch": torch, "nn": nn, "F": F, "SAM": SAM, "NCSAM": NCSAM}
    return {**names, "model": model, "base": base, "loader": loader, **more}


def steps(optimizer: Any) -> int:
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return int(optimizer.steps)


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("pytorch_lightning")
    automatic, longhand = blocks("Lightning")
    names = surroundings(LightningModule=lightning.LightningModule)
    exec(automatic, names)

    class Net(names["Net"]):  # type: ignore[misc, name-defined]
        def __init__(self, manual: bool) -> None:
            super().__init__()
            self.network = nn.Linear(4, 3)
            self.automatic_optimization = not manual

        def forward(self, x: Any) -> Any:
            return self.network(x)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.automatic_optimization:
                return super().training_step(batch, batch_idx)
            x, y = batch
            logits = self(x)
            here = {"self": self, "y": y, "logits": logits, "loss": F.cross_entropy(logits, y)}
            return exec(longhand, {**here, "compute_loss": lambda: F.cross_entropy(self(x), y)})

    for manual in (False, True):
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(Net(manual), torch.utils.data.DataLoader(names["loader"], batch_size=None))
        assert (trainer.global_step, steps(trainer.optimizers[0])) == (3, 3)


def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=16, num_labels=3, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    args = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    data = [{"input_ids": torch.arange(5), "labels": i % 3} for i in range(12)]
    names = surroundings(model=transformers.BertForSequenceClassification(config), args=args, data=data)
    sharpness_aware, method = blocks("Hugging Face's Trainer")
    exec(sharpness_aware, names)
    assert steps(names["trainer"].optimizer) == 3
    exec(method, names | {"ncsam": ncsam, "held_out": data})


@pytest.mark.parametrize("framework", ["Accelerate", "Fabric"])
def test_a_loop_of_ones_own_on(framework: str) -> None:
    if framework == "Accelerate":
        accelerate = pytest.importorskip("accelerate")
        names = surroundings(accelerator=accelerate.Accelerator(cpu=True))
    else:
        names = surroundings(fabric=pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1))
    names["loader"] = torch.utils.data.DataLoader(names["loader"], batch_size=None)
    (code,) = blocks(framework)
    exec(code, names)
    assert steps(names["optimizer"]) == 3


def test_sklearn_and_cleanlab(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLP_EPOCHS", "MLP_STEPS"):  # enough to see it run
        monkeypatch.setattr(recipes, name, recipes.Recipe(2, "", ""))
    cleanlab = pytest.importorskip("cleanlab.classification")
    from sklearn.model_selection import cross_val_predict

    rows = torch.randn(120, 4, generator=torch.Generator().manual_seed(0)).numpy()
    labels = (rows[:, 0] > 0).astype(int)
    found = SimpleNamespace(classification=cleanlab)
    names = {"X": rows, "y": labels, "cleanlab": found, "cross_val_predict": cross_val_predict}
    (code,) = blocks("scikit-learn and cleanlab")
    exec(code, names)
    assert names["probabilities"].shape == (120, 2)
    assert len(names["issues"]) == 120


def test_timms_lines() -> None:
    """With a stand-in for timm's factory and for the function of its loop."""
    (code,) = blocks("timm's training script")
    names = surroundings(args=SimpleNamespace(opt_kwargs={}), optimizer_kwargs=lambda cfg: {})
    names["create_optimizer_v2"] = lambda model, **_: torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = names["loader"][0]
    names["_forward"] = lambda: F.cross_entropy(names["model"](x), y)
    before = names["model"].weight.detach().clone()
    exec(code, names)
    assert names["optimizer"].steps == 1
    assert not torch.equal(before, names["model"].weight)
    assert names["loss"] > 0


def test_torchvisions_lines() -> None:
    (code,) = blocks("torchvision's references")
    names = surroundings(args=SimpleNamespace(clip_grad_norm=1.0), scaler=None, criterion=nn.CrossEntropyLoss())
    names["image"], names["target"] = names["loader"][0]
    names["optimizer"] = names["base"]
    exec(code, names)
    assert names["optimizer"].steps == 1
    assert names["output"].shape == (8, 3)
