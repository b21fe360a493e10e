"""The pages by task: their Python runs, one block after the other, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ncsam.methods import registry


def make_photos(folder: Path) -> None:
    """Two classes of small color images, light and dark."""
    generator = np.random.default_rng(0)
    for i in range(40):
        path = folder / ("dark", "light")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 100, (32, 32, 3)) + 150 * (i % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(path)


PAGES = sorted((Path(__file__).parents[2] / "docs" / "tasks").glob("*.md"))


#: Guides whose Python depends on their commands; `test_docs_guides.py` runs both.
WHOLE = ("crowd-labels", "my-texts", "my-trainer", "tabular")


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in WHOLE], ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCSAM_CACHE", str(tmp_path / "cache"))
    make_photos(tmp_path / "photos")
    names: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE):
        exec(block, names)
    if page.stem == "my-loop":
        assert names["optimizer"].steps == len(names["loader"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link, _, anchor in re.findall(r"\]\((?!http)([^)#]+)(#([^)]+))?\)", page.read_text(encoding="utf-8")):
        target = page.parent / link
        assert target.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads], anchor
