"""Comparisons over methods, optimizers and seeds, and what is drawn from them."""

from ncsam.bench.compare import compare

__all__ = ["compare"]
