"""The networks themselves: parameters counted layer by layer, shapes through the stages, wiring, initialization."""

import copy
import math
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import models
from ncsam.models.backbone import Backbone
from ncsam.models.preact_resnet import PreActBlock
from ncsam.models.resnet import BasicBlock, Bottleneck
from ncsam.models.vgg import VGG


def conv(inputs: int, outputs: int, kernel: int, bias: bool = False) -> int:
    return inputs * outputs * kernel * kernel + bias * outputs


def bn(width: int) -> int:
    return 2 * width


def linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def basic(inputs: int, width: int) -> int:
    """A post-activation block; a new width brings a projection with BN."""
    projection = conv(inputs, width, 1) + bn(width) if inputs != width else 0
    return conv(inputs, width, 3) + bn(width) + conv(width, width, 3) + bn(width) + projection


def preact(inputs: int, width: int) -> int:
    """A pre-activation block; a new width brings a bare projection."""
    projection = conv(inputs, width, 1) if inputs != width else 0
    return bn(inputs) + conv(inputs, width, 3) + bn(width) + conv(width, width, 3) + projection


def bottleneck(inputs: int, width: int) -> int:
    projection = conv(inputs, 4 * width, 1) + bn(4 * width) if inputs != 4 * width else 0
    inner = conv(inputs, width, 1) + bn(width) + conv(width, width, 3) + bn(width)
    return inner + conv(width, 4 * width, 1) + bn(4 * width) + projection


def staged(block, inputs, widths, depths, expansion=1):
    total = 0
    for width, depth in zip(widths, depths, strict=True):
        for _ in range(depth):
            total += block(inputs, width)
            inputs = width * expansion
    return total


WIDE, NARROW = (64, 128, 256, 512), (16, 32, 64)
VGG_WIDTHS = [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8


def inverted(in_width: int, width: int, size: int, expansion: int) -> int:
    """An inverted residual block: expand by 1x1 (if at all), one filter per channel, project by 1x1."""
    inner = expansion * in_width
    expand = conv(in_width, inner, 1) + bn(inner) if expansion > 1 else 0
    return expand + inner * size * size + bn(inner) + conv(inner, width, 1) + bn(width)


def count(name: str, num_classes: int, in_channels: int = 3, **options: object) -> int:
    with torch.device("meta"):
        network = models.create(name, num_classes, in_channels, **options)
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "num_classes", "options", "published"),
    [
        ("resnet18", 10, {}, 11_173_962),
        ("resnet18", 100, {}, 11_220_132),
        ("resnet34", 10, {}, 21_282_122),
        ("resnet34", 100, {}, 21_328_292),
        ("resnet18", 1000, {"stem": "imagenet"}, 11_689_512),  # torchvision's
        ("resnet34", 1000, {"stem": "imagenet"}, 21_797_672),  # torchvision's
        ("resnet50", 1000, {}, 25_557_032),  # torchvision's
        ("vgg19_bn", 1000, {}, 143_678_248),  # torchvision's
        ("preact_resnet18", 10, {}, 11_171_274),  # DivideMix
        ("preact_resnet18", 10, {"stem_bn": False}, 11_171_146),  # Co-teaching+
        ("preact_resnet18", 10, {"stem_bn": False, "final_bn": True}, 11_172_170),  # the paper: 11,171,146 + 2 * 512
        ("preact_resnet32", 10, {}, 466_714),
        ("cnn_coteaching_plus", 10, {}, 62_006),
        ("wrn_28_2", 10, {}, 1_467_610),
    ],
)
def test_parameters_are_as_published(name, num_classes, options, published):
    assert count(name, num_classes, **options) == published


@pytest.mark.parametrize(("channels", "classes"), [(1, 10), (3, 100)])
def test_parameters_are_the_sum_over_layers(channels, classes):
    k = channels
    stem = conv(k, 64, 3)
    expected = {
        "resnet8": conv(k, 16, 3) + bn(16) + staged(basic, 16, NARROW, (1, 1, 1)) + linear(64, classes),
        "resnet18": stem + bn(64) + staged(basic, 64, WIDE, (2, 2, 2, 2)) + linear(512, classes),
        "resnet34": stem + bn(64) + staged(basic, 64, WIDE, (3, 4, 6, 3)) + linear(512, classes),
        "resnet50": conv(k, 64, 7) + bn(64) + staged(bottleneck, 64, WIDE, (3, 4, 6, 3), 4) + linear(2048, classes),
        "preact_resnet18": stem + bn(64) + staged(preact, 64, WIDE, (2, 2, 2, 2)) + linear(512, classes),
        "preact_resnet34": stem + bn(64) + staged(preact, 64, WIDE, (3, 4, 6, 3)) + linear(512, classes),
        "preact_resnet32": conv(k, 16, 3) + staged(preact, 16, NARROW, (5, 5, 5)) + bn(64) + linear(64, classes),
        "wrn_28_2": conv(k, 16, 3) + staged(preact, 16, (32, 64, 128), (4, 4, 4)) + bn(128) + linear(128, classes),
        "vgg19_bn": sum(
            conv(i, o, 3, bias=True) + bn(o) for i, o in zip([k, *VGG_WIDTHS[:-1]], VGG_WIDTHS, strict=True)
        )
        + linear(512 * 49, 4096)
        + linear(4096, 4096)
        + linear(4096, classes),
        "text_mean": 20_002 * 128 + linear(128, classes),
        "cnn9": sum(
            conv(i, o, 3, bias=True) + bn(o)
            for i, o in zip(
                [k, 128, 128, 128, 256, 256, 256, 512, 256], [128, 128, 128, 256, 256, 256, 512, 256, 128], strict=True
            )
        )
        + linear(128, classes),
        "cnn7": sum(
            conv(i, o, 3, bias=True) + bn(o)
            for i, o in zip([k, 64, 64, 128, 128, 196], [64, 64, 128, 128, 196, 16], strict=True)
        )
        + linear(256, classes),
        "cnn_coteaching_plus": conv(k, 6, 5, bias=True)
        + conv(6, 16, 5, bias=True)
        + linear(400, 120)
        + linear(120, 84)
        + linear(84, classes),
        "cnn_small": conv(k, 32, 3)
        + bn(32)
        + conv(32, 64, 3)
        + bn(64)
        + conv(64, 128, 3)
        + bn(128)
        + linear(128, classes),
        "lite0": conv(k, 32, 3)
        + bn(32)
        + sum(
            inverted(i, o, size, expansion)
            for i, o, size, expansion in zip(
                [32, 16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192],
                [16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320],
                [3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3],
                [1, *[6] * 15],
                strict=True,
            )
        )
        + conv(320, 1280, 1)
        + bn(1280)
        + linear(1280, classes),
        "resnet9": conv(k, 32, 4)
        + bn(32)
        + conv(32, 64, 3)
        + 2 * conv(64, 64, 3)
        + 3 * bn(64)
        + conv(64, 128, 3)
        + 2 * conv(128, 128, 3)
        + 3 * bn(128)
        + linear(128, classes),
        "mlp": linear(k * 1024, 256) + linear(256, classes),
    }
    assert sorted(expected) == models.names()
    assert {name: count(name, classes, channels) for name in expected} == expected


def test_options_change_the_parameters_they_say():
    assert count("mlp", 10, 1, in_features=784) == linear(784, 256) + linear(256, 10)
    assert count("mlp", 10, 1, in_features=64, hidden=()) == linear(64, 10)
    assert count("mlp", 3, in_features=5, hidden=(7, 11)) == linear(5, 7) + linear(7, 11) + linear(11, 3)
    assert count("cnn_small", 10, 1, width=4) == conv(1, 4, 3) + conv(4, 8, 3) + conv(8, 16, 3) + 56 + linear(16, 10)


@pytest.mark.parametrize(
    ("name", "size", "options", "maps"),
    [
        ("resnet18", 32, {}, [(64, 32), (128, 16), (256, 8), (512, 4)]),
        ("resnet18", 64, {"stem": "imagenet"}, [(64, 16), (128, 8), (256, 4), (512, 2)]),
        ("resnet34", 32, {}, [(64, 32), (128, 16), (256, 8), (512, 4)]),
        ("resnet50", 224, {}, [(256, 56), (512, 28), (1024, 14), (2048, 7)]),
        ("resnet8", 8, {}, [(16, 8), (32, 4), (64, 2)]),
        ("preact_resnet18", 64, {}, [(64, 64), (128, 32), (256, 16), (512, 8)]),
        ("preact_resnet34", 32, {}, [(64, 32), (128, 16), (256, 8), (512, 4)]),
        ("preact_resnet32", 32, {}, [(16, 32), (32, 16), (64, 8)]),
        ("wrn_28_2", 32, {}, [(32, 32), (64, 16), (128, 8)]),
    ],
)
def test_stages_halve_the_image(name, size, options, maps):
    seen = []
    with torch.device("meta"):
        network = models.create(name, 10, **options)
        for stage in range(1, len(maps) + 1):
            network.get_submodule(f"layer{stage}").register_forward_hook(
                lambda _module, _inputs, out: seen.append((out.shape[1], out.shape[2], out.shape[3]))
            )
        assert network(torch.empty(2, 3, size, size)).shape == (2, 10)
    assert seen == [(width, side, side) for width, side in maps]


@pytest.mark.parametrize(
    ("name", "before"), [("cnn9", (128, 2, 2)), ("cnn7", (16, 4, 4)), ("cnn_coteaching_plus", (16, 10, 10))]
)
def test_plain_networks_shrink_as_in_their_sources(name, before):
    seen = []
    network = models.create(name, 10)
    last = network.conv2 if name == "cnn_coteaching_plus" else network.body
    last.register_forward_hook(lambda _module, _inputs, out: seen.append(tuple(out.shape[1:])))
    network(torch.randn(2, 3, 32, 32))
    assert seen == [before]


def test_cnn_coteaching_plus_at_32_is_its_source():
    network = models.create("cnn_coteaching_plus", 10)
    x = torch.randn(2, 3, 32, 32)
    h = F.max_pool2d(network.conv1(x).relu(), 2)
    h = F.max_pool2d(network.conv2(h).relu(), 2).reshape(2, 400)
    expected = network.fc(network.fc2(network.fc1(h).relu()).relu())
    torch.testing.assert_close(network(x), expected)


@pytest.mark.parametrize("name", ["cnn_small", "resnet8", "mlp"])
def test_digits_of_8x8_pass(name):
    network = models.create(name, 10, in_channels=1, **({"in_features": 64} if name == "mlp" else {}))
    assert network(torch.randn(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.parametrize(
    ("name", "minimum"),
    [("cnn9", 28), ("cnn7", 8), ("cnn_coteaching_plus", 16), ("cnn_small", 4), ("resnet9", 8), ("vgg19_bn", 32)],
)
def test_the_smallest_image_passes_and_a_smaller_one_is_refused(name, minimum):
    with torch.device("meta"):
        network = models.create(name, 10).eval()
        assert network(torch.empty(2, 3, minimum, minimum)).shape == (2, 10)
        with pytest.raises(ValueError, match=rf"{name} needs images of at least {minimum}x{minimum} pixels, got 9x"):
            network(torch.empty(2, 3, 9, minimum - 1))


def test_mlp_says_what_it_was_built_for():
    network = models.create("mlp", 10, in_channels=1, in_features=64)
    with pytest.raises(ValueError, match=r"takes 64.*got 784 .*in_features=784"):
        network(torch.randn(2, 1, 28, 28))
    assert network(torch.randn(2, 64)).shape == network(torch.randn(2, 4, 4, 4)).shape == (2, 10)


def built(name: str) -> Backbone:
    network = models.create(name, 10)
    assert isinstance(network, Backbone)
    return network


@pytest.fixture(scope="module")
def vgg() -> Backbone:
    """With hidden layers of 256 in place of 4096, which would be 120 million parameters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VGG, "num_features", 256)
        network = built("vgg19_bn")
    network.num_features = 256
    return network


#: Deeper stacks of the blocks of resnet18, preact_resnet18 and resnet50.
DEEPER = ("preact_resnet34", "resnet34")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.stress if name in DEEPER else ()) for name in models.names()]
)
def test_logits_are_the_head_of_the_features_and_every_parameter_learns(name, request):
    network = request.getfixturevalue("vgg") if name == "vgg19_bn" else built(name)
    x = torch.randn(4, 3, 32, 32)
    if name == "text_mean":
        x = {"input_ids": torch.randint(0, 99, (4, 7)), "attention_mask": torch.rand(4, 7) < 0.8}
    network.eval()
    features = network.features(x)
    assert features.shape == (4, network.num_features)
    torch.testing.assert_close(network(x), F.linear(features, network.head.weight, network.head.bias), rtol=0, atol=0)
    assert network.head is network.get_submodule(network.head_name)

    network.train()
    F.cross_entropy(network(x), torch.tensor([0, 1, 2, 3])).backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
    assert network.head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["resnet8", "preact_resnet32", "wrn_28_2", "cnn_small", "mlp"])
def test_float64_channels_last_and_deepcopy_change_nothing(name):
    network = built(name).eval()
    x = torch.randn(2, 3, 32, 32)
    expected = network(x)
    torch.testing.assert_close(copy.deepcopy(network)(x), expected, rtol=0, atol=0)
    double = copy.deepcopy(network).double()(x.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), expected, rtol=1e-4, atol=1e-4)
    last = copy.deepcopy(network).to(memory_format=torch.channels_last)
    torch.testing.assert_close(last(x.to(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-4)


def test_replaced_head_fits_and_leaves_the_features():
    network = built("cnn_small").double()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    network.eval()
    before = network.features(x)
    network.replace_head(7)
    assert network(x).shape == (2, 7)
    assert network.head.weight.dtype == torch.float64
    torch.testing.assert_close(network.features(x), before, rtol=0, atol=0)


def test_vgg_deepcopy_and_new_head_use_their_own_layers():
    with torch.device("meta"):
        network = models.create("vgg19_bn", 10)
        twin = copy.deepcopy(network)
        twin.replace_head(3)
    assert twin.features.classifier[0] is twin.classifier
    assert twin.features.classifier[0] is not network.classifier
    assert twin(torch.empty(1, 3, 64, 64, device="meta")).shape == (1, 3)
    assert len(list(network.parameters())) == 16 * 4 + 3 * 2  # each registered once


def normalize(x: Tensor, layer: nn.BatchNorm2d) -> Tensor:
    """Batch normalization in evaluation, spelt out."""
    scale = layer.weight / (layer.running_var + layer.eps).sqrt()
    return (x - layer.running_mean[:, None, None]) * scale[:, None, None] + layer.bias[:, None, None]


def with_statistics(block: nn.Module) -> nn.Module:
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                tensor.uniform_(0.5, 1.5)
    return block.eval()


@pytest.mark.parametrize(("inputs", "stride"), [(4, 1), (3, 1), (4, 2)])
def test_preact_block_is_its_formula(inputs, stride):
    block = with_statistics(PreActBlock(inputs, 4, stride))
    x = torch.randn(2, inputs, 6, 6)
    active = normalize(x, block.bn1).clamp(min=0)
    branch = F.conv2d(active, block.conv1.weight, stride=stride, padding=1)
    branch = F.conv2d(normalize(branch, block.bn2).clamp(min=0), block.conv2.weight, padding=1)
    changes = inputs != 4 or stride != 1
    assert (block.shortcut is not None) == changes
    shortcut = F.conv2d(active, block.shortcut.weight, stride=stride) if changes else x
    torch.testing.assert_close(block(x), branch + shortcut)


@pytest.mark.parametrize(("inputs", "stride"), [(4, 1), (3, 1), (4, 2)])
def test_basic_block_is_its_formula(inputs, stride):
    block = with_statistics(BasicBlock(inputs, 4, stride))
    x = torch.randn(2, inputs, 6, 6)
    branch = normalize(F.conv2d(x, block.conv1.weight, stride=stride, padding=1), block.bn1).clamp(min=0)
    branch = normalize(F.conv2d(branch, block.conv2.weight, padding=1), block.bn2)
    changes = inputs != 4 or stride != 1
    if changes:
        shortcut = normalize(F.conv2d(x, block.downsample[0].weight, stride=stride), block.downsample[1])
    else:
        assert block.downsample is None
        shortcut = x
    torch.testing.assert_close(block(x), (branch + shortcut).clamp(min=0))


def test_bottleneck_strides_in_the_middle():
    block = Bottleneck(8, 4, 2)
    assert [block.conv1.stride, block.conv2.stride, block.conv3.stride] == [(1, 1), (2, 2), (1, 1)]
    assert block(torch.randn(2, 8, 6, 6)).shape == (2, 16, 3, 3)


def test_dropout_is_off_in_evaluation_only():
    x = torch.randn(2, 3, 32, 32)
    for name, options in (("cnn9", {}), ("wrn_28_2", {"dropout": 0.3}), ("mlp", {"dropout": 0.3})):
        network = models.create(name, 10, **options)
        network.eval()
        assert torch.equal(network(x), network(x)), name
        for module in network.modules():
            if isinstance(module, (nn.Dropout, nn.Dropout2d)):
                module.train()
        assert not torch.equal(network(x), network(x)), name


def test_convolutions_start_as_he_says():
    network = built("resnet18")
    for key, parameter in network.named_parameters():
        if parameter.dim() == 4:
            fan_out = parameter.shape[0] * parameter.shape[2] * parameter.shape[3]
            n = parameter.numel()
            expected = math.sqrt(2 / fan_out)
            # The sample deviation of n normal numbers strays by about expected / sqrt(2n); six of those is never.
            assert abs(parameter.std().item() - expected) < 6 * expected / math.sqrt(2 * n), key
            assert abs(parameter.mean().item()) < 6 * expected / math.sqrt(n), key


def test_vgg_starts_as_torchvision_does(vgg):
    network = vgg
    assert all(not module.bias.any() for module in network.modules() if isinstance(module, (nn.Conv2d, nn.Linear)))
    assert network.classifier[0].weight.std().item() == pytest.approx(0.01, rel=1e-3)
    assert network.classifier[3].weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert network.features[3].weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.03)


@pytest.mark.stress  # compiling takes long, and whether a network is one graph is tested below
@pytest.mark.skipif(shutil.which("g++") is None, reason="the default compiler of torch.compile needs a C++ compiler")
def test_a_compiled_network_agrees():
    network = models.create("mlp", 10, in_features=12, hidden=(8,))
    x = torch.randn(4, 12)
    torch.testing.assert_close(torch.compile(network, fullgraph=True)(x), network(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet8", "mlp"])
def test_networks_trace_as_one_graph(name):
    network = models.create(name, 10).eval()
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(torch.compile(network, fullgraph=True, backend="eager")(x), network(x))
