"""`ncsam doctor`."""

from __future__ import annotations

import json
import platform
import re
from importlib import metadata
from typing import Any

import click

from ncsam._errors import need
from ncsam._version import __version__

#: The extras that users install, and what each is for. "" is what `import ncsam` needs.
PURPOSES = {
    "": "optimizers, losses, noise, methods",
    "train": "the command line and training runs",
    "images": "photos: a pretrained backbone that runs on a CPU",
    "text": "texts: pretrained embeddings",
    "transformers": "fine-tuning Hugging Face models",
    "lora": "fine-tuning by low-rank updates",
    "review": "the local review page",
    "parquet": "Parquet tables",
    "lightning": "the Lightning integration",
    "onnx": "ONNX export",
    "tensorboard": "logging to TensorBoard",
    "wandb": "logging to Weights & Biases",
    "mlflow": "logging to MLflow",
    "ray": "comparisons on a Ray cluster",
    "neighbors": "audits of more than 200,000 samples",
    "s3": "data on Amazon S3",
    "gs": "data on Google Cloud Storage",
}


@click.command(epilog="\b\nExamples:\n  ncsam doctor\n  ncsam doctor --json")
@click.option("--json", "as_json", is_flag=True, help="print JSON, for issue reports and scripts")
def doctor(as_json: bool) -> None:
    """Print what is installed, what is missing, and the command that installs it.

    Nothing is imported: versions are read from the installed packages' metadata. The exit code is 1 if a package is
    missing that `import ncsam` needs.
    """
    found = examine()
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(as_lines(found)))
    if found["extras"]["core"]["status"] != "ok":
        raise click.exceptions.Exit(1)


def examine() -> dict[str, Any]:
    """Versions, and the state of each extra: "ok", "missing" or "outdated", its packages and its install command."""
    extras: dict[str, Any] = {}
    for extra, purpose in PURPOSES.items():
        packages = [_package(name, wanted) for name, wanted in required(extra)]
        states = [package["status"] for package in packages]
        status = next((state for state in ("missing", "outdated") if state in states), "ok")
        command = "pip install --upgrade" if status == "outdated" else "pip install"
        extras[extra or "core"] = {
            "for": purpose,
            "status": status,
            "packages": packages,
            "install": None if status == "ok" else f'{command} "ncsam[{extra}]"' if extra else f"{command} ncsam",
        }
    return {
        "ncsam": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "extras": extras,
    }


def required(extra: str) -> list[tuple[str, str]]:
    """The packages of an extra with the versions they need; those of extras inside it included."""
    requirements = need("packaging.requirements", "train", "ncsam doctor")
    found: dict[str, str] = {}
    for line in metadata.requires("ncsam") or []:
        requirement = requirements.Requirement(line)
        of_extra = re.search(r"extra\s*==", line) is not None
        if of_extra != bool(extra):
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == "ncsam":
            for inner in sorted(requirement.extras):
                found |= dict(required(inner))
        else:
            found[requirement.name] = str(requirement.specifier)
    return sorted(found.items())


def as_lines(found: dict[str, Any]) -> list[str]:
    """The findings as a table."""
    lines = [f"ncsam {found['ncsam']}, Python {found['python']} on {found['platform']}", ""]
    width = max(map(len, found["extras"]))
    for extra, state in found["extras"].items():
        lines.append(f"{extra:<{width}}  {state['status']:<8}  {state['for']}")
        if state["status"] == "ok":
            if extra == "core":
                versions = ", ".join(f"{package['name']} {package['installed']}" for package in state["packages"])
                lines.append(" " * (width + 12) + versions)
            continue
        wrong = [
            f"{package['name']}{package['needs']}"
            + (f" (installed: {package['installed']})" * bool(package["installed"]))
            for package in state["packages"]
            if package["status"] != "ok"
        ]
        lines.append(" " * (width + 12) + f"needs {', '.join(wrong)}")
        lines.append(" " * (width + 12) + state["install"])
    return lines


def _package(name: str, wanted: str) -> dict[str, Any]:
    specifiers = need("packaging.specifiers", "train", "ncsam doctor")
    try:
        installed: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        installed = None
    fits = installed is not None and specifiers.SpecifierSet(wanted).contains(installed, prereleases=True)
    status = "ok" if fits else "missing" if installed is None else "outdated"
    return {"name": name, "needs": wanted, "installed": installed, "status": status}
