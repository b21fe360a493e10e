"""Models of the noisy-label literature, each with `features()` next to its logits, and access to everyone else's.

Examples:
    >>> from ncsam import models
    >>> model = models.create("resnet18", num_classes=10)
    >>> sum(p.numel() for p in model.parameters()), model.num_features, model.family
    (11173962, 512, 'conv')
"""

# Each family enters its names when it is imported.
from ncsam.models import cnn, lite0, mlp, preact_resnet, resnet, resnet9, text_mean, vgg, wrn  # noqa: F401
from ncsam.models.backbone import Backbone
from ncsam.models.registry import Traits, closed_form_names, create, is_closed_form, names, options, register, traits
from ncsam.models.weights import LoadReport, load_weights

__all__ = [
    "Backbone",
    "LoadReport",
    "Traits",
    "closed_form_names",
    "create",
    "is_closed_form",
    "load_weights",
    "names",
    "options",
    "register",
    "traits",
]
