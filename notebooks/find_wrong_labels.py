# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Find the wrong labels in my images
#
# Scikit-learn's digits are real images of 8 x 8 pixels. We make one label in five wrong, forget which, and look for
# them: a network is trained on all images with the labels as they are, and labels that it contradicts are label issues.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_predict

from ncsam.integrations.sklearn import NoisyLabelClassifier
from ncsam.noise import symmetric

digits = load_digits()
record = symmetric(digits.target, 0.2, num_classes=10, seed=0)
labels = record.noisy

# %% [markdown]
# Each image is judged by a network that never saw its label: three folds, and SAM with a radius that sets itself.

# %%
model = NoisyLabelClassifier(hidden=(64,), epochs=12, random_state=0)
probabilities = cross_val_predict(model, digits.data, labels, cv=3, method="predict_proba")
doubt = 1 - probabilities[np.arange(len(labels)), labels]
order = np.argsort(-doubt)

# %% [markdown]
# The nine most suspicious labels: what was written, and what the network reads.

# %%
figure, axes = plt.subplots(1, 9, figsize=(11, 1.8))
for axis, i in zip(axes, order[:9], strict=True):
    axis.imshow(digits.images[i], cmap="gray_r")
    axis.set_title(f"{labels[i]} or {probabilities[i].argmax()}?", fontsize=9)
    axis.axis("off")

# %% [markdown]
# Here we can check, because we know which labels we made wrong. With data of your own you cannot: look first.

# %%
wrong = record.noisy != record.clean
for top in (50, 100, 200, 300):
    print(f"of the {top:3} most suspicious labels {100 * wrong[order[:top]].mean():5.1f} % are wrong")
print(f"of all labels {100 * wrong.mean():.1f} % are")
