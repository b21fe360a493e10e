"""Notes on why a table is not comparable with the paper's: about the whole table, rows, columns or cells."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ncsam.methods import create as create_method
from ncsam.reproduce.scales import Setting
from ncsam.reproduce.tables import Column, Row, Table


@dataclass(frozen=True)
class Note:
    """A reason why numbers are not comparable.

    Attributes:
        text: the reason, in sentences.
        rows: names of the rows it applies to. `None`: all.
        columns: names of the columns it applies to. `None`: all.
    """

    text: str
    rows: Collection[str] | None = None
    columns: Collection[str] | None = None

    @property
    def of_all(self) -> bool:
        return self.rows is None and self.columns is None

    def holds_for(self, row: Row, column: Column) -> bool:
        """Return whether it applies to a cell.

        Args:
            row: row of the cell.
            column: column of the cell.
        """
        return (self.rows is None or row.name in self.rows) and (self.columns is None or column.name in self.columns)

    def touches(self, table: Table) -> bool:
        """Return whether it applies to any cell of a table.

        Args:
            table: the table, whole or in part.
        """
        return any(self.holds_for(row, column) for row, column in table.cells)


_UNSTATED = Note(
    "The paper does not state rho (here .05), the learning rate's schedule (here cosine), its seeds, nor which epoch "
    "its figures are of."
)
_FACTS: dict[str, list[Note]] = {
    "table1": [
        Note("The paper's text says PreResNet-32, the tables it compares with used ResNet-34, which scale paper runs."),
        Note("Labels are drawn by our generator of instance-dependent noise, not taken from CAL's published files."),
        Note("kappa is not stated for this noise; here .2.", rows=("ncsam",)),
        Note(
            "The paper's text has 70.11 (CIFAR-10) and 65.46 (CIFAR-100) where its table has 70.73 and 64.83.",
            rows=("ncsam",),
            columns=("cifar10-60", "cifar100-60"),
        ),
    ],
    "table2": [
        Note("A wrong label may be the true class again, as in the tables that the paper compares with."),
        Note(
            "The paper's number for 60 % is below that for 80 %.", rows=("sam",), columns=("cifar10-60", "cifar10-80")
        ),
        Note("The paper's own ablation has 61.80 here.", rows=("ncsam",), columns=("cifar100-60",)),
        Note("CE and SGD are the same runs of ours; the paper takes CE from another paper.", rows=("ce", "sgd")),
    ],
    "table3": [
        Note("Images of 64 x 64 with a crop and a mirror; others cut 56 or enlarge to 224, which alone moves figures."),
        Note(
            "Asymmetric noise is a pair flip, as in the tables that the paper compares with.",
            None,
            ("tiny-imagenet-asymmetric-45",),
        ),
        Note("kappa is not stated for this dataset; here .2.", rows=("ncsam",)),
    ],
    "table4": [Note("Momentum, BatchNorm in VGG-19 and warm-up are not stated; here .9, with, and a quarter.")],
    "table5": [
        Note(
            "The caption says Food-101; CE, CleanNet and PLC are figures of Food-101N, the other baselines of Food-101."
        ),
        Note("The paper's number equals that of its table 4, on another dataset.", rows=("plc",)),
        Note("Momentum and warm-up are not stated; here .9 and a quarter of the epochs."),
    ],
    "schedule": [
        Note("The paper calls the ramp linear; its formula, which is run here, is smooth.", rows=("ramp",)),
        Note(
            "This figure also stands for SGD on another dataset in the paper's source.", ("constant",), ("cifar100-20",)
        ),
    ],
    "kappa": [Note("The paper's numbers are means of the last five epochs.")],
    "curves": [
        Note("The paper prints no numbers with its figure; those shown are of the same setting in its table 2.")
    ],
}


def not_comparable(table: Table, setting: Setting) -> Iterator[Note]:
    """Yield the notes that apply to some cell of a table.

    Args:
        table: the table, whole or in part.
        setting: the scale and the sources of the datasets.
    """
    notes = [*_of_scale(table, setting), _UNSTATED, *_FACTS.get(table.name, [])]
    others = [row.name for row in table.rows if row.method != "ce" or row.name in ("ce", "bsam")]
    notes.append(
        Note(
            "The paper's number is another paper's, under its own network, length and learning rate; ours is trained "
            "as NCSAM is, with the method's own options.",
            rows=others,
        )
    )
    yield from (note for note in notes if note.touches(table))


def _of_scale(table: Table, setting: Setting) -> Iterator[Note]:
    if setting.scale == "paper":
        return
    config = setting.config(table.rows[0], table.columns[0], 1)
    part = config.data_options
    model = config.model if setting.width is None else f"{config.model} of width {setting.width}"
    yield Note(
        f"Scale {setting.scale}: {part['train']:,} training and {part['test']:,} test samples of at most "
        f"{part['classes']} classes at {part['side']} x {part['side']} pixels, {model}, {config.epochs} epochs, "
        f"batches of {config.batch_size}, augmentation {config.augment}. Differences from the "
        "paper are those of the scale."
    )
    views = [row.name for row in table.rows if any(v.startswith("auto") for v in create_method(row.method).views)]
    if views:
        yield Note("Trains on strongly augmented views, which are shifts alone at this scale.", rows=views)
    said: dict[str, list[str]] = {}
    for column in table.columns:
        source = setting.source(column.dataset)
        if source.stand_in:
            kind = " with symmetric noise of the rate that its authors estimate" if column.noise == "human" else ""
            said.setdefault(f"Not this dataset: {source.label} stands in for it{kind}.", []).append(column.name)
        elif Path(source.data).is_absolute():
            said.setdefault(f"Read from {source.label}.", []).append(column.name)
    yield from (Note(text, columns=columns) for text, columns in said.items())
