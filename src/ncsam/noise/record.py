"""`NoisyLabels`: the labels before and after, and how they came about."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ncsam._arguments import count, instance
from ncsam._errors import bad_value, need
from ncsam._files import atomic_path, open_arrays, read_json
from ncsam.noise.inputs import Floats, Labels, Mask, as_array, as_labels, check_seed, resolve_num_classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMAT = "ncsam.NoisyLabels 1"


@dataclass(frozen=True, eq=False, repr=False)
class NoisyLabels:
    """Clean and noisy labels of the same samples, in the same order, with the recipe that made them.

    The arrays are read-only; `torch.tensor(record.noisy)` makes a tensor of them.

    Attributes:
        clean: The labels before, int64 (N,).
        noisy: The labels after, int64 (N,).
        num_classes: C.
        recipe: The generator's name and its arguments, as plain JSON values; `recipe["rate"]` is the nominal rate.
        seed: The seed of the generator; `None` for labels read from a file.
        flip_probability: For instance-dependent noise, each sample's own probability to be wrong, float64 (N,).

    Examples:
        >>> NoisyLabels([0, 1, 2, 0], [0, 2, 2, 0], 3, {"name": "by hand"})
        <NoisyLabels by hand: 4 samples, 25.00 % wrong>
    """

    clean: Labels
    noisy: Labels
    num_classes: int
    recipe: dict[str, Any]
    seed: int | None = None
    flip_probability: Floats | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_classes", count("num_classes", self.num_classes, 2))
        if self.seed is not None:
            object.__setattr__(self, "seed", check_seed(self.seed))
        instance("recipe", self.recipe, dict, "a dict with the name and the arguments of the generator")
        for name in ("clean", "noisy"):
            labels = as_labels(getattr(self, name), name)
            resolve_num_classes(labels, self.num_classes, name)
            object.__setattr__(self, name, labels)
        if len(self.clean) != len(self.noisy):
            raise bad_value("len(noisy)", len(self.noisy), f"{len(self.clean)}, as many as clean labels")
        if self.flip_probability is not None:
            given = as_array(self.flip_probability, "flip_probability")
            if given.dtype.kind not in "iuf":
                raise bad_value("flip_probability.dtype", str(given.dtype), "a type of real numbers")
            chance = np.array(given, dtype=np.float64)
            if chance.shape != self.clean.shape:
                raise bad_value("flip_probability.shape", chance.shape, f"{self.clean.shape}, one per label")
            chance.setflags(write=False)
            object.__setattr__(self, "flip_probability", chance)

    def __len__(self) -> int:
        return len(self.clean)

    @cached_property
    def mask(self) -> Mask:
        """True where the label is wrong."""
        wrong: Mask = self.noisy != self.clean
        wrong.setflags(write=False)
        return wrong

    @cached_property
    def rate(self) -> float:
        """The realized rate: the share of labels that are wrong."""
        return float(self.mask.mean())

    @cached_property
    def transition(self) -> Floats:
        """Empirical transition matrix: `transition[i, j]` is the share of clean class i that is labeled j.

        The row of a class without samples is NaN.
        """
        size = self.num_classes
        counts = np.bincount(self.clean * size + self.noisy, minlength=size * size).reshape(size, size)
        with np.errstate(invalid="ignore"):
            shares: Floats = counts / counts.sum(axis=1, keepdims=True)
        shares.setflags(write=False)
        return shares

    @cached_property
    def sha256(self) -> str:
        """SHA-256 (hexadecimal) of the noisy labels as N little-endian 64-bit integers, in order, and nothing else."""
        return hashlib.sha256(self.noisy.astype("<i8").data).hexdigest()

    def __repr__(self) -> str:
        return f"<NoisyLabels {self.recipe.get('name')}: {len(self):,} samples, {100 * self.rate:.2f} % wrong>"

    def __str__(self) -> str:
        """A short table for people."""
        arguments = ", ".join(f"{k}={_short(v)}" for k, v in self.recipe.items() if k != "name")
        lines = [
            (
                "recipe",
                f"{self.recipe.get('name')}({arguments})" + ("" if self.seed is None else f", seed {self.seed}"),
            ),
            ("samples", f"{len(self):,} in {self.num_classes:,} classes"),
            ("wrong", f"{int(self.mask.sum()):,} ({100 * self.rate:.2f} %)"),
        ]
        if self.num_classes <= 1000:
            diagonal = self.transition.diagonal()
            lines.append(("kept", f"{np.nanmin(diagonal):.3f} to {np.nanmax(diagonal):.3f} of a class"))
            confusions = np.nan_to_num(self.transition - np.diag(diagonal))
            source, target = divmod(int(confusions.argmax()), self.num_classes)
            if confusions[source, target] > 0:
                share = confusions[source, target]
                lines.append(("most often", f"{source} labeled {target} ({share:.3f} of class {source})"))
        counts = np.bincount(self.noisy, minlength=self.num_classes)
        lines.append(("class sizes", f"{counts.min():,} to {counts.max():,} by noisy label"))
        lines.append(("sha256", self.sha256))
        return "\n".join(f"{name:<12}{text}" for name, text in lines)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `NAME.npz` (the arrays) and `NAME.json` (everything else).

        Both files are complete before either gets its name. The JSON holds the SHA-256 of the labels, so that a pair
        that does not belong together is noticed when it is loaded.

        Args:
            path: With either suffix or with neither.

        Returns:
            The path of the `.npz`.
        """
        arrays, words = file_pair(path)
        small = np.min_scalar_type(self.num_classes - 1)
        content: dict[str, Any] = {"clean": self.clean.astype(small), "noisy": self.noisy.astype(small)}
        if self.flip_probability is not None:
            content["flip_probability"] = self.flip_probability
        about = {
            "format": _FORMAT,
            "recipe": self.recipe,
            "seed": self.seed,
            "num_classes": self.num_classes,
            "samples": len(self),
            "rate": self.rate,
            "sha256": self.sha256,
        }
        with atomic_path(words) as new_words, atomic_path(arrays) as new_arrays:
            new_words.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            with new_arrays.open("wb") as file:
                np.savez_compressed(file, **content)
        return arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NoisyLabels:
        """Read what `save` wrote; nothing is unpickled.

        Args:
            path: With either suffix or with neither.

        Raises:
            ValueError: The files are damaged, or the labels were changed since.
        """
        arrays, words = file_pair(path)
        try:
            about = read_json(words)
            if about.get("format") != _FORMAT:
                raise ValueError(f"{words} does not say {_FORMAT!r}")
            if not isinstance(about.get("recipe"), dict):
                raise ValueError(f"{words} holds no recipe")
            with open_arrays(arrays) as content:
                record = cls(
                    clean=content["clean"],
                    noisy=content["noisy"],
                    num_classes=about["num_classes"],
                    recipe=about["recipe"],
                    seed=about["seed"],
                    flip_probability=content.get("flip_probability"),
                )
        except (ValueError, KeyError) as error:
            raise ValueError(f"{arrays} and {words.name} are not saved noisy labels: {error}") from error
        if record.sha256 != about.get("sha256"):
            raise ValueError(
                f"{arrays} holds labels with SHA-256 {record.sha256}, but {words.name} says {about.get('sha256')}"
            )
        return record

    def plot(self, ax: Axes | None = None, class_names: list[str] | None = None) -> Axes:
        """Draw the empirical transition matrix, clean classes as rows, noisy ones as columns.

        Args:
            ax: Matplotlib axes; new ones by default.
            class_names: One name per class.

        Returns:
            The axes.
        """
        if ax is None:
            pyplot = need("matplotlib.pyplot", "plot", "NoisyLabels.plot")
            ax = pyplot.subplots()[1]
        size = self.num_classes
        if class_names is not None and len(class_names) != size:
            raise bad_value("len(class_names)", len(class_names), f"{size}, one per class")
        image = ax.imshow(self.transition, vmin=0, vmax=1, cmap="Blues")
        ax.figure.colorbar(image, ax=ax, label="share of the clean class")
        if class_names is not None or size <= 20:
            names = class_names or [str(label) for label in range(size)]
            ax.set_xticks(range(size), names, rotation=90 if class_names else 0)
            ax.set_yticks(range(size), names)
        if size <= 12:
            for (row, column), share in np.ndenumerate(self.transition):
                if share >= 0.005:
                    color = "white" if share > 0.5 else "black"
                    ax.text(column, row, f"{share:.2f}", ha="center", va="center", color=color, fontsize=7)
        ax.set(xlabel="noisy label", ylabel="clean label", title=f"{self.recipe.get('name')}: {self.rate:.1%} wrong")
        return ax


def file_pair(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """`NAME.npz` and `NAME.json` for a path with either suffix or with neither (`sym_0.4` has none of the two).

    Args:
        path: A path.
    """
    given = str(path)
    stem = given[: -len(Path(given).suffix)] if given.endswith((".npz", ".json")) else given
    return Path(stem + ".npz"), Path(stem + ".json")


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, (list, dict)) else str(value)
    return text if len(text) <= 40 else text[:36] + " ..."
