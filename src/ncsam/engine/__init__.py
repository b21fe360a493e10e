"""Training: `train(RunConfig(...), "runs/first")` writes a run folder and returns its summary."""

from typing import TYPE_CHECKING, Any

from ncsam.engine.config import RunConfig
from ncsam.engine.config_options import preset_names, preset_text
from ncsam.errors import Interrupted, RunError

if TYPE_CHECKING:
    from ncsam.engine.run import train

__all__ = ["Interrupted", "RunConfig", "RunError", "preset_names", "preset_text", "train"]


def __getattr__(name: str) -> Any:
    """`train` brings Lightning Fabric with it, which takes seconds to import: only when it is asked for."""
    if name == "train":
        from ncsam.engine.run import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
