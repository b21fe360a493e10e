"""Resolved configurations without data."""

from __future__ import annotations

from typing import Any

from ncsam.engine.config import ResolvedConfig

CONCRETE = {"lr": 0.05, "weight_decay": 1e-3, "rho_target": 0.5, "kappa": 0.1, "epochs": 60}
CONCRETE |= {"batch_size": 32, "warmup": 0.0, "base": "sgd", "schedule": "cosine", "lr_warmup": 0.0, "clip_norm": None}
CONCRETE |= {"layer_decay": 1.0, "head_init": "random", "interpolation": 1.0}


def resolved(**options: Any) -> ResolvedConfig:
    """Concrete values where `options` have none; a base optimizer alone is its own base."""
    base = {"base": options["optimizer"]} if options.get("optimizer") in ("sgd", "adamw") else {}
    return ResolvedConfig.from_dict({**CONCRETE, "rho": 0.05, "augment": "none", **base, **options})
