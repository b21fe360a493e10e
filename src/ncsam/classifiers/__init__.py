"""Closed-form and smooth classifiers: fitted in seconds, saved and exported as torch modules.

Examples:
    >>> import torch
    >>> from ncsam import classifiers
    >>> x = torch.tensor([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.1]])
    >>> member = classifiers.fit("lda", x, torch.tensor([0, 0, 1, 1]), 2)
    >>> member.network(2)(x).argmax(dim=1).tolist()
    [0, 0, 1, 1]
"""

from ncsam.classifiers.fit import Fitted, Member, cross_fit, fit, issue_probabilities
from ncsam.classifiers.temperature import best_scale

__all__ = ["Fitted", "Member", "best_scale", "cross_fit", "fit", "issue_probabilities"]
