"""Comparisons over methods, optimizers and seeds."""

from ncsam.comparison.grid import compare

__all__ = ["compare"]
