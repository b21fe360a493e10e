"""The command `ncsam`: options in, a room's function called, its answer shown. No logic of its own."""
