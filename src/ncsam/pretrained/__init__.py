"""Weights that ship inside pip packages, and the text encoders made of them; nothing here knows of datasets."""
