"""One table of ratios to other tools, measured side by side in one run: time and peak memory.

    python benchmarks/table.py [--quick] [--only NAME] [--json FILE]

Times are of the processor, which other processes disturb less; the two sides take turns, and a ratio is the median over
the turns. Memory of an optimizer's step is the peak of torch's allocator; otherwise it is the peak of a fresh process
that does the work once. A ratio below 1 is in our favor. What is not installed is named and left out.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from timing import parser, write_json

Work = Callable[[], object]
Row = tuple[float, float]  # ratios of time and of memory
TEXTS = 96
FIT_EPOCHS = 3
FOLDS = 5
ONE_PROCESS = {"n_jobs": 1}  # cleanlab starts others, whose processor time would not be counted
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # of runs; removed when the process ends


def engine_and_bare(samples: int = 4096) -> tuple[Work, Work]:
    """An epoch of the engine, with its metrics and checkpoint, and of a loop written by hand, which writes nothing."""
    import engine_cost as cost

    start = _trainers(samples)
    trainer = start()
    bare = cost.bare_epochs(trainer.config, trainer)
    return trainer.train_epoch, lambda: next(bare)


def engine_and_lightning(samples: int = 4096) -> tuple[Work, Work]:
    """Three epochs each, from a new trainer and network: the same batches, SGD, evaluation of the test and the training
    split, and a checkpoint after each epoch."""
    import pytorch_lightning as lightning
    import torch.nn.functional as F

    from ncsam import models

    start = _trainers(samples)
    trainer = start()
    config = trainer.config

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = models.create(config.model, 10, 3, **config.model_options)
            self.network.to(memory_format=torch.channels_last)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return F.cross_entropy(self.network(batch.views[0]), batch.labels)

        def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> None:
            right = (self.network(batch.views[0]).argmax(1) == batch.labels).float().mean()
            self.log("accuracy", right, batch_size=len(batch.labels))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay)

    class Batches:
        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __iter__(self) -> Any:
            return self.loader.iterate(1)

        def __len__(self) -> int:
            return len(self.loader)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    splits = [Batches(trainer.evaluator.test), Batches(trainer.evaluator.train)]

    def fit() -> None:
        with tempfile.TemporaryDirectory() as folder:
            peer = lightning.Trainer(
                max_epochs=FIT_EPOCHS, accelerator="cpu", default_root_dir=folder, num_sanity_val_steps=0, **quiet
            )
            peer.fit(Net(), Batches(trainer.loader), splits)

    def ours() -> None:
        mine = start()
        for _ in range(FIT_EPOCHS):
            mine.train_epoch()

    return ours, fit


def features(samples: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Features of five classes, and labels of which 20 % are wrong."""
    from sklearn.datasets import make_classification

    x, y = make_classification(
        samples, 64, n_informative=20, n_classes=5, flip_y=0.25, n_clusters_per_class=1, random_state=0
    )
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y


def issues_of_probabilities() -> tuple[Work, Work]:
    """Label issues of the same out-of-fold probabilities, which are not computed here. Ours also calibrates them."""
    from cleanlab.classification import CleanLearning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    from ncsam import find_label_issues

    x, y = features()
    p = cross_val_predict(LogisticRegression(max_iter=1000), x, y, cv=FOLDS, method="predict_proba")
    theirs = CleanLearning(find_label_issues_kwargs=ONE_PROCESS)
    return lambda: find_label_issues(y, p), lambda: theirs.find_label_issues(labels=y, pred_probs=p)


def issues_of_one_classifier() -> tuple[Work, Work]:
    """Label issues of features by the same classifier, folds and number of fits: scikit-learn's, fitted five times."""
    from cleanlab.classification import CleanLearning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    from ncsam import find_label_issues

    x, y = features()
    classifier = LogisticRegression(max_iter=1000)

    def ours() -> object:
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)  # as cleanlab's own
        return find_label_issues(y, cross_val_predict(classifier, x, y, cv=folds, method="predict_proba"))

    def theirs() -> object:
        peer = CleanLearning(classifier, seed=0, cv_n_folds=FOLDS, find_label_issues_kwargs=ONE_PROCESS)
        return peer.find_label_issues(x, y)

    return ours, theirs


def recommended_and_regression() -> tuple[Work, Work]:
    """Label issues of features as each tool suggests it. Not the same work: the recommended classifier fits twelve
    models to five parts of the rows and eight of them to all rows, cleanlab one regression to the five parts."""
    from ncsam import find_label_issues
    from ncsam.classifiers import cross_fit

    x, y = features()

    def ours() -> object:
        fitted = cross_fit("smooth", torch.from_numpy(x), torch.from_numpy(y), 5, folds=FOLDS)
        return find_label_issues(y, fitted.probabilities)

    return ours, issues_of_one_classifier()[1]


def embedding_and_pipeline(texts: int = TEXTS) -> tuple[Work, Work]:
    """Mean embeddings of texts of 3 to 150 words by MiniLM: ours, and transformers' feature-extraction pipeline."""
    import transformers

    from ncsam.embed import text_encoder
    from ncsam.pretrained.minilm import SentenceEncoder

    rng = np.random.default_rng(0)
    words = ["the", "label", "of", "this", "sample", "is", "wrong", "and", "nobody", "has", "looked", "at", "it"]
    some = [" ".join(rng.choice(words, size)) for size in rng.integers(3, 150, texts)]
    encoder = text_encoder("minilm", precision="32-true")
    inner = encoder.encoder
    assert isinstance(inner, SentenceEncoder)
    transformers.logging.set_verbosity_error()
    pipeline = transformers.pipeline("feature-extraction", model=str(inner.folder), device="cpu")
    cut = {"truncation": True, "max_length": 256}
    return (
        lambda: encoder(some),
        lambda: [t.mean(1) for t in pipeline(some, batch_size=64, return_tensors=True, tokenize_kwargs=cut)],
    )


#: Name of the row: what makes the two sides, and the package that the other side needs.
PAIRS: dict[str, tuple[Callable[[], tuple[Work, Work]], str]] = {
    "an epoch of the engine / bare loop": (engine_and_bare, "torch"),
    "the engine / Lightning": (engine_and_lightning, "pytorch_lightning"),
    "label issues, same probabilities / cleanlab": (issues_of_probabilities, "cleanlab"),
    "label issues, same classifier and folds / cleanlab": (issues_of_one_classifier, "cleanlab"),
    "label issues, recommended classifier / cleanlab with logistic regression": (
        recommended_and_regression,
        "cleanlab",
    ),
    "text embedding / transformers pipeline": (embedding_and_pipeline, "transformers"),
}
#: The same of optimizers: names of candidates of `step_cost`.
OPTIMIZERS = {
    "SAM / pytorch_optimizer SAM": ("sam", "peer_sam"),
    "look / pytorch_optimizer LookSAM": ("sam_look5", "peer_looksam"),
}


def _trainers(samples: int) -> Callable[[], Any]:
    """What makes a trainer that is about to begin, with the files that a run writes."""
    import engine_cost as cost
    from ncsam.engine import RunConfig
    from ncsam.engine.device import choose_device
    from ncsam.engine.resolve import resolve
    from ncsam.engine.sinks import CheckpointSink, MetricsSink
    from ncsam.engine.task import load_task
    from ncsam.engine.trainer import Trainer

    network = {"model": "cnn_small", "model_options": {"width": 8}, "precision": "32-true", "augment": "standard"}
    config = RunConfig.from_dict(
        {"data": "noise", "optimizer": "sgd", "lr": 0.05, "epochs": 1000, "batch_size": 128, "val_share": 0.0}
        | {"telemetry_every": 0, "accelerator": "cpu", **network}
    )
    task = load_task(config, cost.images(samples))
    resolved = resolve(config, task)

    def start() -> Any:
        trainer = Trainer(choose_device(config), resolved, task)
        _FOLDERS.append(tempfile.TemporaryDirectory())
        folder = Path(_FOLDERS[-1].name)
        trainer.sinks = [MetricsSink(folder), CheckpointSink(folder / "checkpoints")]
        for sink in trainer.sinks:
            sink.on_train_start(trainer)
        return trainer

    return start


def seconds(work: Work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def peak(name: str, side: int) -> float:
    """Peak memory in MB of a fresh process that makes both sides and runs one of them."""
    command = [sys.executable, __file__, "--json", f"{name}|{side}"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return float(json.loads(found.stdout.splitlines()[-1]))


def compared(name: str, rounds: int) -> Row:
    sides = PAIRS[name][0]()
    turns = [[seconds(side) for side in sides] for _ in range(rounds + 1)][1:]
    ours, theirs = (peak(name, side) for side in (0, 1))
    return statistics.median(a / b for a, b in turns), ours / theirs


def optimizer_rows(quick: bool) -> dict[str, Row | None]:
    import step_cost

    rows = step_cost.measure(step_cost.SETTINGS["cnn"], 5 if quick else 15)
    return {
        name: tuple(rows[ours][of] / rows[theirs][of] for of in ("vs_sgd", "memory_vs_sgd"))
        for name, (ours, theirs) in OPTIMIZERS.items()
    }


def main() -> None:
    accepted = parser(__doc__.splitlines()[0])
    accepted.add_argument("--only", default="", help="rows whose name contains this")
    options = accepted.parse_args()
    torch.set_num_threads(1)
    if options.json and "|" in options.json:  # a child, for its memory
        name, _, side = options.json.partition("|")
        PAIRS[name][0]()[int(side)]()
        # not getrusage, whose peak a process inherits from the one that started it
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        print(float(status["VmHWM"].split()[0]) / 1024)
        return
    found: dict[str, Row | None] = {}
    names = [name for name in (*OPTIMIZERS, *PAIRS) if options.only in name]
    width = max(map(len, names))
    print(f"{'ours / theirs':<{width}}     time   memory", flush=True)
    for name in names:
        if name in OPTIMIZERS and not found.keys() & OPTIMIZERS.keys():  # both from one run
            found |= optimizer_rows(options.quick) if find_spec("pytorch_optimizer") else dict.fromkeys(OPTIMIZERS)
        elif name in PAIRS:
            found[name] = compared(name, 3 if options.quick else 9) if find_spec(PAIRS[name][1]) else None
        row = found[name]
        shown = "not installed" if row is None else f"{row[0]:7.2f}  {row[1]:7.2f}"
        print(f"{name:<{width}}  {shown}", flush=True)
    write_json(options.json, found)


if __name__ == "__main__":
    main()
