"""For mkdocs: links of our pages that leave `docs/` (sources, the license) become plain text on the site, and so do
the marks of formulas in docstrings, which are LaTeX as it is written."""

from __future__ import annotations

import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Keep links to pages of the site, and show the others as what they name."""
    depth = page.file.src_uri.count("/")

    def shown(match: re.Match[str]) -> str:
        text, target = match.groups()
        return text if target.count("../") > depth else match.group(0)

    return _LINK.sub(shown, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings mark formulas for Sphinx; without a typesetter from elsewhere they are shown as code and text."""
    return html.replace(":math:<code>", "<code>").replace(".. math::", "")
