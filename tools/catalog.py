"""The pages of methods and optimizers, made from their classes: summary, formula, options, cost, results, script.

The site's build calls `pages()`. Text and formula are those of the docstrings; results are read from the tables of
docs/experiments/methods.md and real_noise.md, so that no number is written twice.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from ncsam import methods, optim
from ncsam.methods import describe
from ncsam.optim.registry import Options

sys.path.insert(0, str(Path(__file__).parent))
from catalog_scripts import method_script, optimizer_script

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "docs/experiments"
_SETTING = "to be compared with it"
#: Pages of the experiments whose tables have a row for each optimizer.
_OPTIMIZER_PAGES = ("full.md", "medium.md", "cheap_variants.md", "real_noise.md")
#: How the rows of an optimizer begin, where that is not the name of its class.
_ROWS = {
    "SAM": r"`?SAM\b(?!, length)",
    "NCSAM": r"`?NCSAM\b(?! as its)",
    "AuthorsNCSAM": "NCSAM as its authors",
    "LengthMatchedSAM": "SAM, length-matched",
    "AESAM": r"AE-SAM\b",
}
_SYMBOLS = (
    "In all formulas $x_i$ is the input of sample i, $y_i$ its given label and $e_y$ the one-hot vector of a label, "
    "$p_i$ the predicted probabilities (softmax of the logits $z_i$), $C$ the number of classes and $B$ the batch."
)
_OPTIMIZER_SYMBOLS = (
    "In all formulas $w$ are the weights, $L_B$ is the loss of the batch, $g = \\nabla L_B(w)$ its gradient, $\\rho$ "
    "the radius and $\\epsilon$ the perturbation; the base optimizer steps at $w$ with the gradient at $w + \\epsilon$ "
    "unless the formula names another one."
)


def pages() -> dict[str, str]:
    """Every page by its path below docs."""
    found = {f"methods/{name}.md": method_page(name) for name in own_methods()}
    return found | {f"optimizers/{name}.md": optimizer_page(name) for name in optim.names()}


def own_methods() -> list[str]:
    """The methods of the package, sorted."""
    return [name for name in methods.names() if methods.get(name).__module__.startswith("ncsam.")]


def method_page(name: str) -> str:
    """A page on a method.

    Args:
        name: Name of a method.
    """
    kind = methods.get(name)
    doc = Docstring(kind)
    needs = "; ".join(describe.needs(name)) or "nothing beyond a model and labels"
    presets = [
        f"- `{preset}`: " + ", ".join(f"`{option}={describe.shown(value)}`" for option, value in values.items())
        for preset, values in kind.presets.items()
    ]
    return "\n\n".join(
        [
            f"# {name}\n\n*{linked(describe.source(name).rstrip('.'))}*",
            doc.summary,
            "## Formula",
            doc.details,
            _SYMBOLS,
            "## Options",
            options_table(doc.args, describe.options(name)),
            *(
                ["Presets, `--method-options preset=NAME` or `create(..., preset=NAME)`:", "\n".join(presets)]
                * bool(presets)
            ),
            "## Cost",
            f"A step: {kind.cost}. Needs: {needs}.{epoch_cost(name)}",
            "## Results",
            our_results(name),
            published_result(name),
            "## Use",
            f"```sh\nncsam train photos/ --method {name} --out runs/{name}\n```",
            f'```python\nimport ncsam\n\nrun = ncsam.train("photos/", "runs/{name}", method="{name}")\n```',
            "The same in a plain PyTorch loop, on generated data:",
            f"```python\n{method_script(name).rstrip()}\n```",
            "## Reference",
            doc.references or "The field's baseline; no single source.",
            f'`help(ncsam.methods.get("{name}"))` prints this text. [All methods](../methods.md).',
        ]
    )


def optimizer_page(name: str) -> str:
    """A page on an optimizer.

    Args:
        name: Name of an optimizer.
    """
    kind = optim.get(name)
    doc = Docstring(kind)
    own = {
        option: parameter.default
        for option, parameter in inspect.signature(kind).parameters.items()
        if option not in ("base_optimizer", *Options.__annotations__)
    }
    caveats = re.findall(r"^Note:\n((?:    .*\n?|\n)+)", inspect.getdoc(kind) or "", flags=re.M)
    return "\n\n".join(
        [
            f"# {kind.__name__}\n\n*`--optimizer {name}`, `ncsam.optim.{kind.__name__}`*",
            doc.summary,
            "## Formula",
            doc.details,
            _OPTIMIZER_SYMBOLS,
            "## Options",
            options_table(doc.args, own),
            "All further options are shared by every optimizer: [`Options`](../reference/optim.md).",
            "## Cost",
            f"{kind.passes:g} gradient{'' if kind.passes == 1 else 's'} per step"
            + (f", after a warm-up of {kind.default_warmup:.0%} of training in a run." if kind.default_warmup else "."),
            "## Caveats",
            inspect.cleandoc(caveats[0]) if caveats else "None beyond those of [every optimizer](../optimizers.md).",
            "## Results",
            optimizer_results(kind.__name__),
            "## Use",
            f"```python\n{optimizer_script(name).rstrip()}\n```",
            "Accumulation, clipping, GradScaler, DDP and FSDP2: [the optimizers](../optimizers.md).",
            "## Reference",
            doc.references or "See [NCSAM](ncsam.md).",
        ]
    )


class Docstring:
    """The parts of a class's docstring."""

    def __init__(self, kind: type) -> None:
        text = inspect.getdoc(kind) or ""
        body, _, rest = text.partition("Args:\n")
        body = re.sub(r"^Note:\n((?:    .*\n?|\n)+)", "", body, flags=re.M).strip()
        self.summary, _, self.details = body.partition("\n\n")
        listed = re.split(r"^\w+:\n", rest, flags=re.M)[0]
        parts = re.findall(r"^    (\w+): ((?:.|\n(?!    \w+:))*)", listed, flags=re.M)
        self.args = {name: " ".join(words.split()) for name, words in parts}
        named = re.findall(r"^References:\n((?:    .*\n?)+)", text, flags=re.M)
        self.references = linked(" ".join(named[0].split())) if named else ""


def linked(text: str) -> str:
    """With arXiv numbers as links."""
    return re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def options_table(words: dict[str, str], defaults: dict[str, object]) -> str:
    """A table of options, their defaults and their meaning."""
    if not defaults:
        return "None."
    rows = [
        f"| `{name}` | {'required' if default is inspect.Parameter.empty else f'`{describe.shown(default)}`'} | "
        f"{_in_cell(words.get(name, ''))} |"
        for name, default in defaults.items()
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def _in_cell(text: str) -> str:
    """Text for a cell of a table: a bar ends the cell, except within code, where the site shows an escape as it is."""
    return re.sub(r"`[^`]*`|\|", lambda found: "\\|" if found[0] == "|" else found[0], text)


# --- results, from the pages of the experiments


def tables(page: str) -> list[tuple[str, list[str], list[list[str]]]]:
    """The tables of a page: the heading above, the header's cells, and the rows."""
    found = []
    text = (EXPERIMENTS / page).read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.M):
        for block in re.findall(r"(?:^\|.*\n)+", section, flags=re.M):
            rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
            if len(rows) > 2:
                found.append((section.splitlines()[0], rows[0], rows[2:]))
    return found


def rows_of(name: str) -> list[tuple[str, dict[str, str]]]:
    """The rows on a method in docs/experiments/methods.md, by heading."""
    return [
        (heading, dict(zip(header, row, strict=False)))
        for heading, header, rows in tables("methods.md")
        for row in rows
        if re.fullmatch(rf"`{name}(:[^`]*)?`", row[0])
    ]


def our_results(name: str) -> str:
    """Test accuracies of ours under SGD and under SAM."""
    found = [(heading, row) for heading, row in rows_of(name) if "sgd" in row and "recommended" in row]
    if not found:
        return "We have not measured it: see [the comparison of all methods](../experiments/methods.md)."
    lines = [
        f"| {heading.partition(',')[0]} | {row['sgd']} | {row['recommended']} | {row.get('sgd less `ce`', '')} |"
        for heading, row in found
    ]
    return "\n".join(
        [
            "Ours, test accuracy in percent ([settings, seeds and the command](../experiments/methods.md)):",
            "",
            "| data | SGD | SAM, adaptive radius | SGD less `ce` |",
            "|---|---:|---:|---:|",
            *lines,
        ]
    )


def published_result(name: str) -> str:
    """What is published for a method, in one setting."""
    for _, row in rows_of(name):
        if "published for" in row:
            if row.get("accuracy", "-") == "-":
                return f"Published: the NCSAM paper has no number for it. Its authors' setting: {row[_SETTING]}."
            return (
                f"Published: **{row['accuracy']} %** on {row['published for']}, as the tables of the NCSAM paper quote "
                f"it ({row[_SETTING]}). Ours are of other data, models and lengths, and not comparable."
            )
    return "Published: not collected."


def epoch_cost(name: str) -> str:
    """The measured time of an epoch."""
    for _, row in rows_of(name):
        if "epoch, sgd" in row and row["epoch, sgd"] not in ("", "-"):
            return (
                f" Measured on digits: an epoch takes {row['epoch, sgd']} times as long as that of `ce` under SGD, "
                f"{row['epoch, recommended']} times under SAM."
            )
    return ""


def optimizer_results(kind: str) -> str:
    """The rows on an optimizer in the tables of the experiments, next to those of SGD.

    Args:
        kind: Name of its class.
    """
    pattern = _ROWS.get(kind, rf"`?{kind}\b")
    parts = []
    for page in _OPTIMIZER_PAGES:
        for _, header, rows in tables(page):
            ours = [row for row in rows if re.match(pattern, row[0])]
            base = [row for row in rows if row[0] == "SGD"]
            if ours and base:
                lines = ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *base, *ours]]
                where = f"[{heading(page)}](../experiments/{page})"
                parts.append(f"Test accuracy in percent, from {where}:\n\n" + "\n".join(lines))
                break
    if parts:
        return "\n\n".join(parts)
    about = [page for page in sorted(path.name for path in EXPERIMENTS.glob("*.md")) if mentions(page, kind)]
    links = ", ".join(f"[{heading(page)}](../experiments/{page})" for page in about if page != "README.md")
    return f"Measured in {links}." if links else "We have not measured it; `ncsam compare` does so on your data."


def heading(page: str) -> str:
    """The title of a page of the experiments in the navigation.

    Args:
        page: Its file name.
    """
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    found = re.search(rf"- (.+): experiments/{re.escape(page)}$", navigation, flags=re.M)
    return found[1] if found else page


def mentions(page: str, kind: str) -> bool:
    """Whether a page of the experiments has an optimizer in a table, or as code.

    Args:
        page: Its file name.
        kind: Name of the optimizer's class.
    """
    text = (EXPERIMENTS / page).read_text(encoding="utf-8")
    return re.search(rf"^\|.*\b{kind}\b|`{kind}\b", text, flags=re.M) is not None
