"""CleanNet, label noise learned from verified samples and transferred (Lee et al., 2018, arXiv 1711.07131)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import count, ratio
from ncsam._errors import bad_value
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import LossOutput, Method, Plan, Presets, State
from ncsam.methods.planning import PlanWithExtra
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_WEIGHT = "cleannet_weight"
_MARGIN = 0.1  # a similarity above it counts as relevant
_ROUNDS = 10  # of k-means
_LATE = 0.1  # factor of the encoders' learning rate in the second half of their training


class Encoders(nn.Module):
    """Encoders of classes, by attention over reference features, and of samples, by an auto-encoder; tanh throughout.

    References r: h = tanh layers of 512 and 256; attention softmax(<u, tanh(V h)>), u and V learned; class code of 128.
    Samples: 256, code of 128, 256, and the features again.

    Args:
        features: Number of features.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.of_reference = _tanh_layers(features, 512, 256)
        self.attention = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1, bias=False))
        self.of_class = _tanh_layers(256, 128)
        self.of_sample = _tanh_layers(features, 256, 128)
        self.decoder = _tanh_layers(128, 256, features)

    def classes(self, references: Tensor) -> Tensor:
        """(classes, references, features) to (classes, width).

        Args:
            references: k-means centers of each class, (classes, references, features).
        """
        seen = self.of_reference(references)
        attended = self.attention(seen).softmax(dim=1)
        answer: Tensor = self.of_class((attended * seen).sum(dim=1))
        return answer

    def forward(self, references: Tensor, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """cos(class, sample) of each sample and its label, and the features as the auto-encoder gives them back.

        Args:
            references: k-means centers of each class, (classes, references, features).
            features: (samples, features).
            labels: Observed class numbers (samples,).
        """
        code = self.of_sample(features)
        return F.cosine_similarity(self.classes(references)[labels], code, dim=1), self.decoder(code)


@register
class CleanNet(Method):
    r"""Weights samples by how well they match the class that they are labeled as. The encoders that judge this learn
    from labels that people verified.

    .. math::
        L = \frac1{|B|} \sum_{i \in B} w_i \left( -\log p_{y_i} \right), \qquad
        w_i = \max(0, \cos(\phi(c_{y_i}), \psi(x_i)))

    :math:`w_i` is the weight of sample i, :math:`\phi(c_k)` the encoding of class k, and :math:`\psi(x_i)` that of the
    sample.

    cos_i compares an encoding of the class, by attention over `references` of its features (k-means), with one of the
    sample. The encoders learn from samples whose label was verified as right (v = 1) or wrong (0): v (1 - cos) + 5 (1 -
    v) max(0, cos - .1); from unverified ones as if those with cos >= .1 were right, times `unverified`; and from
    reconstructing features, times `reconstruction`. For `warmup_epochs` the classifier is trained by cross-entropy;
    then, before each epoch, the encoders are trained for `inner_steps` on the model's present features x, as log(1 +
    max(0, x)), 32 verified and 32 other samples a step, by SGD whose rate falls to a tenth after half of these epochs.

    Encoders (tanh after each layer) and the scale of features are the authors': references 512, 256, attention
    softmax(<u, tanh(V h)>), class code 128; samples 256, 128, and back. Their dropout, by default 0, is left out.

    It is the one method that knows some verified labels: those of the data (Food-101N, a column `verified`), else the
    truth about a share `verified_share` of the samples, which the report names. The authors train on features of a
    fixed model, for 60,000 steps, and alternate encoders and classifier two or three times.

    Args:
        verified_share: Share of samples, in (0, 1), whose label is verified if the data brings no verdicts.
        references: Number of references of each class.
        inner_steps: Steps of the encoders before each epoch.
        inner_lr: Learning rate of the encoders.
        reconstruction: Weight of the reconstruction.
        unverified: Weight of unverified samples, in [0, 1].
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.

    References:
        Lee et al., 2018, arXiv 1711.07131.
    """

    about = "weights samples by encoders that learn from verified labels"
    cost = "the features of the training split and some small steps before each epoch"
    #: The authors' 60,000 steps, over some thirty epochs.
    presets: ClassVar[Presets] = {"food101n": {"inner_steps": 2000}, "clothing1m": {"inner_steps": 2000}}

    def __init__(
        self,
        verified_share: float = 0.1,
        references: int = 32,
        inner_steps: int = 200,
        inner_lr: float = 0.01,
        reconstruction: float = 0.1,
        unverified: float = 0.1,
        warmup_epochs: Span = 0.25,
    ) -> None:
        if not 0 < verified_share < 1:
            raise bad_value("verified_share", verified_share, "a share in (0, 1)")
        non_negative(inner_lr=inner_lr, reconstruction=reconstruction)
        check_spans(warmup_epochs=warmup_epochs)
        if references < 1:
            raise bad_value("references", references, "a whole number, 1 or larger")
        self.verified_share = verified_share
        self.references = references
        self.inner_steps = count("inner_steps", inner_steps)
        self.inner_lr, self.reconstruction, self.unverified = inner_lr, reconstruction, ratio("unverified", unverified)
        self.warmup_epochs = warmup_epochs
        self.encoders: Encoders | None = None
        self._saved: dict[str, Any] | None = None

    def on_train_start(self, state: State) -> None:
        """Create the column of weights, 1 until the encoders are trained.

        Args:
            state: The state of training.
        """
        state.samples.column(_WEIGHT, fill=1.0)

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """After warm-up, train the encoders on the present features and weight all samples.

        Args:
            networks: The model, whose features are taken.
            state: The state of training, with `verified` labels.
        """
        if state.epoch <= in_epochs(self.warmup_epochs, state.epochs):
            return
        assert state.verified is not None, "the engine gives verdicts to a method with a verified_share"
        features = scaled(state.predict(networks, output="features"))
        encoders = self._encoders(features, state)
        trained = state.trained
        kept = references(features[trained], state.labels[trained], state, self.references)
        self._train(encoders, kept, features, trained, state)
        with torch.no_grad():
            similarity, _ = encoders(kept, features[trained], state.labels[trained])
        state.samples.write(_WEIGHT, trained, similarity.clamp_min(0.0).to(state.samples[_WEIGHT]))

    def _encoders(self, features: Tensor, state: State) -> Encoders:
        if self.encoders is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(state.seed)
                self.encoders = Encoders(features.shape[1])
            self.encoders.to(features.device)
            self.optimizer = torch.optim.SGD(self.encoders.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-4)
            if self._saved is not None:
                self.encoders.load_state_dict(self._saved["encoders"])
                self.optimizer.load_state_dict(self._saved["optimizer"])
        return self.encoders

    def _train(self, encoders: Encoders, kept: Tensor, features: Tensor, trained: Tensor, state: State) -> None:
        verified = state.verified
        assert verified is not None
        known, others = trained[verified[trained] >= 0], trained[verified[trained] < 0]
        random = state.random(stream=1)  # alike on all ranks, which therefore train the same encoders
        plain = in_epochs(self.warmup_epochs, state.epochs)
        late = state.epoch - plain > (state.epochs - plain) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = self.inner_lr * (_LATE if late else 1.0)
        for _ in range(self.inner_steps):
            drawn = [
                part[torch.from_numpy(random.integers(len(part), size=32)).to(part.device)]
                for part in (known, others)
                if len(part)
            ]
            rows = torch.cat(drawn)
            with torch.enable_grad():
                similarity, decoded = encoders(kept, features[rows], state.labels[rows])
                value = encoder_loss(similarity, verified[rows], self.unverified)
                value = value + self.reconstruction * (decoded - features[rows]).square().sum(dim=1).mean()
            self.optimizer.zero_grad()
            value.backward()
            self.optimizer.step()

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the whole batch with the weight of each sample.

        Args:
            batch: One view of each sample.
            networks: Not used.
            state: The state of training, which holds the weights.
        """
        return (PlanWithExtra(batch.views[0], batch.labels, batch.index, extra=state.samples[_WEIGHT][batch.index]),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The mean of weighted cross-entropies; weights are not normalized.

        Args:
            network: The model.
            plan: A `PlanWithExtra`, whose extra values are the weights.
        """
        assert isinstance(plan, PlanWithExtra)
        logits = network(plan.inputs)
        value = (plan.extra.to(logits) * F.cross_entropy(logits, plan.targets, reduction="none")).mean()
        return LossOutput(value, logits, plan.targets)

    def state_dict(self) -> dict[str, Any]:
        if self.encoders is None:
            return {"saved": self._saved}
        return {"saved": {"encoders": self.encoders.state_dict(), "optimizer": self.optimizer.state_dict()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the state of encoders and optimizer until features tell the encoders' width.

        Args:
            state: What `state_dict` returned.
        """
        self._saved, self.encoders = state["saved"], None  # the encoders are built again once features are there


def _tanh_layers(*widths: int) -> nn.Sequential:
    layers = (nn.Sequential(nn.Linear(before, after), nn.Tanh()) for before, after in itertools.pairwise(widths))
    return nn.Sequential(*layers)


def encoder_loss(similarity: Tensor, verified: Tensor, unverified: float) -> Tensor:
    """mean of 1 - cos (right), 5 max(0, cos - .1) (wrong), unverified (1 - cos) (neither, cos >= .1) or 0.

    Args:
        similarity: cos of each sample and its class.
        verified: 1 right, 0 wrong, -1 unverified.
        unverified: Weight of unverified samples.
    """
    wrong = 5.0 * (similarity - _MARGIN).clamp_min(0.0)
    neither = unverified * (1 - similarity) * (similarity.detach() >= _MARGIN)
    return torch.where(verified == 1, 1 - similarity, torch.where(verified == 0, wrong, neither)).mean()


def scaled(features: Tensor) -> Tensor:
    """log(1 + max(0, x)).

    Args:
        features: (samples, features).
    """
    return features.clamp_min(0.0).log1p()


def references(features: Tensor, labels: Tensor, state: State, number: int) -> Tensor:
    """k-means centers of each class, (classes, number, features); fewer samples than centers are repeated.

    Args:
        features: (samples, features).
        labels: Class numbers (rows,).
        state: The state of training.
        number: Number of centers.
    """
    random = state.random(stream=2)
    centers = features.new_zeros(state.num_classes, number, features.shape[1])
    for label in range(state.num_classes):
        own = features[labels == label]
        if not len(own):
            continue
        first = random.permutation(len(own))[:number]
        found = own[torch.from_numpy(first).to(own.device)]
        for _ in range(_ROUNDS):
            nearest = torch.cdist(own, found).argmin(dim=1)
            sums = torch.zeros_like(found).index_add(0, nearest, own)
            sizes = torch.bincount(nearest, minlength=len(found)).unsqueeze(1)
            found = torch.where(sizes > 0, sums / sizes.clamp_min(1), found)
        centers[label] = found[torch.arange(number, device=found.device) % len(found)]
    return centers
