# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Compare methods on a real dataset
#
# The data are handwritten digits. Four in ten training labels are wrong; the test labels are clean. Each method is
# trained with two optimizers and three seeds. Compare the differences between rows with the spread between seeds.

# %%
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from ncsam.integrations.sklearn import NoisyLabelClassifier
from ncsam.noise import symmetric

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
noisy = symmetric(y_train, 0.4, num_classes=10, seed=0).noisy

# %%
setting = {"hidden": (256,), "lr": 0.05, "epochs": 20, "batch_size": 32}
results = {}
for method in ("ce", "gce", "elr"):
    for optimizer in ("sgd", "sam"):
        results[method, optimizer] = [
            100
            * NoisyLabelClassifier(method, optimizer, random_state=seed, **setting)
            .fit(X_train, noisy)
            .score(X_test, y_test)
            for seed in range(3)
        ]

# %% [markdown]
# Accuracy on clean test labels: mean and standard deviation over three seeds.

# %%
for (method, optimizer), values in results.items():
    print(f"{method:4} {optimizer:4} {np.mean(values):5.1f} % +- {np.std(values, ddof=1):.1f}")

# %% [markdown]
# Is SAM better than SGD with cross-entropy for every seed? Three pairs are too few for a conclusion, but this is how to
# check. `ncsam compare` does the same for all methods, with reports and a paired test.

# %%
difference = np.array(results["ce", "sam"]) - np.array(results["ce", "sgd"])
print("SAM minus SGD, by seed:", np.round(difference, 1))
