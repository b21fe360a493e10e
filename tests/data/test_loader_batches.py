"""The loader over what is in memory: values, determinism, resuming, sharding, state, errors."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ncsam.data.augment.views import VIEWS, View
from ncsam.data.loading.loader import Batch, Loader
from ncsam.data.loading.sampling import Batches, Layout, epoch_order, uniforms
from ncsam.data.types import Split

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def split(samples: int = 53, side: int = 8) -> Split:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (samples, side, side, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, samples)
    return Split(images, labels, clean=(labels + 1) % 10)


def same(first: Batch, second: Batch) -> bool:
    pairs = zip((*first.views, first.labels, first.index), (*second.views, second.labels, second.index), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def joined(batches: Iterable[Batch]) -> Batch:
    several = list(batches)
    views = tuple(torch.cat(view) for view in zip(*(batch.views for batch in several), strict=True))
    return Batch(views, torch.cat([b.labels for b in several]), torch.cat([b.index for b in several]))


# --- what a batch holds


def test_plain_batches_hold_the_normalized_images_and_observed_labels() -> None:
    data = split()
    for batch in Loader(data, 16, views="plain", mean=MEAN, std=STD).iterate(0):
        index = batch.index.numpy()
        expected = (data.inputs[index] / 255 - np.array(MEAN)) / np.array(STD)
        np.testing.assert_allclose(batch.views[0].permute(0, 2, 3, 1).numpy(), expected, atol=2e-6)
        np.testing.assert_array_equal(batch.labels.numpy(), data.labels[index])
        assert batch.views[0].dtype == torch.float32
        assert batch.labels.dtype == batch.index.dtype == torch.int64


def test_an_epoch_holds_every_sample_once_in_a_new_order() -> None:
    loader = Loader(split(), 16)
    epochs = [joined(loader.iterate(epoch)).index.tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(53)) for order in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert [len(batch) for batch in loader.iterate(0)] == [13, 13, 13, 14]
    full = loader.with_options(batches="full")
    assert [len(batch) for batch in full.iterate(0)] == [16, 16, 16, 5]
    assert joined(full.iterate(0)).index.tolist() == epochs[0]
    assert [len(batch) for batch in full.with_options(drop_last=True).iterate(0)] == [16, 16, 16]
    assert joined(loader.with_options(shuffle=False).iterate(1)).index.tolist() == list(range(53))


def test_a_weak_view_is_a_padded_window_that_the_draws_name() -> None:
    data = split()
    loader = Loader(data, 53, views=View(crop="window", padding=2, flip=0.5), seed=7)
    (batch,) = loader.iterate(3)
    draws = uniforms(53, 8, 7, 3, 0, 0)
    for i, index in enumerate(batch.index.tolist()):
        padded = np.pad(data.inputs[index], ((2, 2), (2, 2), (0, 0)))
        top, left = int(draws[i, 0] * 5), int(draws[i, 1] * 5)
        window = padded[top : top + 8, left : left + 8]
        window = window[:, ::-1] if draws[i, 4] < 0.5 else window
        np.testing.assert_allclose(batch.views[0][i].permute(1, 2, 0).numpy(), window / 255, atol=1e-6)


def test_views_of_one_batch_draw_their_own_numbers() -> None:
    (batch,) = Loader(split(), 53, views=("weak", "weak", "strong", "strong", "plain")).iterate(0)
    first, second, third, fourth, plain = batch.views
    for a, b in ((first, second), (third, fourth), (first, third), (first, plain)):
        assert float((a != b).flatten(1).any(1).float().mean()) > 0.8
    windows = [uniforms(20_000, 8, 0, 0, 0, view)[:, :6] for view in (0, 1)]
    correlation = np.corrcoef(windows[0].T, windows[1].T)[:6, 6:]
    assert np.abs(correlation).max() < 0.03


def test_a_view_does_not_depend_on_the_views_beside_it() -> None:
    (alone,) = Loader(split(), 53, views="weak").iterate(0)
    (beside,) = Loader(split(), 53, views=("weak", "strong")).iterate(0)
    assert torch.equal(alone.views[0], beside.views[0])


def test_larger_images_are_cropped_to_size() -> None:
    data = split(side=8)
    (plain,) = Loader(data, 53, views="plain", size=(4, 6), shuffle=False).iterate(0)
    np.testing.assert_allclose(plain.views[0].permute(0, 2, 3, 1).numpy(), data.inputs[:, 2:6, 1:7] / 255, atol=1e-6)
    (weak,) = Loader(data, 53, views=("weak", "resized"), size=(4, 6)).iterate(0)
    assert [view.shape for view in weak.views] == [(53, 3, 4, 6)] * 2


def test_small_batches_do_not_differ_from_large_ones() -> None:
    """Batches are rendered in blocks; the block's length must not show."""
    data = split(side=32, samples=900)  # more than one block
    loader = Loader(data, 100, views=("weak_cutout", "strong"), mean=MEAN, std=STD)
    whole = list(loader.iterate(0))
    for number in range(9):
        assert same(next(loader.iterate(0, number)), whole[number])


@pytest.mark.parametrize("name", sorted(VIEWS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types_and_memory_order(name: str, dtype: torch.dtype) -> None:
    wide = Loader(split(), 16, views=name, mean=MEAN, std=STD)
    narrow = wide.with_options(dtype=dtype, channels_last=True)
    for expected, batch in zip(wide.iterate(0), narrow.iterate(0), strict=True):
        assert batch.views[0].dtype == dtype
        assert batch.views[0].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch.views[0], expected.views[0].to(dtype))


def test_gray_images_with_and_without_a_channel_axis() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 6), dtype=np.uint8)
    labels = np.zeros(20, dtype=np.int64)
    two = [
        Loader(Split(array, labels), 20, views="strong", mean=(0.5,), std=(0.5,))
        for array in (images, images[..., None])
    ]
    assert same(*(next(loader.iterate(0)) for loader in two))
    assert next(two[0].iterate(0)).views[0].shape == (20, 1, 6, 6)


def test_features_are_normalized_and_otherwise_untouched() -> None:
    values = np.random.default_rng(0).normal(3, 2, (10, 4)).astype(np.float32)
    mean, std = values.mean(0), values.std(0)
    loader = Loader(Split(values, np.arange(10)), 5, views=("plain", "plain"), mean=mean.tolist(), std=std.tolist())
    for batch in loader.iterate(0):
        expected = (values[batch.index.numpy()] - mean) / std
        for view in batch.views:
            np.testing.assert_allclose(view.numpy(), expected, atol=1e-5)
    raw = joined(Loader(Split(values, np.arange(10)), 5, shuffle=False).iterate(0))
    np.testing.assert_array_equal(raw.views[0].numpy(), values)


def test_batches_can_be_moved_and_kept() -> None:
    loader = Loader(split(), 16, views=("weak", "plain"))
    kept = list(loader.iterate(0))
    assert all(same(a, b) for a, b in zip(kept, loader.iterate(0), strict=True))
    moved = kept[0].to("meta")
    assert {part.device.type for part in (*moved.views, moved.labels, moved.index)} == {"meta"}
    assert len(kept[0]) == 13


# --- determinism and resuming


def test_bits_depend_on_seed_and_epoch_alone() -> None:
    first = Loader(split(), 16, views=("weak_cutout", "strong"), seed=5)
    other = Loader(split(), 16, views=("weak_cutout", "strong"), seed=5)
    list(other.iterate(9))
    assert same(joined(first.iterate(2)), joined(other.iterate(2)))
    assert not same(joined(first.iterate(2)), joined(first.with_options(seed=6).iterate(2)))
    assert not torch.equal(joined(first.iterate(2)).views[0], joined(first.iterate(3)).views[0])


def test_the_global_generators_are_neither_read_nor_moved() -> None:
    loader = Loader(split(), 16, views=("strong", "resized"))
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first = joined(loader.iterate(0))
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert random.getstate() == before[2]
    torch.manual_seed(2)
    assert same(first, joined(loader.iterate(0)))


@pytest.mark.parametrize("batches", ["equal", "full"])
def test_an_epoch_can_be_entered_at_every_batch(batches: Batches) -> None:
    loader = Loader(split(), 8, views=("weak_cutout", "strong"), batches=batches)
    whole = list(loader.iterate(4))
    assert len(whole) == len(loader) == 7
    for start in range(8):
        rest = list(loader.iterate(4, start))
        assert len(rest) == 7 - start
        assert all(same(a, b) for a, b in zip(rest, whole[start:], strict=True))


def test_state_goes_on_after_the_last_batch_seen() -> None:
    run = Loader(split(), 8)
    uninterrupted = [list(run) for _ in range(3)]
    for epoch in range(2):
        for stop in range(1, 8):
            loader = Loader(split(), 8)
            loader.set_epoch(epoch)
            for step, _ in enumerate(loader, 1):
                if step == stop:
                    state = loader.state_dict()
                    break
            resumed = Loader(split(), 8)
            resumed.load_state_dict(state)
            rest = list(resumed)
            assert len(rest) == 7 - stop
            assert all(same(a, b) for a, b in zip(rest, uninterrupted[epoch][stop:], strict=True))
            assert all(same(a, b) for a, b in zip(resumed, uninterrupted[epoch + 1], strict=True))


def test_a_glance_at_the_first_batch_costs_nothing() -> None:
    loader = Loader(split(), 8)
    first = next(iter(loader))
    assert len(list(loader)) == 7
    assert loader.state_dict()["epoch"] == 1
    loader.set_epoch(0)
    assert same(next(iter(loader)), first)


def test_a_state_of_another_run_is_refused() -> None:
    state = Loader(split(), 8, seed=1).state_dict()
    for loader, name in (
        (Loader(split(), 8), "seed"),
        (Loader(split(52), 8, seed=1), "samples"),
        (Loader(split(), 4, seed=1), "global_batch"),
        (Loader(split(), 8, seed=1, batches="full"), "equal_batches"),
    ):
        with pytest.raises(ValueError, match=name):
            loader.load_state_dict(state)
    Loader(split(), 4, seed=1, world_size=2).load_state_dict(state)
    with pytest.raises(ValueError, match="a batch from 0 to 7"):
        Loader(split(), 8, seed=1).load_state_dict({**state, "batch": 8})


# --- ranks


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    drop_last=st.booleans(),
    batches=st.sampled_from(["equal", "full"]),
)
def test_ranks_share_each_global_batch(
    samples: int, batch_size: int, world_size: int, drop_last: bool, batches: Batches
) -> None:
    whole, equal = batch_size * world_size, batches == "equal"
    if samples < world_size or (drop_last and (equal or samples < whole)):
        return
    layouts = [Layout(samples, batch_size, rank, world_size, batches, drop_last) for rank in range(world_size)]
    seen: list[int] = []
    lengths: list[int] = []
    assert len({len(layout) for layout in layouts}) == 1
    for batch in range(len(layouts[0])):
        parts = [layout.part(batch) for layout in layouts]
        together = np.concatenate([part.positions for part in parts])
        sizes = [len(part.positions) for part in parts]
        assert min(sizes) >= 1
        assert max(sizes) <= (max(2, batch_size) if equal else batch_size)
        assert max(sizes) - min(sizes) <= (1 if equal else 0)
        lengths.append(len(together))
        assert len(together) == parts[0].rows
        rows = [row for part in parts for row in range(part.start, part.stop)]
        assert rows == list(range(parts[0].rows))
        if not equal:
            expected = np.arange(batch * whole, min((batch + 1) * whole, samples))
            np.testing.assert_array_equal(together[: len(expected)], expected)
            padding = together[len(expected) :]
            assert len(padding) < world_size
            np.testing.assert_array_equal(padding, np.arange(len(padding)) % samples)
            together = expected
        seen.extend(together.tolist())
    assert seen == list(range(samples // whole * whole if drop_last else samples))
    if equal:
        assert max(lengths) - min(lengths) <= 1
        if batch_size > 1:
            assert len(lengths) == -(-samples // whole)


@pytest.mark.parametrize("batches", ["equal", "full"])
@pytest.mark.parametrize("samples", [48, 53])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_joined_ranks_equal_one_process_with_the_joined_batch(samples: int, world_size: int, batches: Batches) -> None:
    data = split(samples)
    one = Loader(data, 4 * world_size, views=("weak_cutout", "strong"), mean=MEAN, std=STD, batches=batches)
    ranks = [one.with_options(batch_size=4, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert {len(rank) for rank in ranks} == {len(one)}
    for expected, *parts in zip(one.iterate(1), *(rank.iterate(1) for rank in ranks), strict=True):
        together = joined(parts)
        count = len(expected)  # what follows is padding of a short last batch
        assert len(together) - count < (1 if batches == "equal" else world_size)
        cut = Batch(tuple(view[:count] for view in together.views), together.labels[:count], together.index[:count])
        assert same(cut, expected)


def test_evaluation_passes_every_sample_once_in_order_on_any_number_of_ranks() -> None:
    data = split()
    train = Loader(data, 4, views="strong", mean=MEAN, std=STD, batches="full", drop_last=True)
    expected = (data.inputs / 255 - np.array(MEAN)) / np.array(STD)
    for world_size in (1, 2, 3):
        ranks = [train.with_options(rank=rank, world_size=world_size).evaluation() for rank in range(world_size)]
        parts = [part for batch in zip(*(rank.iterate(0) for rank in ranks), strict=True) for part in batch]
        assert max(len(part) for part in parts) <= 16
        whole = joined(parts)
        assert whole.index.tolist() == list(range(53))
        np.testing.assert_allclose(whole.views[0].permute(0, 2, 3, 1).numpy(), expected, atol=2e-6)


def test_a_subset_keeps_the_index_in_the_whole_split() -> None:
    data = split()
    chosen = np.array([50, 3, 17, 29, 4])
    loader = Loader(data, 2).with_options(subset=chosen)
    batch = joined(loader.iterate(0))
    assert sorted(batch.index.tolist()) == sorted(chosen.tolist())
    np.testing.assert_array_equal(batch.labels.numpy(), data.labels[batch.index.numpy()])
    assert joined(loader.evaluation().iterate(0)).index.tolist() == chosen.tolist()


def test_other_options_share_the_stored_images() -> None:
    loader = Loader(split(), 4)
    assert loader.with_options(views="strong").store is loader.store
    assert loader.evaluation().store is loader.store
    assert loader.with_options(device="cpu").store is not loader.store


def test_every_seed_epoch_batch_and_view_has_its_own_numbers() -> None:
    keys = list(itertools.product((0, 1), repeat=4))
    drawn = np.stack([uniforms(3, 8, *key).ravel() for key in keys])
    orders = [epoch_order(24, seed, epoch).astype(np.float32) for seed in (0, 1) for epoch in (0, 1)]
    assert len(np.unique(drawn, axis=0)) == 16
    assert len(np.unique(orders, axis=0)) == 4
    np.testing.assert_array_equal(uniforms(2, 8, 1, 0, 1, 0).ravel(), uniforms(3, 8, 1, 0, 1, 0).ravel()[:16])


def test_orders_are_permutations_that_look_random() -> None:
    orders = np.stack([epoch_order(20, 0, epoch) for epoch in range(4_000)])
    assert (np.sort(orders, axis=1) == np.arange(20)).all()
    counts = np.stack([np.bincount(orders[:, place], minlength=20) for place in range(20)])
    assert np.abs(counts / 4_000 - 0.05).max() < 5 * np.sqrt(0.05 * 0.95 / 4_000)


# --- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"world_size": 0}, "world_size=0"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"world_size": 54}, "world_size=54"),
        ({"batch_size": 54, "batches": "full", "drop_last": True}, "do not fill one global batch"),
        ({"drop_last": True}, "drop_last=True"),
        ({"batches": "ful"}, "unknown batches 'ful'. Did you mean 'full'"),
        ({"seed": -1}, "seed=-1"),
        ({"workers": -1}, "workers=-1"),
        ({"views": "weka"}, "unknown view 'weka'. Did you mean 'weak'"),
        ({"mean": (0.5, 0.5)}, "mean=(0.5, 0.5)"),
        ({"std": (0.1, 0.0, 0.2)}, "std="),
        ({"size": (9, 8)}, "size=(9, 8)"),
        ({"size": (0, 8)}, "size=(0, 8)"),
        ({"subset": []}, "subset=[]"),
        ({"subset": [53]}, "positions from 0 to 52"),
        ({"subset": [0.5]}, "subset=[0.5]"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Loader(split(), **{"batch_size": 8, **options})


def test_bad_splits_and_epochs_are_refused() -> None:
    images, labels = split().inputs, split().labels
    with pytest.raises(ValueError, match="0 samples"):
        Loader(Split(images[:0], labels[:0]), 8)
    with pytest.raises(ValueError, match="53 inputs"):
        Loader(Split(images, labels[:50]), 8)
    with pytest.raises(ValueError, match="int64 array"):
        Loader(Split(np.asarray(images).astype(np.int64), labels), 8)
    loader = Loader(split(), 8)
    with pytest.raises(ValueError, match="start_batch=8"):
        loader.iterate(0, 8)
    with pytest.raises(ValueError, match="epoch=-1"):
        loader.iterate(-1)
    with pytest.raises(ValueError, match="epoch=-1"):
        loader.set_epoch(-1)
    with pytest.raises(TypeError, match="batchsize"):
        loader.with_options(batchsize=3)
