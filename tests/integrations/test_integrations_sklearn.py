"""`NoisyLabelClassifier` among scikit-learn's and cleanlab's own tools, and against a loop written by hand."""

import pickle
import re

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

from ncsam import SAM, methods
from ncsam.integrations.sklearn import NoisyLabelClassifier
from ncsam.noise import symmetric


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:600], y[:600], X[1200:], y[1200:]


@pytest.mark.slow
def test_passes_all_of_sklearns_own_checks():
    check_estimator(NoisyLabelClassifier(hidden=(16,), lr=0.05, epochs=10, batch_size=32))


def test_equals_a_plain_loop_over_twenty_steps(digits):
    X, y, *_ = digits
    X, y = X[:160], y[:160]
    model = NoisyLabelClassifier(
        hidden=(16,),
        rho=0.1,
        lr=0.1,
        epochs=4,
        batch_size=32,
        random_state=5,
        options={"schedule": "linear", "weight_decay": 1e-3},
    ).fit(X, y)

    seed = int(np.random.RandomState(5).randint(2**31 - 1))
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    rows = torch.tensor((X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1), dtype=torch.float32)
    labels = torch.tensor(y)
    base = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    optimizer = SAM(base, rho=0.1)
    done = 0
    for epoch in range(1, 5):
        order = torch.randperm(160, generator=torch.Generator().manual_seed(seed * 100_003 + epoch))
        for index in order.split(32):
            base.param_groups[0]["lr"] = 0.1 * (1 - done / 20)
            optimizer.step(lambda index=index: network(rows[index]), labels[index])
            done += 1
    assert done == 20
    for ours, theirs in zip(model.networks_[0].parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.double(), rtol=1e-6, atol=1e-7)


def test_the_loss_curve_of_zero_epochs_of_learning_is_the_networks_own(digits):
    X, y, *_ = digits
    model = NoisyLabelClassifier(optimizer="sgd", hidden=(8,), lr=0.0, epochs=1, batch_size=600, random_state=0)
    model.fit(X, y)
    codes = np.searchsorted(model.classes_, y)
    here = -np.log(model.predict_proba(X)[np.arange(len(y)), codes]).mean()
    assert model.loss_curve_ == pytest.approx([here], rel=1e-5)


ENGINES_OWN = ("cal", "cleannet", "colearning", "ctrr", "nested_coteaching", "unicon")


@pytest.mark.parametrize("method", ENGINES_OWN)
def test_what_only_the_engine_can_do_is_refused(digits, method):
    X, y, *_ = digits
    with pytest.raises(ValueError, match=f"method='{method}'"):
        NoisyLabelClassifier(method, epochs=8).fit(X, y)


@pytest.mark.parametrize("method", sorted(set(methods.names()) - set(ENGINES_OWN)))
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


def test_ncsam_flips_the_noise_rate_at_most_four_tenths():
    from ncsam.engine.optimizers import build_optimizer

    network = torch.nn.Linear(2, 2)
    for rate, flipped in ((0.1, 0.1), (0.8, 0.4), (None, 0.4)):
        config = NoisyLabelClassifier(optimizer="ncsam", noise_rate=rate)._config(100, 64)
        assert build_optimizer(config, network, methods.create("ce"), 5).flip_ratio == flipped


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "elrr"}, "unknown method 'elrr'. Did you mean 'elr'"),
        ({"optimizer": "smm"}, "sam"),
        ({"epochs": 0}, "epochs=0"),
        ({"options": {"lr": 1}}, "not lr"),
        ({"options": {"kapa": 1}}, "kappa"),
        ({"options": {"warmup": "auto"}}, "warmup='auto'"),
    ],
)
def test_a_wrong_parameter_is_named(digits, options, words):
    X, y, *_ = digits
    with pytest.raises(ValueError, match=re.escape(words)):
        NoisyLabelClassifier(**options).fit(X[:20], y[:20])


def test_parameters_survive_cloning():
    model = NoisyLabelClassifier("gce", "ncsam", rho=0.2, method_options={"q": 0.5}, options={"kappa": 0.3})
    assert clone(model).get_params() == model.get_params()


def test_what_is_left_open_is_what_we_recommend_for_features():
    config = NoisyLabelClassifier(random_state=0)._config(900, 64)
    assert (config.lr, config.weight_decay, config.epochs, config.batch_size) == (0.0125, 0.005, 100, 128)
    assert (config.rho, config.rho_target) == ("auto", 0.4)
    assert NoisyLabelClassifier("elr", random_state=0)._config(900, 64).rho_target == 0.1
    assert NoisyLabelClassifier(random_state=0)._config(900, 16).rho_target == 0.1
