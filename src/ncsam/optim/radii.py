"""The radius that `rho=` names."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ncsam._errors import bad_value, did_you_mean
from ncsam.optim.loss_budget import LossBudgetRadius
from ncsam.optim.radius import AutoRadius, Radius
from ncsam.optim.validation_radius import ValidationRadius

#: What `rho=` takes: a number, the name of an adaptive radius, or an object.
RadiusLike: TypeAlias = float | Literal["auto", "validation", "budget"] | Radius
_NAMES = ("auto", "validation", "budget")


def make_radius(rho: RadiusLike, target: float, chance_loss: float | None) -> Radius:
    """Make the radius of an optimizer.

    Args:
        rho: A number, a name, or an object, which is returned as it is.
        target: The `rho_target` of "auto" and "validation".
        chance_loss: Of "auto" and "validation".

    Raises:
        UsageError: For anything else.
    """
    if isinstance(rho, Radius):
        return rho
    if not isinstance(rho, str):
        return Radius(rho)
    if rho == "budget":
        return LossBudgetRadius()
    if rho == "auto":
        return AutoRadius(target, chance_loss=chance_loss)
    if rho == "validation":
        return ValidationRadius(target, chance_loss=chance_loss)
    expected = "a number, 0 or larger, 'auto', 'validation', 'budget', or a Radius"
    raise bad_value("rho", rho, expected + did_you_mean(rho, _NAMES, ". "))
