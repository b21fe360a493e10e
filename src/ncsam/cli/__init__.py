"""The command `ncsam`: options in, a function of the library called, its result shown. No logic of its own."""
