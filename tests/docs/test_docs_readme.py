"""The README's Python blocks run as they stand, one after the other."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def write_photos(folder: Path) -> None:
    """Two classes of 48 noisy single-color images each, with six of each in the wrong folder."""
    generator = np.random.default_rng(0)
    colors = {"blue": (20, 40, 200), "red": (200, 40, 20)}
    for name, other in (("blue", "red"), ("red", "blue")):
        (folder / name).mkdir(parents=True)
        for i in range(48):
            pixels = colors[other if i < 6 else name] + generator.normal(0, 20, (32, 32, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i}.png")


def write_reviews(file: Path, labels: bool) -> None:
    words = {"good": ["great", "lovely", "excellent", "wonderful"], "bad": ["awful", "terrible", "boring", "horrible"]}
    rows = [(f"{a} and {b} film", label) for label, of in words.items() for a in of for b in of for _ in range(2)]
    columns = ["text", "label"] if labels else ["text"]
    pandas.DataFrame(rows, columns=["text", "label"])[columns].to_csv(file, index=False)


@pytest.mark.slow
def test_every_python_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCSAM_CACHE", str(tmp_path / "cache"))
    write_photos(tmp_path / "photos")
    write_reviews(tmp_path / "reviews.csv", labels=True)
    write_reviews(tmp_path / "new_reviews.csv", labels=False)
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(4, 2)
    batches = [(x[i : i + 16], (x[i : i + 16, 0] > 0).long()) for i in range(0, 64, 16)]
    names: dict[str, Any] = {"torch": torch, "model": model, "steps": 200, "loader": batches * 50}
    photos, reviews, loop = BLOCKS

    exec(photos, names)
    wrong = {f"photos/{name}/{i}.png" for name in ("blue", "red") for i in range(6)}
    issues = names["issues"]
    assert set(issues["path"][issues["is_label_issue"]]) == wrong
    cleaned = pandas.read_csv("cleaned.csv")
    assert len(cleaned) == 96
    changed = {os.path.relpath(row.path) for row in cleaned.itertuples() if Path(row.path).parent.name != row.label}
    assert changed
    assert changed <= wrong

    exec(reviews, names)
    assert (tmp_path / "runs/reviews/report.html").is_file()
    assert list(names["run"].predict("new_reviews.csv").labels) == ["good"] * 32 + ["bad"] * 32

    exec(loop, names)
    assert names["loss"] < 0.3
