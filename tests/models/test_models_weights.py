"""Pretrained weights: what fits is loaded, what does not is named, and nothing is unpickled."""

import logging
import pickle
import warnings

import pytest
import torch

from ncsam import models
from ncsam.models import weights
from ncsam.models.external import Wrapped


@pytest.fixture
def trained(tmp_path):
    """A small network with weights of its own, and where they are saved."""
    network = models.create("cnn_small", 10, width=4)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    path = tmp_path / "weights.pt"
    torch.save(network.state_dict(), path)
    return network, path


def same(a, b):
    return all(torch.equal(value, b.state_dict()[key]) for key, value in a.state_dict().items())


@pytest.mark.parametrize("as_type", [str, lambda path: path])
def test_a_file_comes_back_whole_and_without_a_warning(trained, as_type):
    network, path = trained
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = models.create("cnn_small", 10, width=4, pretrained=as_type(path))
    assert same(network, again)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state},
        lambda state: {f"module.{key}": value for key, value in state.items()},
        lambda state: {f"module._orig_mod.{key}": value for key, value in state.items()},
    ],
)
def test_a_checkpoint_is_unwrapped(trained, tmp_path, wrap):
    network, _ = trained
    path = tmp_path / "checkpoint.pth"
    torch.save(wrap(network.state_dict()), path)
    assert same(network, models.create("cnn_small", 10, width=4, pretrained=path))


def test_safetensors_are_read(trained, tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    network, _ = trained
    path = tmp_path / "weights.safetensors"
    save_file(network.state_dict(), path)
    assert same(network, models.create("cnn_small", 10, width=4, pretrained=path))


def test_a_head_of_other_classes_stays_fresh(trained):
    network, path = trained
    other = models.create("cnn_small", 3, width=4)
    head = other.head.weight.clone()
    report = models.load_weights(other, path)
    assert report.fresh_head == ("fc.weight", "fc.bias")
    assert (report.missing, report.unexpected) == ((), ())
    assert set(report.loaded) == {key for key in network.state_dict() if not key.startswith("fc")}
    assert torch.equal(other.head.weight, head)
    assert torch.equal(other.body[0].weight, network.body[0].weight)
    assert str(report) == "weights.pt: 18 tensors loaded; head not loaded, its classes differ (fc.weight, fc.bias)"


def test_missing_and_unexpected_are_reported_and_warned_about(trained, caplog):
    network, _ = trained
    state = network.state_dict()
    del state["body.0.weight"], state["body.1.num_batches_tracked"]  # old files lack the counters: nothing to say
    state["projector.weight"] = torch.zeros(2)
    other = models.create("cnn_small", 10, width=4)
    with (
        caplog.at_level(logging.INFO, "ncsam.models"),
        pytest.warns(UserWarning, match="1 missing.*1 unknown") as caught,
    ):
        report = models.load_weights(other, state)
    assert report.missing == ("body.0.weight",)
    assert report.unexpected == ("projector.weight",)
    assert caught[0].filename == __file__
    assert str(report) in caplog.text


def test_a_shape_that_does_not_fit_is_named_and_nothing_is_loaded(trained):
    _, path = trained
    other = models.create("cnn_small", 10, width=8)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(ValueError, match=r"body\.0\.weight is \(4, 3, 3, 3\).*model's \(8, 3, 3, 3\).*more"):
        models.load_weights(other, path)
    assert all(torch.equal(before[key], value) for key, value in other.state_dict().items())
    with pytest.raises(ValueError, match=r"body\.0\.weight is \(4, 3, 3, 3\).*model's \(4, 1"):
        models.create("cnn_small", 10, in_channels=1, width=4, pretrained=path)


def test_weights_of_another_model_are_refused(trained):
    _, path = trained
    with pytest.raises(ValueError, match=r"body\.0\.weight, .*conv1\.weight"):
        models.create("cnn_coteaching_plus", 3, pretrained=path)


class Hostile:
    ran = False

    def __reduce__(self):
        return (setattr, (Hostile, "ran", True))


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_hostile_pickle_is_refused_and_does_not_run(tmp_path, writer):
    path = tmp_path / "hostile.pth"
    if writer == "torch":
        torch.save({"fc.weight": Hostile()}, path)
    else:
        path.write_bytes(pickle.dumps({"fc.weight": Hostile()}, protocol=2))
    with pytest.raises(ValueError, match=r"hostile\.pth'.*\(tensors only\)"):
        models.create("cnn_small", 10, pretrained=path)
    assert not Hostile.ran


@pytest.mark.parametrize("name", ["broken.pt", "broken.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights at all"])
def test_a_broken_file_is_refused(tmp_path, name, content):
    if name.endswith(".safetensors"):
        pytest.importorskip("safetensors")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.\w+' is not a file of weights"):
        models.create("cnn_small", 10, pretrained=tmp_path / name)


def test_a_file_that_is_not_there_or_holds_no_state_dict(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"pretrained='.*absent\.pt'.*such"):
        models.create("cnn_small", 10, pretrained=tmp_path / "absent.pt")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(ValueError, match=r"holds a Tensor, not a state dict"):
        models.create("cnn_small", 10, pretrained=tmp_path / "tensor.pt")


def test_a_users_network_loads_a_file_too(tmp_path, monkeypatch):
    (tmp_path / "ours.py").write_text(
        "from torch import nn\ndef net(num_classes):\n    return nn.Linear(2, num_classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    torch.save({"weight": torch.ones(4, 2), "bias": torch.ones(4)}, tmp_path / "plain.pt")
    network = models.create("ours:net", 4, pretrained=tmp_path / "plain.pt")
    assert torch.equal(network.weight, torch.ones(4, 2))
    with pytest.raises(ValueError, match=r"weight is \(4, 2\), the model's \(3, 2\)"):
        models.create("ours:net", 3, pretrained=tmp_path / "plain.pt")  # no head is known of a plain module


def test_a_librarys_network_keeps_its_body_and_gets_a_new_head(tmp_path):
    first, second = (Wrapped(torch.nn.Linear(3, 2), 2, num_classes) for num_classes in (10, 4))
    torch.save(first.state_dict(), tmp_path / "wrapped.pt")
    report = models.load_weights(second, tmp_path / "wrapped.pt")
    assert report.loaded == ("network.weight", "network.bias")
    assert report.fresh_head == ("fc.weight", "fc.bias")
    assert torch.equal(second.network.weight, first.network.weight)


# Published weights, without the network ------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    """Stand in for the downloader: remember how it was called and hand out weights of the true shapes."""
    calls = []

    def load(url, **arguments):
        name = url.rpartition("/")[2].partition("-")[0]
        state = models.create(name, 1000, stem="imagenet").state_dict()
        calls.append((url, arguments, state))
        return state

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", load)
    return calls


@pytest.mark.parametrize(
    ("name", "which", "file"),
    [
        ("resnet18", True, "resnet18-f37072fd.pth"),
        ("resnet50", True, "resnet50-0676ba61.pth"),
        ("resnet50", "imagenet1k_v2", "resnet50-11ad3fa6.pth"),
    ],
)
def test_published_weights_are_verified_and_the_head_replaced(hub, name, which, file):
    options = {"stem": "imagenet"} if name == "resnet18" else {}
    network = models.create(name, 5, pretrained=which, **options)
    (url, arguments, state), *rest = hub
    assert not rest
    assert url == f"https://download.pytorch.org/models/{file}"
    assert arguments == {"map_location": "cpu", "check_hash": True, "weights_only": True}
    assert network.head.out_features == 5
    own = network.state_dict()
    assert all(torch.equal(own[key], value) for key, value in state.items() if not key.startswith("fc."))


def test_a_stem_that_cannot_fit_is_said_before_the_download(hub):
    with pytest.raises(ValueError, match=r"conv1\.weight is \(64, 3, 7, 7\).*model's \(64, 3, 3, 3\)"):
        models.create("resnet18", 10, pretrained=True)
    gray = r"features\.0\.weight is \(64, 3, 3, 3\), the model's \(64, 1, 3, 3\)"
    with pytest.raises(ValueError, match=gray), torch.device("meta"):
        models.create("vgg19_bn", 10, in_channels=1, pretrained=True)
    assert hub == []


def torchvision_names(depths, convolutions):
    """The keys of torchvision's ResNets, by their rule."""
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    keys = ["conv1.weight", *(f"bn1.{part}" for part in norm), "fc.weight", "fc.bias"]
    for stage, depth in enumerate(depths, 1):
        for block in range(depth):
            for k in range(1, convolutions + 1):
                keys += [f"layer{stage}.{block}.conv{k}.weight"]
                keys += [f"layer{stage}.{block}.bn{k}.{part}" for part in norm]
        if stage > 1 or convolutions == 3:
            keys += [f"layer{stage}.0.downsample.0.weight"]
            keys += [f"layer{stage}.0.downsample.1.{part}" for part in norm]
    return set(keys)


def test_names_are_those_of_the_published_files():
    with torch.device("meta"):
        resnet18 = models.create("resnet18", 10).state_dict()
        resnet50 = models.create("resnet50", 10).state_dict()
        vgg = models.create("vgg19_bn", 10).state_dict()
    assert set(resnet18) == torchvision_names((2, 2, 2, 2), 2)
    assert set(resnet50) == torchvision_names((3, 4, 6, 3), 3)
    convolutions = [0, 3, 7, 10, 14, 17, 20, 23, 27, 30, 33, 36, 40, 43, 46, 49]
    assert [key for key in vgg if vgg[key].dim() == 4] == [f"features.{i}.weight" for i in convolutions]
    linear = [f"classifier.{i}.{part}" for i in (0, 3, 6) for part in ("weight", "bias")]
    assert [key for key in vgg if key.startswith("classifier")] == linear
    assert len(vgg) == 16 * 7 + 6
    for name, versions in weights._PUBLISHED.items():
        with torch.device("meta"):
            own = models.create(name, 10, **({"stem": "imagenet"} if "resnet" in name else {})).state_dict()
        assert all(own[version.first_layer].shape == version.shape for version in versions.values())
