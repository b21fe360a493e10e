"""A scikit-learn estimator for arrays and DataFrames with noisy labels: the recommended classifier, or any method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ncsam._errors import bad_value, need

need("sklearn", "data", "ncsam.integrations.sklearn")

from sklearn.base import BaseEstimator, ClassifierMixin, clone  # noqa: E402
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

from ncsam import classifiers  # noqa: E402
from ncsam.classifiers.fit import FOLDS  # noqa: E402
from ncsam.data import from_arrays  # noqa: E402
from ncsam.data.types import DataSet, stratified  # noqa: E402
from ncsam.engine import recipes  # noqa: E402
from ncsam.engine.checkpoint import kept_random_state  # noqa: E402
from ncsam.engine.config import IN_MEMORY, RunConfig  # noqa: E402
from ncsam.engine.device import choose_device  # noqa: E402
from ncsam.engine.resolve import resolve  # noqa: E402
from ncsam.engine.task import load_task  # noqa: E402
from ncsam.engine.trainer import Trainer  # noqa: E402
from ncsam.errors import UsageError  # noqa: E402
from ncsam.integrations.frames import Floats, FrameEncoding, is_frame, is_mixed, take  # noqa: E402
from ncsam.issues.calibration import stratified_folds  # noqa: E402
from ncsam.vectors.saved import evaluation_mode  # noqa: E402

if TYPE_CHECKING:
    from ncsam.issues.table import LabelIssues

#: Options of a run that are parameters of the estimator, or have no use here.
_NOT_OPTIONS = {
    *("method", "method_options", "optimizer", "rho", "rate", "lr", "epochs", "batch_size", "seed"),
    *("data", "data_root", "data_options", "label_file", "label_column", "noise", "model", "model_options", "fold"),
}
_ROWS = 1024  # in one forward pass of a prediction
_NUMBERS = (np.float64, np.float32)


class NoisyLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""A classifier for data whose labels may be wrong, with scikit-learn's interface.

    `fit`, `predict`, `predict_proba` and `score` work as usual, also in `cross_val_predict`, `GridSearchCV`, pipelines
    and cleanlab's `CleanLearning`. The defaults are those of `ncsam.train`: the recommended smooth classifier, fitted
    in seconds. Any parameter that asks for training (`method`, `optimizer`, `epochs`, `hidden`, `module`, ...) makes it
    a network, by default a multilayer perceptron trained by SAM with a validation-guided radius. The same seed gives
    the same model as `ncsam.train`.

    X is an array of numbers, or a DataFrame with columns of any kind: categories, dates, texts and missing values are
    encoded and imputed, and the fitted preprocessing is applied to new rows.

    Args:
        method: One of `ncsam.methods.names()`, such as "ce", "elr" or "coteaching".
        optimizer: "sam", "ncsam" or another sharpness-aware optimizer, or "sgd" or "adamw" alone. "auto": "sam".
        rho: Radius of the perturbation: a number, "auto", or "validation". The latter holds out a tenth of the rows
            while training; where there are too few, it is "auto".
        hidden: Widths of the perceptron's hidden layers; 256 and 256 if a network is trained for another reason.
        module: Your own model instead: `module(in_features, num_classes)` returns it. X may then have more than two
            axes, and `in_features` is the shape of one row.
        lr: Initial learning rate; it falls to 0 along a cosine. "auto" as in `RunConfig`.
        epochs: Passes over the data. "auto": 30, or as many as make 800 steps.
        batch_size: Rows per step. "auto": 32, or 128 from 5,000 rows on.
        noise_rate: The share of wrong labels, if you know it; some methods and NCSAM use it.
        method_options: Options of the method, such as `{"weight": 3.0}`.
        options: Further options of a run by their names in `ncsam.engine.RunConfig`, such as `{"kappa": 0.2}`.
        standardize: Scale each feature to mean 0 and variance 1, by the training rows.
        random_state: Seed of initialization, order and draws. The global generators are left unchanged.
        device: Where to train: "cpu", "cuda", "mps".

    Attributes:
        classes_: The labels, sorted.
        n_features_in_: Number of features in `fit`.
        networks_: The fitted models, in double precision, so that a prediction does not depend on the other rows.
        method_: The method, as training left it; `None` for the smooth classifier.
        loss_curve_: Mean training loss of each epoch; empty for the smooth classifier.

    Examples:
        >>> from sklearn.datasets import load_digits
        >>> from ncsam.integrations.sklearn import NoisyLabelClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> model = NoisyLabelClassifier().fit(X[:500], y[:500])
        >>> model.predict_proba(X[500:]).shape
        (1297, 10)
    """

    def __init__(
        self,
        method: str = "ce",
        optimizer: str = "auto",
        *,
        rho: float | str = "validation",
        hidden: Sequence[int] | None = None,
        module: Callable[[Any, int], nn.Module] | None = None,
        lr: float | Literal["auto"] = "auto",
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
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
        """Train on rows and their given labels.

        Args:
            X: Features (rows, features), as an array or a DataFrame.
            y: One label per row.

        Returns:
            The estimator itself.
        """
        rows, codes = self._prepare(X, y)
        if self._is_closed_form():
            fitted = self._cross_fit(rows, codes)
            self.method_, self.loss_curve_ = None, []
            self.networks_ = [fitted.member.network(len(self.classes_)).double()]
            return self
        names = [str(number) for number in range(len(self.classes_))]
        dataset = from_arrays(rows, codes, classes=names, mean=self._mean.tolist(), std=self._std.tolist())
        with kept_random_state(), torch.enable_grad():
            trainer = self._trainer(dataset)
            trainer.fit()
        self.loss_curve_ = [record["train_loss"] for record in trainer.history]
        self.method_, self.networks_ = trainer.result
        kept = [part for part in vars(self.method_).values() if isinstance(part, nn.Module)]  # averages of weights
        for network in (*self.networks_, *kept):
            network.double().eval()
        return self

    def predict_proba(self, X: Any) -> Any:
        """Class probabilities (rows, classes), in the order of `classes_`.

        Args:
            X: Features (rows, features), with the columns that were given to `fit`.
        """
        check_is_fitted(self)
        if self._encoding is not None:
            rows = self._encoding(validate_data(self, X, skip_check_array=True, reset=False))
        else:
            rows = validate_data(self, X, dtype=_NUMBERS, allow_nd=self.module is not None, reset=False)
        found = [self._probabilities(part) for part in torch.split(self._tensor(rows), _ROWS)]
        return torch.cat(found).cpu().numpy()

    def predict(self, X: Any) -> Any:
        """The most probable class of each row.

        Args:
            X: Features (rows, features), with the columns that were given to `fit`.
        """
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def find_label_issues(self, X: Any, y: Any, *, folds: int = 5) -> LabelIssues:
        """Find the labels that are likely wrong, by models that were not trained on them.

        A clone of the estimator is trained `folds` times, each time without one part of the rows, which it then
        predicts; `ncsam.find_label_issues` judges the labels by these predictions. The estimator is not fitted by it.

        Args:
            X: Features, as for `fit`.
            y: The given labels.
            folds: Number of parts.

        Returns:
            A table of all labels, the most likely wrong first.
        """
        from ncsam.issues.find import find_label_issues

        model, labels = clone(self), np.asarray(y)
        rows, codes = model._prepare(X, labels)
        classes = model.classes_
        names = [str(name) for name in classes]
        if self._is_closed_form():
            fitted = model._cross_fit(rows, codes, stratified_folds(codes, folds))
            found = classifiers.issue_probabilities(fitted, codes, table=model._table)
            return find_label_issues(codes, found, classes=names)
        parts = stratified_folds(codes, folds)
        probabilities = np.zeros((len(labels), len(classes)))
        accuracies = []
        for part in range(folds):
            held = np.flatnonzero(parts == part)
            kept = np.flatnonzero(parts != part)
            model = clone(self).fit(take(X, kept), labels[kept])
            columns = np.searchsorted(classes, model.classes_)
            probabilities[np.ix_(held, columns)] = model.predict_proba(take(X, held))
            accuracies.append(float(np.mean(model.predict(take(X, kept)) == labels[kept])))
        return find_label_issues(codes, probabilities, classes=names, train_accuracy=float(np.mean(accuracies)))

    # --- inside

    def _prepare(self, X: Any, y: Any) -> tuple[Floats, npt.NDArray[np.int64]]:
        """The features of the rows and the labels as numbers; what is fitted to them is kept."""
        self._table, self._encoding = is_frame(X), None
        if is_mixed(X):
            validate_data(self, X, skip_check_array=True)
            y = column_or_1d(y, warn=True)
            check_consistent_length(X, y)
            self._encoding, rows = FrameEncoding.fit(X)
        else:
            rows, y = validate_data(self, X, y, dtype=_NUMBERS, allow_nd=self.module is not None)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise UsageError(f"y has 1 class, {self.classes_[0]!r}: a classifier needs samples of at least two classes")
        raw = self._encoding is not None or not self.standardize  # encoded columns are standardized already
        scale: dict[str, Any] = {"mean": (0.0,), "std": (1.0,)} if raw else {}
        dataset = from_arrays(rows, codes.astype(np.int64), **scale)
        self._mean, self._std = np.asarray(dataset.mean), np.asarray(dataset.std)
        return rows, codes.astype(np.int64)

    def _is_closed_form(self) -> bool:
        """Whether no parameter asks for training, as in `RunConfig`."""
        asked = self.module is not None or self.hidden is not None
        return not asked and RunConfig.from_dict(self._options()).leaves_training_open

    def _cross_fit(
        self, rows: Floats, codes: npt.NDArray[np.int64], folds: npt.NDArray[np.int64] | int = FOLDS
    ) -> classifiers.Fitted:
        model = "smooth_table" if self._table else "smooth"
        x = self._tensor(rows).float().cpu()
        return classifiers.cross_fit(model, x, torch.from_numpy(codes), len(self.classes_), folds=folds)

    def _trainer(self, dataset: DataSet) -> Trainer:
        config = self._config(dataset)
        task = load_task(config, dataset)
        shape = dataset.train.inputs[0].shape
        module, classes = self.module, dataset.num_classes
        create = None if module is None else lambda: module(shape[0] if len(shape) == 1 else shape, classes)
        resolved = resolve(config, task, family="mlp")
        return Trainer(choose_device(config), resolved, task, create)

    def _config(self, dataset: DataSet) -> RunConfig:
        model: dict[str, Any] = {"model": "mlp", "model_options": {"hidden": list(self.hidden or recipes.HIDDEN.value)}}
        quiet = {"evaluate_train_every": None, "telemetry_every": 0}
        given = {**quiet, **self._options(), **(model if self.module is None else {"model": IN_MEMORY})}
        config = RunConfig.from_dict(given)
        share = config.val_share
        if share and not len(stratified(dataset.train.labels, share, seed=0)[1]):  # too few rows to hold any out
            config = config.replace(val_share=0.0, rho="auto" if config.rho == "validation" else config.rho)
        return config

    def _options(self) -> dict[str, Any]:
        """The parameters as options of a run."""
        options = dict(self.options or {})
        for name in _NOT_OPTIONS & options.keys():
            raise bad_value("options", options, f"options other than {name!r}, which is a parameter or has no use here")
        return {
            "accelerator": torch.device(self.device).type,
            **options,
            "data": IN_MEMORY,
            "method": self.method,
            "method_options": dict(self.method_options or {}),
            "optimizer": self.optimizer,
            "rho": self.rho,
            "rate": self.noise_rate,
            "lr": self.lr,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "seed": self._seed(),
        }

    def _seed(self) -> int:
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    @torch.no_grad()
    def _probabilities(self, rows: Tensor) -> Tensor:
        with evaluation_mode(self.networks_):
            if self.method_ is None:
                return self.networks_[0](rows).softmax(dim=1)  # type: ignore[no-any-return]
            return self.method_.predict(self.networks_, rows).softmax(dim=1)

    def _tensor(self, X: Any) -> Tensor:
        rows = np.asarray(X, dtype=np.float32).astype(np.float64)  # training sees single precision
        scaled: npt.NDArray[np.float64] = (rows - self._mean) / self._std
        return torch.from_numpy(scaled).to(self.device)
