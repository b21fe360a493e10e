"""`Predictions`: what `Run.predict` returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, need
from ncsam._text import shortened


@dataclass(frozen=True)
class Predictions:
    """Predictions of a run for some samples.

    Attributes:
        inputs: a name per sample: its path, or its position.
        labels: the predicted class names.
        probabilities: float32 (samples, classes).
        classes: the class names, in the order of the columns of `probabilities`.
        skipped: files that could not be read, with the reason; empty unless `skip_damaged` was set.
        texts: the samples themselves, if they are texts.
    """

    inputs: Sequence[str]
    labels: npt.NDArray[Any]
    probabilities: npt.NDArray[np.float32]
    classes: Sequence[str]
    skipped: Sequence[str] = ()
    texts: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def confidence(self) -> npt.NDArray[np.float32]:
        """The probability of each predicted label."""
        return np.asarray(self.probabilities.max(axis=1))

    def top(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the most probable classes of each sample.

        Args:
            count: number of classes per sample, at most the number of classes.

        Returns:
            A row per sample: `input`, `text` (shortened) if the samples are texts, `label`, `probability`, then
            `label2`, `probability2`, and so forth.

        Raises:
            UsageError: if `count` is below 1 or above the number of classes.
        """
        if not 1 <= count <= len(self.classes):
            raise bad_value("top", count, f"1 to {len(self.classes)}, the number of classes")
        order = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :count]
        columns = self._described()
        rows = []
        for number, (chances, best) in enumerate(zip(self.probabilities, order, strict=True)):
            row: dict[str, Any] = {name: values[number] for name, values in columns.items()}
            for rank, label in enumerate(best.tolist(), start=1):
                suffix = "" if rank == 1 else str(rank)
                chance = round(float(chances[label]), 6)
                row |= {f"label{suffix}": self.classes[label], f"probability{suffix}": chance}
            rows.append(row)
        return rows

    def to_frame(self) -> Any:
        """A `pandas.DataFrame` with the columns `input`, `text` (shortened) for texts, `label` and `probability`."""
        pandas = need("pandas", "tables", "a table of predictions")
        return pandas.DataFrame({**self._described(), "label": self.labels, "probability": self.confidence})

    def _described(self) -> dict[str, Sequence[str]]:
        """The columns by which a sample is recognized."""
        texts = {} if self.texts is None else {"text": [shortened(text) for text in self.texts]}
        return {"input": self.inputs, **texts}

    def __repr__(self) -> str:
        return f"<Predictions: {len(self):,} samples, {len(self.classes):,} classes>"

    def _repr_html_(self) -> str:
        return str(self.to_frame()._repr_html_())
