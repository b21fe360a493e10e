"""Docs, messages and code use the field's terms and American spelling."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Words that are not used, with the term to use instead.
INSTEAD = {
    r"pictures?": "image",
    r"suspects?|suspicions?": "label issue, label quality",
    r"suspicious": "likely wrong",
    r"mend(s|ed|ing)?": "fix",
    r"settle(s|d)?|settling": "resolve, choose",
    r"(go|goes|went|going) on": "resume, continue",
    r"anew": "again, recreate",
    r"of yours": "your own",
    r"(not|never) foreseen": "unexpected",
    r"is not allowed": "invalid x=1: expected ...",
    r"torture|campaigns?": "stress test",
    r"heirs?": "maintainer",
    r"plain epochs?": "warm-up epochs",
    r"knobs?": "options, hyperparameters",
    r"sets itself|listens (to|from)": "adaptive, validation-guided",
    r"makes nothing": "nothing was written",
    r"price[sd]?": "cost, overhead",
    r"(memor|regular|normal|optim|general|initial|minim|maxim|summar|visual|penal|token|serial)is(e[ds]?|ing)": "-ize",
    r"(colou|behaviou|neighbou|favou)r\w*|label(led|ling)|modell(ed|ing)|centre[ds]?": "American spelling",
}
_WORDS = re.compile(r"\b(?:" + "|".join(f"(?:{pattern})" for pattern in INSTEAD) + r")\b", re.IGNORECASE)
_SUFFIXES = (".py", ".md", ".yaml", ".html", ".js", ".css")


def old_words(text: str) -> list[str]:
    """The words in a text that are not used, each with its line number."""
    return [f"{text.count(chr(10), 0, match.start()) + 1}: {match[0]}" for match in _WORDS.finditer(text)]


def files() -> list[Path]:
    folders = [path for name in ("src", "docs", "stress", "examples", "tools") for path in (ROOT / name).rglob("*")]
    found = [path for path in (*folders, *ROOT.glob("*.md")) if path.suffix in _SUFFIXES]
    names = [str(path.relative_to(ROOT)) for path in found]
    return [ROOT / name for name in sorted(names) if not name.startswith("docs/notebooks")]


def test_the_fields_terms_are_used():
    found = {str(path.relative_to(ROOT)): old_words(path.read_text(encoding="utf-8")) for path in files()}
    assert {name: words for name, words in found.items() if words} == {}


def test_old_words_are_found_and_words_that_contain_them_are_not():
    assert old_words("It goes on.\nThe Campaign of mending") == ["1: goes on", "2: Campaign", "2: mending"]
    assert old_words("recommended, an epoch, behavior, category on, priceless, normalize") == []
