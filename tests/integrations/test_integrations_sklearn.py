"""`NoisyLabelClassifier` among scikit-learn's and cleanlab's own tools, and against `train`."""

import pickle
import re

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

import ncsam
from ncsam import methods
from ncsam.data import from_arrays
from ncsam.engine import RunConfig, train
from ncsam.errors import UsageError
from ncsam.integrations.sklearn import NoisyLabelClassifier
from ncsam.issues.calibration import stratified_folds
from ncsam.issues.find import find_label_issues
from ncsam.noise import symmetric


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:600], y[:600], X[1200:], y[1200:]


#: A DataFrame is a table, an array an embedding, as in `ncsam.train`: they have different classifiers.
CONTAINERS = {"check_classifier_data_not_an_array": "the recommended classifier of a DataFrame is that of tables"}


@pytest.mark.slow
def test_passes_all_of_sklearns_own_checks():
    check_estimator(NoisyLabelClassifier(hidden=(16,), lr=0.1, epochs=5, batch_size=32))
    check_estimator(NoisyLabelClassifier(), expected_failed_checks=CONTAINERS)


def test_by_default_it_is_the_classifier_of_train(digits):
    X, y, X_test, _ = digits
    noisy = symmetric(y, 0.3, num_classes=10, seed=0).noisy
    model, run = NoisyLabelClassifier().fit(X, noisy), ncsam.train((X, noisy))
    assert (run.config.model, model.method_, model.loss_curve_) == ("smooth", None, [])
    np.testing.assert_allclose(model.predict_proba(X_test), run.predict(X_test).probabilities, atol=1e-4)
    ours, theirs = (
        each.to_frame().set_index("index") for each in (model.find_label_issues(X, noisy), run.find_label_issues())
    )
    np.testing.assert_allclose(ours.label_quality, theirs.label_quality[ours.index], atol=1e-5)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X_test), model.predict(X_test))


@pytest.fixture(scope="module")
def mixed():
    """A table whose classes follow a number, a category and a date; some numbers are missing."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    frame = pandas.DataFrame(
        {
            "size": np.where(rng.random(400) < 0.2, np.nan, y + 0.5 * rng.normal(size=400)),
            "color": np.array(["red", "green", "blue"])[np.where(rng.random(400) < 0.8, y, 0)],
            "sold": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(90 * y + rng.integers(0, 120, 400), unit="D"),
            "unit": "kg",
        }
    )
    return frame, np.array(["ant", "bee", "cat"])[y]


@pytest.mark.parametrize("options", [{}, {"epochs": 15, "lr": 0.05, "random_state": 0}], ids=["default", "network"])
def test_tables_with_columns_of_any_kind(mixed, options):
    frame, y = mixed
    model = NoisyLabelClassifier(**options).fit(frame[:300], y[:300])
    assert list(model.feature_names_in_) == list(frame)
    assert model.score(frame[300:], y[300:]) > 0.85  # a third by chance
    unknown = frame[300:301].assign(color="violet", size=np.nan)
    assert model.predict_proba(unknown).sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.drop(columns="color"))
    issues = model.find_label_issues(frame, np.where(np.arange(400) < 4, "bee", y), folds=3).to_frame()
    assert len(issues) == 400


def test_a_table_of_the_estimator_is_that_of_train(mixed):
    frame, y = mixed
    model = NoisyLabelClassifier().fit(frame[:300], y[:300])
    run = ncsam.train(frame[:300].assign(label=y[:300]), label_column="label")
    assert run.config.model == "smooth_table"
    np.testing.assert_allclose(model.predict_proba(frame[300:]), run.predict(frame[300:]).probabilities, atol=1e-4)


def test_a_table_without_a_useful_column_is_refused():
    with pytest.raises(ValueError, match="every value is 'kg'"):
        NoisyLabelClassifier().fit(pandas.DataFrame({"unit": ["kg"] * 6}), [0, 1] * 3)


def test_the_same_seed_gives_the_same_model_as_train(digits):
    X, y, *_ = digits
    model = NoisyLabelClassifier(epochs=3, random_state=5).fit(X, y)
    trainer = train(RunConfig(epochs=3, seed=5), dataset=from_arrays(X, y), console=False).trainer
    assert (trainer.config.optimizer, trainer.config.rho) == ("sam", "validation")
    ours, theirs = model.networks_[0].state_dict(), trainer.result[1][0].state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name].double()) for name in ours)
    assert model.loss_curve_ == [record["train_loss"] for record in trainer.history]


def test_the_loss_curve_of_zero_epochs_of_learning_is_the_networks_own(digits):
    X, y, *_ = digits
    model = NoisyLabelClassifier(
        optimizer="sgd", hidden=(8,), lr=0.0, epochs=1, random_state=0, options={"val_share": 0.0}
    )
    model.fit(X, y)
    codes = np.searchsorted(model.classes_, y)
    here = -np.log(model.predict_proba(X)[np.arange(len(y)), codes]).mean()
    assert model.loss_curve_ == pytest.approx([here], rel=1e-5)


#: They compare views of images, or need verified labels.
NOT_FOR_FEATURES = ("cleannet", "colearning", "ctrr", "unicon")


@pytest.mark.parametrize("method", NOT_FOR_FEATURES)
def test_methods_that_need_more_than_features_are_refused(digits, method):
    X, y, *_ = digits
    with pytest.raises(ValueError, match=f"method='{method}'"):
        NoisyLabelClassifier(method, epochs=8).fit(X, y)


@pytest.mark.parametrize("method", sorted(set(methods.names()) - set(NOT_FOR_FEATURES)))
def test_every_method_fits_predicts_and_travels(digits, method):
    X, y, X_test, _ = digits
    names = np.array([f"digit {c}" for c in y[:128]])
    # so small a network has nothing to estimate a transition matrix from, and backward correction inverts it
    options = {"transition": (0.8 * np.eye(10) + 0.02).tolist()} if method == "backward" else {}
    model = NoisyLabelClassifier(
        method,
        "sam",
        hidden=(16,),
        lr=0.05,
        epochs=3,
        batch_size=32,
        noise_rate=0.2,
        method_options=options,
        random_state=1,
    )
    p = model.fit(X[:128], names).predict_proba(X_test[:20])
    assert np.allclose(p.sum(axis=1), 1)
    assert set(model.predict(X_test)) <= set(names)
    again = pickle.loads(pickle.dumps(model)).predict_proba(X_test[:20])
    np.testing.assert_array_equal(again, p)


def test_the_same_seed_gives_the_same_answer_and_leaves_the_global_generator_alone(digits):
    X, y, *_ = digits
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, two, other = (
        NoisyLabelClassifier(hidden=(8,), epochs=2, random_state=seed).fit(X, y).predict_proba(X) for seed in (0, 0, 1)
    )
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_in_cross_val_predict_grid_search_and_a_pipeline(digits):
    X, y, X_test, y_test = digits
    model = NoisyLabelClassifier(hidden=(32,), lr=0.05, epochs=8, batch_size=32, standardize=False, random_state=0)
    p = cross_val_predict(model, X / 16, y, cv=2, method="predict_proba")
    assert (p.argmax(axis=1) == y).mean() > 0.6
    search = GridSearchCV(make_pipeline(MinMaxScaler(), model), {"noisylabelclassifier__lr": [1e-6, 0.1]}, cv=2)
    assert search.fit(X, y).best_params_ == {"noisylabelclassifier__lr": 0.1}
    assert search.score(X_test, y_test) > 0.6


def test_cleanlab_finds_wrong_labels_with_it(digits):
    cleanlab = pytest.importorskip("cleanlab.classification")
    X, y, *_ = digits
    record = symmetric(y, 0.2, num_classes=10, seed=0)
    learner = cleanlab.CleanLearning(
        NoisyLabelClassifier(hidden=(64,), lr=0.05, epochs=8, batch_size=32, random_state=0),
        cv_n_folds=2,
        find_label_issues_kwargs={"n_jobs": 1},
    )
    found = learner.find_label_issues(X, record.noisy)["is_label_issue"].to_numpy()
    wrong = record.noisy != record.clean
    assert wrong[found].mean() > 0.6  # far above the 20 % of a blind choice
    assert found[wrong].mean() > 0.6
    assert learner.fit(X, record.noisy, label_issues=found).predict(X).shape == y.shape


def test_a_network_of_ones_own_on_images(digits):
    X, y, X_test, y_test = digits
    seen = []

    def build(shape, classes):
        seen.append((shape, classes))
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(8 * 36, classes),
        )  # fmt: skip

    model = NoisyLabelClassifier(
        module=build, lr=0.05, epochs=3, batch_size=599, random_state=0
    )  # 600 leaves one row over
    model.fit(X.reshape(-1, 1, 8, 8), y)
    assert seen == [((1, 8, 8), 10)]
    assert len(model.predict(X_test.reshape(-1, 1, 8, 8))) == len(y_test)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "elrr"}, "unknown method 'elrr'. Did you mean 'elr'"),
        ({"optimizer": "smm"}, "sam"),
        ({"epochs": 0}, "epochs=0"),
        ({"options": {"lr": 1}}, "options={'lr': 1}"),
        ({"options": {"kapa": 1}}, "kappa"),
        ({"options": {"warmup": 2.0}}, "warmup=2.0"),
    ],
)
def test_a_wrong_parameter_is_named(digits, options, words):
    X, y, *_ = digits
    with pytest.raises(ValueError, match=re.escape(words)):
        NoisyLabelClassifier(**options).fit(X[:20], y[:20])


def test_parameters_survive_cloning():
    model = NoisyLabelClassifier("gce", "ncsam", rho=0.2, method_options={"q": 0.5}, options={"kappa": 0.3})
    assert clone(model).get_params() == model.get_params()


def test_few_rows_leave_none_to_validate_with(digits):
    X, y, *_ = digits
    assert NoisyLabelClassifier()._config(from_arrays(X[:20], y[:20])).rho == "auto"
    assert NoisyLabelClassifier()._config(from_arrays(X, y)).rho == "validation"
    assert NoisyLabelClassifier(epochs=2).fit(X[:20], y[:20]).predict(X[:5]).shape == (5,)


def test_label_issues_are_judged_by_models_that_never_saw_the_label():
    rng = np.random.default_rng(0)
    truth = np.arange(180) % 3
    X = 3.0 * np.eye(3, 4)[truth] + 0.5 * rng.normal(size=(180, 4))
    given = truth.copy()
    wrong = rng.permutation(180)[:27]
    given[wrong] = (truth[wrong] + 1) % 3
    y = np.array(["ant", "bee", "cat"])[given]
    model = NoisyLabelClassifier(optimizer="sgd", hidden=(8,), lr=0.05, epochs=10, batch_size=16, random_state=0)
    issues = model.find_label_issues(X, y, folds=3)
    assert not hasattr(model, "classes_")  # clones were trained
    table = issues.to_frame()
    assert sorted(table["index"]) == list(range(180))
    worst = table.iloc[:27]
    assert np.isin(worst["index"], wrong).mean() > 0.9
    assert (worst["given_label"].to_numpy() == y[worst["index"]]).all()
    suggested = np.array(["ant", "bee", "cat"])[truth[worst["index"]]]
    assert (worst["suggested_label"].to_numpy() == suggested).mean() > 0.9

    parts = stratified_folds(given, 3)  # the same, step by step
    probabilities = np.zeros((180, 3))
    for part in range(3):
        fold = clone(model).fit(X[parts != part], y[parts != part])
        probabilities[parts == part] = fold.predict_proba(X[parts == part])
    expected = find_label_issues(given, probabilities, classes=["ant", "bee", "cat"]).to_frame()
    quality = table.sort_values("index")["label_quality"].to_numpy()
    np.testing.assert_allclose(quality, expected.sort_values("index")["label_quality"], atol=1e-9)


def test_folds_of_label_issues_must_fit_the_classes():
    with pytest.raises(UsageError, match="folds="):
        NoisyLabelClassifier().find_label_issues(np.zeros((4, 2)), [0, 0, 1, 1], folds=5)
