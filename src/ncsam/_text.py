"""Text for people: durations, and names from elsewhere (files, classes, options) made harmless where they are shown."""

from __future__ import annotations

import html
import os
import re
import unicodedata

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the beginning of a formula
_MARKDOWN = re.compile(r"([\\`*\[\]|])")


def printable(text: str) -> str:
    """The text with what cannot be shown as an escape: control characters, and bytes of names that are not UTF-8."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else _escape(c) for c in text)


def printable_lines(text: str) -> str:
    """The same of a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python keeps in a file name
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def shortened(text: str, most: int = 80) -> str:
    """A text on one line, cut between words after so many characters."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    head = line[: most - 3]
    return f"{head.rpartition(' ')[0]} ..." if " " in head else f"{head}..."


def table_cell(value: object) -> object:
    """A value for a CSV: text that a spreadsheet would compute gets an apostrophe before it."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if value.startswith(_FORMULA) else text


def path_cell(path: str | os.PathLike[str]) -> str:
    """A path for a CSV: where a spreadsheet would compute it, it gets a `./` before it, which names the same file."""
    text = os.fspath(path)
    return printable(f"./{text}" if text.startswith(_FORMULA) else text)


def markdown(text: str) -> str:
    """Text in Markdown that means nothing but itself."""
    return _MARKDOWN.sub(r"\\\1", html.escape(" ".join(map(printable, text.split("\n"))), quote=False))


def markdown_code(text: str) -> str:
    """A short piece of code in Markdown."""
    plain = printable(text)
    if not set(plain) & set("`<>&|"):
        return f"`{plain}`"
    return f"<code>{html.escape(plain, quote=False).replace('|', '&#124;').replace('`', '&#96;')}</code>"


def markdown_block(text: str, language: str) -> str:
    """Lines of code in Markdown."""
    plain = "\n".join(printable(line) for line in text.splitlines())
    if "<" in plain or "```" in plain:
        return f"<pre>\n{html.escape(plain, quote=False)}\n</pre>"
    return f"```{language}\n{plain}\n```"


def format_duration(seconds: float) -> str:
    """A time as people say it: 40 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
