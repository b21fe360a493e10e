"""Networks by name: the registry, torchvision and timm where they are, and a user's own factory."""

import runpy

import numpy as np
import pytest
import torch
from torch import nn

from ncsam import models
from ncsam.models import registry
from ncsam.models.mlp import MLP
from ncsam.models.tapped import as_backbone

NAMES = [
    "cnn7",
    "cnn9",
    "cnn_coteaching_plus",
    "cnn_small",
    "lite0",
    "mlp",
    "preact_resnet18",
    "preact_resnet32",
    "preact_resnet34",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet8",
    "resnet9",
    "text_mean",
    "vgg19_bn",
    "wrn_28_2",
]


def test_names_are_sorted_and_complete():
    assert models.names() == NAMES


def test_the_table_has_a_row_for_each(capsys):
    runpy.run_module("ncsam.models", run_name="__main__")
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    assert sorted(rows) == NAMES
    assert rows["resnet18"].split() == ["11,173,962", "11,220,132", "512"]


def test_a_registered_function_is_found_by_its_name(monkeypatch):
    monkeypatch.setattr(registry, "_BUILDERS", dict(registry._BUILDERS))

    class Two(models.Backbone):
        num_features = 2

        def __init__(self, num_classes):
            super().__init__()
            self.fc = nn.Linear(2, num_classes)

        def features(self, x):
            return x[:, :2]

    @models.register
    def two(num_classes, in_channels=3):
        return Two(num_classes)

    assert "two" in models.names()
    network = models.create("two", 5)
    x = torch.randn(3, 4)
    torch.testing.assert_close(network(x), network.fc(x[:, :2]))
    with pytest.raises(ValueError, match="'two' is registered already"):
        models.register(two)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("resnet81", 10), {}, r"unknown model 'resnet81'\. Did you mean 'resnet8' or 'resnet18'"),
        (("resnet18", 0), {}, r"num_classes=0"),
        (("resnet18", True), {}, r"num_classes=True"),
        (("resnet18", 10, 0), {}, r"in_channels=0"),
        ((18, 10), {}, r"name=18"),
        (("resnet18", 10), {"stemm": "cifar"}, r"unknown option of resnet18 'stemm'\. Did you mean 'stem'\?"),
        (("resnet8", 10), {"stem": "cifar"}, r"unknown option of resnet8 'stem'\. Known: none"),
        (("resnet18", 10), {"stem": "mnist"}, r"stem='mnist'"),
        (("wrn_28_2", 10), {"dropout": 1.0}, r"dropout=1.0"),
        (("cnn9", 10), {"dropout": -0.1}, r"dropout=-0.1"),
        (("cnn_small", 10), {"width": 0}, r"width=0"),
        (("mlp", 10), {"hidden": 256}, r"hidden=256"),
        (("mlp", 10), {"hidden": (256, 0)}, r"hidden=\(256, 0\)"),
        (("mlp", 10), {"in_features": 0}, r"in_features=0"),
        (
            ("cnn_small", 10),
            {"pretrained": True},
            r"pretrained=True",
        ),
        (("resnet50", 10), {"pretrained": "imagenet1k_v9"}, r"unknown pretrained weights .*Did you mean 'imagenet1k_v"),
        (("resnet50", 10), {"pretrained": 3}, r"pretrained=3"),
    ],
)
def test_a_wrong_argument_is_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        models.create(*arguments, **options)


def test_families_and_pretrained_weights_are_traits(tmp_path):
    families = {name: models.traits(name).family for name in models.names()}
    assert families.pop("mlp") == "mlp"
    assert families.pop("text_mean") == "text"
    assert set(families.values()) == {"conv"}
    assert models.traits("mlp", hidden=()).family == "linear"
    assert models.traits("mine:net") == models.Traits("other")  # not before it is built
    assert models.traits("resnet18").batch_norm
    assert models.traits("mlp", in_features=4, hidden=()).weights == 2 * 5
    network = models.create("mlp", 3, in_features=4, hidden=())
    assert network.family == "linear"
    assert not network.pretrained
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    assert models.create("mlp", 3, in_features=4, hidden=(), pretrained=tmp_path / "weights.pt").pretrained


def test_families_of_other_models_are_guessed_from_their_layers():
    convolutional = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(4, 2))
    attending = nn.Sequential(nn.Conv2d(3, 4, 1), nn.TransformerEncoderLayer(4, 1), nn.Linear(4, 2))
    assert as_backbone(convolutional).family == "conv"
    assert as_backbone(attending).family == "transformer"
    assert as_backbone(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))).family == "mlp"
    assert as_backbone(nn.Sequential(nn.Linear(3, 2))).family == "linear"
    assert as_backbone(nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 2))).family == "other"


def test_options_of_a_model_have_their_defaults():
    assert models.options("mlp") == {"in_features": None, "hidden": (256,), "dropout": 0.0}
    assert models.options("timm:net") == {}


# Libraries that may be absent or broken -----------------------------------------------------------------------------

TORCHVISION = """
from torch import nn
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 1)
        self.heads = nn.Sequential()
        self.heads.add_module("hidden", nn.Linear(width, 6))
        self.heads.add_module("head", nn.Linear(6, 1000))
    def forward(self, x):
        return self.heads(self.stem(x).mean((2, 3)))
class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Conv2d(3, 1000, 1)
calls = []
def list_models(module=None):
    return ["net", "convolutional"]
def get_model(name, weights=None, **options):
    calls.append((name, weights))
    return Net(options.get("width", 4)) if name == "net" else Convolutional()
"""

TIMM = """
from torch import nn
class Net(nn.Module):
    def __init__(self, in_chans):
        super().__init__()
        self.stem = nn.Conv2d(in_chans, 5, 1)
        self.num_features, self.head_hidden_size = 9, 5
    def forward(self, x):
        return self.stem(x).mean((2, 3))
calls = []
def is_model(name):
    return name == "net"
def list_models():
    return ["net"]
def create_model(name, pretrained, num_classes, in_chans):
    calls.append((name, pretrained, num_classes))
    return Net(in_chans)
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Write a package of the given name and text where imports look first; forget it afterwards."""
    import importlib
    import sys

    def write(name, files):
        folder = tmp_path / name
        folder.mkdir()
        for file, text in files.items():
            (folder / file).write_text(text)
        for known in [key for key in sys.modules if key.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, known)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(tmp_path)
    before = dict(sys.modules)
    yield write
    for key in set(sys.modules) - set(before):
        if key.partition(".")[0] in ("torchvision", "timm", "mine"):
            del sys.modules[key]


def test_torchvision_gets_our_head_and_gives_features(library):
    library("torchvision", {"__init__.py": "", "models.py": TORCHVISION})
    network = models.create("torchvision:net", 7, width=4, pretrained=True)
    assert isinstance(network, models.Backbone)
    import torchvision.models as theirs

    assert theirs.calls == [("net", "DEFAULT")]
    x = torch.randn(2, 3, 5, 5)
    inner = network.network
    expected = inner.heads.hidden(inner.stem(x).mean((2, 3)))  # the last linear layer is gone, the one before is not
    assert network.num_features == 6
    torch.testing.assert_close(network.features(x), expected)
    torch.testing.assert_close(network(x), network.head(expected))
    assert network(x).shape == (2, 7)

    models.create("torchvision:net", 7, pretrained="imagenet1k_v2")
    models.create("torchvision:net", 7)
    assert theirs.calls[1:] == [("net", "IMAGENET1K_V2"), ("net", None)]
    with pytest.raises(ValueError, match=r"'nett'\..*'net'"):
        models.create("torchvision:nett", 7)
    with pytest.raises(ValueError, match=r"in_channels=1"):
        models.create("torchvision:net", 7, in_channels=1)
    with pytest.raises(ValueError, match="torchvision:convolutional has no linear"):
        models.create("torchvision:convolutional", 7)


def test_timm_gets_our_head_and_gives_features(library):
    library("timm", {"__init__.py": TIMM})
    network = models.create("timm:net", 7, in_channels=1)
    import timm

    assert timm.calls == [("net", False, 0)]
    x = torch.randn(2, 1, 5, 5)
    assert network.num_features == 5  # what the head sees, not the width of the maps
    torch.testing.assert_close(network.features(x), network.network.stem(x).mean((2, 3)))
    assert network(x).shape == (2, 7)
    with pytest.raises(ValueError, match="model 'nettt'"):
        models.create("timm:nettt", 7)
    with pytest.raises(ValueError, match=r"pretrained='a1_in1k'"):
        models.create("timm:net", 7, pretrained="a1_in1k")


@pytest.mark.parametrize(
    "failure",
    [
        'raise RuntimeError("operator torchvision::nms does not exist")',
        'raise OSError("libtorch.so: undefined symbol")',
        "import torchvision; torchvision.extension",
        "import no_such_module_anywhere",
    ],
)
def test_a_library_that_is_installed_and_broken_is_said_to_be(library, failure):
    library("torchvision", {"__init__.py": failure})
    for _ in range(2):  # a half-imported package must not change the answer
        with pytest.raises(ImportError, match=r"'torchvision:net'.*'torchvision'"):
            models.create("torchvision:net", 7)


def test_a_library_that_is_absent_is_said_to_be(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"'timm:net'.*'timm'"):
        models.create("timm:net", 7)


def test_our_names_are_torchvisions():
    """Where torchvision works: the same keys, shapes and bits."""
    try:
        from torchvision import models as theirs
    except Exception as error:
        pytest.skip(f"torchvision does not import: {error}")
    for name, options in (("resnet18", {"stem": "imagenet"}), ("resnet50", {})):
        reference = theirs.get_model(name).eval()
        network = models.create(name, 1000, **options).eval()
        network.load_state_dict(reference.state_dict(), strict=True)
        x = torch.randn(2, 3, 64, 64)
        assert torch.equal(network(x), reference(x))


# The user's own -----------------------------------------------------------------------------------------------------

MINE = """
from torch import nn
def plain(num_classes):
    return nn.Linear(4, num_classes)
def channels(num_classes, in_channels, width=2):
    return nn.Conv2d(in_channels, num_classes * width, 1)
def keywords(**given):
    network = nn.Linear(1, given.pop("num_classes"))
    network.given = given
    return network
def nothing(num_classes):
    return None
class Net(nn.Linear):
    def __init__(self, num_classes):
        super().__init__(3, num_classes)
    @classmethod
    def small(cls, num_classes):
        return cls(num_classes)
class Named(nn.Linear):
    def __init__(self, width, n_classes):
        super().__init__(width, n_classes)
number = 3
"""


def test_a_users_factory_is_called_with_what_it_takes(library):
    library("mine", {"__init__.py": MINE})
    assert models.create("mine:plain", 6, in_channels=1).weight.shape == (6, 4)
    assert models.create("mine:channels", 6, in_channels=1, width=3).weight.shape == (18, 1, 1, 1)
    assert models.create("mine:keywords", 6, pretrained=True).given == {"in_channels": 3, "pretrained": True}
    assert models.create("mine:keywords", 6).given == {"in_channels": 3}
    assert models.create("mine:Net", 6).weight.shape == (6, 3)
    assert models.create("mine:Net.small", 6).weight.shape == (6, 3)
    assert models.create("mine:Named", 6, width=5).weight.shape == (6, 5)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("mine:absent", {}, ValueError, r"model='mine:absent'.*'mine', which has no 'absent'"),
        ("mine:number", {}, ValueError, r"model='mine:number'.*'number' is of type int"),
        ("mine:nothing", {}, ValueError, r"expected a torch.nn.Module.*this one returned NoneType"),
        ("mine:plain", {"pretrained": True}, ValueError, r"pretrained=True"),
        ("no_such_module_at_all:net", {}, ImportError, r"importing 'no_such_module_at_all' failed \(.*No module named"),
        ("mine.broken:net", {}, ImportError, r"importing 'mine.broken' failed \(ZeroDivisionError: division by zero"),
        ("torchvison:resnet18", {}, ImportError, r"Did you mean 'torchvision:resnet18'\?"),
        ("mine:", {}, ValueError, r"name='mine:'"),
        (":net", {}, ValueError, r"name=':net'"),
    ],
)
def test_a_users_factory_that_fails_is_said_to(library, name, options, error, message):
    library("mine", {"__init__.py": MINE, "broken.py": "1 / 0"})
    with pytest.raises(error, match=message):
        models.create(name, 10, **options)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "mlp",
            {"num_classes": 10**30},
            "num_classes=1000000000000000000000000000000",
        ),
        ("mlp", {"in_channels": True}, "in_channels=True"),
        (
            "mlp",
            {"hidden": (10**9,)},
            r"hidden=\(1000000000,\)",
        ),
        (
            "mlp",
            {"in_features": 10**9},
            r"options of mlp={.*'in_features': 1000000000.*}",
        ),
        ("cnn_small", {"width": 10**9}, "width=1000000000"),
        ("text_mean", {"tokens": 10**9, "width": 1000}, "options of text_mean={.*}"),
        ("text_mean", {"tokens": 0}, "tokens=0"),
    ],
)
def test_a_network_too_large_is_refused_before_it_takes_memory(name, options, said):
    with pytest.raises(ValueError, match=said):
        models.create(name, **{"num_classes": 3, **options})


def test_counting_weights_draws_nothing_and_numbers_of_numpy_count():
    torch.manual_seed(0)
    network = models.create("mlp", np.int64(3), np.int64(1), in_features=np.int64(4))
    torch.manual_seed(0)
    alike = MLP(3, 4, (256,), 0.0)
    assert all(map(torch.equal, network.parameters(), alike.parameters()))
    assert all(p.device.type == "cpu" for p in network.parameters())
