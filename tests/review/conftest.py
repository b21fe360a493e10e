"""A served review."""

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
