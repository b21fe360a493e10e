"""Serve the page on the loopback address until it is stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from ncsam._errors import need
from ncsam.data.types import DataSet
from ncsam.review.security import Guard, new_token
from ncsam.review.server import Review, application


def serve(
    folder: Path,
    *,
    port: int = 0,
    reviewer: str | None = None,
    ready: Callable[[str], None] = lambda address: None,
    dataset: DataSet | None = None,
    purpose: str = "label-issues",
) -> None:
    """Serve the review of a run on 127.0.0.1 until interrupted.

    Args:
        folder: the run folder.
        port: the port to listen on; 0 picks a free one.
        reviewer: the name to record with each decision. `None` uses the last one, at first "reviewer".
        ready: called with the page's address, including the token, once it can be opened.
        dataset: the data, if it is in memory. `None` reads it as the configuration says.
        purpose: "label-issues", or "model-selection" to label samples that tell candidates apart.
    """
    uvicorn = need("uvicorn", "review", "the review page")
    need("starlette", "review", "the review page")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        chosen = listener.getsockname()[1]
        review = Review(folder, reviewer=reviewer, dataset=dataset, purpose=purpose)
        try:
            token = new_token()
            listener.listen()
            ready(f"http://127.0.0.1:{chosen}/{token}/")
            guarded = Guard(application(review), token, chosen)
            config = uvicorn.Config(guarded, log_level="warning", access_log=False, lifespan="off", ws="none")
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            review.close()
