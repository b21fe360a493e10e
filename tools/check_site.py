"""Check a built site: links, offline use, formulas, and the sections of the API reference.

`python tools/check_site.py site` prints what is wrong and exits with 1: a link or image inside it that leads nowhere,
anything that is fetched from elsewhere, a formula that was not typeset, an object of the reference whose `Args`,
`Returns`, `Raises` or `Examples` are not rendered as such.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

#: Sections of docstrings, and what the page must have for each.
SECTIONS = {
    "Args": ("Parameters:", "<table"),
    "Attributes": ("Attributes:", "<table"),
    "Returns": ("Returns:", "<table"),
    "Raises": ("Raises:", "<table"),
    "Examples": ("Examples:", "<pre"),
    "References": ("References", "<p"),
}
_HEADING = re.compile(r'<h\d id="(ncsam[\w.]*)" class="doc doc-heading">')
_CODE = re.compile(r"<(pre|code)\b.*?</\1>", re.S)


class Page(HTMLParser):
    """Links, loaded files and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("img", "script", "iframe") and "src" in found:
            self.loaded.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "preconnect", "preload", "icon"):
            self.loaded.append(found.get("href", ""))


def main(root: Path) -> list[str]:
    """Everything that is wrong with a site, one sentence each."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.html"))}
    wrong = [] if texts else [f"{root}: there are no pages"]
    wrong += links(root, texts)
    for path, text in texts.items():
        where = str(path.relative_to(root))
        wrong += [f"{where}: {problem}" for problem in [*formulas(text), *reference(text)]]
    return wrong


def links(root: Path, texts: dict[Path, str]) -> list[str]:
    """Links and files that lead nowhere or elsewhere."""
    wrong = []
    pages = {path: Page() for path in texts}
    for path, page in pages.items():
        page.feed(texts[path])
    for path, page in pages.items():
        if path.name == "404.html":  # a server's page, whose links begin at the server's root
            continue
        where = path.relative_to(root)
        wrong += [f"{where} loads {src} from elsewhere" for src in page.loaded if urlsplit(src).netloc]
        for link in [*page.links, *(src for src in page.loaded if not urlsplit(src).netloc)]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("data:"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                wrong.append(f"{where}: {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                wrong.append(f"{where}: {link} has no such anchor")
    return wrong


def formulas(text: str) -> list[str]:
    """Marks of formulas outside of code, and formulas that could not be typeset."""
    prose = _CODE.sub("", text)
    marks = (":math:", ".. math::", 'class="arithmatex"', "<merror")
    unknown = sorted(set(re.findall(r"<m[a-z]+>(\\\w+)", prose)))
    escaped = (
        ["an escaped bar is shown in a table's code"]
        if re.search(r"<code[^>]*>[^<\n]*\\\|[^<\n]*</code>", text)
        else []
    )
    return escaped + [f"{mark} is left of a formula" for mark in (*marks, *unknown) if mark in prose]


def reference(text: str) -> list[str]:
    """Objects of the reference whose docstring has a section that the page does not show."""
    wrong = []
    parts = _HEADING.split(text)
    for name, shown in zip(parts[1::2], parts[2::2], strict=True):
        documented = inspect.getdoc(find(name)) or ""
        for section, wanted in SECTIONS.items():
            if re.search(rf"^{section}:\n +\S", documented, flags=re.M) and not all(mark in shown for mark in wanted):
                wrong.append(f"{name}: the section {section} is not rendered")
        if "<blockquote>" in shown:
            wrong.append(f"{name}: something is shown as a quotation, as a doctest outside of Examples is")
        listed = re.search(r"^Args:\n((?: +.*\n?)+)", documented, flags=re.M)
        for argument in re.findall(r"^    (\w+):", listed[1], flags=re.M) if listed else []:
            if not re.search(rf">\s*{argument}\s*<", shown):
                wrong.append(f"{name}: the argument {argument} is not in its table")
    return wrong


def find(name: str) -> Any:
    """The object behind a dotted name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = inspect.getattr_static(found, part, None)
        return getattr(found, "__func__", found)
    return None


if __name__ == "__main__":
    found = main(Path(sys.argv[1]).resolve())
    print("\n".join(found) or "links, formulas and the reference are in order, and nothing is loaded from elsewhere")
    sys.exit(bool(found))
