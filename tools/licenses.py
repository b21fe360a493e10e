"""Print docs/licenses.md: the packages of each extra and the license that each declares in its metadata.

`python tools/licenses.py > docs/licenses.md`, in an environment with all extras (Python 3.11 or newer).
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
_ABOUT = """\
# Licenses

ncsam is under the Apache License 2.0 and contains no third-party code. It imports the packages below; `pip` installs
each under its own license, as declared in its metadata. What they need in turn, datasets and pretrained weights have
licenses of their own: [data](data.md), [pretrained features](tasks/pretrained-features.md).

Written by `python tools/licenses.py`.

| extra | package | license |
|---|---|---|"""

#: Packages that no test installs; from memory, to be checked against the package index before a release.
_UNCHECKED = {"wandb": "MIT (unchecked)", "mlflow": "Apache-2.0 (unchecked)", "s3fs": "BSD-3-Clause (unchecked)"}
_UNCHECKED["gcsfs"] = "BSD-3-Clause (unchecked)"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(_ABOUT)
    for extra, lines in {"(none)": project["dependencies"], **project["optional-dependencies"]}.items():
        for line in lines:
            name = re.split(r"[\s\[<>=;]", line)[0]
            if name != "ncsam":
                print(f"| {extra} | {name} | {license_of(name)} |")


def license_of(name: str) -> str:
    """The license that an installed package declares: an SPDX expression, a classifier, or the field's first line."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return _UNCHECKED.get(name, "not installed here")
    classifiers = [
        line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if line.startswith("License")
    ]
    first = (about.get("License") or "").strip().partition("\n")[0][:60]
    return about.get("License-Expression") or ", ".join(classifiers) or first.replace("UNKNOWN", "") or "not declared"


if __name__ == "__main__":
    main()
