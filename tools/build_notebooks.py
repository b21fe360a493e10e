"""Run the notebooks and write them, with their output, as pages of the site under docs/notebooks.

`python tools/build_notebooks.py` needs the extra `docs`. A cell that fails stops it.
"""

from __future__ import annotations

import time
from pathlib import Path

import jupytext
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import ExecutePreprocessor
from nbconvert.writers import FilesWriter

ROOT = Path(__file__).parents[1]


def main() -> None:
    out = ROOT / "docs/notebooks"
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        began = time.perf_counter()
        notebook = jupytext.read(path)
        run = ExecutePreprocessor(timeout=300, kernel_name="python3")
        run.preprocess(notebook, {"metadata": {"path": str(path.parent)}})
        name = path.stem
        resources = {"output_files_dir": f"{name}_files", "unique_key": name}
        body, resources = MarkdownExporter().from_notebook_node(notebook, resources)
        FilesWriter(build_directory=str(out)).write(body, resources, notebook_name=name)
        print(f"{name}: {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
