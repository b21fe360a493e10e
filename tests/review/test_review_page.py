"""The page in a real browser: keys, filters, reload, a killed server, names that would be markup."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from review_cases import CLASSES, EVIL_FILE, made_run, queue_order

pytestmark = pytest.mark.slow
WAIT = 60  # seconds, on a busy machine


class Page:
    """What a reviewer does and sees."""

    def __init__(self, browser, address):
        self.browser = browser
        self.open(address)

    def open(self, address):
        self.browser.get(address)
        self.until(lambda: self.browser.execute_script("return document.body.dataset.ready") == "true")

    def until(self, happened):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.browser, WAIT, poll_frequency=0.05).until(lambda _: happened())

    def script(self, text, *arguments):
        return self.browser.execute_script(text, *arguments)

    def resolve_auto(self):
        """Wait until every key that was pressed has been worked off."""
        self.browser.set_script_timeout(WAIT)
        self.browser.execute_async_script("const done = arguments[0]; waiting.then(() => setTimeout(done, 0));")

    def press(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.browser).send_keys(key).perform()
        self.resolve_auto()

    def choose(self, name, value):
        from selenium.webdriver.support.ui import Select

        Select(self.browser.find_element("id", name)).select_by_value(value)
        self.resolve_auto()

    @property
    def current(self):
        """The sample that is looked at; `None` where nothing is left."""
        found = self.script("const c = document.querySelector('#cards [aria-current]'); return c && c.dataset.index")
        return None if found is None else int(found)

    @property
    def shown(self):
        return [
            int(i)
            for i in self.script("return [...document.querySelectorAll('#cards article')].map(c => c.dataset.index)")
        ]

    def text(self, name):
        return self.script("return document.getElementById(arguments[0]).textContent", name)


@pytest.fixture
def page(browser, served):
    return Page(browser, served.address)


def decisions(folder):
    file = folder / "review.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def test_keys_decide_undo_and_move(page, served):
    from selenium.webdriver.common.keys import Keys

    order = queue_order(30)
    assert page.current == order[0]
    page.press("a", "k", "u")
    assert [(line["index"], line["choice"]) for line in decisions(served.folder)] == [
        (order[0], "accept"),
        (order[1], "keep"),
        (order[2], "unsure"),
    ]
    assert page.current == order[3]
    assert page.text("progress").startswith("3 of 30 reviewed: 1 wrong, 1 correct, 1 unsure or disputed")
    page.press("z")
    assert page.current == order[2]
    assert page.text("progress").startswith("2 of 30 reviewed: 1 wrong, 1 correct.")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert page.current == order[3]
    assert len(decisions(served.folder)) == 4


def test_another_class_is_chosen_by_typing_its_name(page, served):
    from selenium.webdriver.common.keys import Keys

    page.choose("order", "worst")
    row = served.review.queue.row_of[page.current]
    third = 3 - int(served.review.queue.given_label[row]) - int(served.review.queue.suggested_label[row])
    index = page.current
    page.press("o")
    assert page.script("return document.activeElement.id") == "class-search"
    page.press("u")  # typed into the field, not "unsure"
    assert decisions(served.folder) == []
    page.press(Keys.BACKSPACE, *served.review.classes[third][:4], Keys.ENTER)
    page.resolve_auto()
    (line,) = decisions(served.folder)
    assert (line["index"], line["choice"], line["label"]) == (index, "other", third)
    page.press("o", Keys.ESCAPE)
    assert len(decisions(served.folder)) == 1


def test_filters_grid_and_reload(page, served):
    queue = served.review.queue
    page.press("g")
    assert page.shown == queue_order(30)[:24]
    page.choose("given_label", "1")
    assert page.shown == queue.index[queue.given_label == 1].tolist()
    page.press("a", "a")
    page.choose("status", "accept")
    assert len(page.shown) == 2
    page.choose("status", "all")
    from selenium.webdriver.common.keys import Keys

    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    here = page.current
    page.open(served.address)  # all is where it was: layout, filters, place
    assert page.current == here
    assert page.script("return document.body.className") == "grid"
    assert page.script("return document.getElementById('given_label').value") == "1"
    page.choose("pair", "")
    page.choose("given_label", "")
    page.script(
        "const s = document.getElementById('search'); s.value = 'onerror'; s.dispatchEvent(new Event('change'))"
    )
    page.resolve_auto()
    assert page.shown == [1]


def test_names_that_would_be_markup_are_text(page, served):
    page.choose("status", "all")
    page.press("g")
    assert page.current == 1  # the file whose name is markup is the worst
    card = page.script("return document.querySelector('#cards [aria-current]').textContent")
    assert EVIL_FILE in card
    assert CLASSES[2] in page.script("return document.getElementById('cards').textContent")
    assert page.browser.title == f"Review of {served.folder.name}"
    assert page.script("return document.querySelectorAll('#cards script, img[src=\"x\"]').length") == 0
    assert page.script("return [...document.images].every(i => i.src.startsWith(document.URL + 'image/'))")


def test_two_reviewers_one_after_the_other(page, served):
    order = queue_order(30)
    page.press("a")
    page.script("const r = document.getElementById('reviewer'); r.value = 'Ben'; r.dispatchEvent(new Event('change'))")
    page.resolve_auto()
    page.choose("status", "mine")
    assert page.current == order[0]
    page.press("k")
    assert [line["reviewer"] for line in decisions(served.folder)] == ["reviewer", "Ben"]
    page.choose("status", "disputed")
    assert page.current == order[0]
    assert "1 unsure or disputed" in page.text("progress")


def test_the_page_is_accessible(page):
    """Every control has a name, the focus is visible, and text has a contrast of 4.5 to 1 in both schemes."""
    unnamed = page.script(
        "return [...document.querySelectorAll('button, input, select, progress, img, svg, [role=img]')].filter(e => "
        "!(e.textContent.trim() || e.alt || e.getAttribute('aria-label') || (e.labels && e.labels.length))).length"
    )
    assert unnamed == 0
    page.press("j")  # browsers outline the focus of those who use the keyboard
    assert page.script("return document.activeElement.getAttribute('aria-current')") == "true"
    assert page.script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        colors = page.script(
            "const s = getComputedStyle(document.documentElement); return Object.fromEntries(['paper', 'card', 'ink', "
            "'quiet', 'given', 'suggested', 'wrong', 'focus'].map(n => [n, s.getPropertyValue('--' + n).trim()]))"
        )
        for ground in ("paper", "card"):
            for ink in ("ink", "quiet", "given", "suggested", "wrong", "focus"):
                assert contrast(colors[ink], colors[ground]) >= 4.5, (scheme, ink, ground)
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def contrast(one, other):
    """The ratio of WCAG 2: (L1 + .05) / (L2 + .05) of the relative luminances."""

    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_refused(page):
    sources = page.script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert sources
    assert all(source.startswith(page.browser.current_url) for source in sources)
    assert [entry for entry in page.browser.get_log("browser") if "Content Security Policy" in entry["message"]] == []


def test_a_killed_server_loses_nothing(browser, tmp_path):
    folder, order = made_run(tmp_path), queue_order(30)

    def start():
        command = [sys.executable, "-m", "ncsam", "review", str(folder), "--no-open", "--reviewer", "Ada"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{43}/", address), address
        return process, address

    process, address = start()
    try:
        page = Page(browser, address)
        page.press("a", "k")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        page.press("a")
        assert "all decisions so far are saved" in page.text("alert")
        process, second = start()
        assert second != address
        page = Page(browser, second)
        assert page.current == order[2]
        page.press("a")
        assert [line["choice"] for line in decisions(folder)] == ["accept", "keep", "accept"]
        assert {line["reviewer"] for line in decisions(folder)} == {"Ada"}
    finally:
        process.kill()
        process.wait()
