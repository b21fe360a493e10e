"""A small problem with wrong labels, solved in seconds."""

import numpy as np

from ncsam.automl.problem import Problem
from ncsam.data import from_arrays
from ncsam.engine import RunConfig
from ncsam.engine.task import load_task


def clouds(samples=240, features=6, classes=3, wrong=0.3, seed=0):
    """Gaussian clouds with centers two apart, `wrong` of the labels drawn anew; a clean test split."""
    generator = np.random.default_rng(seed)
    centers = 2.0 * np.eye(classes, features)
    truth = generator.integers(0, classes, 2 * samples)
    x = (centers[truth] + 0.7 * generator.standard_normal((2 * samples, features))).astype(np.float32)
    noisy = truth[:samples].copy()
    flipped = generator.random(samples) < wrong
    noisy[flipped] = generator.integers(0, classes, int(flipped.sum()))
    return from_arrays(x[:samples], noisy, y_clean=truth[:samples], x_test=x[samples:], y_test=truth[samples:])


def saved_clouds(path):
    """The clouds as a file, for other processes."""
    made = clouds()
    np.savez(path, x=made.train.inputs, y=made.train.labels, x_test=made.test.inputs, y_test=made.test.labels)
    return path


def config(**changes):
    return RunConfig(**{"data": "clouds", "val_share": 0.0, "seed": 1, "model_options": {"hidden": [8]}, **changes})


def problem(folds=4, **changes):
    dataset = clouds()
    settings = config(**changes)
    return Problem(settings, load_task(settings, dataset), folds)
