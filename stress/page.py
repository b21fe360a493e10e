"""A browser's requests to the review page, without a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

_REQUESTS: list[tuple[str, Any]] = [
    *[("", None), ("api/start", None), ("api/neighbors/0", None)],
    ("api/items", {"status": "all"}),
    ("api/items", {"status": "disputed", "order": "pair"}),
    ("api/decide", {"index": 0, "choice": "accept", "reviewer": "Ada"}),
    ("api/undo", {"reviewer": "Ada"}),
]


def visit(server: Any, sockets: Any = None) -> None:
    """In place of `uvicorn.Server.run`: send the page's requests to the application, and stop."""
    for path, body in _REQUESTS:
        if (status := asyncio.run(_ask(server.config.app, path, body))) != 200:
            raise AssertionError(f"the page answers {path!r} with {status}")


async def _ask(guard: Any, path: str, body: Any) -> int:
    status: list[int] = []
    headers = [(b"host", sorted(guard.hosts)[0].encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}
    scope |= {"method": "GET" if body is None else "POST", "path": f"/{guard.token}/{path}", "headers": headers}
    scope |= {"raw_path": b"", "query_string": b"", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1)}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: Any) -> None:
        status.append(message.get("status", 0))

    await guard(scope, receive, send)
    return status[0]
