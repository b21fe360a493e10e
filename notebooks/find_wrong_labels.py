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
# Scikit-learn's digits are real images of 8 x 8 pixels. We corrupt one label in five and then look for them.
# A model is trained on the images with their given labels; labels that it contradicts are label issues.

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
# Three-fold cross-validation: every image is judged by a model that never saw its label. The model is a small network,
# trained by SAM with an adaptive radius.

# %%
model = NoisyLabelClassifier(hidden=(64,), epochs=12, random_state=0)
probabilities = cross_val_predict(model, digits.data, labels, cv=3, method="predict_proba")
label_quality = probabilities[np.arange(len(labels)), labels]
order = np.argsort(label_quality)

# %% [markdown]
# The nine labels that are most likely wrong, each with the class that the model predicts.

# %%
figure, axes = plt.subplots(1, 9, figsize=(11, 1.8))
for axis, i in zip(axes, order[:9], strict=True):
    axis.imshow(digits.images[i], cmap="gray_r")
    axis.set_title(f"{labels[i]} or {probabilities[i].argmax()}?", fontsize=9)
    axis.axis("off")

# %% [markdown]
# Here we can check the result, because we know which labels we corrupted. With your own data, review the labels before
# you change them: `ncsam review` opens a local page for that.

# %%
wrong = record.noisy != record.clean
for top in (50, 100, 200, 300):
    print(f"first {top:3} label issues: {100 * wrong[order[:top]].mean():5.1f} % are wrong")
print(f"all labels: {100 * wrong.mean():.1f} % are wrong")
