"""The pages of methods and optimizers: scripts run, formulas are typeset, symbols and options are named."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

from ncsam import methods, optim

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "docs")]
import catalog  # noqa: E402
import check_site  # noqa: E402

METHODS = catalog.own_methods()
#: Symbols that every page explains, indices, and names of functions and sets.
SHARED = {"x", "y", "z", "p", "e", "C", "B", "L", "i", "j", "c", "k", "I", "N", "P", "w", "s"}
OF_OPTIMIZERS = {"w", "L", "B", "g", "rho", "epsilon", "t", "d", "nabla", "j", "m"}


def formula(kind: type) -> str:
    """The displayed formula of a class's docstring."""
    found = re.search(r"^\.\. math::(.*(?:\n    .*)*)", inspect.getdoc(kind) or "", flags=re.M)
    assert found, kind
    return found[1]


def symbols(tex: str) -> set[str]:
    """Greek and single Latin letters of a formula."""
    tex = re.sub(r"\\(?:mathrm|text|mathcal|mathbf)\s*(?:\{[^{}]*\}|\w)", " ", tex)
    words = set(re.findall(r"\\([a-z]+)", tex, flags=re.I))
    greek = {"alpha", "beta", "gamma", "lambda", "sigma", "tau", "theta", "eta", "epsilon", "mu", "pi", "omega", "phi"}
    greek |= {"rho", "delta", "kappa", "psi", "xi"}
    return (words & greek) | set(re.findall(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])", tex))


def test_scripts_fit_beside_the_navigation():
    scripts = [*map(catalog.method_script, METHODS), *map(catalog.optimizer_script, optim.names())]
    assert max(len(line) for script in scripts for line in script.splitlines()) <= 100


@pytest.mark.parametrize("name", METHODS)
def test_the_script_of_a_method_runs(name):
    exec(compile(catalog.method_script(name), name, "exec"), {"__name__": "script"})


@pytest.mark.parametrize("name", optim.names())
def test_the_script_of_an_optimizer_runs(name):
    exec(compile(catalog.optimizer_script(name), name, "exec"), {"__name__": "script"})


@pytest.mark.parametrize("name", METHODS)
def test_a_method_names_its_symbols(name):
    kind = methods.get(name)
    text = inspect.getdoc(kind).replace(formula(kind), "").partition("Args:\n")[0]
    explained = symbols(" ".join(re.findall(r":math:`([^`]+)`", text)))
    assert symbols(formula(kind)) - explained - SHARED == set()


@pytest.mark.parametrize("name", optim.names())
def test_an_optimizer_names_its_symbols_and_caveats(name):
    kind = optim.get(name)
    text = inspect.getdoc(kind)
    assert re.search(r"^Note:\n    \S", text, flags=re.M)
    if name == "ncsam":
        return  # its formula is a list of steps
    text = text.replace(formula(kind), "")
    named = set(re.findall(r"\w+", text)) | symbols(" ".join(re.findall(r":math:`([^`]+)`", text)))
    assert {symbol for symbol in symbols(formula(kind)) if symbol not in named} - OF_OPTIMIZERS == set()


def test_pages_have_the_same_sections_and_every_option():
    headings = ["Formula", "Options", "Cost", "Results", "Use", "Reference"]
    for name in METHODS:
        page = catalog.method_page(name)
        assert re.findall(r"^## (.*)", page, flags=re.M) == headings
        assert len(re.findall(r"\.(?=\s|$)", page.split("\n\n")[2])) == 2, name  # two sentences
        for option in inspect.signature(methods.get(name)).parameters:
            assert re.search(rf"^\| `{option}` \| `[^`]*` \| \S", page, flags=re.M), (name, option)
    for name in optim.names():
        assert "Caveats" in re.findall(r"^## (.*)", catalog.optimizer_page(name), flags=re.M)


def test_results_are_those_of_the_experiments():
    table = (ROOT / "docs/experiments/methods.md").read_text(encoding="utf-8")
    value = re.search(r"^\| `gce` \| ([\d.]+ ± [\d.]+) \|", table, flags=re.M)[1]
    assert value in catalog.our_results("gce")
    assert "91.22 %" in catalog.published_result("gce")
    assert "no number" in catalog.published_result("js")


def test_formulas_become_mathml():
    pytest.importorskip("latex2mathml")
    pytest.importorskip("mkdocs")
    import site_hooks

    text = "A\n\n.. math::\n    a^2 +\n    b\n\nwith :math:`\\rho\n> 0`."
    assert site_hooks.from_sphinx(text) == "A\n\n\n$$\na^2 + b\n$$\n\n\nwith $\\rho > 0$."
    inline, displayed = '<span class="arithmatex">\\(x &lt; 1\\)</span>', '<div class="arithmatex">\\[y\\]</div>'
    html = site_hooks.as_mathml(f"<p>{inline}</p>{displayed}")
    assert html.count("<math") == 2
    assert site_hooks.lines_of(r"a, \qquad b") == ["a,", "b"]
    assert site_hooks.lines_of(r"\left( a \qquad b \right)") == [r"\left( a \qquad b \right)"]
    assert "<mo>&#x0003C;</mo>" in html  # a less-than sign, which is no tag
    assert '<div class="formula"><math' in html
    assert "<mo>argmax</mo>" in site_hooks.as_mathml('<span class="arithmatex">\\(\\arg\\max_c z\\)</span>')
    for name in METHODS:  # every formula can be typeset
        assert "<merror" not in site_hooks.convert(formula(methods.get(name)))


def test_results_of_an_optimizer_come_from_the_experiments():
    results = catalog.optimizer_results("AuthorsNCSAM")
    page = (catalog.EXPERIMENTS / "full.md").read_text(encoding="utf-8")
    ours = next(line for line in page.splitlines() if line.startswith("| NCSAM as its authors run it"))
    assert ours in results
    assert "| SGD |" in results
    assert "| NCSAM as printed" not in results
    assert catalog.optimizer_results("Unheard") == "We have not measured it; `ncsam compare` does so on your data."


def test_the_check_of_the_site_sees_what_is_wrong():
    assert check_site.formulas("<p>:math:<code>x</code></p>") == [":math: is left of a formula"]
    assert check_site.formulas("<pre>:math:</pre><math></math>") == []
    assert check_site.formulas(r"<math><mi>\arg</mi></math>") == [r"\arg is left of a formula"]
    heading = '<h2 id="ncsam.optim.SAM" class="doc doc-heading">'
    found = check_site.reference(f"{heading}SAM</h2><p>Args: rho</p>")
    assert [problem for problem in found if "section" in problem] == [
        f"ncsam.optim.SAM: the section {section} is not rendered" for section in ("Args", "Examples", "References")
    ]
    assert "argument rho is not" in " ".join(check_site.reference(heading))
    good = "Parameters:<table></table>Examples:<pre></pre>References<p>"
    from ncsam.optim import SAM

    arguments = "".join(f"<code>{name}</code>" for name in inspect.signature(SAM).parameters)
    assert check_site.reference(heading + good + arguments) == []
    assert check_site.reference(heading + good + arguments + "<blockquote>") == [
        "ncsam.optim.SAM: something is shown as a quotation, as a doctest outside of Examples is"
    ]
