"""ncsam: training networks when the labels are wrong.

`SAM`, `NCSAM` and `BSAM` wrap any `torch.optim.Optimizer`; importing this package needs torch and numpy alone.
The rooms that need more (`ncsam.noise`, `ncsam.data`, `ncsam.models`) are imported by their own names.
"""

from ncsam._version import __version__
from ncsam.optim import BSAM, NCSAM, SAM

__all__ = ["BSAM", "NCSAM", "SAM", "__version__"]
