"""What to watch in a sharpness-aware step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncsam.optim.flipping import StepFlips


@dataclass
class StepReport:
    """The last step in numbers. `None` where a quantity does not apply, or was not measured at this step.

    Always filled: `step` (counted from 1), `phase` ("base", "looksam" or a variant's name: what was done), `rho`,
    `progress` t and `strength` s(t). The rest is measured every `telemetry_every` steps, because each of them
    costs a reduction over all gradients. With `adaptive`, `cos_sam` and `perturbation_norm` are of T^-1 eps, in the
    coordinates in which ASAM's ball is round; `cos_clean` and `cos_clean_sam` are of eps itself.
    """

    step: int
    phase: str
    rho: float
    progress: float | None = None
    #: With an adaptive radius: the relative loss increase caused by the perturbations before this one.
    relative_loss_increase: float | None = None
    strength: float | None = None
    #: ||g_B||, the gradient of the mini-batch.
    grad_norm: float | None = None
    #: ||g*||, the gradient of the flipped samples.
    noise_grad_norm: float | None = None
    #: cos(g_B, g*).
    cos_grad_noise: float | None = None
    #: s ||g*|| / rho: above one, the compensation outweighs SAM's own perturbation.
    compensation_ratio: float | None = None
    #: cos(eps_SAM, eps).
    cos_sam: float | None = None
    #: ||eps||, and whether the projection onto the ball shortened it.
    perturbation_norm: float | None = None
    projected: bool | None = None
    #: Number of flipped samples, and the share of them that were truly mislabeled (with `clean_targets`).
    flipped: int | None = None
    flipped_mislabeled: float | None = None
    #: cos(eps, g_clean), g_clean over the samples whose observed label is right (with `clean_targets`).
    cos_clean: float | None = None
    #: cos(eps_SAM, g_clean): what SAM itself would have had.
    cos_clean_sam: float | None = None

    def note_flips(self, flips: StepFlips) -> None:
        """How many samples were flipped, and how many of them were mislabeled, where that is known."""
        self.flipped = flips.flipped or None
        self.flipped_mislabeled = flips.mislabeled_share()

    def as_dict(self) -> dict[str, float | int | str | bool]:
        """The quantities that were measured, for a logger."""
        return {name: value for name, value in asdict(self).items() if value is not None}
