"""ncsam inside the trainers and tools people already have; each module needs the library that it is named after.

- `ncsam.integrations.sklearn`: `NoisyLabelClassifier`, an estimator for scikit-learn, cleanlab and their like.
"""
