"""Who may speak to the explorer: this machine's own page, and nobody in its name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# What the page asks for; the server beneath can do more (export, read files of the notebook), which nobody needs here.
PAGES = ("/", "/auth/login", "/health", "/ws", "/public-files-sw.js", "/favicon.ico", "/logo.png", "/manifest.json")
FOLDERS = ("/assets/", "/@file/")
CALLS = (
    "/api/kernel/instantiate",
    "/api/kernel/set_ui_element_value",
    "/api/kernel/set_model_value",
    "/api/kernel/function_call",
)
# An upload travels as text, a third longer than the file.
LARGEST_BODY = 16 * 2**20

# The browser itself refuses what is not from here: scripts, fonts, pictures, connections, and being framed by others.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """An application behind checks of host, origin, path and size.

    A page of another origin can make a browser send requests here, under its own origin or, where a name is made to
    point to this machine (DNS rebinding), under its own host. Both come with a header that says so.

    Arguments:
        application: what is guarded, by the ASGI protocol.
        hosts: what the header Host may say, as "127.0.0.1:8000"; none for anything, which only a token makes safe.

    Example:
        >>> guard = Guard(print, hosts=["127.0.0.1:8000"])
        >>> guard.refusal("http", "GET", "/", {"host": "127.0.0.1:8000"})
        >>> guard.refusal("http", "GET", "/", {"host": "elsewhere.example"})
        (421, "host: got 'elsewhere.example'; expected 127.0.0.1:8000")
    """

    def __init__(self, application: Application, hosts: Iterable[str] | None) -> None:
        self.application = application
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)

    def refusal(self, kind: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Why a request is refused: a status and a sentence; none if it may pass.

        Arguments:
            kind: "http" or "websocket".
            headers: by name in small letters.
        """
        host = headers.get("host", "").lower()
        if self.hosts is not None and host not in self.hosts:
            return 421, f"host: got {host!r}; expected {' or '.join(sorted(self.hosts))}"
        origin = headers.get("origin")
        if origin is not None and not _same(origin, host):
            return 403, f"origin: got {origin!r}; expected a page of this explorer"
        # Links from elsewhere may open the page; nothing else of it may be asked for by another site.
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
            return 403, "origin: got a request of another site; expected a page of this explorer"
        known = path in CALLS if method == "POST" and path != "/auth/login" else _shown(path)
        if not known or (kind == "http" and method not in ("GET", "HEAD", "POST")):
            return 404, f"path: got {method} {path}; expected what the explorer's page asks for"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 12 or int(length) > LARGEST_BODY:
            return 413, f"content-length: got {length[:20]}; expected at most {LARGEST_BODY}"
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it with the refusal."""
        if scope["type"] == "lifespan":
            await self.application(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self.refusal(scope["type"], scope.get("method", "GET"), scope["path"], headers)
        if refused is None:
            await self.application(scope, _bounded(receive), _with_headers(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refused[1][:100]})
        else:
            await _answer(send, *refused)


def _same(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:  # such as "http://["
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host


def _shown(path: str) -> bool:
    single = path.count("/") == 1 and path.endswith((".png", ".ico", ".svg", ".json"))
    return path in PAGES or single or (path.startswith(FOLDERS) and ".." not in path)


def _bounded(receive: Receive) -> Receive:
    """A body sent in pieces without its length is counted as it comes."""
    seen = 0

    async def counted() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > LARGEST_BODY:
            return {"type": "http.disconnect"}
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            # The server beneath lets pages of this machine's other ports read its answers; not here.
            kept = [pair for pair in message.get("headers", ()) if not pair[0].startswith(b"access-control-")]
            message = {**message, "headers": [*kept, *HEADERS]}
        await send(message)

    return sent


async def _answer(send: Send, status: int, sentence: str) -> None:
    body = (sentence + "\n").encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
