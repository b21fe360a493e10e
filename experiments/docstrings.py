"""Two problems of short English texts without a download: first paragraphs of the docstrings of installed packages.

    python experiments/docstrings.py FOLDER

Writes FOLDER/texts_packages.csv (which of six packages) and FOLDER/texts_scipy.csv (which of five parts of scipy) with
the columns `split`, `text`, `weak` and `clean`; a quarter of the labels `weak` is drawn from the other classes. The
texts depend on the installed versions.
"""

from __future__ import annotations

import ast
import csv
import random
import re
import sys
import sysconfig
from pathlib import Path

PACKAGES = {name: name for name in ("pandas", "torch", "sklearn", "scipy", "matplotlib", "sympy")}
PARTS = {name: f"scipy/{name}" for name in ("stats", "sparse", "optimize", "signal", "linalg")}
WRONG = 0.25


def paragraphs(folder: Path, most: int) -> list[str]:
    """First paragraphs of 5 to 60 words, without repetition, in an order drawn with seed 0."""
    found = set()
    for path in sorted(folder.rglob("*.py")):
        if "test" in str(path):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
            first = re.split(r"\n\s*\n", text)[0].replace("\n", " ").strip() if text else ""
            if 5 <= len(first.split()) <= 60:
                found.add(first)
    texts = sorted(found)
    random.Random(0).shuffle(texts)
    return texts[:most]


def write(path: Path, folders: dict[str, str], most: int) -> None:
    """One class per folder; three quarters of the texts are for training."""
    site = Path(sysconfig.get_path("purelib"))
    rows = [(text, name) for name, folder in folders.items() for text in paragraphs(site / folder, most)]
    rng = random.Random(1)
    rng.shuffle(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["split", "text", "weak", "clean"])
        for number, (text, name) in enumerate(rows):
            others = [other for other in folders if other != name]
            weak = rng.choice(others) if rng.random() < WRONG else name
            writer.writerow(["train" if number < 0.75 * len(rows) else "test", text, weak, name])


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "texts_packages.csv", PACKAGES, 340)
    write(folder / "texts_scipy.csv", PARTS, 400)


if __name__ == "__main__":
    main()
