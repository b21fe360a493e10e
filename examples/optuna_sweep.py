"""A sweep by Optuna over method, learning rate and radius, on digits of which four in ten labels are wrong.

A trial is judged by validation samples whose labels are as noisy as the rest; the clean test labels are looked at once,
at the end. Needs optuna and scikit-learn.
"""

from __future__ import annotations

import argparse

import numpy as np
import optuna
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from ncsam.integrations.sklearn import NoisyLabelClassifier
from ncsam.noise import symmetric


def main(trials: int = 20, epochs: int = 10, seed: int = 0) -> tuple[dict[str, object], float, float]:
    """Sweep; the best options, their accuracy on noisy validation labels, and on clean test labels."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    noisy = symmetric(y_train, 0.4, num_classes=10, seed=0).noisy
    X_fit, X_val, y_fit, y_val = train_test_split(X_train, noisy, test_size=0.25, random_state=0, stratify=noisy)

    def model(options: dict[str, object]) -> NoisyLabelClassifier:
        return NoisyLabelClassifier(**options, hidden=(64,), epochs=epochs, random_state=0)

    def accuracy_on_noisy_validation(trial: optuna.Trial) -> float:
        options: dict[str, object] = {
            "method": trial.suggest_categorical("method", ["ce", "gce", "elr"]),
            "lr": trial.suggest_float("lr", 0.005, 0.5, log=True),
            "rho": trial.suggest_float("rho", 0.01, 2.0, log=True),
        }
        return float(model(options).fit(X_fit, y_fit).score(X_val, y_val))

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(accuracy_on_noisy_validation, n_trials=trials)
    best = model(study.best_params).fit(np.concatenate([X_fit, X_val]), np.concatenate([y_fit, y_val]))
    return study.best_params, study.best_value, float(best.score(X_test, y_test))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    options, on_noisy, on_clean = main(parser.parse_args().trials)
    print(f"best: {options}")
    print(f"accuracy: {100 * on_noisy:.1f} % on noisy validation labels, {100 * on_clean:.1f} % on clean test labels")
