"""Does compensating the descent gradient, instead of the perturbation, beat plain SAM? Five forms, at SAM's own cost.

    python experiments/descent.py --seeds 3                                # digits, 40 % symmetric and pair-flip noise
    python experiments/descent.py --seeds 3 --cifar cifar10_subset.npz     # and CIFAR-10 with human labels

At w the network says how likely each label is to be wrong: with z the logits, y the observed label and r its strongest
rival, pi = sigmoid(z_r - z_y), the share of r among the two. At w + eps the loss of a sample is then

    damp      (1 - s pi) loss(y)
    relabel   (1 - s pi) loss(y) + s pi loss(r)
    soften    (1 - s / 2) loss(y) + (s / 2) loss(p), p the probabilities at w

with s = min(1, 2 (3 - 2t) t^2), the paper's ramp. A network that has memorised a label doubts it no more; what it said
before may. So with q the average of a sample's probabilities at w over the epochs, q <- .7 q + .3 p, and the doubt
d = s (1 - q_y / max q):

    recall-damp      (1 - d) loss(y)
    recall-relabel   (1 - d) loss(y) + d loss(q)

`none` is SAM, the control. All have the automatic radius, which
follows the plain losses, and the same warm-up. Printed: test accuracy over the last five epochs, seed by seed.
"""

from __future__ import annotations

import statistics

import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam import SAM
from ncsam.optim.schedule import smooth
from small_grounds import Ground, tabulate

FORMS = ("none", "damp", "relabel", "soften", "recall-damp", "recall-relabel")


def compensated(form: str, logits: Tensor, labels: Tensor, at_w: Tensor, recalled: Tensor, strength: float) -> Tensor:
    """The loss at w + eps, given the logits at w and the average of past probabilities."""
    if form == "none":
        return F.cross_entropy(logits, labels)
    if form.startswith("recall"):
        own = recalled.gather(1, labels[:, None]).squeeze(1)
        wrong = strength * (1 - own / recalled.amax(1))
        other = recalled
    else:
        own = at_w.gather(1, labels[:, None]).squeeze(1)
        others = at_w.scatter(1, labels[:, None], -torch.inf)
        wrong = strength * torch.sigmoid(others.amax(1) - own)
        other = F.one_hot(others.argmax(1), logits.shape[1]).to(logits)
    if form.endswith("damp"):
        return ((1 - wrong) * F.cross_entropy(logits, labels, reduction="none")).mean()
    observed = F.one_hot(labels, logits.shape[1]).to(logits)
    if form.endswith("relabel"):
        return F.cross_entropy(logits, torch.lerp(observed, other, wrong[:, None]))
    return F.cross_entropy(logits, torch.lerp(observed, at_w.softmax(1), strength / 2))


def accuracy(ground: Ground, form: str, seed: int) -> float:
    torch.manual_seed(seed)
    model = ground.model()
    base = torch.optim.SGD(model.parameters(), lr=ground.lr, momentum=0.9, weight_decay=1e-3)
    optimizer = SAM(base, rho="auto", warmup_steps=ground.warmup * ground.batches, model=model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ground.epochs * ground.batches)
    recalled = torch.full((len(ground.x), 10), 0.1)
    found = []
    for epoch in range(1, ground.epochs + 1):
        model.train()
        for index in ground.order():
            x, y = ground.x[index], ground.labels[index]
            optimizer.zero_grad()
            logits = model(x)
            optimizer.backward(F.cross_entropy(logits, y), logits, y)
            now = logits.detach()
            recalled[index] = torch.lerp(recalled[index], now.softmax(1), 0.3)
            for perturbed in optimizer.perturbations():
                with perturbed:
                    moved = model(x)
                    loss = compensated(form, moved, y, now, recalled[index], smooth(epoch / ground.epochs))
                    # the radius follows the plain loss; the difference of the two has no value, only a gradient
                    optimizer.backward(F.cross_entropy(moved, y).detach() + loss - loss.detach())
            optimizer.step()
            scheduler.step()
        if epoch > ground.epochs - 5:
            found.append(ground.accuracy(model))
    return statistics.mean(found)


if __name__ == "__main__":
    tabulate(__doc__ or "", FORMS, accuracy)
