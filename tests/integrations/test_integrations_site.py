"""The site builds, is whole, and can be searched from a folder; the notebooks run. `make docs` joins the two."""

import ast
import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))


class _Loader(yaml.SafeLoader):
    """mkdocs.yml may name Python functions, which are not run here."""


def pages(nav):
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else pages(value)


def test_every_page_of_the_navigation_is_there():
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)
    listed = list(pages(settings["nav"]))
    assert len(listed) > 20
    for page in listed:
        notebook = page.startswith("notebooks/")
        source = ROOT / "notebooks" / f"{Path(page).stem}.py" if notebook else ROOT / "docs" / page
        assert source.is_file(), page
    assert settings["strict"] is True


def test_every_page_of_the_documentation_can_be_reached():
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)
    there = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    there = {page for page in there if not page.startswith("notebooks/")}
    linked = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in there)
    listed = set(pages(settings["nav"]))
    assert [page for page in sorted(there - listed) if Path(page).name not in linked] == []


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda p: p.stem)
def test_a_notebook_is_python_with_cells(path):
    text = path.read_text(encoding="utf-8")
    ast.parse(text)
    assert text.count("# %%") >= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["find_wrong_labels", "ncsam_step_by_step", pytest.param("compare_methods", marks=pytest.mark.stress)]
)
def test_a_notebook_runs_and_shows_what_it_says(name, tmp_path, monkeypatch):
    """As a script, cell after cell."""
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    found = runpy.run_path(str(ROOT / "notebooks" / f"{name}.py"))
    plt.close("all")
    if name == "find_wrong_labels":
        assert found["wrong"][found["order"][:100]].mean() > 0.9  # against a fifth of all
    elif name == "compare_methods":
        assert len(found["results"]) == 6
        assert min(min(values) for values in found["results"].values()) > 75
        assert min(found["difference"]) > 0  # SAM over SGD under cross-entropy, which memorizes
    else:
        lengths = [float(arrow.norm()) for arrow in found["arrows"].values()]
        assert lengths[:2] == pytest.approx([0.5, 0.5])  # SAM's are rho long


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, with a line in place of each notebook."""
    pytest.importorskip("mkdocs", reason="building the site needs ncsam[docs]")
    pytest.importorskip("material", reason="building the site needs ncsam[docs]")
    pytest.importorskip("mkdocstrings", reason="building the site needs ncsam[docs]")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("notebooks"))
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for name in ("src", "tools"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "docs" / "notebooks").mkdir()
    for path in (ROOT / "notebooks").glob("*.py"):
        (folder / "docs" / "notebooks" / f"{path.stem}.md").write_text(f"# {path.stem}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.mark.stress  # `make docs` builds and checks the site, too
def test_the_site_is_whole_and_fetches_nothing(site):
    import check_site

    assert check_site.main(site) == []
    assert len(list(site.rglob("*.html"))) > 30


@pytest.mark.stress
def test_the_site_can_be_searched_from_a_folder(site, browser):
    browser.get((site / "tasks" / "my-loop.html").as_uri())
    browser.execute_script("document.querySelector('label[for=__search]').click()")
    browser.find_element("css selector", "input[name=query]").send_keys("perturbations")
    found, waited = [], time.monotonic() + 60
    while not found and time.monotonic() < waited:
        time.sleep(0.2)
        found = browser.find_elements("css selector", ".md-search-result__item")
    texts = " ".join(each.get_attribute("textContent") for each in found)
    assert "Optimizers in Python" in texts


def test_the_link_checker_sees_what_is_wrong(tmp_path):
    import check_site

    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="https://x.org">x</a><p id="here"></p>')
    (tmp_path / "b.html").write_text('<p id="there"></p><a href="a.html#here"></a><img src="p.png">')
    (tmp_path / "p.png").write_bytes(b"")
    assert check_site.main(tmp_path) == []
    (tmp_path / "c.html").write_text(
        '<a href="nowhere.html"></a><a href="a.html#absent"></a><script src="https://cdn.org/x.js"></script>'
    )
    assert sorted(check_site.main(tmp_path)) == [
        "c.html loads https://cdn.org/x.js from elsewhere",
        "c.html: a.html#absent has no such anchor",
        "c.html: nowhere.html leads nowhere",
    ]
