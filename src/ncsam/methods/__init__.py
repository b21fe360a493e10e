"""Learning methods, each a file around one small interface; any of them goes with any optimizer.

`create("mixup", alpha=8)` gives a method; `names()` lists them. A new one subclasses `Method` and defines `plan`.
"""

# Each file enters its method when it is imported.
from ncsam.methods import (  # noqa: F401
    apl,
    backward,
    ce,
    cores2,
    coteaching,
    coteaching_plus,
    decoupling,
    dividemix,
    dmi,
    elr,
    forward,
    gce,
    gce_truncated,
    gjs,
    jocor,
    js,
    mcorrection,
    mentornet,
    mixup,
    peer,
    plc,
    regce,
    selfie,
    sl,
    sln,
    trevision,
)
from ncsam.methods.base import Method, Outcome, Plan, Samples, State
from ncsam.methods.registry import create, names, register

__all__ = ["Method", "Outcome", "Plan", "Samples", "State", "create", "names", "register"]
