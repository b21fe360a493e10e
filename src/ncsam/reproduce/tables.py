"""The tables of the paper: their columns, their rows as specs of ours, and what it prints in their cells.

The figures are those of "NCSAM: Noise-Compensated Sharpness-Aware Minimization for Noisy Label Learning"
(arXiv:2601.19947), tables 1 to 8, test accuracy in percent as printed; `paper/*.csv` holds them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources

from ncsam._errors import bad_value, unknown_name

SOURCE = "NCSAM: Noise-Compensated Sharpness-Aware Minimization for Noisy Label Learning, arXiv:2601.19947"

_DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar10n": "CIFAR-10N worst",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
    "animal10n": "Animal-10N",
    "food101n": "Food-101N",
}
#: What the paper calls asymmetric on Tiny-ImageNet is a pair flip in the tables it compares with.
_RECIPES = {"asymmetric": "pairflip"}


@dataclass(frozen=True)
class Column:
    """A dataset with a kind of noise.

    Attributes:
        name: name on the command line, such as "cifar10-60".
        dataset: name of the dataset in the paper's tables.
        noise: kind of noise; "human" for datasets with real label errors.
        rate: noise rate in [0, 1]; for human labels the rate that the dataset's authors estimate.
    """

    name: str
    dataset: str
    noise: str
    rate: float

    @property
    def preset(self) -> str:
        """The preset with the paper's setting."""
        return self.dataset if self.noise == "human" else f"{self.dataset}-{_RECIPES.get(self.noise, self.noise)}"

    @property
    def folder(self) -> str:
        """The folder of its runs, the same in all tables that have this column."""
        return self.preset if self.noise == "human" else f"{self.preset}-{100 * self.rate:g}"

    @property
    def title(self) -> str:
        noise = "" if self.noise == "human" else f", {100 * self.rate:g} % {self.noise}"
        return _DATASETS[self.dataset] + noise


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: name on the command line.
        title: name in the paper.
        method: spec of the method.
        optimizer: spec of the optimizer.
        control: whether it is our own control, which the paper does not have.
    """

    name: str
    title: str
    method: str = "ce"
    optimizer: str = "sgd"
    control: bool = False


#: NCSAM without its compensation: the same warm-up and radius.
CONTROL = Row("kappa0", "NCSAM, kappa = 0 (control)", optimizer="ncsam:kappa=0", control=True)
# the presets have NCSAM's warm-up, which SAM and BSAM do not share
_SAM, _BSAM = "sam:warmup=0", "bsam:warmup=0"
_RECOMMENDED = "sam:rho=validation:rho_target=auto:warmup=null:val_share=0.1"
_CHEAP = f"m{_RECOMMENDED}"
_NAMES = {
    "Forward T": Row("forward", "Forward T", "forward"),
    "Forward": Row("forward", "Forward", "forward"),
    "F-correction": Row("forward", "F-correction", "forward"),
    "Co-teaching": Row("coteaching", "Co-teaching", "coteaching"),
    "Co-teaching+": Row("coteaching_plus", "Co-teaching+", "coteaching_plus"),
    "JoCoR": Row("jocor", "JoCoR", "jocor"),
    "Reweight-R": Row("trevision", "Reweight-R", "trevision"),
    "DivideMix": Row("dividemix", "DivideMix", "dividemix"),
    "CORES2": Row("cores2", "CORES2", "cores2"),
    "CAL": Row("cal", "CAL", "cal"),
    "CC": Row("cc", "CC", "cc"),
    "DMI": Row("dmi", "DMI", "dmi"),
    "Mixup": Row("mixup", "Mixup", "mixup"),
    "GCE": Row("gce", "GCE", "gce"),
    "Peer Loss": Row("peer", "Peer Loss", "peer"),
    "LIMIT": Row("limit", "LIMIT", "limit"),
    "SLN": Row("sln", "SLN", "sln"),
    "SL": Row("sl", "SL", "sl"),
    "APL": Row("apl", "APL", "apl"),
    "CTRR": Row("ctrr", "CTRR", "ctrr"),
    "RegCE": Row("regce", "RegCE", "regce"),
    "Decoupling": Row("decoupling", "Decoupling", "decoupling"),
    "MentorNet": Row("mentornet", "MentorNet", "mentornet"),
    "M-Correction": Row("mcorrection", "M-Correction", "mcorrection"),
    "UNICON": Row("unicon", "UNICON", "unicon"),
    "DISC": Row("disc", "DISC", "disc"),
    "NCT": Row("nct", "NCT", "nct"),
    "SELFIE": Row("selfie", "SELFIE", "selfie"),
    "PLC": Row("plc", "PLC", "plc"),
    "Nested Co-teaching": Row("nested_coteaching", "Nested Co-teaching", "nested_coteaching"),
    "Co-learning": Row("colearning", "Co-learning", "colearning"),
    "GJS": Row("gjs", "GJS", "gjs"),
    "CleanNet": Row("cleannet", "CleanNet", "cleannet"),
    "Standard": Row("ce", "Standard", "ce"),
    "CE": Row("ce", "CE", "ce"),
    "SGD": Row("sgd", "SGD"),
    "SAM": Row("sam", "SAM", optimizer=_SAM),
    "BSAM": Row("bsam", "BSAM", optimizer=_BSAM),
    "NCSAM": Row("ncsam", "NCSAM", optimizer="ncsam"),
}


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Attributes:
        name: name on the command line, such as "table1".
        title: heading.
        columns: the columns.
        rows: the rows.
        published: the paper's numbers in percent, by names of row and column.
        metric: the metric that the paper names for it. `None` if it names none.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    published: Mapping[tuple[str, str], float] = field(default_factory=dict)
    metric: str | None = None

    @cached_property
    def cells(self) -> list[tuple[Row, Column]]:
        """The cells to run: those that the paper prints, and the controls in all columns."""
        return [(r, c) for c in self.columns for r in self.rows if r.control or (r.name, c.name) in self.published]

    def part(self, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> Table:
        """Return the table with some of its rows and columns.

        Args:
            rows: names of rows; others are ignored. `None`: all.
            columns: names of columns; others are ignored. `None`: all.
        """
        return replace(
            self,
            rows=[row for row in self.rows if rows is None or row.name in rows],
            columns=[column for column in self.columns if columns is None or column.name in columns],
        )


def _read(file: str) -> list[dict[str, str]]:
    text = (resources.files("ncsam.reproduce") / "paper" / file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


#: Noise rates that the authors of the datasets estimate.
_ESTIMATED = {"animal10n": 0.08, "food101n": 0.2}


def _column(line: Mapping[str, str]) -> Column:
    dataset, noise = line["dataset"], line["noise"]
    if noise == "human":
        return Column(dataset, dataset, noise, _ESTIMATED[dataset])
    kind = "-asymmetric" if noise == "asymmetric" else ""
    return Column(f"{dataset}{kind}-{line['rate_percent']}", dataset, noise, int(line["rate_percent"]) / 100)


def _main(number: int, title: str) -> Table:
    lines = [line for line in _read("tables.csv") if line["table"] == str(number)]
    columns = dict.fromkeys(_column(line) for line in lines)
    rows = dict.fromkeys(_NAMES[line["method"]] for line in lines)
    published = {(_NAMES[line["method"]].name, _column(line).name): float(line["accuracy"]) for line in lines}
    return Table(f"table{number}", title, list(columns), [*rows, CONTROL], published)


def _ablation(name: str, title: str, option: str, metric: str | None = None) -> Table:
    lines = [line for line in _read("ablations.csv") if line["table"] == name]
    columns = dict.fromkeys(_column(line) for line in lines)
    rows = dict.fromkeys(line["value"] for line in sorted(lines, key=lambda line: line["value"]))
    # the paper's ramp is NCSAM's own
    specs = {value: "ncsam" if value == "ramp" else f"ncsam:{option}={value}" for value in rows}
    published = {(line["value"], _column(line).name): float(line["accuracy"]) for line in lines}
    titles = {value: value if option == "ramp" else f"{option} {value}" for value in rows}
    made = [Row(value, titles[value], optimizer=specs[value]) for value in rows]
    return Table(name, title, list(columns), [*made, CONTROL], published, metric)


#: What tells the length of NCSAM's perturbation from its direction; none of these rows but four is in the paper.
_VARIANTS = (
    Row("sgd", "SGD", control=True),
    Row("sam", "SAM, rho .05", optimizer=_SAM, control=True),
    *(Row(f"sam{r}", f"SAM, rho {r}", optimizer=f"sam:rho=0{r}:warmup=0", control=True) for r in (".1", ".2", ".5")),
    Row("bsam", "BSAM", optimizer=_BSAM, control=True),
    Row("ncsam", "NCSAM as printed", optimizer="ncsam", control=True),
    CONTROL,
    Row("authors", "NCSAM as its authors run it", optimizer="ncsam-authors", control=True),
    Row("length", "SAM, length-matched (control)", optimizer="sam-length-matched", control=True),
    Row("recommended", "SAM, validation-guided radius", optimizer=_RECOMMENDED, control=True),
    Row("cheap", "MSAM, validation-guided radius", optimizer=_CHEAP, control=True),
    Row("gce", "GCE", "gce", control=True),
    Row("elr", "ELR", "elr", control=True),
    Row("dividemix", "DivideMix", "dividemix", control=True),
)


#: Both forms of NCSAM at other strengths and flip ratios than those of the variants.
_VARIANT_ABLATIONS = (
    *(row for row in _VARIANTS if row.name in ("sgd", "sam", "ncsam", "kappa0")),
    *(Row(f"kappa{k}", f"printed, kappa {k}", optimizer=f"ncsam:kappa=0{k}", control=True) for k in (".02", ".5")),
    *(
        Row(f"flip{m}", f"printed, flip ratio {m}", optimizer=f"ncsam:flip_ratio=0{m}", control=True)
        for m in (".2", ".6")
    ),
    *(row for row in _VARIANTS if row.name in ("authors", "length")),
    *(
        Row(f"authors-kappa{k}", f"authors, kappa {k}", optimizer=f"ncsam-authors:kappa={float(k):g}", control=True)
        for k in (".05", ".75", "1.5")
    ),
    *(
        Row(f"authors-flip{m}", f"authors, flip ratio {m}", optimizer=f"ncsam-authors:flip_ratio=0{m}", control=True)
        for m in (".2", ".6")
    ),
    Row("length-kappa.75", "length-matched, kappa .75", optimizer="sam-length-matched:kappa=0.75", control=True),
)


def _variants(table1: Table, table2: Table) -> Table:
    """CIFAR-10 under synthetic and human noise, with NCSAM in both forms and controls for each."""
    symmetric = [c for c in table2.columns if c.dataset == "cifar10"]
    instance = [replace(c, name="instance-40") for c in table1.columns if c.name == "cifar10-40"]
    columns = [*symmetric, *instance, Column("human", "cifar10n", "human", 0.4)]
    published = {
        (row, to): table.published[row, of]
        for table, pairs in ((table2, [(c.name, c.name) for c in symmetric]), (table1, [("cifar10-40", "instance-40")]))
        for of, to in pairs
        for row in ("sgd", "sam", "bsam", "ncsam", "gce", "dividemix")
        if (row, of) in table.published
    }
    title = "NCSAM as printed and as its authors run it, with controls, on CIFAR-10"
    return Table("variants", title, columns, _VARIANTS, published)


def _variant_ablations(table2: Table) -> Table:
    title = "kappa and flip ratio of NCSAM as printed and as its authors run it, on CIFAR-10"
    columns = [c for c in table2.columns if c.name == "cifar10-40"]
    return Table("variant-ablations", title, columns, _VARIANT_ABLATIONS)


def _curves(table2: Table) -> Table:
    part = table2.part(["sgd", "sam", "ncsam", "kappa0"], ["cifar10-40"])
    return replace(part, name="curves", title="Accuracy over epochs (figure), CIFAR-10 with 40 % symmetric noise")


_TABLE1 = _main(1, "Table 1: instance-dependent noise on CIFAR-10 and CIFAR-100")
_TABLE2 = _main(2, "Table 2: symmetric noise on CIFAR-10 and CIFAR-100")
#: All tables by name, in the paper's order.
TABLES = {
    table.name: table
    for table in (
        _TABLE1,
        _TABLE2,
        _main(3, "Table 3: Tiny-ImageNet"),
        _main(4, "Table 4: Animal-10N"),
        _main(5, "Table 5: Food-101N"),
        _ablation("flip-ratio", "Ablation: share of the batch that is flipped", "flip_ratio"),
        _ablation("schedule", "Ablation: strength of the compensation over training", "ramp"),
        _ablation("kappa", "Ablation: largest strength of the compensation", "kappa", metric="last5"),
        _curves(_TABLE2),
        _variants(_TABLE1, _TABLE2),
        _variant_ablations(_TABLE2),
    )
}
#: Names that stand for several tables.
GROUPS = {
    "ablations": ("flip-ratio", "schedule", "kappa"),
    "all": tuple(name for name in TABLES if not name.startswith("variant")),  # of the paper
}


def find(name: str) -> list[Table]:
    """Return the table, or the group of tables, of a name.

    Args:
        name: a name from `TABLES` or `GROUPS`.

    Raises:
        UsageError: if the name is unknown.
    """
    if name not in TABLES and name not in GROUPS:
        raise unknown_name("table", name, [*TABLES, *GROUPS])
    return [TABLES[each] for each in GROUPS.get(name, (name,))]


def choose(name: str, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> list[Table]:
    """Return the tables of a name, limited to some rows and columns.

    Args:
        name: a name from `TABLES` or `GROUPS`.
        rows: names of rows. `None`: all.
        columns: names of columns. `None`: all.

    Returns:
        The tables that have such cells.

    Raises:
        UsageError: if a name is unknown, or no table has such a cell.
    """
    tables = find(name)
    known_rows = {row.name for table in tables for row in table.rows}
    known_columns = {column.name for table in tables for column in table.columns}
    for kind, asked, known in (("row", rows, known_rows), ("column", columns, known_columns)):
        for each in asked or ():
            if each not in known:
                raise unknown_name(f"{kind} of {name}", each, known)
    found = [part for table in tables if (part := table.part(rows, columns)).cells]
    if not found:
        raise bad_value(
            "rows", ",".join(rows or ()), f"rows that the paper prints in the columns {','.join(columns or ())}"
        )
    return found
