"""Options and batches that an optimizer cannot take are refused in one sentence that names them."""

import numpy as np
import pytest
import torch
from torch import nn

from ncsam import optim

LOGITS, TARGETS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])


def make(kind="sam", **options):
    model = nn.Linear(2, 3)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optim.get(kind)(base, total_steps=options.pop("total_steps", 10), **options)


@pytest.mark.parametrize("kind", optim.names())
@pytest.mark.parametrize(
    ("option", "wrong", "allowed"),
    [
        ("rho", 1e300, "a finite number, 0 or larger, at most"),
        ("rho", "autoo", "a finite number, 0 or larger, 'auto', 'validation', or an AutoRadius. Did you mean 'auto'?"),
        ("criterion", None, r"a function of \(logits, targets\)"),
        ("criterion", 0.5, r"a function of \(logits, targets\)"),
        ("model", 0.5, "a torch.nn.Module, or several"),
        ("model", "abc", "a torch.nn.Module, or several"),
        ("model", np.array(0.5), "a torch.nn.Module, or several"),
        ("process_group", 1, "a torch.distributed.ProcessGroup"),
        ("chance_loss", [1], "a finite number, 0 or larger"),
        ("rho_target", 7, "a share above 0 and below 5"),
        ("total_steps", 10**30, "a whole number from 0 to"),
    ],
)
def test_wrong_options(kind, option, wrong, allowed):
    with pytest.raises(ValueError, match=f"^invalid {option}=.*"):
        make(kind, **{option: wrong})


def test_options_as_numpy_has_them():
    model, optimizer = make(
        "ncsam",
        rho=np.float32(0.5),
        kappa=np.float64(0.1),
        flip_ratio=np.float16(0.5),
        total_steps=np.int64(7),
        sign=np.int64(-1),
        refresh_every=np.int64(3),
    )
    optimizer.step(lambda: model(torch.ones(4, 2)), TARGETS)
    assert (optimizer.rho, optimizer.total_steps, optimizer.sign) == (0.5, 7, -1)
    assert type(optimizer.total_steps) is type(optimizer.sign) is int
    assert make("bsam", rho_min=np.float32(0.25))[1].rho_min == 0.25


def test_wrong_options_of_ncsam():
    for option, wrong in (("generator", 1), ("sign", 0.5), ("sign", None), ("refresh_every", 0.5), ("kappa", 1e300)):
        with pytest.raises(ValueError, match=f"{option}=.*"):
            make("ncsam", **{option: wrong})
    with pytest.raises(ValueError, match=r"unknown ramp \[\]"):
        make("ncsam", ramp=[])


def test_an_automatic_radius_names_what_is_wrong():
    for options, said in (
        ({"start": True}, "start=True"),
        ({"target": None}, "rho_target=None"),
        ({"bound": "x"}, "bound='x'"),
    ):
        with pytest.raises(ValueError, match=said):
            optim.AutoRadius(**options)


@pytest.mark.parametrize("kind", optim.names())
@pytest.mark.parametrize(
    ("logits", "targets", "clean", "said"),
    [
        (LOGITS.long(), TARGETS, None, "logits of dtype torch.int64: expected real numbers"),
        (LOGITS, TARGETS.to("meta"), None, "targets are on meta: the logits are on cpu, and both must be on one"),
        (LOGITS, TARGETS, [0, 1], "clean_targets is list: expected a tensor of class indices"),
        (LOGITS, TARGETS, LOGITS[:, 0], "clean_targets is torch.float32: expected a tensor of class indices"),
        (
            LOGITS,
            TARGETS,
            TARGETS[:2],
            r"clean_targets of shape \(2,\) on cpu: the observed ones have the shape \(4,\)",
        ),
    ],
)
def test_wrong_batches(kind, logits, targets, clean, said):
    model, optimizer = make(kind, telemetry_every=1)
    before = [p.detach().clone() for p in model.parameters()]

    def forward():
        return logits if logits.dtype == torch.int64 else logits + model(torch.ones(4, 2))

    with pytest.raises((TypeError, ValueError), match=said):
        optimizer.step(forward, targets, clean_targets=clean)
    assert all(map(torch.equal, model.parameters(), before))


def test_held_out_losses():
    _, optimizer = make(rho="validation")
    for loss in (1.0, np.float32(1.0), torch.tensor(1.0), float("nan")):
        optimizer.report_val_loss(loss)
    for wrong in (None, "1.0", True, torch.zeros(2), object()):
        with pytest.raises(ValueError, match=r"loss=.*"):
            optimizer.report_val_loss(wrong)


@pytest.mark.parametrize("name", ["friendlysam", "ncsam"])
def test_vectors_of_other_shapes_are_not_loaded(name):
    model = nn.Linear(4, 3)
    options = {"estimator": "looksam"} if name == "ncsam" else {}
    optimizer = optim.get(name)(torch.optim.SGD(model.parameters(), lr=0.1), model=model, total_steps=9, **options)
    for _ in range(2):
        optimizer.step(lambda: model(torch.ones(6, 4)), torch.arange(6) % 3)
    state = optimizer.state_dict()
    vectors = state["sharpness_aware"]["vectors"]
    assert vectors
    optimizer.load_state_dict(state)
    next(iter(vectors.values()))[0] = torch.zeros(2)
    with pytest.raises(ValueError, match="state_dict="):
        optimizer.load_state_dict(state)
