"""What a cell trains at each scale: the paper's setting, two reductions for two cores, and one for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncsam import data
from ncsam._arguments import choice
from ncsam._errors import bad_value, unknown_name
from ncsam._files import sha256_of
from ncsam.comparison.specs import with_spec
from ncsam.engine import RunConfig
from ncsam.reproduce.tables import Column, Row

SCALES = ("paper", "medium", "small", "smoke")
#: In what a setting may depart from its scale, with the types.
CHANGES: dict[str, type] = {"images": int, "augment": str, "width": int, "epochs": int}
#: What comes with scikit-learn stands in for datasets that are not there, where nothing else is named.
_EMBEDDED = "digits"
_REDUCTIONS: dict[str, dict[str, Any]] = {
    # a pass over 50,000 training images to measure the memorized share costs a third of an epoch: once, at the end
    "medium": {"model": "resnet9", "epochs": 20, "batch_size": 128, "augment": "none", "evaluate_train_every": 1000},
    # without augmentation, under which so short a run memorizes nothing and there is nothing to compensate for
    "small": {"model": "resnet8", "epochs": 12, "batch_size": 64, "augment": "none"},
    # of four or six epochs, none lies between warm-up (a quarter) and the end of the compensation's ramp (a half)
    "smoke": {"model": "mlp", "model_options": {"hidden": [32]}, "epochs": 8, "batch_size": 32, "augment": "none"},
}
_PARTS: dict[str, dict[str, Any]] = {
    "medium": {"classes": 10, "train": 50_000, "test": 10_000, "side": 32},
    "small": {"classes": 10, "train": 2000, "test": 1000, "side": 8},
    "smoke": {"classes": 10, "train": 320, "test": 160, "side": 8},
}


@dataclass(frozen=True)
class Source:
    """Where the samples of a dataset come from.

    Attributes:
        data: name or absolute path.
        stand_in: whether it replaces a dataset that is not available.
    """

    data: str
    stand_in: bool = False

    @property
    def label(self) -> str:
        return Path(self.data).name

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the record; `identity` (a name or a file's hash) is equal for equal data."""
        path = Path(self.data)
        identity = f"sha256:{sha256_of(path)}" if path.is_file() else path.name
        return {"data": self.data, "stand_in": self.stand_in, "identity": identity}


class Setting:
    """A scale, with the sources of the datasets.

    Args:
        scale: "paper", "medium", "small" or "smoke".
        sources: `{dataset: name or path}` for datasets that are in a file or folder of your own. `None`: none.
        stand_in: name or path of the data to use for datasets that are not available, below paper scale. `None`:
            digits.
        data_root: folder of the named datasets. `None`: the default of `ncsam.data.load`.
        images: number of training images, instead of the scale's. Half as many test images are used, at least 1,000 and
            at most the scale's. Not at paper scale.
        augment: augmentation, instead of the scale's.
        width: width of the network at medium scale, instead of 32.
        epochs: number of epochs, instead of the scale's. Not at paper scale.

    Raises:
        UsageError: if an argument is invalid or does not apply to the scale.
    """

    def __init__(
        self,
        scale: str,
        sources: Mapping[str, str] | None = None,
        stand_in: str | None = None,
        data_root: str | None = None,
        images: int | None = None,
        augment: str | None = None,
        width: int | None = None,
        epochs: int | None = None,
    ) -> None:
        self.scale = choice("scale", scale, SCALES)
        if images is not None and (scale == "paper" or images < 1):
            raise bad_value("images", images, "at least 1, below paper scale")
        if width is not None and (scale != "medium" or width < 1):
            raise bad_value("width", width, "at least 1, and the medium scale")
        if epochs is not None and (scale == "paper" or epochs < 1):
            raise bad_value("epochs", epochs, "at least 1, below paper scale")
        self.images, self.augment, self.width, self.epochs = images, augment, width, epochs
        self.stand_in = stand_in
        self.data_root = data_root
        self.named = dict(sources or {})
        for name in self.named:
            if name not in _OURS:
                raise unknown_name("dataset of the paper", name, _OURS)
        self._found: dict[str, Source] = {}

    @classmethod
    def of_sources(cls, scale: str, sources: Mapping[str, Mapping[str, Any]], **changes: Any) -> Setting:
        """Build a setting from the record of a folder.

        Args:
            scale: the recorded scale.
            sources: the recorded sources, by dataset (`Source.to_dict`).
            **changes: the recorded differences from the scale (`Setting.changes`).
        """
        setting = cls(scale, **changes)
        setting._found = {name: Source(str(each["data"]), bool(each["stand_in"])) for name, each in sources.items()}
        return setting

    @property
    def changes(self) -> dict[str, Any]:
        """The arguments that differ from the scale."""
        given = {name: getattr(self, name) for name in CHANGES}
        return {name: value for name, value in given.items() if value is not None}

    def source(self, dataset: str) -> Source:
        """Return where a dataset of the paper comes from at this scale.

        Args:
            dataset: name of the dataset in the paper's tables, such as "tiny-imagenet".
        """
        if dataset not in self._found:
            self._found[dataset] = self._find(dataset)
        return self._found[dataset]

    def _find(self, dataset: str) -> Source:
        if dataset in self.named:
            return Source(_absolute(self.named[dataset]))
        ours = _OURS[dataset]
        if self.scale == "smoke":
            return Source(_EMBEDDED, stand_in=True)
        if self.scale == "paper" or self._is_there(ours):
            return Source(ours)
        return Source(_absolute(self.stand_in or _EMBEDDED), stand_in=True)

    def _is_there(self, name: str) -> bool:
        try:
            data.load(name, self.data_root)
        except FileNotFoundError:
            return False
        return True

    def check(self, datasets: Iterable[str]) -> None:
        """Raise an error for a source that does not exist, before anything is run.

        Args:
            datasets: the paper's datasets.

        Raises:
            UsageError: if a file or folder does not exist.
            FileNotFoundError: if a named dataset is not available.
        """
        for dataset in sorted(datasets):
            source = self.source(dataset)
            if source.data in data.names():
                data.load(source.data, self.data_root)
            elif not Path(source.data).exists():
                option = "stand_in" if source.stand_in else f"data: {dataset}"
                raise bad_value(option, source.data, "an existing file or folder, or the name of a dataset")

    def config(self, row: Row, column: Column, seed: int) -> RunConfig:
        """Return the configuration of a cell's run.

        Args:
            row: row of the cell.
            column: column of the cell.
            seed: seed of the run.
        """
        config = RunConfig.from_preset(column.preset, rate=column.rate, seed=seed, data_root=self.data_root)
        source = self.source(column.dataset)
        if column.noise == "human" and source.stand_in:
            config = config.replace(noise="symmetric")  # its labels are right, and the column's are not
        if self.scale != "paper":
            part = {"of": source.data, **_PARTS[self.scale]}
            if self.images is not None:
                part |= {"train": self.images, "test": min(part["test"], max(1000, self.images // 2))}
            reduction = {"model_options": {}, "pretrained": False, **_REDUCTIONS[self.scale]}
            config = config.replace(data="reduced", data_options=part, **reduction)
        elif source.data != config.data:
            config = config.replace(data=source.data, data_root=None)
        if self.width is not None:
            config = config.replace(model_options={"width": self.width})
        if self.epochs is not None:
            config = config.replace(epochs=self.epochs)
        if self.augment is not None:
            config = config.replace(augment=self.augment)
        if row.optimizer.partition(":")[0] in _AUTHORS:
            theirs = RunConfig.from_preset(_authors_preset(column))
            config = config.replace(kappa=theirs.kappa, flip_ratio=theirs.flip_ratio)
        return with_spec(with_spec(config, "method", row.method), "optimizer", row.optimizer)


_AUTHORS = ("ncsam-authors", "sam-length-matched")


def _authors_preset(column: Column) -> str:
    """The preset with the authors' strength and flip ratio. They state none above 60 % and none for human labels."""
    dataset = "cifar100" if column.dataset == "cifar100" else "cifar10"
    percent = next((p for p in (20, 40, 60) if 100 * column.rate <= p), 60)
    return f"ncsam-authors-{dataset}-{percent}"


#: The paper's datasets as `ncsam.data` calls them.
_OURS = {
    "cifar10": "cifar10",
    "cifar10n": "cifar10n",
    "cifar100": "cifar100",
    "tiny-imagenet": "tiny_imagenet",
    "animal10n": "animal10n",
    "food101n": "food101n",
}


def _absolute(source: str) -> str:
    """Make a path absolute so that every worker finds it; names are returned unchanged."""
    return source if source in data.names() else str(Path(source).expanduser().resolve())
