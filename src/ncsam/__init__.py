"""ncsam: training networks when the labels are wrong.

`SAM`, `NCSAM` and `BSAM` wrap any `torch.optim.Optimizer`; they need torch and numpy alone.
The rooms that need more (`ncsam.noise`, `ncsam.data`, `ncsam.models`, ...) are imported by their own names.
"""

from typing import TYPE_CHECKING, Any

from ncsam._version import __version__

if TYPE_CHECKING:
    from ncsam.optim import BSAM, NCSAM, SAM

__all__ = ["BSAM", "NCSAM", "SAM", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the optimizers, and with them torch, when they are asked for: `ncsam --help` need not wait for it."""
    if name in ("BSAM", "NCSAM", "SAM"):
        from ncsam import optim

        return getattr(optim, name)
    raise AttributeError(f"module 'ncsam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
