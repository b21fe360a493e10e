"""Augmentation of whole batches, and the named views made of it."""
