"""Columns as numbers: each encoder is fitted to one column, and is stored as plain JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from ncsam.data.tables.values import Floats, Values, date_reader, is_missing, missing_in, numbers_in, word
from ncsam.pretrained.text import TextEncoder

#: Standardized values are clipped here, so that one outlier cannot outweigh all other features.
CLIP = 10.0
#: A column whose largest standardized value lies beyond this is compressed by asinh before.
_HEAVY_TAIL = 6.0
_PARTS = ("timestamp", "year", "month", "day", "weekday", "hour")
_EncoderT = TypeVar("_EncoderT", bound="Encoder")


@dataclass(frozen=True)
class Encoder:
    """What turns a column into features; a subclass has `fit`, `transform`, `names` and a `kind`."""

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def from_dict(cls: type[_EncoderT], state: dict[str, Any]) -> _EncoderT:
        """The encoder that `to_dict` described.

        Args:
            state: The fields by name, lists in the place of tuples.

        Raises:
            ValueError: A field is missing, or there is one too many.
        """
        given = {name: tuple(v) if isinstance(v, list) else v for name, v in state.items() if name != "kind"}
        if given.keys() != {field.name for field in fields(cls)}:
            raise ValueError(f"invalid {cls.kind} column: it has the fields {', '.join(sorted(given))}")
        return cls(**given)


@dataclass(frozen=True)
class Numeric(Encoder):
    """Standardized numbers: the median where one is missing, and a feature that says so if any was.

    Attributes:
        median: Stands for missing values.
        spread: Above 0, x is replaced by asinh((x - median) / spread), which compresses heavy tails; 0 leaves it.
        mean, std: Of the (compressed) values; std = 0 leaves the value out, for a column constant but for gaps.
        indicator: Whether a second feature marks missing values.
        boolean: Whether the column holds truth values.
    """

    median: float
    spread: float
    mean: float
    std: float
    indicator: bool
    boolean: bool = False
    kind: ClassVar[str] = "numeric"

    @classmethod
    def fit(cls, values: Values, boolean: bool = False) -> Numeric:
        """The encoder of a column.

        Args:
            values: (rows,) of the training split, with at least one number.
            boolean: Whether they are truth values.
        """
        found = numbers_in(values)
        gaps = np.isnan(found)
        there = found[~gaps]
        median = float(np.median(there))
        filled = np.where(gaps, median, found)
        mean, std = _moments(filled)
        spread = 0.0
        if std > 0 and float(np.abs(filled / std - mean / std).max()) > _HEAVY_TAIL:
            deviations = np.abs(there / 2 - median / 2)  # halved: the difference may not be a finite number
            spread = 2 * float(np.median(deviations[deviations > 0]))
            mean, std = _moments(np.arcsinh((filled / 2 - median / 2) / (spread / 2)))
        return cls(median, spread, mean, std, bool(gaps.any()), boolean)

    def transform(self, values: Values) -> Floats:
        """The features (rows, 1 or 2), the value and the mark of a missing one.

        Args:
            values: (rows,); what is no number counts as missing.
        """
        found = numbers_in(values)
        gaps = np.isnan(found)
        features = []
        if self.std > 0:
            found = np.where(gaps, self.median, found)
            if self.spread > 0:
                found = np.arcsinh((found / 2 - self.median / 2) / (self.spread / 2))
            features.append(np.clip(found / self.std - self.mean / self.std, -CLIP, CLIP))
        if self.indicator:
            features.append(gaps.astype(np.float64))
        return np.stack(features, axis=1)

    def names(self, column: str) -> list[str]:
        """A name for each feature.

        Args:
            column: The column's name.
        """
        return [column] * (self.std > 0) + [f"{column} is missing"] * self.indicator

    def __str__(self) -> str:
        shape = "truth values" if self.boolean else "numbers" + (", compressed" if self.spread > 0 else "")
        return shape + (f", missing ones replaced by {self.median:g}" if self.indicator else "")


@dataclass(frozen=True)
class Categorical(Encoder):
    """One feature for each frequent category, and one for all others together.

    A category that was not there in fitting counts among the others, or as none where there were no others.

    Attributes:
        categories: Those with a feature of their own, the most frequent first.
        other: Whether rare categories share a feature.
        indicator: Whether a feature marks missing values.
    """

    categories: tuple[str, ...]
    other: bool
    indicator: bool
    kind: ClassVar[str] = "categorical"

    @classmethod
    def fit(cls, values: Values, most: int, least: int) -> Categorical:
        """The encoder of a column. If no category is frequent enough, the most frequent ones are kept all the same.

        Args:
            values: (rows,) of the training split.
            most: Categories with a feature of their own, at most.
            least: How often each of them must occur.
        """
        gaps = missing_in(values)
        counts = Counter(word(value) for value in values[~gaps])
        ranked = sorted(counts, key=lambda name: (-counts[name], name))
        kept = tuple(name for name in ranked[:most] if counts[name] >= least) or tuple(ranked[:most])
        return cls(kept, len(kept) < len(counts), bool(gaps.any()))

    def transform(self, values: Values) -> Floats:
        """The features (rows, F), each 0 or 1.

        Args:
            values: (rows,).
        """
        place = {name: number for number, name in enumerate(self.categories)}
        found = np.zeros((len(values), len(self.categories) + self.other + self.indicator))
        for row, value in enumerate(values):
            if is_missing(value):
                column = found.shape[1] - 1 if self.indicator else None
            else:
                column = place.get(word(value), len(self.categories) if self.other else None)
            if column is not None:
                found[row, column] = 1.0
        return found

    def names(self, column: str) -> list[str]:
        """A name for each feature.

        Args:
            column: The column's name.
        """
        known = [f"{column} = {name}" for name in self.categories]
        return known + [f"{column} = (other)"] * self.other + [f"{column} is missing"] * self.indicator

    def __str__(self) -> str:
        return f"{len(self.categories)} categories" + (" and others" if self.other else "")


@dataclass(frozen=True)
class Dates(Encoder):
    """Year, month, day, weekday, hour and the time itself, each standardized; those that never change are left out.

    Attributes:
        form: How dates are written, as `date_reader` knows it.
        parts, means, stds: The features, and what standardizes them.
        indicator: Whether a feature marks dates that are missing or cannot be read; the others are then 0.
    """

    form: str
    parts: tuple[str, ...]
    means: tuple[float, ...]
    stds: tuple[float, ...]
    indicator: bool
    kind: ClassVar[str] = "date"

    @classmethod
    def fit(cls, values: Values, form: str) -> Dates:
        """The encoder of a column.

        Args:
            values: (rows,) of the training split, with at least one date.
            form: One of `ncsam.data.tables.values.DATE_FORMATS`.
        """
        found = _date_parts(values, form)
        gaps = np.isnan(found[:, 0])
        moments = [_moments(found[~gaps, place]) for place in range(len(_PARTS))]
        kept = [place for place, (_, std) in enumerate(moments) if std > 0]
        return cls(
            form,
            tuple(_PARTS[place] for place in kept),
            tuple(moments[place][0] for place in kept),
            tuple(moments[place][1] for place in kept),
            bool(gaps.any()),
        )

    def transform(self, values: Values) -> Floats:
        """The features (rows, F), standardized and clipped.

        Args:
            values: (rows,); what is not written as `form` says counts as missing.
        """
        found = _date_parts(values, self.form)
        gaps = np.isnan(found[:, 0])
        chosen = found[:, [_PARTS.index(part) for part in self.parts]]
        scaled = np.clip((chosen - np.array(self.means)) / np.array(self.stds), -CLIP, CLIP)
        scaled[gaps] = 0.0
        return np.concatenate([scaled, gaps[:, None]], axis=1) if self.indicator else scaled

    def names(self, column: str) -> list[str]:
        """A name for each feature.

        Args:
            column: The column's name.
        """
        return [f"{column} ({part})" for part in self.parts] + [f"{column} is missing"] * self.indicator

    def __str__(self) -> str:
        return f"dates ({', '.join(self.parts)})"


@dataclass(frozen=True)
class Text(Encoder):
    """Embeddings of free text, centered and divided by their common scale; 0 where the text is missing.

    Attributes:
        encoder: Fingerprint of the text encoder.
        mean: Of each feature over the texts.
        scale: Root of the features' mean variance.
        indicator: Whether a feature marks missing texts.
    """

    encoder: str
    mean: tuple[float, ...]
    scale: float
    indicator: bool
    kind: ClassVar[str] = "text"

    @classmethod
    def fit(cls, values: Values, encoder: TextEncoder) -> tuple[Text, Floats]:
        """The encoder of a column, and its features: embedding is slow, and is done once.

        Args:
            values: (rows,) of the training split, with at least one text.
            encoder: Embeds the texts.
        """
        gaps, found = _embeddings(values, encoder)
        there = found[~gaps]
        mean = there.mean(axis=0)
        scale = float(np.sqrt(np.square(there - mean).mean())) or 1.0
        fitted = cls(encoder.fingerprint(), tuple(mean.tolist()), scale, bool(gaps.any()))
        return fitted, fitted._scaled(gaps, found)

    def transform(self, values: Values, encoder: TextEncoder) -> Floats:
        """The features (rows, F), centered, scaled and clipped.

        Args:
            values: (rows,).
            encoder: Must be the one of fitting, which is not checked here.
        """
        return self._scaled(*_embeddings(values, encoder))

    def _scaled(self, gaps: npt.NDArray[np.bool_], found: Floats) -> Floats:
        scaled = np.clip((found - np.array(self.mean)) / self.scale, -CLIP, CLIP)
        scaled[gaps] = 0.0
        return np.concatenate([scaled, gaps[:, None]], axis=1) if self.indicator else scaled

    def names(self, column: str) -> list[str]:
        """A name for each feature.

        Args:
            column: The column's name.
        """
        return [f"{column} [{place}]" for place in range(len(self.mean))] + [f"{column} is missing"] * self.indicator

    def __str__(self) -> str:
        return f"text, {len(self.mean)} features"


def _moments(values: Floats) -> tuple[float, float]:
    """Mean and standard deviation; 0 for what differs by rounding only. Numbers whose square overflows are no harm."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0:
        return 0.0, 0.0
    scaled = values / largest
    mean, std = float(scaled.mean()), float(scaled.std())
    return mean * largest, std * largest if std > 1e-12 else 0.0


def _date_parts(values: Values, form: str) -> Floats:
    """(rows, parts) of `_PARTS`; NaN where there is no date. The timestamp counts days since 1970."""
    read = date_reader(form)
    found = np.full((len(values), len(_PARTS)), np.nan)
    for row, value in enumerate(values):
        when = None if is_missing(value) else read(value)
        if when is not None:
            seconds = when.hour * 3600 + when.minute * 60 + when.second
            days = when.toordinal() - 719_163 + seconds / 86_400
            found[row] = (days, when.year, when.month, when.day, when.weekday(), seconds / 3600)
    return found


def _embeddings(values: Values, encoder: TextEncoder) -> tuple[npt.NDArray[np.bool_], Floats]:
    gaps = missing_in(values)
    found = np.zeros((len(values), encoder.num_features))
    if not gaps.all():
        found[~gaps] = encoder([str(value) for value in values[~gaps]])
    return gaps, found
