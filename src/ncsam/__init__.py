"""ncsam: training networks when the labels are wrong.

`NCSAM`, `SAM` and their relatives wrap any `torch.optim.Optimizer`; they need torch and numpy alone.
The packages that need more (`ncsam.noise`, `ncsam.data`, `ncsam.models`, ...) are imported by their own names.
"""

from typing import TYPE_CHECKING, Any

from ncsam._version import __version__

if TYPE_CHECKING:
    from ncsam.optim import ASAM, BSAM, NCSAM, SAM, SANER, AutoRadius, FriendlySAM, ValidationRadius

__all__ = ["ASAM", "BSAM", "NCSAM", "SAM", "SANER", "AutoRadius", "FriendlySAM", "ValidationRadius", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the optimizers, and with them torch, when they are asked for: `ncsam --help` need not wait for it."""
    if name in __all__:
        from ncsam import optim

        return getattr(optim, name)
    raise AttributeError(f"module 'ncsam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
