"""The methods by name: all that are promised, their options and presets, and errors for what is wrong."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from ncsam import methods
from ncsam.data.modalities.images import Images
from ncsam.engine import RunConfig
from ncsam.engine.task import view_names
from ncsam.methods.registry import _METHODS
from ncsam.methods.spans import in_epochs, ramp

NAMES = (
    "ce gce gce_truncated sl apl js gjs peer dmi forward backward sln elr mixup regce decoupling mentornet coteaching "
    "coteaching_plus jocor cores2 selfie plc mcorrection trevision dividemix disc ctrr colearning unicon cc"
)


def test_all_methods_are_there():
    assert set(NAMES.split()) <= set(methods.names())


@pytest.mark.parametrize("name", NAMES.split())
def test_every_option_has_a_default_and_is_not_an_option_of_the_run(name):
    """An option that the run has too could not be given as `NAME:OPTION=VALUE`: it would be taken for the run's."""
    parameters = inspect.signature(_METHODS[name]).parameters
    assert all(p.default is not p.empty for p in parameters.values())
    assert not set(parameters) & set(RunConfig.describe())
    assert "preset" not in parameters
    assert methods.create(name).name == name


@pytest.mark.parametrize("name", NAMES.split())
def test_methods_say_what_they_compute_and_whose_they_are(name):
    assert len(_METHODS[name].__doc__ or "") > 40
    source = inspect.getmodule(_METHODS[name]).__doc__ or ""
    assert name == "ce" or re.search(r"\(.*(arXiv \d{4}\.\d{5}|ICML|ICLR|CVPR)\)", source)


@pytest.mark.parametrize(("name", "preset"), [(n, p) for n in NAMES.split() for p in _METHODS[n].presets])
def test_presets_can_be_made_and_changed(name, preset):
    method = methods.create(name, preset=preset)
    for option, value in _METHODS[name].presets[preset].items():
        if hasattr(method, option):
            assert getattr(method, option) == value
    changed = next(iter(_METHODS[name].presets[preset].items()))
    assert type(methods.create(name, preset=preset, **dict([changed]))) is type(method)


def test_a_given_option_wins_over_the_preset():
    method = methods.create("dividemix", preset="cifar10-symmetric90", threshold=0.7)
    assert (method.threshold, method.average) == (0.7, 5)
    with pytest.raises(ValueError, match="Did you mean 'cifar100'"):
        methods.create("sl", preset="cifar1000")
    with pytest.raises(ValueError, match="unknown preset of ce"):
        methods.create("ce", preset="cifar10")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gce", {"q": 0.0}),
        ("gce_truncated", {"k": 0.0}),
        ("gce_truncated", {"q": 2.0}),
        ("gce_truncated", {"refresh": 0}),
        ("sl", {"alpha": -1.0}),
        ("apl", {"passive": "ce"}),
        ("js", {"pi": 0.0}),
        ("gjs", {"pi": 1.0}),
        ("peer", {"alpha": -1.0}),
        ("peer", {"warmup_epochs": 1.5}),
        ("peer", {"warmup_epochs": -1}),
        ("peer", {"warmup_epochs": True}),
        ("dmi", {"weight": -1.0}),
        ("forward", {"quantile": 0.0}),
        ("sln", {"sigma": -1.0}),
        ("sln", {"decay": 1.0}),
        ("elr", {"beta": 1.0}),
        ("regce", {"decay": -0.1}),
        ("decoupling", {"least": 2.0}),
        ("mentornet", {"forget_rate": 1.0}),
        ("coteaching", {"exponent": 0.0}),
        ("coteaching_plus", {"warmup_epochs": "long"}),
        ("jocor", {"agreement": 1.5}),
        ("cores2", {"beta": -1.0}),
        ("selfie", {"noise_share": -0.1}),
        ("selfie", {"history": 0}),
        ("selfie", {"threshold": 2.0}),
        ("plc", {"threshold": 0.0}),
        ("plc", {"window": 0}),
        ("mcorrection", {"alpha": 0.0}),
        ("trevision", {"slack_lr": -1.0}),
        ("disc", {"keep": 1.0}),
        ("disc", {"q": 2.0}),
        ("ctrr", {"threshold": 1.5}),
        ("ctrr", {"decay": 1.0}),
        ("colearning", {"temperature": 0.0}),
        ("unicon", {"adjustment": 0.0}),
        ("unicon", {"contrast_weight": -1.0}),
        ("cc", {"consistency": 1.5}),
        ("cc", {"iterations": -1}),
        ("dividemix", {"threshold": 1.5}),
        ("dividemix", {"average": 0}),
        ("dividemix", {"temperature": 0.0}),
    ],
)
def test_a_wrong_option_is_named(name, options):
    ((option, value),) = options.items()
    with pytest.raises(ValueError, match=re.escape(repr(value))) as error:
        methods.create(name, **options)
    assert option in str(error.value) or option == "passive"


@pytest.mark.parametrize("augment", ["none", "standard"])
def test_views_for_themselves_are_strong_only_where_the_run_augments(augment):
    config = RunConfig(augment=augment)
    own = "plain" if augment == "none" else "weak"
    for name, strong in (("gjs", "light"), ("js", "light"), ("regce", "strong")):
        auto = "shifted" if augment == "none" else strong
        kind = Images((0.5,), (0.5,), (8, 8), 1)
        assert set(view_names(config, methods.create(name).views, kind)) == {auto}
        assert set(view_names(config, methods.create(name, view="train").views, kind)) == {own}
        assert set(view_names(config, methods.create(name, view="strong").views, kind)) == {"strong"}


def test_spans_and_ramps():
    assert [in_epochs(span, 60) for span in (0, 10, 0.25, 1.0, 1)] == [0, 10, 15, 60, 1]
    assert [ramp(epoch, 2, 4) for epoch in (1, 2, 3, 4, 6, 9)] == [0, 0, 0.25, 0.5, 1, 1]
    assert [ramp(epoch, 2, 0) for epoch in (2, 3)] == [0, 1]


def test_a_span_as_numpy_has_it_is_a_number_of_epochs():
    assert methods.create("plc", warmup_epochs=np.int64(3)).warmup_epochs == 3
    assert in_epochs(methods.create("plc", warmup_epochs=np.int64(3)).warmup_epochs, 60) == 3
    with pytest.raises(ValueError, match=r"warmup_epochs=10+"):
        methods.create("plc", warmup_epochs=10**18)


@pytest.mark.parametrize(("name", "option"), [("coteaching", "ramp_epochs"), ("selfie", "warmup_epochs")])
def test_a_wrong_span_is_named_as_the_user_names_it(name, option):
    with pytest.raises(ValueError, match=f"{option}=10.5"):
        methods.create(name, **{option: 10.5})


@pytest.mark.parametrize("wrong", [[[1, 2], [3]], [], "x", 7, {"a": 1}, [["a", "b"], ["c", "d"]], [[float("nan")]]])
def test_a_wrong_transition_matrix_is_said(wrong):
    with pytest.raises(ValueError, match=r"transition=.*"):
        methods.create("forward", transition=wrong)


def test_a_transition_matrix_may_be_an_array():
    rows = np.array([[0.9, 0.1], [0.2, 0.8]], dtype=np.float32)
    assert methods.create("forward", transition=rows).transition.tolist() == rows.tolist()


def test_traits_are_on_the_classes():
    ours = {name: methods.get(name) for name in methods.names() if methods.get(name).__module__.startswith("ncsam.")}
    assert {name for name, kind in ours.items() if not kind.resists_memorization} == {"ce"}
    assert {name for name, kind in ours.items() if kind.needs_warmup} == {
        *("gce_truncated", "limit", "nct", "nested_coteaching")
    }
    assert {name for name, kind in ours.items() if kind.is_loss} == {"ce", "gce", "sl", "apl", "js"}
    assert {name for name, kind in ours.items() if kind.images_only} == {"ctrr", "colearning", "unicon"}
    assert methods.get("ncsam.methods.gce:GCE").is_loss
    with pytest.raises(ValueError, match="unknown method 'gceee'"):
        methods.get("gceee")


def test_a_method_shows_its_options():
    assert repr(methods.create("gce", q=0.5)) == "GCE(q=0.5)"
    assert repr(methods.create("gce")) == "GCE()"
