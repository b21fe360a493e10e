"""Check a built site: every link and image inside it leads somewhere, and nothing is fetched from elsewhere.

`python tools/check_site.py site` prints what is wrong and exits with 1.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


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
    pages = {}
    for path in root.rglob("*.html"):
        pages[path] = Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    wrong = [] if pages else [f"{root}: there are no pages"]
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


if __name__ == "__main__":
    found = main(Path(sys.argv[1]).resolve())
    print("\n".join(found) or "all links lead somewhere, and nothing is loaded from elsewhere")
    sys.exit(bool(found))
