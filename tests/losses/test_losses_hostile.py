"""What a loss cannot take is said in one sentence that names the argument."""

import numpy as np
import pytest
import torch

from ncsam import losses

LOGITS, TARGETS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
EYE = torch.eye(3)
FUNCTIONS = {
    "apl": losses.apl,
    "cross_entropy": losses.cross_entropy,
    "dmi": losses.dmi,
    "gce": losses.gce,
    "js": losses.js,
    "mae": losses.mae,
    "nce": losses.nce,
    "peer": losses.peer,
    "rce": losses.rce,
    "sln": losses.sln,
    "symmetric": losses.symmetric,
    "truncated_gce": losses.truncated_gce,
    "forward": lambda logits, targets: losses.forward_corrected(logits, targets, EYE),
    "backward": lambda logits, targets: losses.backward_corrected(logits, targets, EYE),
    "elr": lambda logits, targets: losses.elr(logits, targets, torch.full((4, 3), 1 / 3)),
    "cores2": lambda logits, targets: losses.confidence_regularized(logits, targets, torch.full((3,), 1 / 3)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("logits", "targets", "said"),
    [
        (None, TARGETS, "logits='NoneType'"),
        (LOGITS.long(), TARGETS, "logits='torch.int64'"),
        (LOGITS[0], TARGETS, r"logits.shape=\(3,\)"),
        (LOGITS, [0, 1, 2, 0], "targets='list'"),
        (LOGITS, TARGETS.bool(), "targets='torch.bool'"),
        (LOGITS, TARGETS[:2], r"targets.shape=\(2,\)"),
        (LOGITS, torch.zeros(4, 2), r"targets.shape=\(4, 2\)"),
        (LOGITS, TARGETS + 1, "targets='1 to 3'"),
        (LOGITS, TARGETS - 1, "targets='-1 to 1'"),
        (LOGITS, TARGETS.to("meta"), "targets.device='meta'"),
    ],
)
def test_wrong_logits_and_targets(name, logits, targets, said):
    with pytest.raises(ValueError, match=said):
        FUNCTIONS[name](logits, targets)


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_class_numbers_of_any_whole_type_are_taken(kind):
    for name in ("cross_entropy", "dmi", "js", "forward", "mae"):
        assert torch.equal(FUNCTIONS[name](LOGITS, TARGETS.to(kind)), FUNCTIONS[name](LOGITS, TARGETS))


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (losses.gce, ("q",)),
        (losses.truncated_gce, ("q", "k")),
        (losses.js, ("pi",)),
        (losses.peer, ("alpha", "floor", "generator", "reduction")),
        (losses.symmetric, ("alpha", "beta", "log_zero")),
        (losses.apl, ("alpha", "beta", "passive")),
        (losses.dmi, ("eps",)),
        (losses.sln, ("sigma", "generator")),
        (losses.cross_entropy, ("smoothing", "reduction")),
    ],
)
@pytest.mark.parametrize("wrong", [True, "x", float("nan"), [0.5], np.zeros(2), torch.zeros(2), 1e300])
def test_wrong_options(function, options, wrong):
    for option in options:
        with pytest.raises(ValueError, match=f"^invalid {option}=.*"):
            function(LOGITS, TARGETS, **{option: wrong})


def test_numbers_of_numpy_are_taken_where_gradients_are():
    logits = LOGITS.clone().requires_grad_()
    found = losses.symmetric(logits, TARGETS, alpha=np.float32(0.5), beta=np.float64(0.5))
    found.backward()
    assert found.item() == pytest.approx(losses.symmetric(LOGITS, TARGETS, alpha=0.5, beta=0.5).item())
    losses.symmetric(LOGITS, TARGETS, alpha=10**30)  # no more than a large number


def test_matrices_and_memories():
    for transition, said in (
        (None, "transition='NoneType'"),
        (torch.eye(2), r"transition.shape=\(2, 2\)"),
        (torch.full((3, 3), torch.nan), "transition='not finite'"),
    ):
        with pytest.raises(ValueError, match=said):
            losses.backward_corrected(LOGITS, TARGETS, transition)
    with pytest.raises(ValueError, match="transition='list'"):
        losses.Forward([[1.0]])
    with pytest.raises(ValueError, match=r"memory.shape=\(4, 2\)"):
        losses.elr(LOGITS, TARGETS, torch.zeros(4, 2))
    with pytest.raises(ValueError, match="prior='list'"):
        losses.confidence_regularized(LOGITS, TARGETS, [1, 0, 0])
    with pytest.raises(ValueError, match="probabilities='list'"):
        losses.estimate_transition([[1.0]])
    with pytest.raises(ValueError, match=r"views=\[\(4, 2\), \(4, 3\)\]"):
        losses.gjs([LOGITS, LOGITS[:, :2]], TARGETS)
    with pytest.raises(ValueError, match=r"peers=.*"):
        losses.peer(LOGITS, TARGETS, torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"labels=.*"):
        losses.noisy_targets(LOGITS[:, 0], 3)
    with pytest.raises(ValueError, match=r"num_classes=1000000000"):
        losses.noisy_targets(TARGETS, 10**9)


def test_half_precision_is_corrected_as_single_is():
    """Half has no matrix inverse."""
    matrix = torch.full((3, 3), 0.1) + 0.7 * EYE
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    half = losses.backward_corrected(logits.half(), TARGETS, matrix)
    assert half.item() == pytest.approx(losses.backward_corrected(logits, TARGETS, matrix).item(), rel=1e-2)
