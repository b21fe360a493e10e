"""A scikit-learn estimator around the methods and optimizers of ncsam, for rows of numbers with noisy labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ncsam._errors import bad_value, need

need("sklearn", "data", "ncsam.integrations.sklearn")

from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: E402
from sklearn.utils import check_random_state  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

from ncsam import methods  # noqa: E402
from ncsam.engine import defaults  # noqa: E402
from ncsam.engine.config import RunConfig  # noqa: E402
from ncsam.integrations.fitting import fit_arrays, predict_arrays  # noqa: E402
from ncsam.models.mlp import mlp  # noqa: E402

#: What the estimator has parameters of its own for, or has no use for.
_NOT_OPTIONS = {"method", "method_options", "optimizer", "rho", "rate", "lr", "epochs", "batch_size", "seed", "data"}


class NoisyLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""A neural network for rows of numbers whose labels may be wrong, with scikit-learn's interface.

    `fit`, `predict`, `predict_proba` and `score` as everywhere; it goes into `cross_val_predict`, `GridSearchCV`,
    pipelines, and cleanlab's `CleanLearning`. Without further words it is what we recommend: cross-entropy with SAM at
    a radius that sets itself, on a multilayer perceptron over standardized features.

    >>> from sklearn.datasets import load_digits
    >>> from ncsam.integrations.sklearn import NoisyLabelClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = NoisyLabelClassifier(epochs=3, random_state=0).fit(X[:500], y[:500])
    >>> model.predict_proba(X[500:]).shape
    (1297, 10)

    Args:
        method: one of `ncsam.methods.names()`, such as "ce", "elr" or "coteaching".
        optimizer: "sgd" (the base optimizer alone), "sam", "ncsam", or another that `ncsam train` knows.
        rho: radius of the perturbation, a number or "auto".
        hidden: widths of the perceptron's hidden layers.
        module: a network of your own instead: `module(in_features, num_classes)` returns it. X may then have more than
            two axes, and `in_features` is the shape of one row.
        lr, epochs, batch_size: of training; the learning rate falls to 0 along a cosine. "auto" is what the preset
            `recommended` takes for features: .0125, and 30 epochs or at least 800 steps.
        noise_rate: the share of wrong labels, where you know it; some methods and NCSAM use it.
        method_options: of the method, such as `{"weight": 3.0}`.
        options: further options of a run by their names in `ncsam.engine.RunConfig`, such as `{"kappa": 0.2}`.
        standardize: bring each feature to mean 0 and variance 1, by the training rows.
        random_state: seed of initialization, order and draws. The global generators stay as they are.
        device: where to train, in torch's words.

    Attributes:
        classes_: the labels, sorted. n_features_in_: features in `fit`.
        networks_: the trained networks, in double precision, so that an answer does not depend on its neighbors.
        method_: the method, as training left it. loss_curve_: mean training loss of each epoch.
    """

    def __init__(
        self,
        method: str = "ce",
        optimizer: str = "sam",
        *,
        rho: float | str = "auto",
        hidden: Sequence[int] = (256, 256),
        module: Callable[[Any, int], nn.Module] | None = None,
        lr: float | Literal["auto"] = "auto",
        epochs: int | Literal["auto"] = "auto",
        batch_size: int = 128,
        noise_rate: float | None = None,
        method_options: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        standardize: bool = True,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.optimizer = optimizer
        self.rho = rho
        self.hidden = hidden
        self.module = module
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.noise_rate = noise_rate
        self.method_options = method_options
        self.options = options
        self.standardize = standardize
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any) -> NoisyLabelClassifier:
        """Train on rows X and their observed labels y."""
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), allow_nd=self.module is not None)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has 1 class, {self.classes_[0]!r}: a classifier needs samples of at least two classes")
        config = self._config(len(X), X[0].size)
        self._fit_scale(X)
        inputs = self._tensor(X).float()
        labels = torch.from_numpy(codes.astype(np.int64)).to(inputs.device)
        self.method_ = methods.create(self.method, **dict(self.method_options or {}))
        devices = [inputs.device] if inputs.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.enable_grad():
            torch.manual_seed(config.seed)
            networks, self.loss_curve_ = fit_arrays(
                config, self.method_, lambda: self._network(X), inputs, labels, len(self.classes_)
            )
        kept = [part for part in vars(self.method_).values() if isinstance(part, nn.Module)]  # averages of the weights
        for network in (*networks, *kept):
            network.double().eval()
        self.networks_ = networks
        return self

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (rows, classes), in the order of `classes_`."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), allow_nd=self.module is not None, reset=False)
        return predict_arrays(self.method_, self.networks_, self._tensor(X)).cpu().numpy()

    def predict(self, X: Any) -> Any:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    # --- inside

    def _config(self, samples: int, inputs: int) -> RunConfig:
        options = dict(self.options or {})
        for name in _NOT_OPTIONS & options.keys():
            raise bad_value("options", options, f"not {name}, which is a parameter of the classifier or has no use")
        if self.optimizer == "ncsam" and self.noise_rate is not None:
            options.setdefault("flip_ratio", min(self.noise_rate, 0.4))
        for name in ("flip_ratio", "warmup"):
            if options.get(name) == "auto":
                raise bad_value(name, "auto", "a number here: only `ncsam train` watches a validation set")
        config = RunConfig.from_dict(
            {
                "weight_decay": "auto",
                "rho_target": "auto",
                **options,
                "method": self.method,
                "optimizer": self.optimizer,
                "rho": self.rho,
                "rate": self.noise_rate,
                "lr": self.lr,
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "seed": int(check_random_state(self.random_state).randint(2**31 - 1)),
            }
        )
        return defaults.resolve_auto(config, "mlp", "none", samples, inputs, self.batch_size)

    def _network(self, X: Any) -> nn.Module:
        shape, classes = X.shape[1:], len(self.classes_)
        if self.module is not None:
            return self.module(shape[0] if len(shape) == 1 else shape, classes)
        return mlp(classes, in_features=shape[0], hidden=tuple(self.hidden))

    def _fit_scale(self, X: Any) -> None:
        self._mean: Any = 0.0
        self._scale: Any = 1.0
        if self.standardize:
            self._mean = X.mean(axis=0, dtype=np.float64)
            spread = X.std(axis=0, dtype=np.float64)
            self._scale = np.where(spread > 0, spread, 1.0)

    def _tensor(self, X: Any) -> Tensor:
        return torch.from_numpy(np.asarray((X - self._mean) / self._scale, dtype=np.float64)).to(self.device)
