"""Stress tests: kills, faults, interrupts, fuzzed inputs and calls, failing ranks. `python -m stress --help`."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when that library is imported: no fuzzed input may use the network
