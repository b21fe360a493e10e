"""Access control of the page's server: only this machine, with the token in the address, from the page itself."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_HEADERS = {
    # nothing is loaded from elsewhere, no page may frame this one, and its address (with the token) is told to none
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """An ASGI application around another one that answers only requests with the token and from the right origin.

    - The first part of the path must be the token, 256 random bits. Everything else is "not found".
    - `Host` must be the loopback address with the port. A name that an attacker points to 127.0.0.1 is refused.
    - `Origin` and `Sec-Fetch-Site`, if the browser sends them, must be those of the page itself.

    Args:
        app: the ASGI application to protect.
        token: the token, from `new_token`.
        port: the port of the server.
    """

    def __init__(self, app: Any, token: str, port: int) -> None:
        self.app = app
        self.token = token
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no websocket is ever served
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        refused = self._refused(scope)
        if refused is not None:
            await _answer(send, *refused)
            return
        path = scope["path"].split("/", 2)
        inner = {**scope, "path": f"/{path[2] if len(path) > 2 else ''}", "root_path": ""}
        inner["raw_path"] = inner["path"].encode()
        await self.app(inner, receive, _with_headers(send))

    def _refused(self, scope: Any) -> tuple[int, str] | None:
        headers = {name.decode("latin1").lower(): value.decode("latin1") for name, value in scope["headers"]}
        if headers.get("host") not in self.hosts:
            return 403, "this address is not served here"
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in self.hosts}:
            return 403, "requests from other pages are refused"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "requests from other pages are refused"
        token = scope["path"].split("/", 2)[1]
        if not secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            return 404, "not found: the address that `ncsam review` printed carries a token"
        return None


def new_token() -> str:
    """Return 256 random bits as URL-safe text."""
    return secrets.token_urlsafe(32)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_encoded()]
        await send(message)

    return sending


def _encoded() -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in _HEADERS.items()]


async def _answer(send: Send, status: int, sentence: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *_encoded()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode()})
