"""For the reference: optimizers document the options that they share (`**options: Unpack[Options]`) like their own."""

from __future__ import annotations

import inspect
from typing import Any

import griffe


class SharedOptions(griffe.Extension):
    """Write the attributes of `ncsam.optim.Options` into the `Args` of each optimizer, as `help()` does."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        text = cls.docstring.value if cls.docstring is not None else ""
        if not cls.path.startswith("ncsam.optim.") or "Args:\n" not in text or " base_optimizer:" not in text:
            return
        options = cls.package["optim.registry.Options"].docstring.value
        shared = inspect.cleandoc(options).partition("Attributes:\n")[2]
        before, _, own = inspect.cleandoc(text).partition("Args:\n")
        args, gap, rest = own.partition("\n\n")
        cls.docstring.value = f"{before}Args:\n{args}\n{shared}{gap}{rest}"
