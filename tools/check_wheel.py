"""Build the wheel, install it into a fresh environment, and use it from there, away from the sources.

`python tools/check_wheel.py [PYTHON...]` tries each interpreter (default: this one): the wheel with torch and numpy
alone, whose optimizer makes a step; then with `[train]`, whose command trains. `--constraint FILE` pins the versions,
which are those of this Python: another minor version of it takes the pinned torch, and of the rest what suits it.
`--torch 2.6.0` tries another torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_STEP = """
import sys, torch
import ncsam
assert "site-packages" in ncsam.__file__, ncsam.__file__
model = torch.nn.Linear(4, 3)
optimizer = ncsam.NCSAM(torch.optim.SGD(model.parameters(), lr=0.1), total_steps=10)
loss = optimizer.step(lambda: model(torch.randn(8, 4)), torch.randint(3, (8,)))
assert loss.isfinite()
print("ncsam", ncsam.__version__, "made a step on Python", sys.version.split()[0], "and torch", torch.__version__)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    parser.add_argument("--constraint", type=Path)
    parser.add_argument("--torch", metavar="VERSION", help="this torch, and of the rest what suits it")
    parser.add_argument("--no-train", action="store_true", help="only the wheel by itself")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
        wheel = next(folder.glob("ncsam-*.whl"))
        check_content(wheel)
        for number, python in enumerate(options.pythons):
            pinned = constraints(python, options.constraint, folder) if options.constraint else []
            if options.torch:
                file = folder / "torch-only.txt"
                file.write_text(f"torch=={options.torch}\n", encoding="utf-8")
                pinned = ["--constraint", str(file)]
            venv = folder / f"venv{number}"
            run(python, "-m", "venv", venv, cwd=folder)
            inside = venv / "bin/python"
            run(inside, "-m", "pip", "install", "--quiet", *pinned, wheel, cwd=folder)
            run(inside, "-c", _STEP, cwd=folder)
            if not options.no_train:
                run(inside, "-m", "pip", "install", "--quiet", *pinned, f"{wheel}[train]", cwd=folder)
                words = f"train digits --noise symmetric --rate 0.4 --preset recommended --epochs 2 --out run{number}"
                run(venv / "bin/ncsam", *words.split(), cwd=folder)


def constraints(python: str, file: Path, folder: Path) -> list[str]:
    """pip's option for this interpreter: the whole file, or its line on torch alone."""
    version = subprocess.check_output([python, "-c", "import sys; print(*sys.version_info[:2])"], text=True).split()
    if version != [str(part) for part in sys.version_info[:2]]:
        torch = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("torch==")]
        file = folder / "torch.txt"
        file.write_text("\n".join(torch) + "\n", encoding="utf-8")
    return ["--constraint", str(file.resolve())]


def check_content(wheel: Path) -> None:
    """The presets and the mark of types are in; tests and experiments are not."""
    names = zipfile.ZipFile(wheel).namelist()
    assert "ncsam/py.typed" in names
    assert any(name.startswith("ncsam/presets/") and name.endswith(".yaml") for name in names)
    stray = [name for name in names if not name.startswith(("ncsam/", "ncsam-"))]
    assert not stray, stray


def run(*command: object, cwd: Path) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


if __name__ == "__main__":
    main()
