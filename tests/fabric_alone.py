"""Lightning Fabric without torchmetrics, as ncsam's users have it.

Where torchmetrics is installed, Fabric imports it, and with it transformers and Matplotlib, only to read its version.
"""

import sys

sys.modules["torchmetrics"] = None  # type: ignore[assignment]
try:
    import lightning_fabric  # noqa: F401
finally:
    del sys.modules["torchmetrics"]
