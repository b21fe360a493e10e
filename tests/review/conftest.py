"""A served review, and a real browser without a window."""

import shutil
import threading

import pytest
from review_cases import made_run


class Served:
    """`serve` in a thread; `address` is the page's, token included."""

    def __init__(self, folder):
        from ncsam.review.security import Guard, new_token
        from ncsam.review.server import Review, application

        uvicorn = pytest.importorskip("uvicorn", reason="the review page needs ncsam[review]")
        import socket

        self.folder = folder
        self.review = Review(folder)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        self.port, self.token = listener.getsockname()[1], new_token()
        guard = Guard(application(self.review), self.token, self.port)
        config = uvicorn.Config(guard, log_level="warning", access_log=False, lifespan="off", ws="none")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]}, daemon=True)
        self.thread.start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def stop(self):
        self.server.should_exit = True
        self.thread.join(timeout=20)
        self.review.close()


@pytest.fixture
def served(tmp_path):
    found = Served(made_run(tmp_path))
    yield found
    found.stop()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
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
