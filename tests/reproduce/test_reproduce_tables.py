"""The paper's figures, the cells they stand in, what those train at each scale, and how a table is shown."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from ncsam import NCSAM, data
from ncsam._statistics import Spread
from ncsam.engine import RunConfig
from ncsam.engine.resolve import default_warmup
from ncsam.engine.task import load_task
from ncsam.methods.loss_method import CE
from ncsam.reproduce import TABLES, choose, find
from ncsam.reproduce.notes import Note, not_comparable
from ncsam.reproduce.results import Cell, Filled, fill, jobs, run_name
from ncsam.reproduce.scales import Setting
from ncsam.reproduce.sheet import to_html, to_latex, to_markdown
from ncsam.reproduce.words import sheet, to_csv


def test_every_figure_of_the_paper_has_its_cell() -> None:
    counts = {name: len(table.published) for name, table in TABLES.items()}
    assert counts == {
        "table1": 96, "table2": 112, "table3": 21, "table4": 11, "table5": 10,
        "flip-ratio": 10, "schedule": 4, "kappa": 12, "curves": 112,
        "variants": 4 * 5 + 4, "variant-ablations": 0,
    }  # fmt: skip
    printed = [TABLES["table1"].published["ncsam", "cifar100-60"], TABLES["table2"].published["bsam", "cifar10-80"]]
    assert printed == [64.83, 78.27]
    assert TABLES["table3"].published["mcorrection", "tiny-imagenet-asymmetric-45"] == 24.8
    assert TABLES["kappa"].published["0.03", "animal10n"] == 83.58
    for table in find("all"):
        assert [row.name for row in table.rows if row.control] == ["kappa0"]
        assert {(r.name, c.name) for r, c in table.cells if not r.control} <= set(table.published)


def test_rows_and_columns_are_chosen_by_name() -> None:
    part = TABLES["table2"].part(["ncsam", "gce"], ["cifar10-40"])
    assert [(row.name, column.name) for row, column in part.cells] == [("gce", "cifar10-40"), ("ncsam", "cifar10-40")]
    with pytest.raises(ValueError, match=r"table2 'nscam'.*'ncsam'"):
        choose("table2", ["nscam"])
    with pytest.raises(ValueError, match="unknown column of table2 'cifar10-30'"):
        choose("table2", None, ["cifar10-30"])
    with pytest.raises(ValueError, match="rows='unicon'"):
        choose("table3", ["unicon"], ["tiny-imagenet-asymmetric-45"])
    assert [(t.name, len(t.cells)) for t in choose("ablations", ["kappa0"], ["cifar10-20"])] == [
        ("schedule", 1),
        ("kappa", 1),
    ]
    with pytest.raises(ValueError, match="unknown table 'table6'"):
        find("table6")
    assert [table.name for table in find("ablations")] == ["flip-ratio", "schedule", "kappa"]


def test_paper_scale_is_the_preset() -> None:
    setting = Setting("paper", data_root="somewhere")
    for table in find("all"):
        for row, column in table.cells:
            config = setting.config(row, column, 3)
            preset = RunConfig.from_preset(column.preset)
            same = ("data", "model", "epochs", "batch_size", "lr", "weight_decay", "rho", "augment", "pretrained")
            assert [getattr(config, name) for name in same] == [getattr(preset, name) for name in same]
            assert (config.seed, config.noise, config.data_root) == (3, preset.noise, "somewhere")
            assert config.rate == column.rate
    rows = {row.name: row for row in TABLES["table2"].rows}
    column = TABLES["table2"].columns[1]
    assert not setting.config(rows["sam"], column, 1).warmup
    config = setting.config(rows["ncsam"], column, 1)
    share = default_warmup(NCSAM, CE, config.rho) if config.warmup is None else config.warmup
    assert (config.epochs, share * config.epochs) == (200, 50)
    control = setting.config(rows["kappa0"], column, 1)
    assert control == setting.config(rows["ncsam"], column, 1).replace(kappa=0.0)
    ablation = {row.name: row.optimizer for row in TABLES["schedule"].rows}
    assert ablation == {"constant": "ncsam:ramp=constant", "ramp": "ncsam", "kappa0": "ncsam:kappa=0"}


def test_variants_have_the_authors_strength_and_a_control_of_each(tmp_path: Path) -> None:
    setting = Setting("medium", {"cifar10": "mine.npz", "cifar10n": "theirs.npz"}, images=4000, augment="paper")
    table = TABLES["variants"]
    rows, columns = ({each.name: each for each in group} for group in (table.rows, table.columns))
    strengths = {c.name: setting.config(rows["authors"], c, 1).kappa for c in table.columns}
    assert strengths == {
        "cifar10-20": 0.1, "cifar10-40": 0.25, "cifar10-60": 1.25, "cifar10-80": 1.25,
        "instance-40": 0.25, "human": 0.25,
    }  # fmt: skip
    assert [setting.config(rows[r], columns["cifar10-20"], 1).flip_ratio for r in ("authors", "ncsam")] == [0.2, None]
    authors, control = (setting.config(rows[r], columns["cifar10-40"], 1) for r in ("authors", "length"))
    assert control == authors.replace(optimizer="sam-length-matched")
    assert (authors.model, authors.epochs, authors.augment) == ("resnet9", 20, "paper")
    part = {name: authors.data_options[name] for name in ("train", "test", "side")}
    assert part == {"train": 4000, "test": 2000, "side": 32}
    human = setting.config(rows["recommended"], columns["human"], 1)
    assert (human.noise, human.rho, human.val_share, human.warmup) == (None, "validation", 0.1, None)
    assert Path(human.data_options["of"]).name == "theirs.npz"
    assert setting.config(rows["sam.2"], columns["human"], 1).rho == 0.2
    assert (table.published["ncsam", "instance-40"], table.published["bsam", "cifar10-80"]) == (90.23, 78.27)
    cheap = setting.config(rows["cheap"], columns["human"], 1)
    assert cheap == human.replace(optimizer="msam")
    assert len(jobs(table, setting, [1], tmp_path)) == 15 * 6
    narrow = Setting("medium", setting.named, width=16, epochs=30).config(rows["sgd"], columns["cifar10-40"], 1)
    assert (narrow.model_options, narrow.epochs) == ({"width": 16}, 30)
    with pytest.raises(ValueError, match="width=16"):
        Setting("small", width=16)
    with pytest.raises(ValueError, match="images=100"):
        Setting("paper", images=100)


def test_ablations_of_the_variants_differ_from_them_in_one_option() -> None:
    setting = Setting("medium", {"cifar10": "mine.npz"})
    table = TABLES["variant-ablations"]
    rows, (column,) = {row.name: row for row in table.rows}, table.columns
    of = {name: setting.config(row, column, 1) for name, row in rows.items()}
    for name in ("ncsam", "kappa0", "authors", "length"):
        variant = next(row for row in TABLES["variants"].rows if row.name == name)
        assert of[name] == setting.config(variant, column, 1)
    assert {name: of[name].kappa for name in ("kappa.02", "kappa.5")} == {"kappa.02": 0.02, "kappa.5": 0.5}
    assert of["flip.2"] == of["ncsam"].replace(flip_ratio=0.2)
    assert of["authors-kappa1.5"] == of["authors"].replace(kappa=1.5)
    assert (of["authors"].kappa, of["authors"].flip_ratio) == (0.25, 0.4)
    assert of["authors-flip.6"] == of["authors"].replace(flip_ratio=0.6)
    assert of["length-kappa.75"] == of["authors-kappa.75"].replace(optimizer="sam-length-matched")
    assert table not in find("all")


def test_tables_share_their_runs(tmp_path: Path) -> None:
    setting = Setting("smoke")
    names = [{job.name for job in jobs(TABLES[name], setting, [1, 2], tmp_path)} for name in ("table2", "curves")]
    assert names[1] == {f"cifar10-symmetric-40/ce-{o}-s{s}" for o in OPTIMIZERS for s in (1, 2)}
    assert names[1] < names[0]
    assert len(names[0]) == 2 * 112  # ce and sgd are one run


OPTIMIZERS = ("sgd", "sam_warmup=0", "ncsam", "ncsam_kappa=0")


def test_small_takes_a_part_of_what_is_there_and_else_a_stand_in(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), 10)
    file = tmp_path / "mine.npz"
    np.savez(file, x=rng.integers(256, size=(120, 16, 16, 3), dtype=np.uint8), y=y)
    setting = Setting("small", {"cifar10": str(file)}, data_root=str(tmp_path))
    column, human = TABLES["table2"].columns[0], TABLES["table4"].columns[0]
    config = setting.config(TABLES["table2"].rows[0], column, 1)
    assert (config.model, config.epochs, config.noise, config.rate) == ("resnet8", 12, "uniform", 0.2)
    assert config.data_options == {"of": str(file), "classes": 10, "train": 2000, "test": 1000, "side": 8}
    task = load_task(config)
    assert task.dataset.train.inputs.shape == (100, 8, 8, 3)  # type: ignore[union-attr]
    assert setting.source("animal10n").stand_in
    stands_in = setting.config(TABLES["table4"].rows[0], human, 1)
    assert (stands_in.data_options["of"], stands_in.noise, stands_in.rate) == ("digits", "symmetric", 0.08)
    texts = [note.text for note in not_comparable(TABLES["table4"], setting)]
    assert any("digits stands in for it with symmetric noise" in text for text in texts)
    with pytest.raises(ValueError, match="paper 'cifar'"):
        Setting("small", {"cifar": str(file)})
    with pytest.raises(ValueError, match="scale='tiny'"):
        Setting("tiny")


def test_reduced_keeps_first_classes_spread_samples_and_means_of_pixels(tmp_path: Path) -> None:
    x = np.arange(12 * 4 * 4, dtype=np.uint8).reshape(12, 4, 4, 1)
    np.savez(tmp_path / "a.npz", x=x, y=np.repeat(np.arange(3), 4), x_test=x[::4], y_test=np.arange(3))
    found = data.load("reduced", of=str(tmp_path / "a.npz"), classes=2, train=4, test=5, side=2)
    assert found.train.labels.tolist() == [0, 0, 1, 1]
    expected = x[:8:2].reshape(4, 2, 2, 2, 2, 1).mean(axis=(2, 4))
    np.testing.assert_array_equal(found.train.inputs, np.rint(expected))
    assert found.test is not None
    assert found.test.labels.tolist() == [0, 1]
    assert (found.classes, found.size) == (("0", "1"), (2, 2))
    for wrong in ({"train": 0}, {"classes": 1}, {"of": "reduced"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.*"):
            data.load("reduced", **{"of": "digits", **wrong})


def filled(seeds: int = 2) -> Filled:
    """Part of table 2 with made figures: seed s of row r has 10 r + s."""
    table = TABLES["table2"].part(["sam", "ncsam", "kappa0"], ["cifar10-60"])
    summaries = {
        run_name(row, column, seed): dict.fromkeys(("best", "last", "last5", "last10"), 10.0 * number + seed)
        for number, (row, column) in enumerate(table.cells)
        for seed in range(1, seeds + 1)
    }
    return fill(table, Setting("smoke"), range(1, seeds + 1), summaries)


def test_a_cell_shows_ours_the_papers_and_the_difference() -> None:
    found = filled()
    assert found.cells["ncsam", "cifar10-60"] == Cell(
        dict.fromkeys(("best", "last", "last5", "last10"), Spread(11.5, 0.5**0.5, 2)), 2, 89.0
    )
    text = to_markdown(sheet(found))
    assert "| NCSAM | 11.5 ± 0.7 (89.0, -77.5) |" in text
    assert "| NCSAM, kappa = 0 (control) | 21.5 ± 0.7 |" in text
    assert "| SAM | 1.5 ± 0.7 (67.2, -65.7) \\[b\\] |" in text
    assert "| CIFAR-10, 60 % symmetric \\[a\\] |" in text
    assert "- \\[a\\] Not this dataset: digits stands in for it." in text
    assert "- \\[b\\] The paper's number for 60 % is below that for 80 %." in text
    assert "last5 (mean of the last 5 epochs), 2 seeds, mean ± sample standard deviation" in text
    assert text.index("Not comparable:") > text.index("| NCSAM |")


def test_all_formats_end_with_what_is_not_comparable() -> None:
    found = filled(1)
    latex, page = to_latex(sheet(found)), to_html(sheet(found))
    assert r"NCSAM & 11.0 (89.0, -78.0) \\" in latex
    assert latex.index(r"\item {}[a] Not this dataset") > latex.index(r"\bottomrule")
    assert "<td>11.0 (89.0, -78.0)</td>" in page
    assert page.index("<li>[a] Not this dataset") > page.index("</table>")
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [row["row"] for row in rows] == ["sam", "ncsam", "kappa0"]
    assert (rows[1]["last5"], rows[1]["paper"], rows[1]["difference"], rows[1]["seeds"]) == (
        "11.00",
        "89.00",
        "-78.00",
        "1",
    )
    assert "digits stands in" in rows[1]["not_comparable"]
    assert (rows[2]["paper"], rows[2]["difference"]) == ("", "")


def test_numbers_of_seeds_that_differ_are_said_in_the_cells() -> None:
    found = filled(2)
    short = {**found.cells, ("sam", "cifar10-60"): Cell({"last5": Spread(1.0, None)}, 1, 67.22)}
    text = to_markdown(sheet(Filled(found.table, "last5", "smoke", short, found.notes)))
    assert "| SAM | 1.0 (67.2, -66.2, n 1) \\[b\\] |" in text
    assert "| NCSAM, kappa = 0 (control) | 21.5 ± 0.7 (n 2) |" in text


def test_a_note_marks_what_it_holds_for() -> None:
    table = TABLES["table2"].part(["sam"], ["cifar10-20"])
    assert Note("all").touches(table)
    assert not Note("one", rows=("sam",), columns=("cifar10-60",)).touches(table)
    paper = list(not_comparable(TABLES["table2"], Setting("paper")))
    assert not any("Scale" in note.text for note in paper)
    assert sum(note.of_all for note in paper) == 2


def test_what_failed_is_said_in_few_notes() -> None:
    table = TABLES["table2"].part(["sl", "apl", "ncsam"], ["cifar10-20", "cifar10-40"])
    errors = {run_name(row, column, 1): "no data" for row, column in table.cells}
    del errors["cifar10-symmetric-20/ce-ncsam-s1"]
    found = fill(table, Setting("smoke"), [1, 2], {}, errors=errors)
    notes = [note for note in found.notes if note.text == "1 of 2 runs failed: no data"]
    assert [(note.rows, note.columns) for note in notes] == [
        (["sl", "apl"], ("cifar10-20", "cifar10-40")),
        (["ncsam"], ("cifar10-40",)),
    ]
    (section,) = sheet(found).sections
    assert [line[1:] for line in section.lines] == [["failed [c]", "failed [c]"]] * 2 + [["not run", "failed [d]"]]


def test_smoke_is_small() -> None:
    plans = {table.name: jobs(table, Setting("smoke"), [1], Path("out")) for table in find("all")}
    assert max(map(len, plans.values())) == 112
    configs = [job.config for plan in plans.values() for job in plan]
    steps = [config.epochs * config.data_options["train"] // (config.batch_size or 1) for config in configs]
    assert set(steps) == {80}  # of a network with 32 hidden units: some tenths of a second each
    assert {(config.model, str(config.model_options)) for config in configs} == {("mlp", "{'hidden': [32]}")}
