"""Run the notebooks and write them, with their output, under docs/notebooks: as pages of the site and as .ipynb files.

`python tools/build_notebooks.py` needs the extra `docs`. A cell that fails stops it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import ExecutePreprocessor
from nbconvert.writers import FilesWriter
from traitlets.config import Config

ROOT = Path(__file__).parents[1]


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run all cells with `folder` as the current folder."""
    with tempfile.TemporaryDirectory() as sockets:
        # Local sockets need no encryption. Their path is absolute because the kernel's current folder is not ours.
        ipc = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        run = ExecutePreprocessor(timeout=1800, kernel_name="python3", config=ipc)
        run.preprocess(notebook, {"metadata": {"path": str(folder)}})


def main() -> None:
    out = ROOT / "docs/notebooks"
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        began = time.perf_counter()
        notebook = jupytext.read(path)
        execute(notebook, path.parent)
        name = path.stem
        resources = {"output_files_dir": f"{name}_files", "unique_key": name}
        body, resources = MarkdownExporter().from_notebook_node(notebook, resources)
        title, _, rest = body.lstrip().partition("\n")
        body = f"{title}\n\n[Download this notebook]({name}.ipynb)\n{rest}"
        FilesWriter(build_directory=str(out)).write(body, resources, notebook_name=name)
        nbformat.write(notebook, out / f"{name}.ipynb")
        print(f"{name}: {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
