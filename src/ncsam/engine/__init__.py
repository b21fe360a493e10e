"""Training: `train(RunConfig(...), "runs/first")` writes a run folder and returns its summary."""

from ncsam.engine.config import RunConfig, preset_names, preset_text
from ncsam.engine.errors import Interrupted, RunError
from ncsam.engine.run import train

__all__ = ["Interrupted", "RunConfig", "RunError", "preset_names", "preset_text", "train"]
