"""Forests of scikit-learn, copied into plain tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ncsam._errors import need
from ncsam.classifiers.linear import State


def forest(x: Tensor, y: Tensor, num_classes: int, *, trees: int, leaf: int, extra: bool) -> State:
    """Fit a random forest with scikit-learn, with seed 0, and return it as tensors (see `ncsam.models.forest`).

    Args:
        x: rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.
        trees: number of trees.
        leaf: smallest number of samples in a leaf.
        extra: fit extremely randomized trees instead of a random forest.
    """
    ensemble: Any = need("sklearn.ensemble", "sklearn", "fitting a forest")
    kind = ensemble.ExtraTreesClassifier if extra else ensemble.RandomForestClassifier
    fitted = kind(trees, min_samples_leaf=leaf, random_state=0, n_jobs=1).fit(x.numpy(), y.numpy())
    return forest_tensors(fitted, num_classes)


def forest_tensors(fitted: Any, num_classes: int) -> State:
    """Convert a fitted scikit-learn forest to tensors. Classes that it never saw get probability 0.

    Args:
        fitted: a fitted `RandomForestClassifier` or `ExtraTreesClassifier` with classes below `num_classes`.
        num_classes: number of classes K.
    """
    trees = [estimator.tree_ for estimator in fitted.estimators_]
    shape = (len(trees), max(tree.node_count for tree in trees))
    feature, threshold = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    left = np.broadcast_to(np.arange(shape[1]), shape).copy()
    right = left.copy()
    value = np.zeros((*shape, num_classes), dtype=np.float32)
    for number, tree in enumerate(trees):
        inner = np.flatnonzero(tree.children_left >= 0)
        feature[number, inner] = tree.feature[inner]
        threshold[number, inner] = _rounded_down(tree.threshold[inner])
        left[number, inner], right[number, inner] = tree.children_left[inner], tree.children_right[inner]
        counts = tree.value[:, 0, :]
        value[number, : tree.node_count, fitted.classes_] = (counts / counts.sum(axis=1, keepdims=True)).T
    arrays = {"feature": feature, "threshold": threshold, "left": left, "right": right, "value": value}
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {**state, "steps": torch.zeros(max(tree.max_depth for tree in trees), dtype=torch.int64)}


def _rounded_down(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The largest float32 that is not above each value: a float32 x is <= the one exactly if it is <= the other."""
    nearest = values.astype(np.float32)
    lower: np.ndarray[Any, np.dtype[np.float32]] = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest.astype(np.float64) > values, lower, nearest)
