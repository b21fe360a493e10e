"""What every test starts from: one thread, a seed, and Ctrl-C as at a terminal; and a browser for those that look."""

import gc
import shutil
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from short_fits import short_fits


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # thousands of tests and their modules stay until the end: no collection has to look at them again


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)  # two workers share two cores: steady timings and bits


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job, and its children, ignore it


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


#: Packages of tests whose many small runs are not about label issues: their models of p_wrong and of tables are small,
#: except in modules with `WHOLE_FITS = True`.
SHORT_FITS = {"cli", "compare", "docs", "embed", "engine", "integrations", "methods", "report", "reproduce", "runs"}


@pytest.fixture(scope="module", autouse=True)
def _short_fits(request: pytest.FixtureRequest) -> Iterator[None]:
    short = request.path.parent.name in SHORT_FITS and not getattr(request.module, "WHOLE_FITS", False)
    with short_fits() if short else nullcontext():
        yield


@pytest.fixture
def jobs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons train in this process. Workers, which import torch first, have their tests in tests/compare."""
    from jobs_here import run_here

    monkeypatch.setattr("ncsam.jobs.local.run_all", run_here)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real one without a window."""
    selenium = pytest.importorskip("selenium.webdriver", reason="the browser tests need selenium")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("the browser tests need chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--window-size=1200,900",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = selenium.ChromeService(executable_path=driver)
    found = selenium.Chrome(options=options, service=service)
    yield found
    found.quit()
