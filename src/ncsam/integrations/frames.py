"""Rows of a scikit-learn estimator: arrays of numbers, or DataFrames with columns of any kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam.data.tables.features import text_encoder
from ncsam.data.tables.preprocess import Preprocessing, fit_transform

Floats = npt.NDArray[np.floating[Any]]


def is_frame(X: Any) -> bool:
    """Whether X is a DataFrame, that is, has named columns.

    Args:
        X: An array or a DataFrame.
    """
    return hasattr(X, "iloc") and hasattr(X, "columns")


def is_mixed(X: Any) -> bool:
    """Whether X is a DataFrame that must be encoded: some column is not all finite numbers.

    Args:
        X: An array or a DataFrame.
    """
    return is_frame(X) and not all(_is_numbers(X.iloc[:, place]) for place in range(len(X.columns)))


def _is_numbers(column: Any) -> bool:
    dtype = column.dtype
    return isinstance(dtype, np.dtype) and dtype.kind in "fiub" and bool(np.isfinite(column.to_numpy()).all())


@dataclass(frozen=True)
class FrameEncoding:
    """Preprocessing of DataFrames, fitted to the training rows.

    Attributes:
        preprocessing: The fitted preprocessing of the columns.
    """

    preprocessing: Preprocessing

    @classmethod
    def fit(cls, X: Any) -> tuple[FrameEncoding, Floats]:
        """Fit the preprocessing to the training rows.

        Args:
            X: A DataFrame with columns of any kind.

        Returns:
            The fitted encoding, and the features (rows, features) of `X`.
        """
        fitted, features = fit_transform(columns_of(X), text_encoder=text_encoder())
        return cls(fitted), features

    def __call__(self, X: Any) -> Floats:
        return self.preprocessing.transform(columns_of(X))


def columns_of(X: Any) -> dict[str, list[Any]]:
    """The columns of a DataFrame by name, as lists.

    Args:
        X: A DataFrame.
    """
    return {str(name): X.iloc[:, place].tolist() for place, name in enumerate(X.columns)}


def take(X: Any, rows: npt.NDArray[np.int64]) -> Any:
    """Select rows of an array or a DataFrame.

    Args:
        X: An array or a DataFrame.
        rows: Positions of the rows, from 0.
    """
    return X.iloc[rows] if is_frame(X) else np.asarray(X)[rows]
