# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # NCSAM step by step
#
# We train a model with only two weights on points in the plane, so that we can draw the perturbation. Some labels are
# wrong. Their gradient turns SAM's perturbation away from the direction that clean labels would give, and NCSAM adds a
# compensation term to it.

# %%
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from ncsam import NCSAM, SAM

torch.manual_seed(1)
y = torch.arange(60) % 2
x = torch.randn(60, 2) + 1.6 * (2 * y[:, None] - 1) * torch.tensor([1.0, 0.4])
noisy = torch.where(torch.rand(60) < 0.3, 1 - y, y)


class Line(torch.nn.Module):
    """Logits (0, w.x): two weights in all."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([0.3, 0.9]))

    def forward(self, rows):
        score = rows @ self.w
        return torch.stack([torch.zeros_like(score), score], dim=1)


def perturbation(kind, labels, **options):
    """The first perturbation of one step: perturbed weights minus initial weights."""
    model = Line()
    optimizer = kind(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5, model=model, **options)
    start, seen = model.w.detach().clone(), []
    logits = model(x)
    optimizer.backward(F.cross_entropy(logits, labels), logits, labels)
    for perturbed in optimizer.perturbations():
        with perturbed:
            seen.append(model.w.detach().clone() - start)
            optimizer.backward(F.cross_entropy(model(x), labels))
    optimizer.step()
    return seen[0]


# %% [markdown]
# We compare SAM on clean labels, SAM on noisy labels, and NCSAM on noisy labels at full compensation strength.

# %%
arrows = {
    "SAM, clean labels": perturbation(SAM, y),
    "SAM, noisy labels": perturbation(SAM, noisy),
    "NCSAM, noisy labels": perturbation(
        NCSAM, noisy, kappa=1.0, flip_ratio=0.3, total_steps=1, generator=torch.Generator().manual_seed(0)
    ),
}
clean = arrows["SAM, clean labels"]
for name, arrow in arrows.items():
    cosine = float(F.cosine_similarity(arrow, clean, dim=0))
    print(f"{name:20} length {float(arrow.norm()):.3f}  cosine with the clean one {cosine:+.3f}")

# %% [markdown]
# The loss surface for the clean labels, with the three perturbations. None is longer than rho.

# %%
grid = torch.linspace(-1.2, 2.2, 80)
w0, w1 = torch.meshgrid(grid, grid, indexing="ij")
score = x @ torch.stack([w0.flatten(), w1.flatten()])
losses = F.softplus(torch.where(y[:, None] == 1, -score, score)).mean(0).reshape(80, 80)
figure, axis = plt.subplots(figsize=(5.5, 5))
axis.contour(w0, w1, losses, levels=25, linewidths=0.6)
start = Line().w.detach()
for (name, arrow), color in zip(arrows.items(), ["tab:green", "tab:red", "tab:blue"], strict=True):
    axis.arrow(*start.tolist(), *arrow.tolist(), color=color, width=0.015, label=name, length_includes_head=True)
axis.add_patch(plt.Circle(start.tolist(), 0.5, fill=False, linestyle=":"))
axis.legend(loc="lower right", fontsize=8)
axis.set_xlabel("first weight")
axis.set_ylabel("second weight")
