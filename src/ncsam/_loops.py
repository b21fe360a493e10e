"""Whose training loop is running, and the lines that it needs for a sharpness-aware step."""

from __future__ import annotations

import re
import sys

_PLAIN = (
    "In place of `optimizer.zero_grad(); loss.backward(); optimizer.step()`, write "
    "`loss = optimizer.step(lambda: model(x), y)`; with a loss of your own "
    "`loss = optimizer.run_passes(lambda: compute_loss()); optimizer.step()`"
)
#: Modules on the way from a framework's loop to the optimizer, the outermost framework first, and what to write there.
_LINES = {
    r"transformers\.": (
        "With transformers: `from ncsam.integrations.transformers import SharpnessAwareTrainer`, and "
        "`SharpnessAwareTrainer(model=model, args=args, sharpness_aware=lambda base: SAM(base, model=model), ...)` in "
        "place of Trainer"
    ),
    r"(pytorch_lightning|lightning\.pytorch)\..*\bmanual": (
        "In Lightning's manual optimization: `from ncsam.integrations.lightning import SharpnessAwareMixin`, "
        "`class Net(SharpnessAwareMixin, LightningModule)`, and `loss = self.manual_step(lambda: self(x), y)`; in "
        "longhand the two phases go through `self.optimizers().optimizer`, not through Lightning's wrapper, and then "
        "`self.optimizers().step()`"
    ),
    r"(pytorch_lightning|lightning\.pytorch)\.": (
        "In Lightning: `from ncsam.integrations.lightning import SharpnessAwareMixin`, "
        "`class Net(SharpnessAwareMixin, LightningModule)`, and in training_step "
        '`return {"loss": loss, "logits": logits, "targets": y}`'
    ),
    r"accelerate\.": (
        "With Accelerate: `from ncsam.integrations.accelerate import sharpness_step`, and in place of "
        "accelerator.backward, step and zero_grad `loss = sharpness_step(accelerator, optimizer, compute, x, y)`, "
        "where `compute(x, y)` returns (loss, logits, y)"
    ),
    r"(lightning_fabric|lightning\.fabric)\.": (
        "With Fabric: `loss = optimizer.optimizer.run_passes(lambda: compute_loss(), backward=fabric.backward)`, then "
        "`optimizer.step()`"
    ),
    r"torch\.amp\.": (
        "With a GradScaler: `loss = optimizer.step(lambda: model(x), y, scaler=scaler); scaler.update()`, with "
        "autocast inside of the function"
    ),
}

_AUTOMATIC = r"(pytorch_lightning|lightning\.pytorch)\.loops\.optimization\.automatic"


def right_lines(*handed: object) -> str:
    """What to write in the loop that is running, for messages about wrong lines.

    The loop is known by the modules on the call stack, and by those of what it handed over.
    """
    frame, running = sys._getframe(1), {str(getattr(each, "__module__", None)) for each in handed}
    while frame is not None:
        running.add(str(frame.f_globals.get("__name__")))
        frame = frame.f_back  # type: ignore[assignment]
    for modules, lines in _LINES.items():
        if any(re.match(modules, name) for name in running):
            return f"{lines} (docs/integrations.md)"
    return f"{_PLAIN} (docs/tasks/my-loop.md; docs/integrations.md for frameworks)"


def accumulates_in_lightning() -> bool:
    """Whether Lightning's automatic optimization runs this step and had micro-batches before the one of its closure."""
    frame = sys._getframe(1)
    while frame is not None:
        if re.fullmatch(_AUTOMATIC, str(frame.f_globals.get("__name__"))) and "trainer" in frame.f_locals:
            return bool(getattr(frame.f_locals["trainer"], "accumulate_grad_batches", 1) > 1)
        frame = frame.f_back  # type: ignore[assignment]
    return False
