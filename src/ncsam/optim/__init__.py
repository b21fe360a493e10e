"""Sharpness-aware optimizers for PyTorch: `SAM`, `NCSAM` and `BSAM`."""

from ncsam.optim.bsam import BSAM
from ncsam.optim.flipping import Flips
from ncsam.optim.ncsam import NCSAM
from ncsam.optim.sam import SAM
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.telemetry import StepReport

__all__ = ["BSAM", "NCSAM", "SAM", "Flips", "SharpnessAware", "StepReport"]
