"""AutoML for data with wrong labels. Candidates are compared on samples they were not trained on."""

from ncsam.automl.run import auto

__all__ = ["auto"]
