"""Through how many source files a training run and its report go: `python tools/path_length.py`.

Prints the Python files of ncsam in which functions are called, with how many, and the number of files. Code that runs
because a module is imported does not count.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ncsam
from ncsam.cli.main import main

ROOT = Path(ncsam.__file__).parent
TRAIN = ["train", "digits", "--optimizer", "sam", "--model", "mlp", "--epochs", "2"]
_OPTIMIZED = 1  # set for functions, not for the bodies of modules and classes


def is_imported(frame: FrameType | None) -> bool:
    """Whether a frame runs because a module of ncsam is being imported.

    Args:
        frame: The frame.
    """
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(ROOT)):
            return True
        frame = frame.f_back
    return False


def entered(commands: list[list[str]]) -> Counter[str]:
    """The files whose functions are called by commands of `ncsam`, with the number of different functions.

    Args:
        commands: Arguments of each command.
    """
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code in called or not code.co_flags & _OPTIMIZED:
            return
        ours = code.co_filename.startswith(str(ROOT)) and code.co_filename.endswith(".py")  # no compiled templates
        if ours and not is_imported(frame.f_back):
            called.add(code)

    for command in commands:
        sys.setprofile(note)
        try:
            main(command, standalone_mode=False)
        finally:
            sys.setprofile(None)
    return Counter(Path(code.co_filename).relative_to(ROOT).as_posix() for code in called)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        files = entered([[*TRAIN, "--out", run], ["report", run]])
    for file, functions in sorted(files.items()):
        print(f"{functions:4} {file}")
    print(f"{len(files)} files")
