"""Comparisons over methods, optimizers and seeds."""

from ncsam.compare.grid import compare

__all__ = ["compare"]
