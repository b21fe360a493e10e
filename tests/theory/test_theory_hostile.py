"""What a measurement cannot take is said in one sentence, and no number makes it run for ever."""

import numpy as np
import pytest
import torch
from torch import nn

from ncsam import data, theory

X, Y, CLEAN = torch.randn(8, 4), torch.arange(8) % 3, torch.arange(8) // 2 % 3


def network():
    return nn.Linear(4, 3)


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (theory.average_sharpness, {"rho": "x"}, "rho='x'"),
        (
            theory.average_sharpness,
            {"rho": 0.1, "draws": 10**9},
            "draws=1000000000",
        ),
        (theory.average_sharpness, {"rho": 0.1, "seed": 0.5}, "seed=0.5"),
        (theory.average_sharpness, {"rho": 0.1, "criterion": 1}, "criterion=1"),
        (theory.m_sharpness, {"rho": 0.1, "m": "x"}, "m='x'"),
        (theory.m_sharpness, {"rho": 0.1, "steps": np.zeros(2)}, "steps=.*"),
        (theory.m_sharpness, {"rho": 0.1, "criterion": "x"}, "criterion='x'"),
        (theory.neighborhood_maximum, {"rho": 0.1, "steps": 10**9}, "steps=1000000000"),
        (theory.neighborhood_maximum, {"rho": 0.1, "restarts": [4]}, r"restarts=\[4\]"),
        (theory.neighborhood_maximum, {"rho": 0.1, "step_size": float("inf")}, "step_size=inf"),
        (theory.neighborhood_maximum, {"rho": 0.1, "loss": 1}, "loss=1"),
        (theory.hessian_trace, {"seed": None}, "seed=None"),
        (theory.hessian_eigenvalues, {"max_steps": "x"}, "max_steps='x'"),
        (theory.hessian_eigenvalues, {"tolerance": None}, "tolerance=None"),
        (theory.loss_line, {"at": "x"}, "at='x'"),
        (theory.loss_line, {"at": [float("nan")]}, r"at=\[nan\]"),
        (theory.loss_line, {"direction": 1}, "direction=1"),
        (theory.loss_plane, {"directions": 0.5}, "directions=0.5"),
        (theory.loss_plane, {"seed": 2**63 - 1}, "seed=.*"),
        (theory.alignments, {"rho": True}, "rho=True"),
        (theory.alignments, {"sign": 2}, "sign=2"),
        (theory.alignments, {"generator": 1}, "generator=1"),
        (theory.LossSurface, {"criterion": None}, "criterion=None"),
    ],
)
def test_wrong_options(function, options, said):
    with pytest.raises(ValueError, match=said):
        function(network(), (X, Y, CLEAN), **options)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (1, "data='int'"),
        ("abc", "data='str'"),
        (np.array(0.5), "data='ndarray'"),
        ([1, 2], r"data='int'"),
        ((X, Y[:3]), r"data=\[\(8, 4\), \(3,\)\]"),
        ((X, Y + 1), "targets"),
        ((X, Y.bool()), "targets of dtype torch.bool"),
    ],
)
def test_wrong_data(wrong, said):
    with pytest.raises((TypeError, ValueError), match=said):
        theory.LossSurface(network(), wrong).value()


def test_wrong_models_and_data_without_samples():
    for function in (theory.filter_normalized, lambda model: theory.hessian_trace(model, (X, Y))):
        with pytest.raises(ValueError, match=r"model='x'"):
            function("x")
    with pytest.raises(ValueError, match="data='0 samples'"):
        theory.sharpness_by_labels(network(), [], 0.1)
    with pytest.raises(ValueError, match=r"data='a.*finite'"):
        theory.hessian_eigenvalues(network(), (X * torch.inf, Y))
    with pytest.raises(ValueError, match="alignments=''"):
        theory.mean_alignment("")


def test_losses_in_0_1_take_class_numbers_alone():
    for loss in (theory.zero_one, theory.improbability, theory.clipped()):
        assert 0 <= float(loss(X[:, :3], Y.int())) <= 1
        for labels, said in (
            (Y + 1, "targets hold 1 to 3"),
            (None, "targets is NoneType"),
            (X[:, :3].softmax(1), "labels.dtype='torch.float32'"),
        ):
            with pytest.raises((TypeError, ValueError), match=said):
                loss(X[:, :3], labels)
    with pytest.raises(ValueError, match="cap='x'"):
        theory.clipped("x")


def test_clean_labels_of_a_loader():
    loader = data.Loader(data.from_arrays(X.numpy(), Y.numpy()).train, 4)
    assert len(list(theory.WithClean(loader, CLEAN.tolist()))) == 2
    for clean in ("x", [[1, 2], [3]], [0.5], CLEAN[:, None]):
        with pytest.raises(ValueError, match=r"clean=.*"):
            theory.WithClean(loader, clean)
    with pytest.raises(ValueError, match=r"loader='Loader'"):
        list(theory.WithClean(loader, CLEAN[:3]))
    with pytest.raises(ValueError, match="loader='int'"):
        list(theory.WithClean(3, CLEAN))


def test_bounds():
    for options, said in (
        ({"complexity": 1e-200}, "complexity=1e-200"),
        ({"complexity": "x"}, "complexity='x'"),
        ({"delta": [0.1, 0.2]}, "delta=.*"),
    ):
        with pytest.raises(ValueError, match=said):
            theory.clean_samples_needed(100, 3.0, 0.05, **options)
    with pytest.raises(ValueError, match=r"invalid shapes n \(2,\), rho \(3,\)"):
        theory.sam_bound(0.5, [9, 9], 5, 1.0, [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="alpha=a number of type int"):
        theory.amplification_factor(10**5000)
