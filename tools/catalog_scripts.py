"""Plain PyTorch loops for the pages of methods and optimizers, one complete script for each.

The data of a script are generated, so that it runs as it is; a test runs all of them.
"""

from __future__ import annotations

import inspect
import sys

from ncsam import methods, optim

_FEATURES = """\
x = torch.randn(128, 16)  # your inputs
"""
_IMAGES = """\
x = torch.rand(128, 3, 8, 8)  # your images
"""
_LABELS = """\
# your labels, of which 30 % are replaced at random here
y = x.flatten(1)[:, :3].argmax(dim=1)
y = torch.where(torch.rand(128) < 0.3, torch.randint(3, (128,)), y)
"""
_MODEL = 'models.create("mlp", 3, in_features={inputs}, hidden=[32])'

_LOSS = '''\
"""{title}: another loss in a plain PyTorch loop."""

import torch
from ncsam import SAM, methods, models

torch.manual_seed(0)
{data}
# any torch.nn.Module
model = {model}
method = methods.create("{name}")  # options: see the table
base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = SAM(base, rho=0.05, criterion=method.criterion)

for epoch in range(3):
    for rows in torch.randperm(len(y)).split(32):
        loss = optimizer.step(lambda: model(x[rows]), y[rows])
    print(epoch + 1, f"loss {{loss:.3f}}")
'''

_PLANS = '''\
"""{title} in a plain PyTorch loop."""

import torch
from ncsam import SAM, methods, models
from ncsam.data import Batch
from ncsam.engine.learner import train_mode
from ncsam.engine.label_issues import SampleTable
from ncsam.methods.heads import output_of
from ncsam.vectors.saved import evaluation_mode

torch.manual_seed(0)
{data}
epochs, batch_size, lr = 3, 32, 0.05


def create():
    # any torch.nn.Module{backbone}
    return {model}


def views_of(rows):
    """One augmented view for each name in `method.views`."""
    return tuple({augment} for _ in method.views)


class Engine:
    """What a method may ask for: predictions, batches of the training split, a backward pass."""

    def predict(self, networks, output="probabilities"):
        with torch.no_grad(), evaluation_mode(networks):
            if output == "probabilities":
                return method.predict(networks, x).softmax(dim=1)
            return output_of(networks[0], x, output)

    def batches(self, index, view="plain", *, batch_size=None, stream=0):
        count = 1 if isinstance(view, str) else len(view)
        for rows in index[torch.randperm(len(index))].split(batch_size or 32):
            yield Batch((x[rows],) * count, y[rows], rows)

    def backward(self, loss):
        loss.backward()


def optimizer_of(model):
    return SAM(torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), rho=0.05, model=model)


method = methods.create("{name}"{options})  # further options: see the table
networks = method.build(create)
optimizers = [optimizer_of(network) for network in networks]
steps = -(-len(y) // batch_size)
state = methods.State(
    3, y, epochs, steps, SampleTable(len(y)), noise_rate=0.3, engine=Engine(), lr=lr
){verified}
method.on_train_start(state)
{loop}
'''

_EPOCHS = """\
for state.epoch in range(1, epochs + 1):
    state.stage_epoch = state.epoch
    train_mode(networks)
    method.on_epoch_start(networks, state)
{steps}
    print(state.epoch, f"loss {{loss:.3f}}")
"""

_STAGES = """\
state.epoch = 0
for state.stage, stage in enumerate(method.stages(epochs)):
    if stage.fresh:  # new weights, new optimizer
        networks = method.build(create)
        optimizers = [optimizer_of(network) for network in networks]
    state.lr = lr * stage.lr
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["lr"] = state.lr
    for state.stage_epoch in range(1, stage.epochs + 1):
        state.epoch += 1
        train_mode(networks, frozen_norms=stage.frozen_norms)
        method.on_epoch_start(networks, state)
{steps}
        print(state.epoch, f"loss {{loss:.3f}}")
"""

_STEPS = """\
for state.batch, rows in enumerate(torch.randperm(len(y)).split(batch_size)):
    batch = Batch(views_of(rows), y[rows], rows)
    with torch.no_grad():
        # which samples, labels and mixtures; all random draws
        plans = method.plan(batch, networks, state)
    for network, optimizer, plan in zip(networks, optimizers, plans):
        loss = optimizer.run_passes(lambda: method.loss(network, plan))
        optimizer.step()
    method.on_step_end(networks, state)"""

_VERIFIED = """
# -1: not checked, 1: checked and right, 0: checked and wrong
state.verified = torch.full((len(y),), -1)
state.verified[:48] = torch.randint(2, (48,))"""

_OPTIMIZER = '''\
"""{kind} in a plain PyTorch loop."""

import torch
from ncsam import models
from ncsam.optim import {kind}

torch.manual_seed(0)
{data}
epochs, batch_size = 3, 32
# any torch.nn.Module
model = {model}
base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = {kind}(base, rho=0.05, total_steps=epochs * -(-len(y) // batch_size))

for epoch in range(epochs):
    for rows in torch.randperm(len(y)).split(batch_size):
        loss = optimizer.step(lambda: model(x[rows]), y[rows])
    print(epoch + 1, f"loss {{loss:.3f}}")
'''


def method_script(name: str) -> str:
    """A complete script that trains with a method.

    Args:
        name: Name of a method.
    """
    kind = methods.get(name)
    images = kind.images_only
    common = {
        "name": name,
        "title": kind.__name__,
        "data": (_IMAGES if images else _FEATURES) + _LABELS.rstrip(),
        "model": _MODEL.format(inputs=192 if images else 16),
    }
    if kind.is_loss:
        return _LOSS.format(**common)
    staged = len(methods.create(name).stages(3)) > 1
    steps = "\n".join(("        " if staged else "    ") + line for line in _STEPS.splitlines())
    needs_features = "features" in inspect.getsource(sys.modules[kind.__module__])
    return _PLANS.format(
        **common,
        augment="x[rows] + 0.05 * torch.randn_like(x[rows])" if images else "x[rows]",
        backbone=" with features, which this method needs: see ncsam.models.Backbone" if needs_features else "",
        options=", inner_steps=20" if name == "cleannet" else "",
        verified=_VERIFIED if methods.create(name).verified_share else "",
        loop=(_STAGES if staged else _EPOCHS).format(steps=steps).rstrip(),
    )


def optimizer_script(name: str) -> str:
    """A complete script that trains with a sharpness-aware optimizer.

    Args:
        name: Name of an optimizer.
    """
    return _OPTIMIZER.format(
        kind=optim.get(name).__name__, data=_FEATURES + _LABELS.rstrip(), model=_MODEL.format(inputs=16)
    )
