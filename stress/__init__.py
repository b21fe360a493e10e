"""The campaign against ncsam: kills, faults, interrupts, hostile inputs, broken ranks. `python -m stress --help`."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when that library is imported: no hostile input may use the network
