"""The campaign against ncsam: kills, faults, interrupts, hostile inputs, broken ranks. `python -m torture --help`."""
