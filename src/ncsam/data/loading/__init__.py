"""Batches: which samples form them, and the loader that makes them."""
