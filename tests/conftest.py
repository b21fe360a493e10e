"""What every test starts from: one thread, a seed, and Ctrl-C as at a terminal."""

import signal

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)  # two workers share two cores: steady timings and bits


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job, and its children, ignore it


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
