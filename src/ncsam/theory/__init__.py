"""The paper's theory as code that runs on your own model: generalization bound, gradient alignment, sharpness.

Examples:
    >>> from ncsam import theory
    >>> bound = theory.noisy_label_bound(0.1, n=50_000, alpha=0.4, num_parameters=10, weight_norm=1.0, rho=0.1)
    >>> round(bound.total, 3), bound.vacuous
    (0.218, False)
"""

from ncsam.theory.alignment import Alignment, alignments, mean_alignment
from ncsam.theory.batches import WithClean, label_sets
from ncsam.theory.bound import (
    NoisyLabelBound,
    amplification_factor,
    clean_samples_needed,
    noisy_label_bound,
    sam_bound,
)
from ncsam.theory.curvature import Eigenvalues, hessian_eigenvalues, hessian_trace
from ncsam.theory.estimate import Estimate
from ncsam.theory.landscape import Landscape, filter_normalized, loss_line, loss_plane
from ncsam.theory.neighborhood import NeighborhoodMaximum, clipped, improbability, neighborhood_maximum, zero_one
from ncsam.theory.sharpness import Sharpness, average_sharpness, m_sharpness, sharpness_by_labels
from ncsam.theory.surface import LossSurface

__all__ = [
    "Alignment",
    "Eigenvalues",
    "Estimate",
    "Landscape",
    "LossSurface",
    "NeighborhoodMaximum",
    "NoisyLabelBound",
    "Sharpness",
    "WithClean",
    "alignments",
    "amplification_factor",
    "average_sharpness",
    "clean_samples_needed",
    "clipped",
    "filter_normalized",
    "hessian_eigenvalues",
    "hessian_trace",
    "improbability",
    "label_sets",
    "loss_line",
    "loss_plane",
    "m_sharpness",
    "mean_alignment",
    "neighborhood_maximum",
    "noisy_label_bound",
    "sam_bound",
    "sharpness_by_labels",
    "zero_one",
]
