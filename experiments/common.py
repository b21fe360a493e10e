"""What the experiments share: their options, tables of figures, files of results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from ncsam._files import atomic_path


def parser(description: str) -> argparse.ArgumentParser:
    """The two options that every experiment has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--quick", action="store_true", help="a small version, to see that it works")
    options.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    return options


def table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print rows of figures under one title, three digits each."""
    columns = list(next(iter(rows.values())))
    width = max(len(name) for name in rows)
    print(f"\n{title}\n" + " " * width + "".join(f"  {c:>14}" for c in columns))
    for name, figures in rows.items():
        print(f"{name:<{width}}" + "".join(f"  {figures[c]:>14.3f}" for c in columns))


def write_json(path: str | None, figures: Mapping[str, object]) -> None:
    """Write the figures, if a file was asked for."""
    if path:
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(figures, indent=2) + "\n")
