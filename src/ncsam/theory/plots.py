"""Figures of alignment: during training, and over the strength of the compensation at one point of it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ncsam._errors import need
from ncsam._files import atomic_path
from ncsam.theory.alignment import Alignment, mean_alignment

#: What of the optimizer's telemetry is drawn, and how: label, color, line style.
CURVES = {
    "cos_clean": ("cos(eps, g_clean)", "#0072b2", "-"),
    "cos_clean_sam": ("cos(eps_SAM, g_clean)", "#d55e00", "--"),
    "cos_sam": ("cos(eps, eps_SAM)", "#7f7f7f", ":"),
}


def plot_alignment(
    path: str | os.PathLike[str],
    found: Sequence[Alignment],
    telemetry: Mapping[str, Mapping[int, float]],
    title: str = "",
) -> Path:
    """Draw cosines by epoch (left) and over the ratio q = s ||g*|| / rho (right).

    Args:
        path: The PNG to write.
        found: Alignments of some batches, for the right side.
        telemetry: Cosines of the run by name and epoch, for the left side.
        title: Title of the figure.
    """
    figure = need("matplotlib.figure", "plot", "drawing alignment").Figure((9.6, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for name, (label, color, style) in CURVES.items():
        curve = telemetry.get(name, {})
        left.plot(list(curve), list(curve.values()), style, color=color, label=label, marker="." if curve else "")
    left.set(xlabel="epoch", ylabel="cosine", title="along training, by telemetry", ylim=(-1.05, 1.05))
    if not any(telemetry.values()):
        left.text(0.5, 0.5, "no telemetry with clean labels", ha="center", transform=left.transAxes)

    ratios = np.logspace(-2, 2, 81)
    curves = np.array([[each.at(q) for q in ratios] for each in found])  # batch, ratio, (clean, sam)
    means = np.nanmean(curves, axis=0)
    sam = statistics.fmean(each.cos_clean_sam for each in found)
    for name, values in (("cos_clean", means[:, 0]), ("cos_sam", means[:, 1])):
        right.plot(ratios, values, CURVES[name][2], color=CURVES[name][1])
    right.axhline(sam, color=CURVES["cos_clean_sam"][1], linestyle="--")
    mean = mean_alignment(found)
    if mean.compensation_ratio > 0:
        right.axvline(mean.compensation_ratio, color="black", linewidth=0.8)
        right.annotate(" this run", (mean.compensation_ratio, -1.0), fontsize=8)
    right.set(xlabel="q = s ||g*|| / rho", xscale="log", title=f"at the checkpoint, {len(found)} batches")
    for axis in (left, right):
        axis.axhline(0, color="#dfe3ea", zorder=0)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    if title:
        figure.suptitle(title, fontsize=10)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
    return Path(path)
