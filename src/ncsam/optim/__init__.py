"""Sharpness-aware optimizers around any `torch.optim.Optimizer`; `names()` lists them, `get(name)` finds one."""

from ncsam.optim.asam import ASAM
from ncsam.optim.authors import AuthorsNCSAM, LengthMatchedSAM
from ncsam.optim.bsam import BSAM
from ncsam.optim.flipping import Flips
from ncsam.optim.friendlysam import FriendlySAM
from ncsam.optim.msam import MSAM
from ncsam.optim.ncsam import NCSAM
from ncsam.optim.radii import LossBudgetRadius, RisingRadius, ValidationRadius
from ncsam.optim.radius import AutoRadius, Radius
from ncsam.optim.registry import Options, get, names, option_names, register
from ncsam.optim.sam import SAM
from ncsam.optim.saner import SANER
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.stablesam import StableSAM
from ncsam.optim.step import Move, Step, StepReport
from ncsam.optim.weighted import WeightedSAM

__all__ = ["ASAM", "BSAM", "MSAM", "NCSAM", "SAM", "SANER", "AuthorsNCSAM", "FriendlySAM", "LengthMatchedSAM"]
__all__ += [
    "AutoRadius",
    "LossBudgetRadius",
    "Radius",
    "RisingRadius",
    "StableSAM",
    "ValidationRadius",
    "WeightedSAM",
]
__all__ += ["Flips", "Move", "Options", "SharpnessAware", "Step", "StepReport", "get", "names", "option_names"]
__all__ += ["register"]
