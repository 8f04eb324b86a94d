"""Access checks of the explorer: token, host, origin, path and size, before a request reaches the page's server."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Iterable, Mapping
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What the page asks for. marimo can do more (export, read files of the notebook), which is not needed here.
PAGES = ("/", "/health", "/ws", "/public-files-sw.js", "/favicon.ico", "/logo.png", "/manifest.json")
FOLDERS = ("/assets/", "/@file/")
CALLS = (
    "/api/kernel/instantiate",
    "/api/kernel/set_ui_element_value",
    "/api/kernel/set_model_value",
    "/api/kernel/function_call",
)
# An upload travels as text, a third longer than the file.
LARGEST_BODY = 16 * 2**20
# Bytes of all bodies that are being received or answered at one time.
LARGEST_TOTAL = 4 * LARGEST_BODY
TOKEN = "access_token"

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
HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
# The form sends the token as the printed link does; the answer is a redirect to an address without it.
LOGIN = f"""<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>thermoformer explorer</title>
<form><p>Open the link that <code>thermoformer explore</code> printed, or enter its token:</p>
<input name="{TOKEN}" type="password" aria-label="token" autofocus> <button>Open</button></form></html>
"""


class Guard:
    """An application behind checks of token, host, origin, path and size.

    A page of another origin can make a browser send requests here, under its own origin or, where a name is made to
    point to this machine (DNS rebinding), under its own host. Both come with a header that says so.

    Arguments:
        application: what is guarded, by the ASGI protocol.
        hosts: what the header Host may say, as "127.0.0.1:8000"; None for anything, which only a token makes safe.
        token: the secret that a browser must show once, for a session cookie; empty for no authentication.

    Example:
        >>> guard = Guard(print, hosts=["127.0.0.1:8000"])
        >>> guard.refusal("GET", "/", {"host": "127.0.0.1:8000"})
        >>> guard.refusal("GET", "/", {"host": "elsewhere.example"})
        (421, "host: got 'elsewhere.example'; expected 127.0.0.1:8000")
    """

    def __init__(self, application: ASGIApp, hosts: Iterable[str] | None, token: str = "") -> None:
        self.application = application
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.token = token
        self.session = secrets.token_hex(32)
        self.received = 0

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Why a request is refused: a status and a sentence; None if it may pass.

        Arguments:
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
        if method not in ("GET", "HEAD", "POST") or not (path in CALLS if method == "POST" else _shown(path)):
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
        request = HTTPConnection(scope)
        method, path = scope.get("method", "GET"), scope["path"]
        refused = self.refusal(method, path, request.headers)
        # Cookies do not tell ports apart: each explorer has a name of its own.
        cookie = f"thermoformer_{(scope.get('server') or (None, 0))[1]}"
        if refused is None and self.token and not _equal(request.cookies.get(cookie, ""), self.session):
            refused = 401, "token: got none or a wrong one; expected the link that the command printed"
        if refused is None:
            await self._pass_on(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refused[1][:100]})
        else:
            front = refused[0] == 401 and path == "/" and method == "GET"
            answer = self._log_in(request, cookie) if front else _refusal(*refused)
            await answer(scope, receive, send)

    def _log_in(self, request: HTTPConnection, cookie: str) -> Response:
        """Answers the page without a session: with a cookie if the address has the token, with a form otherwise."""
        if not any(_equal(value, self.token) for value in request.query_params.getlist(TOKEN)):
            return HTMLResponse(LOGIN, 401, HEADERS)
        others = [pair for pair in request.query_params.multi_items() if pair[0] != TOKEN]
        answer = RedirectResponse("/" + (f"?{urlencode(others)}" if others else ""), 303, HEADERS)
        answer.set_cookie(cookie, self.session, httponly=True, samesite="lax")
        return answer

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets the application answer, within the limits of size; an error there is one line in the terminal."""
        size, started, left, refused = 0, False, False, None

        async def hear() -> Message:
            nonlocal size, left, refused
            message = await receive()
            # A body sent in pieces without its length is counted as it comes.
            new = len(message.get("body", b""))
            size, self.received = size + new, self.received + new
            if size > LARGEST_BODY:
                refused = 413, f"body: got more than {LARGEST_BODY} bytes; expected at most that"
            elif self.received > LARGEST_TOTAL:
                refused = 503, "body: got one of too many large requests at once; expected fewer"
            if refused is not None:
                return {"type": "http.disconnect"}
            left = left or message["type"] in ("http.disconnect", "websocket.disconnect")
            return message

        async def say(message: Message) -> None:
            nonlocal started, left
            if refused is not None:
                return
            started = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                # marimo lets pages of this machine's other ports read its answers; not here.
                for name in [name for name in headers if name.startswith("access-control-")]:
                    del headers[name]
                headers.update(HEADERS)
                # marimo answers malformed values with 500; the fault is the request's.
                message["status"] = 400 if message["status"] == 500 else message["status"]
            try:
                await send(message)
            except OSError:
                left = True
                raise

        try:
            await self.application(scope, hear, say)
        except asyncio.CancelledError:  # Ctrl-C
            refused = 503, "the explorer has been stopped"
        except Exception as error:
            # A page closed while it is being answered is not an error.
            if refused is None and not left:
                what = f"{scope.get('method', 'websocket')} {scope['path']}"
                # As repr: the text may hold what a hostile request wants on the terminal.
                logging.getLogger("uvicorn.error").error("%s failed: %r", what, error)
                refused = 400, "the explorer cannot answer this request"
        finally:
            self.received -= size
        if refused is not None and not started and scope["type"] == "http":
            await _refusal(*refused)(scope, receive, send)


def _refusal(status: int, sentence: str) -> Response:
    return PlainTextResponse(sentence + "\n", status, HEADERS)


def _equal(one: str, other: str) -> bool:
    # In bytes: texts beyond ASCII cannot be compared in constant time.
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _same(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:  # such as "http://["
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host


def _shown(path: str) -> bool:
    single = path.count("/") == 1 and path.endswith((".png", ".ico", ".svg", ".json"))
    return path in PAGES or single or (path.startswith(FOLDERS) and ".." not in path)
