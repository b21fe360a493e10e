"""ncsam inside the trainers and tools people already have; each module needs the library that it is named after.

- `ncsam.integrations.lightning`: `SharpnessAwareMixin` for a `LightningModule`.
- `ncsam.integrations.transformers`: `SharpnessAwareTrainer`, and a mixin for a `Trainer` of your own.
- `ncsam.integrations.accelerate`: `sharpness_step` for a loop with an `Accelerator`.
- `ncsam.integrations.sklearn`: `NoisyLabelClassifier`, an estimator for scikit-learn, cleanlab and their like.
"""
