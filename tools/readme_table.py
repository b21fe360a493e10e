"""The rows of the README's table that are no runs of `make demo`: classifiers on the same digits with the same labels.

    python tools/readme_table.py

Logistic regression with its strength chosen by cross-validation on the given labels, cleanlab's CleanLearning around
it, and `NoisyLabelClassifier`, all on standardized pixels; accuracy on the test split in percent.
"""

from __future__ import annotations

import numpy as np
from cleanlab.classification import CleanLearning
from sklearn.linear_model import LogisticRegressionCV
from sklearn.preprocessing import StandardScaler

from ncsam import NoisyLabelClassifier
from ncsam.engine import RunConfig
from ncsam.engine.task import load_task


def main() -> None:
    dataset = load_task(RunConfig(data="digits", noise="symmetric", rate=0.4)).dataset
    splits = dataset.train, dataset.test
    pixels = [np.asarray(split.inputs).reshape(len(split.labels), -1).astype(float) for split in splits]
    scaler = StandardScaler().fit(pixels[0])
    x, x_test = (scaler.transform(each) for each in pixels)
    y, y_test = dataset.train.labels, dataset.test.labels
    for name, model in {
        "logistic regression": logistic_regression(),
        "cleanlab's CleanLearning": CleanLearning(logistic_regression(), seed=0),
        "NoisyLabelClassifier": NoisyLabelClassifier(),
    }.items():
        accuracy = (model.fit(x, y).predict(x_test) == y_test).mean()
        print(f"{name}: {100 * accuracy:.1f} %")


def logistic_regression() -> LogisticRegressionCV:
    return LogisticRegressionCV(Cs=7, cv=5, max_iter=2000, l1_ratios=(0,), use_legacy_attributes=False)


if __name__ == "__main__":
    main()
