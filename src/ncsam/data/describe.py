"""A dataset on one screen."""

from __future__ import annotations

import numpy as np

from ncsam.data.modalities import described, modality_of
from ncsam.data.types import DataSet, Split


def describe(dataset: DataSet, classes: int = 10) -> str:
    """Splits with their sizes, where the inputs lie, the realized noise where clean labels are known, and the counts of
    the first `classes` classes.

    Args:
        dataset: Any dataset.
        classes: Classes listed at most.
    """
    size = f"{dataset.size[0]} x {dataset.size[1]}" if dataset.size else modality_of(dataset).name
    lines = [f"{dataset.name}: {dataset.num_classes} classes, {size}, from {dataset.source}"]
    for name, split in dataset.splits.items():
        lines.append(f"  {name:<14} {len(split):>9,}  {described(split.inputs)}{_noise(split)}")
    shown = dataset.classes[:classes]
    width = max(map(len, ("class", *shown)))
    counts = {
        name: np.bincount(split.labels, minlength=dataset.num_classes)
        for name, split in dataset.splits.items()
        if name not in dataset.extra
    }
    lines.append(f"  {'class':<{width}} " + " ".join(f"{name:>9}" for name in counts))
    for number, label in enumerate(shown):
        lines.append(f"  {label:<{width}} " + " ".join(f"{counts[name][number]:>9,}" for name in counts))
    if dataset.num_classes > classes:
        rest = counts["train"]
        lines.append(f"  ... {dataset.num_classes} classes of {rest.min():,} to {rest.max():,} training samples")
    if dataset.columns and dataset.encoding is None:  # else a note says what became of each column
        lines.append(f"  {len(dataset.columns)} columns of numbers: {', '.join(dataset.columns)}")
    lines += [f"  note: {note}" for note in dataset.notes]
    return "\n".join(lines)


def _noise(split: Split) -> str:
    if split.clean is None:
        return ""
    return f", {np.mean(split.labels != split.clean):.2%} of the labels wrong"
