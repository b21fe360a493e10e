"""The site's navigation and notebooks are whole; `make docs` builds them."""

import ast
import sys
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
