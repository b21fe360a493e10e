"""Names that the shell can complete, asked of the packages that know them."""

from __future__ import annotations

from collections.abc import Callable

import click


def names_of(kind: str) -> list[str]:
    """The known names of a kind; empty where names are not counted or their package cannot be imported."""
    try:
        if kind == "preset":
            from ncsam.engine import preset_names

            return preset_names()
        if kind == "data":
            from ncsam.data import names

            return names()
        if kind == "model":
            from ncsam import models

            return models.names()
        if kind == "noise":
            from ncsam.noise import GENERATORS

            return sorted(GENERATORS)
        if kind in ("method", "methods"):
            from ncsam import methods

            return list(methods.names())
        from ncsam.engine import config

        listed = {
            "optimizer": config.optimizer_names(),
            "optimizers": config.optimizer_names(),
            "base": config.BASES,
            "augment": config.AUGMENTATIONS,
            "schedule": config.SCHEDULES,
            "loggers": config.LOGGERS,
        }
        return list(listed.get(kind, ()))
    except ImportError:
        return []


def known(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A completion for click: the names of `kind`, after the last comma of a list."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in names_of(kind) if name.startswith(last)]

    return complete
