"""PLC, progressive label correction (Zhang et al., 2021, arXiv 2103.07756)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.methods.base import Method, Plan, Presets, State
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, plain_span

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_LABEL = "plc_label"
_WINDOW = "plc_window"
_LARGEST = 0.9  # the threshold rises no further
_STEP = 0.1
_FEW = 1e-3  # the threshold rises when fewer labels than this share have changed


@register
class PLC(Method):
    r"""Cross-entropy under labels that are corrected, for good, as training proceeds. A label is replaced where the
    model finds another class much more likely.

    .. math::
        L = -\frac1{|B|} \sum_{i \in B} \log p_{\tilde y_i}, \qquad
        \tilde y_i \leftarrow \arg\max_c q_{ic} \ \text{ if } \ q_{i \tilde y_i} / \max_c q_{ic} < \theta

    :math:`\tilde y_i` is the current label of sample i, at first the given one, :math:`q_i` the mean of its predictions
    after the last `window` epochs, on the un-augmented image, and :math:`\theta` the likelihood ratio. It starts at
    `threshold`; after an epoch that changed fewer than .1 % of the labels it rises by .1, to .9 at most. Labels change
    after each epoch past `warmup_epochs`. The defaults are the authors' for CIFAR, where 8 of 180 epochs are warm-up.
    They average the predictions made during training, on augmented images.

    Args:
        threshold: Initial likelihood ratio, in (0, 1], for a correction.
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        window: Epochs over which predictions are averaged.

    References:
        Zhang et al., 2021, arXiv 2103.07756.
    """

    about = "labels corrected for good, by a likelihood ratio"
    cost = "predicts the training split before each epoch"
    presets: ClassVar[Presets] = {
        "cifar": {"warmup_epochs": 8, "threshold": 0.3, "window": 5},
        "cifar100-hybrid": {"warmup_epochs": 15, "threshold": 0.3, "window": 5},
        "animal10n": {"warmup_epochs": 40, "threshold": 0.3, "window": 10},
        "food101n": {"warmup_epochs": 4, "threshold": 0.1, "window": 4},
    }

    def __init__(self, threshold: float = 0.3, warmup_epochs: Span = 0.05, window: int = 5) -> None:
        check_spans(warmup_epochs=warmup_epochs)
        if not 0 < threshold <= 1:
            raise bad_value("threshold", threshold, "a ratio in (0, 1]")
        if window < 1:
            raise bad_value("window", window, "a number of epochs, 1 or larger")
        self.threshold = threshold
        self.warmup_epochs = warmup_epochs
        self.window = window
        self.seen = 0  # epochs whose predictions were kept

    def on_train_start(self, state: State) -> None:
        """Create the columns of current labels, at first the given ones, and of the last predictions.

        Args:
            state: The state of training.
        """
        state.samples.column(_LABEL, dtype=torch.int64).copy_(state.labels)
        state.samples.column(_WINDOW, (self.window, state.num_classes))

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """Keep the model's predictions, and after warm-up correct labels by their mean.

        Args:
            networks: The model, which predicts the training split.
            state: The state of training.
        """
        done, plain = state.epoch - 1, plain_span(self.warmup_epochs, state)
        if done <= plain - self.window or done == 0:
            return
        window = state.samples[_WINDOW]
        window[:, self.seen % self.window] = state.predict(networks)
        self.seen += 1
        if done >= plain:
            self._correct(window.sum(dim=1), state)  # of sum and mean the ratios are the same

    def _correct(self, total: Tensor, state: State) -> None:
        label = state.samples[_LABEL]
        top, best = total.max(dim=1)
        wrong = total.gather(1, label.unsqueeze(1)).squeeze(1) < self.threshold * top
        if state.held_out is not None:
            wrong &= ~state.held_out
        label[wrong] = best[wrong]
        trained = len(label) if state.held_out is None else int((~state.held_out).sum())
        if int(wrong.sum()) < _FEW * trained:
            self.threshold = min(self.threshold + _STEP, max(_LARGEST, self.threshold))

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the whole batch under the current labels.

        Args:
            batch: One view of each sample.
            networks: Not used.
            state: The state of training, which holds the labels.
        """
        return (Plan(batch.views[0], state.samples[_LABEL][batch.index], batch.index),)

    def state_dict(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the threshold and the number of predictions kept so far.

        Args:
            state: What `state_dict` returned.
        """
        self.threshold, self.seen = state["threshold"], state["seen"]
