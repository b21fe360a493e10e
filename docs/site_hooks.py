"""For mkdocs: pages of methods and optimizers, formulas as MathML, links to each page's source.

- `tools/catalog.py` makes a page for each method and optimizer; they are added to the navigation.
- Formulas in pages (`$...$`) and docstrings (:math: and .. math::) become MathML when the site is built, which
  browsers show without a script, a font or a request.
- Links of our pages that leave `docs/` (sources, the license) become plain text on the site.
"""

from __future__ import annotations

import html as entities
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]

_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#|mailto:)([^)\s]+)\)")
_DISPLAYED = re.compile(r"^( *)\.\. math::(.*(?:\n(?=\1 +\S|\s*\n\1 +\S).*)*)", re.M)
_INLINE = re.compile(r":math:`([^`]+)`")
_SHORT_CODE = re.compile(r"<code>(?=[^<\n]{1,28}</code>)")
_ARG = re.compile(r"\\arg\s*\\(max|min)")  # the converter does not know \arg
_TYPESET = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)


class DocstringMath(Extension):
    """Formulas as docstrings mark them, in the notation that the site's Markdown knows."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.preprocessors.register(_FromSphinx(md), "docstring_math", 20)  # below the stash of fenced code


class _FromSphinx(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return from_sphinx("\n".join(lines)).split("\n")


def from_sphinx(text: str) -> str:
    """`.. math::` and :math:`...` as `$$` and `$`."""

    def displayed(match: re.Match[str]) -> str:
        indent, formula = match[1], " ".join(match[2].split())
        return f"\n{indent}$$\n{indent}{formula}\n{indent}$$\n"

    return _INLINE.sub(lambda match: "$" + " ".join(match[1].split()) + "$", _DISPLAYED.sub(displayed, text))


def lines_of(tex: str) -> list[str]:
    """The parts of a formula between wide spaces, which a narrow screen shows below each other."""
    parts = [part.strip() for part in tex.split(r"\qquad")]
    pairs = ((r"\{", r"\}"), (r"\\left(?![a-z])", r"\\right(?![a-z])"))
    balanced = all(len(re.findall(a, part)) == len(re.findall(b, part)) for part in parts for a, b in pairs)
    return parts if balanced and all(parts) else [tex]


def as_mathml(html: str) -> str:
    """A page with its formulas as MathML."""

    def formula(match: re.Match[str]) -> str:
        tex = _ARG.sub(r"\\operatorname{arg\1}", entities.unescape(match[3]).strip())
        if match[2] == "(":
            return convert(tex, display="inline")
        return f'<div class="formula">{"".join(convert(part, display="block") for part in lines_of(tex))}</div>'

    return _TYPESET.sub(formula, html)


def on_config(config: Any) -> Any:
    """Add the notation of docstrings, and the generated pages to the navigation."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]
    import catalog

    config.markdown_extensions.append(DocstringMath())
    config.catalog = catalog.pages()
    for entry in config.nav:
        for title, items in entry.items():
            if title in ("Methods", "Optimizers"):
                folder = title.lower()
                items += [
                    {page.splitlines()[0].removeprefix("# "): path}
                    for path, page in config.catalog.items()
                    if path.startswith(f"{folder}/")
                ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    for path, text in config.catalog.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Keep links to pages of the site, and show the others as what they name; link the table of methods."""
    depth = page.file.src_uri.count("/")

    def shown(match: re.Match[str]) -> str:
        text, target = match.groups()
        return text if target.count("../") > depth else match.group(0)

    if page.file.src_uri == "methods.md":
        names = "|".join(path[len("methods/") : -len(".md")] for path in config.catalog if path.startswith("methods/"))
        markdown = re.sub(rf"^\| `({names})` \|", r"| [`\1`](methods/\1.md) |", markdown, flags=re.M)
    if page.file.src_uri == "optimizers.md":
        markdown = re.sub(r"^\| `(\w+)` \| `([\w-]+)` \|", r"| [`\1`](optimizers/\2.md) | `\2` |", markdown, flags=re.M)
    return _LINK.sub(shown, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Typeset formulas, keep short code on one line, and link the page's source."""
    up = "../" * page.file.src_uri.count("/")
    source = f'<p class="page-source"><a href="{up}_sources/{page.file.src_uri}.txt">View page source</a></p>'
    return _SHORT_CODE.sub('<code class="short">', as_mathml(html)) + source


def on_post_build(config: Any, **_: Any) -> None:
    """Copy the sources of all pages."""
    out = Path(config.site_dir) / "_sources"
    docs = Path(config.docs_dir)
    texts = {str(path.relative_to(docs)): path.read_text(encoding="utf-8") for path in docs.rglob("*.md")}
    for path, text in (texts | config.catalog).items():
        target = out / f"{path}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
