"""The explorer's server: one page on this machine, stopped with Ctrl-C."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import secrets
import socket
import threading
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._validation import fail, nonnegative_integer
from .syntax_lock import one_tree_at_a_time

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NOTEBOOK = Path(__file__).with_name("explorer.py")
# Seconds after which a closed page is forgotten; a reload begins anew from its link.
FORGOTTEN = 10
LOOPBACK = "127.0.0.1"
USUAL_PORT = 80
# Characters of a token, which is all that stands between a network and this machine.
SHORTEST_TOKEN = 16
# A message of a page over its websocket is a few words; values and uploads come as requests.
LARGEST_MESSAGE = 2**16
# marimo tells the page, for editors, where the notebook lies. Names stay, the folders before them go.
_PATHS = re.compile(
    rb'(?:(?<="filename": ")|(?<="cwd": ")|(?<="documentUri": ")|(?<="rootUri": ")|(?<=notebookId = "))'
    rb'(?:[^"\\]|\\.)*(?:/|%2F)|(?<=<marimo-filename hidden>)[^<]*/'
)
_MISSING = "the explorer needs marimo, uvicorn and threadpoolctl: pip install 'thermoformer[app]'"


@dataclass(frozen=True)
class Place:
    """Where the explorer listens.

    Fields:
        host: the address; 127.0.0.1 unless told otherwise.
        port: a number, or 0 for any free one.
        token: what a browser must show, once; empty for none, which only an address of this machine may have.
    """

    host: str = LOOPBACK
    port: int = 0
    token: str = ""

    def __post_init__(self) -> None:
        """Refuses what is not an address, and an address beyond this machine without a token."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            raise fail("host", repr(self.host), "an address such as 127.0.0.1 or 0.0.0.0") from None
        if not 0 <= self.port < 2**16:
            raise fail("port", self.port, "0 (any free one) to 65535")
        if self.token and (len(self.token) < SHORTEST_TOKEN or not self.token.isascii() or not self.token.isalnum()):
            raise fail("token", f"{len(self.token)} characters", f"{SHORTEST_TOKEN} or more letters and digits")
        if not self.local and not self.token:
            raise fail("token", "none", f"one, where the explorer listens beyond this machine ({self.host})")

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    def link(self, port: int) -> str:
        """What to open in a browser.

        Example:
            >>> Place().link(8000)
            'http://127.0.0.1:8000/'
        """
        # A browser cannot open the address that stands for all of them.
        shown = LOOPBACK if self.host == "0.0.0.0" else _bracketed(self.host)
        return f"http://{shown}:{port}/" + (f"?access_token={self.token}" if self.token else "")

    def hosts(self, port: int) -> list[str] | None:
        """What the header Host may say; None for anything, as the names of this machine in a network are not known."""
        if not self.local:
            return None
        names = list(dict.fromkeys((LOOPBACK, "localhost", "[::1]", _bracketed(self.host))))
        # Of the usual port of the web browsers say nothing.
        return [f"{name}:{port}" for name in names] + (names if port == USUAL_PORT else [])


def place_for(host: str, port: int, token: str | None = None) -> Place:
    """A place, with a random token if it needs one and none was given.

    Example:
        >>> place_for("127.0.0.1", 8000).token, len(place_for("0.0.0.0", 8000).token)
        ('', 32)
    """
    if not isinstance(host, str):  # a whole number is an address to Python: 3 would be 0.0.0.3
        raise fail("host", repr(host), "an address such as 127.0.0.1 or 0.0.0.0")
    nonnegative_integer("port", port)
    beyond = not Place(host, port, token or secrets.token_hex(16)).local
    return Place(host, port, token or (secrets.token_hex(16) if beyond else ""))


def explore(place: Place | None = None, *, browser: bool = True, started: Callable[[str], Any] | None = None) -> None:
    """Serves the explorer until Ctrl-C.

    Arguments:
        place: where it listens; default: a free port of this machine.
        browser: whether to open the page.
        started: called with the link once the page can be opened.

    Example:
        >>> explore(Place(host="somewhere"))
        Traceback (most recent call last):
        thermoformer.InputError: host: got 'somewhere'; expected an address such as 127.0.0.1 or 0.0.0.0
    """
    place = place or Place()
    try:
        import uvicorn
        from threadpoolctl import threadpool_limits

        from .connections import Connection
        from .guard import Guard

        pages = _application()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_MISSING) from error
    listening = _listening(place)
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        Guard(pages, place.hosts(port), place.token),
        http=Connection,
        ws_max_size=LARGEST_MESSAGE,
        # Malformed requests are answered, not reported.
        log_level="error",
        # Open pages would delay a longer shutdown forever.
        timeout_graceful_shutdown=1,
        server_header=False,
        proxy_headers=False,
    )
    # asyncio warns of every write to a page that has been closed.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    server = uvicorn.Server(config)
    threading.Thread(target=_when_up, args=(server, place.link(port), browser, started), daemon=True).start()
    try:
        # Matrices are small here, and browser and readers want cores too: threads that wait for one another in each of
        # many small products would make every answer take twice as long.
        with one_tree_at_a_time(), threadpool_limits(limits=1, user_api="blas"):
            server.run(sockets=[listening])
    except KeyboardInterrupt:  # how one leaves
        pass
    finally:
        listening.close()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listening(place: Place) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        return socket.create_server((place.host, place.port), family=family)
    except OSError as error:
        got = f"{place.port} of {place.host} ({os.strerror(error.errno or 0)})"
        raise fail("port", got, "one that is free and allowed") from error


def _application() -> ASGIApp:
    import marimo

    # Here and now: two pages that opened at once would import them in two threads, each a part of them.
    from . import dynamics_page, learning_page  # noqa: F401

    # The code of the page stays here: the page itself shows the lines that matter. The guard asks for the token.
    pages = marimo.create_asgi_app(quiet=True, include_code=False, session_ttl=FORGOTTEN)
    built: Any = pages.with_app(path="/", root=str(NOTEBOOK)).build()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await built(scope, receive, _without_paths(send))
            return
        # marimo leaves the kernels of its pages running; their threads would keep this process alive.
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for route in built.routes:
            await route.app.state.session_manager.shutdown()
        await send({"type": "lifespan.shutdown.complete"})

    return application


def _without_paths(send: Send) -> Send:
    """Removes folders of this machine from HTML answers."""
    from starlette.datastructures import Headers, MutableHeaders

    start: Message | None = None
    page = b""

    async def sent(message: Message) -> None:
        nonlocal start, page
        begins = message["type"] == "http.response.start"
        if begins and Headers(scope=message).get("content-type", "").startswith("text/html"):
            start = message
        elif start is None:
            await send(message)
        else:
            page += message.get("body", b"")
            if not message.get("more_body"):
                page = _PATHS.sub(b"", page)
                MutableHeaders(scope=start)["content-length"] = str(len(page))
                await send(start)
                await send({"type": "http.response.body", "body": page})

    return sent


def _when_up(server: Any, link: str, browser: bool, started: Callable[[str], Any] | None) -> None:
    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.05)
    if started is not None:
        started(link)
    if browser:
        webbrowser.open(link)
    _warm()


def _warm() -> None:
    """Compiles what both views open with, while the reader still reads."""
    from . import dynamics_steps, learning_view

    learning_view.picture_of(learning_view.LearningChoice())
    dynamics_steps.warm()
