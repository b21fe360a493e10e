"""AutoML for data with wrong labels: candidates are compared on samples they never saw."""

from ncsam.auto.run import auto

__all__ = ["auto"]
