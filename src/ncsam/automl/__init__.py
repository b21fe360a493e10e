"""AutoML for data with wrong labels: candidates are compared on samples they never saw."""

from ncsam.automl.run import auto

__all__ = ["auto"]
