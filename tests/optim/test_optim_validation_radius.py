"""The radius that listens to held-out samples: its rule in numbers, and a restart in the middle."""

import copy
import math

import pytest
import torch
from optim_cases import batch, network, parameters, same_bits, sgd, twin

from ncsam import SAM, AutoRadius, ValidationRadius


def heard(*losses, target=0.4, begin=0.0, num_checks=None):
    """A radius after held-out losses at even distances, each of them a check unless `num_checks` says otherwise."""
    radius = ValidationRadius(target, begin=begin, num_checks=num_checks or len(losses))
    for number, loss in enumerate(losses, 1):
        radius.report_val_loss(loss, number / len(losses))
    return radius


def test_the_target_falls_where_the_loss_falls():
    assert heard(2.0).target == 0.4  # nothing to compare with
    assert heard(2.0, 1.5).target == pytest.approx(0.4 * 0.8)
    assert heard(2.0, 1.5, 1.4).target == pytest.approx(0.4 * 0.8**2)


def test_it_doubles_where_the_loss_does_not_fall_up_to_the_full_target():
    assert heard(2.0, 1.5, 1.4, 1.3, 1.2, 1.2).target == pytest.approx(0.4 * 0.8**4 * 2)
    assert heard(2.0, 1.5, 1.6).target == 0.4  # .64 would be more than full


def test_it_never_falls_below_a_hundredth():
    assert heard(*(9.0 - 0.1 * n for n in range(40))).target == pytest.approx(0.004)


def test_it_does_not_listen_before_it_begins_but_compares_with_what_came_before():
    radius = ValidationRadius(0.4, begin=0.5, num_checks=5)  # a look at every tenth of training
    for tenth, loss in enumerate((4.0, 3.0, 2.0, 1.0), 1):
        radius.report_val_loss(loss, tenth / 10)
    assert radius.target == 0.4
    radius.report_val_loss(0.9, 0.5)
    assert radius.target == pytest.approx(0.4 * 0.8)


def test_a_look_compares_means_of_what_was_noted_between():
    rising = heard(1.0, 3.0, 2.5, 1.7, num_checks=2)  # means 2.0 and 2.1, though the last is lower than the one before
    assert rising.target == 0.4
    assert heard(1.0, 3.0, 2.5, 1.3, num_checks=2).target == pytest.approx(0.4 * 0.8)  # means 2.0 and 1.9


def test_losses_that_are_not_finite_say_nothing():
    radius = ValidationRadius(0.4, begin=0.0, num_checks=2)
    for progress, loss in ((0.25, 2.0), (0.5, math.nan), (0.75, math.inf), (1.0, 1.0)):
        radius.report_val_loss(loss, progress)
    assert radius.target == pytest.approx(0.4)  # the first look is at 1.0: a mean of 2.0 and 1.0, and none before
    for said in (math.nan, math.inf, -math.inf):
        assert heard(2.0, said, 1.5, num_checks=3).target == pytest.approx(0.4 * 0.8)


def test_a_smaller_target_shrinks_the_radius():
    here, there = torch.tensor(1.0), torch.tensor(1.2)
    radii = [heard(2.0, 2.1), heard(2.0, 1.5)]
    for radius in radii:
        radius.chance_loss = 2.0
        radius.note_batch(here, None, None, None)
        radius.note_perturbed(there)
        radius.end(perturbed=True, params=[], group=None)
    assert radii[0].rho == pytest.approx(0.05 * math.exp(0.1 * (0.4 - 0.2)))
    assert radii[1].rho == pytest.approx(0.05 * math.exp(0.1 * (0.32 - 0.2)))


def test_it_must_know_how_far_training_is():
    optimizer = SAM(sgd(network()), rho="validation")
    with pytest.raises(RuntimeError, match="total_steps="):
        optimizer.report_val_loss(1.0)


@pytest.mark.parametrize("rho", [0.1, "auto"])
def test_other_radii_do_not_mind(rho):
    optimizer = SAM(sgd(network()), rho=rho)
    before = optimizer.rho
    optimizer.report_val_loss(1.0)
    assert optimizer.rho == before


def test_unheard_it_is_the_automatic_one():
    runs = [trained(SAM(sgd(model), rho=rho, total_steps=8), model, 8) for model, rho in _pair("auto", "validation")]
    assert same_bits(*runs)


def _pair(*radii):
    model = network()
    return zip((model, twin(model)), radii, strict=True)


def trained(optimizer, model, steps, losses=()):
    for number in range(steps):
        x, y = batch(number)
        optimizer.step(lambda x=x: model(x), y)
        if losses:
            optimizer.report_val_loss(losses[number])
    return parameters(model)


def test_a_restart_in_the_middle_changes_no_bit():
    losses = [2.0, 1.8, 1.9, 1.7, 1.8, 1.6, 1.5, 1.4]
    (one, first), (other, second) = _pair(*(ValidationRadius(0.4, begin=0.1, num_checks=3) for _ in range(2)))
    whole = trained(SAM(sgd(one), rho=first, total_steps=8), one, 8, losses)
    optimizer = SAM(sgd(other), rho=second, total_steps=8)
    trained(optimizer, other, 4, losses)
    saved = copy.deepcopy(optimizer.state_dict())
    again = SAM(sgd(other), rho=ValidationRadius(0.4, begin=0.1, num_checks=3), total_steps=8)
    again.load_state_dict(saved)
    for number in range(4, 8):
        x, y = batch(number)
        again.step(lambda x=x: other(x), y)
        again.report_val_loss(losses[number])
    assert same_bits(whole, parameters(other))
    assert again.rho_target == SAM(sgd(one), rho=first).rho_target


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_restart_between_two_checks_changes_no_target(cut):
    """Every second loss brings a check. The means 2, 1.9, 1.4 and 1.3 fall; the second losses alone would not."""
    losses, targets = [3.0, 1.0, 2.8, 1.0, 1.0, 1.8, 0.8, 1.8], []
    for restart in (False, True):
        radius = ValidationRadius(0.4, begin=0.0, num_checks=4)
        for number, loss in enumerate(losses, 1):
            radius.report_val_loss(loss, number / 8)
            if restart and number == cut:
                state = copy.deepcopy(radius.state_dict())
                radius = ValidationRadius(0.4, begin=0.0, num_checks=4)
                radius.load_state_dict(state, torch.device("cpu"))
        targets.append(radius.target)
    assert targets == [pytest.approx(0.4 * 0.8**3)] * 2


@pytest.mark.parametrize(("options", "named"), [({"begin": 1.5}, "begin"), ({"num_checks": 0}, "num_checks")])
def test_bad_settings_are_refused(options, named):
    with pytest.raises(ValueError, match=named):
        ValidationRadius(**options)


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="'auto', 'validation'"):
        SAM(sgd(network()), rho="held-out")


def test_it_is_an_automatic_radius():
    assert isinstance(SAM(sgd(network()), rho="validation").radius, AutoRadius)
